"""Holders for a measurement: the processes of `spawner.py`.

Owns their start and their end.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import client
from bench.fixture import Bench, Daemon, directory


@dataclass(slots=True)
class Holders:
    """held: pid by the name of the identity; bare: processes that hold nothing; parent: of them all."""

    held: dict[str, int]
    bare: list[int]
    parent: int


@contextlib.contextmanager
def holders(
    bench: Bench,
    daemon: Daemon,
    count: int,
    *,
    project: str = "bench",
    prefix: str = "held",
    bare: int = 0,
    own: bool = True,
) -> Iterator[Holders]:
    """`count` processes that hold one identity each. own: each is its own host; else they share their parent."""
    with directory(bench) as folder:
        script = Path(__file__).with_name("spawner.py")
        if own:
            link = Path(folder) / "tmux.py"
            link.symlink_to(script)
            script = link
        message = json.loads(client.hello(project))
        message["params"]["client"]["instance"] = "INSTANCE"
        arguments = [daemon.socket, json.dumps(message), prefix, str(count), str(bare)]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            found = json.loads(process.stdout.readline())
            yield Holders(found["held"], found["bare"], process.pid)
        finally:
            process.stdin.close()
            process.wait()
            process.stdout.close()
