"""Another user of the machine: programs run under a uid that nothing else has."""

from __future__ import annotations

import functools
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
WHO: dict[str, Any] = {"user": UID, "group": UID, "extra_groups": [], "cwd": "/"}
"""Arguments of subprocess that make the child the stranger."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user in a child")

PATH = os.pathsep.join([SOURCES, *(path for path in sys.path if path.endswith("site-packages"))])
"""Where the stranger finds this checkout, and what it needs."""


@functools.cache
def interpreter() -> str:
    """A Python that the stranger may run: this one may lie in the home of root. Skips when there is none."""
    same = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    for program in (sys.executable, same):
        try:
            subprocess.run([program, "-c", ""], **WHO, check=True, timeout=PATIENCE, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return program
    pytest.skip("no Python that another user may run")


def environment(home: Path | None = None, **more: str) -> dict[str, str]:
    """The stranger's."""
    return {"PATH": os.defpath, "PYTHONPATH": PATH, **({} if home is None else {"HOME": str(home)}), **more}


def python(code: str, *arguments: str) -> Any:
    """Run this as the stranger and return what it printed, as JSON."""
    done = run("-c", code, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The interpreter with these arguments, as the stranger."""
    return subprocess.run(
        [interpreter(), *arguments],
        env=env or environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        **WHO,
    )


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
