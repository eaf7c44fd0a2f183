"""status, start, stop and restart against a scripted daemon, and the lock file's verified SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mbx_client import paths
from mbxctl import lockfile
from tests.mbxctl.conftest import Place
from tests.mbxctl.stub import TableDaemon
from tests.support.stub_daemon import NOW

Serve = Callable[..., TableDaemon]

STATUS: dict[str, Any] = {
    "version": "0.0.9",
    "pid": 4711,
    "started_at": NOW,
    "uptime_s": 61.0,
    "protocol_min": 1,
    "protocol_max": 1,
    "socket": "/s",
    "state_dir": "/state",
    "executable": "/usr/bin/python3",
    "socket_activated": False,
    "identities": 3,
    "held": 1,
    "sessions": 1,
    "connections": 2,
    "journal_seq": 9,
    "durable_seq": 9,
    "liveness": "pidfd",
    "config_path": "/c",
    "config_error": None,
    "degraded": ["the disk is nearly full"],
    "host_label": "box",
}


def test_status(place: Place, serve: Serve) -> None:
    serve(status=STATUS)
    plain = place.run("status")
    assert plain.code == 0
    assert "running:    mbxd 0.0.9, pid 4711" in plain.out
    assert "`mbxctl restart` would go from 0.0.9 to" in plain.out
    assert "1 name stays held" in plain.out
    assert "warning: the disk is nearly full" in plain.err
    document = place.run("status", "--json").document
    assert document["pid"] == 4711
    assert document["restart"]["needed"] is True
    assert document["running"] is True


def test_status_of_an_older_daemon_with_fewer_figures(place: Place, serve: Serve) -> None:
    serve(status={"version": "0.0.1", "pid": 1})
    assert "running:    mbxd 0.0.1, pid 1" in place.run("status").out


def test_start_with_a_daemon_there_says_so(place: Place, serve: Serve) -> None:
    serve(status=STATUS)
    result = place.run("start")
    assert (result.code, result.out) == (0, "runs already: mbxd 0.0.9, pid 4711\n")
    assert place.run("start", "--json").document["started"] is False


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the daemon: it ends on SIGTERM."""
    process = subprocess.Popen(["sleep", "120"])
    yield process
    process.kill()
    process.wait(10)


def write_lock(place: Place, pid: int, ticks: int) -> None:
    place.state.mkdir(mode=0o700, exist_ok=True)
    (place.state / "mbxd.lock").write_text(f"{pid} {ticks}\n")


def test_stop_terminates_what_the_lock_names(place: Place, victim: subprocess.Popen[bytes]) -> None:
    write_lock(place, victim.pid, lockfile.start_ticks(victim.pid))
    waiter = subprocess.Popen([sys.executable, "-m", "mbxctl", "stop", "--json"], env=place.env, stdout=subprocess.PIPE)
    # The victim is our child: it has to be reaped for its process to be gone.
    assert victim.wait(20) == -signal.SIGTERM
    out, _ = waiter.communicate(timeout=20)
    assert waiter.returncode == 0
    assert f'"pid": {victim.pid}'.encode() in out
    assert (place.state / "stopped").exists()


@pytest.mark.parametrize("text", ["", "x y", "{pid}", "{pid} 12", "1 1", "-5 3", "{pid} 0"])
def test_stop_never_signals_anything_else(place: Place, victim: subprocess.Popen[bytes], text: str) -> None:
    place.state.mkdir(mode=0o700)
    (place.state / "mbxd.lock").write_text(text.format(pid=victim.pid))
    result = place.run("stop", "--json")
    assert (result.code, result.document) == (0, {"stopped": False, "pid": None})
    assert victim.poll() is None


SHORT = "import sys; from mbxctl import lifecycle, main; lifecycle._STOP_S = 0.1; sys.exit(main.main(['stop']))"


def test_what_will_not_end_is_told_with_the_log_and_the_signal(place: Place, victim: subprocess.Popen[bytes]) -> None:
    write_lock(place, victim.pid, lockfile.start_ticks(victim.pid))
    victim.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, victim.pid, os.WSTOPPED)
    command = [sys.executable, "-c", SHORT]
    done = subprocess.run(command, env=place.env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 5
    assert f"Its log is {place.state}/mbxd.log" in done.stderr
    assert f"kill -CONT {victim.pid}" in done.stderr
    victim.send_signal(signal.SIGCONT)
    assert victim.wait(10) == -signal.SIGTERM


def test_a_zombie_holds_nothing(place: Place) -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert lockfile.start_ticks(process.pid) == 0
    process.wait()


def test_after_a_stop_the_mark_is_told(place: Place) -> None:
    assert place.run("stop").code == 0
    result = place.run("list")
    assert result.code == 69
    assert "was stopped with `mbxctl stop`" in result.err
    assert place.run("claim", "a-b").code == 69
    assert place.run("status", "--json").document["stopped"] is True
    assert "stopped with `mbxctl stop`" in place.run("doctor").out


def test_lock_file_is_read_as_the_daemon_writes_it(place: Place) -> None:
    write_lock(place, os.getpid(), lockfile.start_ticks(os.getpid()))
    where = paths.Places(str(place.state), str(place.socket), "/none")
    holder = lockfile.holder(where)
    assert holder is not None
    assert holder.pid == os.getpid()
    assert not holder.wait_gone(0)
    holder.close()


def test_missing_state_is_left_missing_by_reading(tmp_path: Path) -> None:
    where = paths.Places(str(tmp_path / "none"), str(tmp_path / "s"), "/none")
    assert lockfile.holder(where) is None
    assert not (tmp_path / "none").exists()
