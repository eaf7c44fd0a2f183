"""Profiles of hypothesis for every test, and the ground of the whole run: a temporary home.

`ci` draws the same examples each time and prints how to repeat a failure. No test ever sees the home, the state
or the configuration of whoever runs it: a place that somebody forgot to name leads below a temporary root, and
the run fails when something was made there.
"""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

FORGOTTEN = ("MBX_", "CLAUDE_", "COPILOT_", "GIT_")
"""Beginnings of variables that would lead tests to a real daemon, session or repository."""


@pytest.fixture(scope="session", autouse=True)
def nowhere() -> Iterator[Path]:
    """The home of a test that names none. Nothing of ours may appear in it, nor in the real one."""
    root = Path(tempfile.mkdtemp(prefix="mbx-nowhere-"))
    real = [Path(pwd.getpwuid(os.getuid()).pw_dir) / below for below in (".local/state/mbx", ".config/mbx")]
    before = [path.exists() for path in real]
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(FORGOTTEN):
                patch.delenv(name)
        patch.setenv("HOME", str(root))
        for name, below in (
            ("MBX_STATE_DIR", "state"),
            ("XDG_RUNTIME_DIR", "run"),
            ("XDG_CONFIG_HOME", "config"),
            ("XDG_STATE_HOME", "xdg-state"),
            ("XDG_DATA_HOME", "data"),
        ):
            patch.setenv(name, str(root / below))
        yield root
    made = sorted(path.name for path in root.iterdir())
    shutil.rmtree(root)
    assert not set(made) & {"state", "run", "config", ".local", ".config"}, f"a test forgot its own place: {made}"
    assert [path.exists() for path in real] == before, f"a test touched the real home: {real}"
