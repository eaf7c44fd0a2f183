"""Another user of the machine: code run in a child that gave root up for a uid that nothing else has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import PATIENCE, SOURCES

UID = 61_234
"""No account, no group, no process."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user in a child")


def python(code: str, *arguments: str, env: dict[str, str] | None = None) -> Any:
    """Run this as the stranger and return what it printed, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={"PATH": os.defpath, "PYTHONPATH": SOURCES, **(env or {})},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        user=UID,
        group=UID,
        extra_groups=[],
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


TRY = """
import json, os, socket, sys
def attempt(act):
    try:
        act()
    except OSError as error:
        return error.errno
    return 0
"""
"""The stranger's beginning: `attempt` returns the errno of a failure, 0 when it worked."""


def open_up(root: Path) -> None:
    """Let everybody into a temporary root, and no further."""
    root.chmod(0o755)


def can_run() -> None:
    """Skip when the stranger can't run this interpreter at all."""
    try:
        python("print(1)")
    except (AssertionError, OSError) as error:
        pytest.skip(f"another user can't run Python here: {error}")
