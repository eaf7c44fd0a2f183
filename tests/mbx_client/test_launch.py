"""Starting a daemon: what it inherits, who starts it, what a failure leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mbx_client import launch, paths
from tests.support import fake_mbxd
from tests.support.shim_process import SOURCES, ShimProcess, call, environment, initialize

# Starting forks, which wants a process with one thread: every start runs in a process of its own.
START = """
import sys
from mbx_client import launch, paths
try:
    launch.start(paths.resolve(), 20)
except launch.StartFailed as bad:
    print(bad)
"""


@pytest.fixture
def env(state: Path) -> Iterator[dict[str, str]]:
    """An environment whose `mbxd` is the fake one; it is stopped afterwards."""
    (state / "stopped").unlink()
    fake = fake_mbxd.install(state.parent)
    yield environment(state, PYTHONPATH=f"{fake}{os.pathsep}{SOURCES}", SECRET="1", TZ="Asia/Tokyo")
    if (state / "run" / "mbxd.sock").exists():
        fake_mbxd.stop(state)


def start(env: dict[str, str], cwd: Path | None = None) -> str:
    command = [sys.executable, "-c", START]
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, timeout=30, check=True, text=True)
    assert done.stderr == ""
    return done.stdout.strip()


def where(state: Path) -> paths.Places:
    return paths.resolve({"MBX_STATE_DIR": str(state)})


def test_the_daemon_takes_nothing_from_its_starter(env: dict[str, str], state: Path, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    began = time.monotonic()
    command = [sys.executable, "-c", START]
    # capture_output reads to the end of both pipes: it would wait for a daemon that holds them.
    subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, timeout=30, check=True, close_fds=False)
    assert time.monotonic() - began < 10
    os.close(write_end)
    assert os.read(read_end, 1) == b""
    os.close(read_end)
    note = json.loads((state / "note").read_text())
    assert note["cwd"] == "/"
    assert note["sid"] not in {os.getsid(0), note["pid"]}
    assert note["pgid"] == note["sid"]
    assert "SECRET" not in note["env"]
    assert "TZ" not in note["env"]
    assert note["env"]["HOME"] == env["HOME"]
    assert note["env"]["LANG"] == "C.UTF-8"
    assert note["fds"].pop("0") == "/dev/null"
    assert note["fds"].pop("1") == note["fds"].pop("2") == str(state / "mbxd.log")
    assert list(note["fds"]) == [note["env"]["MBXD_READY_FD"]]
    assert (state.stat().st_mode & 0o777, (state / "mbxd.log").stat().st_mode & 0o777) == (0o700, 0o600)


def test_the_starters_own_installation_is_started(env: dict[str, str], state: Path, tmp_path: Path) -> None:
    """Another `mbxd` and another `python` come first on the path, and the working directory has a package mbxd."""
    for name in ("mbxd", "python", "python3"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 9\n")
        (tmp_path / name).chmod(0o700)
    (tmp_path / "here" / "mbxd").mkdir(parents=True)
    (tmp_path / "here" / "mbxd" / "__main__.py").write_text("raise SystemExit(9)\n")
    assert start({**env, "PATH": f"{tmp_path}:{env['PATH']}"}, cwd=tmp_path / "here") == ""
    note = json.loads((state / "note").read_text())
    assert os.readlink(f"/proc/{note['pid']}/exe") == os.path.realpath(sys.executable)
    command = Path(f"/proc/{note['pid']}/cmdline").read_bytes().split(b"\0")
    assert command[:4] == [os.fsencode(part) for part in (sys.executable, "-P", "-m", "mbxd")]


def test_a_lost_race_with_another_start_is_no_failure(env: dict[str, str], state: Path) -> None:
    (state / "behaviour").write_text("beaten once")
    assert start(env) == ""
    assert len((state / "starts").read_text().split()) == 2
    assert not (state / "start.failed").exists()


def test_many_starters_start_one(env: dict[str, str], state: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: start(env), range(8))) == [""] * 8
    assert len((state / "starts").read_text().split()) == 1


@pytest.mark.parametrize(("behaviour", "words"), [("fail", "the log is damaged"), ("crash", "mbxd.log")])
def test_a_failed_start_is_told_and_not_repeated_for_a_while(
    env: dict[str, str], state: Path, behaviour: str, words: str
) -> None:
    (state / "behaviour").write_text(behaviour)
    assert words in start(env)
    (state / "behaviour").unlink()
    assert words in start(env)
    assert len((state / "starts").read_text().split()) == 1
    assert words in str(launch.recent_failure(where(state)))
    stamp = state / "start.failed"
    os.utime(stamp, (0, time.time() - launch.RETRY_AFTER))
    assert launch.recent_failure(where(state)) is None
    os.utime(stamp, (0, time.time() + 3600))
    assert launch.recent_failure(where(state)) is None
    assert start(env) == ""
    assert not stamp.exists()


def test_a_long_log_is_set_aside(env: dict[str, str], state: Path) -> None:
    (state / "mbxd.log").write_bytes(b"x" * (launch.LOG_MAX + 1))
    assert start(env) == ""
    assert (state / "mbxd.log.1").stat().st_size == launch.LOG_MAX + 1
    assert (state / "mbxd.log").stat().st_size == 0


def test_the_mark_of_stop_holds_until_a_reboot(state: Path) -> None:
    launch.clear_marks(where(state))
    assert not launch.is_stopped(where(state))
    launch.mark_stopped(where(state))
    assert launch.is_stopped(where(state))
    (state / "stopped").write_text("another-boot\n")
    assert not launch.is_stopped(where(state))
    launch.clear_marks(where(state))
    launch.clear_marks(where(state))


def test_only_a_call_of_the_shim_starts_a_daemon(env: dict[str, str], state: Path) -> None:
    with ShimProcess(env) as shim:
        shim.ask(initialize())
        shim.ask({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert list(state.iterdir()) == []
        shim.send(call())
        shim.close_input()
        shim.rest()
    assert len((state / "starts").read_text().split()) == 1


def test_the_shim_obeys_the_mark(env: dict[str, str], state: Path) -> None:
    launch.mark_stopped(where(state))
    with ShimProcess(env) as shim:
        shim.ask(initialize())
        error = shim.ask(call())["result"]["structuredContent"]["error"]
    assert "mbxctl stop" in error["message"]
    assert not (state / "starts").exists()


def test_the_shim_tells_why_a_daemon_does_not_start(env: dict[str, str], state: Path) -> None:
    (state / "behaviour").write_text("fail")
    with ShimProcess(env) as shim:
        shim.ask(initialize())
        error = shim.ask(call())["result"]["structuredContent"]["error"]
        assert "the log is damaged" in error["message"]
        shim.ask(call())
    assert len((state / "starts").read_text().split()) == 1


def test_environment_keeps_only_checkouts_of_ours_on_the_path(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    (ours / "mbx_wire").mkdir(parents=True)
    (ours / "mbx_wire" / "__init__.py").touch()
    kept = launch.daemon_environment({"PYTHONPATH": f"/tmp:relative:{ours}", "HOME": "/h", "EDITOR": "vi"}, 9)
    assert kept["PYTHONPATH"] == str(ours)
    assert kept["MBXD_READY_FD"] == "9"
    assert set(kept) == {"PYTHONPATH", "HOME", "PATH", "LANG", "MBXD_READY_FD"}
