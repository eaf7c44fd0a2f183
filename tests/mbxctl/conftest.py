from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.mbxctl.stub import Answer, TableDaemon

ROOT = Path(__file__).parents[2]


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document; anything around it would not parse."""
        value: dict[str, Any] = json.loads(self.out)
        return value


class Place:
    """A user's surroundings in a short temporary directory: home, project, state and socket, none of them used yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.project = root / "shop"
        self.state = root / "state"
        self.socket = root / "s"
        self.home.mkdir()
        self.project.mkdir()
        (self.project / ".mbx.toml").write_text('project = "shop"\n')

    @property
    def env(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "PYTHONPATH": f"{ROOT / 'client'}:{ROOT}",
            "MBX_STATE_DIR": str(self.state),
            "MBX_SOCKET": str(self.socket),
        }

    def run(self, *args: str, cwd: Path | None = None, **env: str) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "mbxctl", *args],
            capture_output=True,
            text=True,
            env={**self.env, **env},
            cwd=cwd or self.project,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="mbxt-") as root:
        yield Place(Path(root))


@pytest.fixture
def serve(place: Place) -> Iterator[Callable[..., TableDaemon]]:
    """Start the stub daemon with answers by method (dots written as __)."""
    with ExitStack() as started:

        def start(**answers: Answer) -> TableDaemon:
            table = {method.replace("__", "."): answer for method, answer in answers.items()}
            return started.enter_context(TableDaemon(place.state, place.socket, table))

        yield start
