"""Random sequences of everything, for a few seconds by default and for ten minutes when asked: see tests/torture."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.daemon import ROOT
from tests.torture.daemons import make_builds
from tests.torture.running import part, run

SHORT = 40
LONG = 2000


@pytest.fixture
def builds(tmp_path: Path) -> tuple[Path, Path]:
    return make_builds(ROOT, tmp_path)


def test_a_short_plan(builds: tuple[Path, Path]) -> None:
    outcome = run(1, part(1, SHORT), builds)
    assert not outcome.failure, f"{outcome.failure}\n{outcome.history}"
    assert len(outcome.steps) == SHORT


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(10))
def test_a_minute_of_a_plan(builds: tuple[Path, Path], seed: int) -> None:
    outcome = run(seed, part(seed, LONG), builds, time.monotonic() + 60)
    assert not outcome.failure, (
        f"python -m tests.torture --seed {seed} --steps {len(outcome.steps)}\n{outcome.failure}\n{outcome.history}"
    )


INJECTED = {
    "a claim displaces a live holder": (
        "core/view.py",
        "if identity.hold is not None and (stand",
        "if False and (stand",
    ),
    "an ack that is dropped": ("mail/apply.py", "SET acked_at = ?, note = ?", "SET acked_at = acked_at + ?, note = ?"),
    "a repeat is done again": ("core/machine.py", "if known is not None:", "if False:"),
    "an epoch that does not rise": ("core/identity.py", "identity.epoch + 1, who", "identity.epoch or 1, who"),
    "a shim's death frees the name": ("core/liveness.py", "left = policy.detach_grace - since_s", "left = 0.0"),
}
"""Faults for the daemon, as (file, text, other text)."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", INJECTED)
def test_an_injected_fault_is_found(builds: tuple[Path, Path], fault: str) -> None:
    file, text, other = INJECTED[fault]
    for build in builds:
        path = build / "mbxd" / file
        assert path.read_text().count(text) == 1, "the fault has no place any more"
        path.write_text(path.read_text().replace(text, other))
    assert any(run(seed, part(seed, 200), builds).failure for seed in range(5))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, number: int) -> None:
    """Every process of it has a place below this directory in its environment or command line."""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-u", "-m", "tests.torture", "--seconds", "60", "--steps", "6"]
    harness = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE)
    try:
        assert harness.stdout is not None
        assert b": ok" in harness.stdout.readline()  # the first seed is done, the second one begins
        harness.send_signal(number)
        assert harness.wait(60) == 130
    finally:
        harness.kill()
        harness.wait()
        if harness.stdout is not None:
            harness.stdout.close()
    assert list(tmp_path.iterdir()) == []
