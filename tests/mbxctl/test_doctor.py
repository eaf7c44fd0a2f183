"""doctor's findings, each provoked on its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mbxctl import checks_place, lockfile
from tests.mbxctl.conftest import Place
from tests.mbxctl.stub import TableDaemon
from tests.mbxctl.test_lifecycle import STATUS, write_lock

Serve = Callable[..., TableDaemon]


def findings(place: Place) -> dict[str, tuple[str, str]]:
    document = place.run("doctor", "--json").document
    return {entry["check"]: (entry["level"], entry["message"]) for entry in document["checks"]}


def test_a_fresh_machine_is_well(place: Place) -> None:
    result = place.run("doctor")
    assert result.code == 0
    assert "not running; an agent's first call starts it" in result.out
    assert "0 fail" not in result.err
    assert place.run("doctor", "--json").document["ok"] is True


def test_a_running_daemon(place: Place, serve: Serve) -> None:
    stub = serve(status={**STATUS, "state_dir": str(place.state)})
    found = findings(place)
    assert found["daemon"][0] == "ok"
    assert found["version"] == ("warn", "running 0.0.9, installed 0.1.0")
    assert found["degraded"] == ("warn", "the disk is nearly full")
    changed: dict[str, Any] = {**STATUS, "config_error": "naming must be strict or free", "liveness": "sweep"}
    stub.answers["status"] = changed
    found = findings(place)
    assert found["config"][0] == "fail"
    assert found["liveness"][0] == "warn"
    assert found["state"][0] == "warn"
    assert place.run("doctor").code == 1


@pytest.mark.parametrize("stopped", [True, False])
def test_a_daemon_that_does_not_answer(place: Place, *, stopped: bool) -> None:
    """What to do is never to run this command again."""
    with silent(place), subprocess.Popen(["sleep", "60"]) as process:
        write_lock(place, process.pid, lockfile.start_ticks(process.pid))
        if stopped:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        result = place.run("doctor", "--json")
        process.kill()
    (finding,) = (entry for entry in result.document["checks"] if entry["check"] == "daemon")
    assert (result.code, finding["level"]) == (1, "fail")
    assert "did not answer status in time" in finding["message"]
    assert "effect" not in finding["message"]
    log = f"see {place.state}/mbxd.log; then `mbxctl restart`"
    assert finding["fix"] == (f"kill -CONT {process.pid}" if stopped else log)


@contextlib.contextmanager
def silent(place: Place) -> Iterator[None]:
    place.state.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.socket))
        listener.listen(4)
        yield


@pytest.mark.parametrize(
    ("running", "fix"),
    [
        ("0.0.9", "mbxctl restart"),
        ("9.0.0", "use the newer mbxctl (/usr/bin/python3 -m mbxctl), or update this one"),
    ],
)
def test_the_older_of_two_versions_is_never_started(place: Place, serve: Serve, running: str, fix: str) -> None:
    serve(status={**STATUS, "version": running})
    document = place.run("doctor", "--json").document
    assert [entry["fix"] for entry in document["checks"] if entry["check"] == "version"] == [fix]
    assert f"would go {'back ' if running == '9.0.0' else ''}from {running} to 0.1.0" in place.run("status").out


def test_a_configuration_that_is_not_there(place: Place, serve: Serve) -> None:
    path = place.root / "config.toml"
    serve(status={**STATUS, "config_path": str(path)})
    assert findings(place)["config"] == ("ok", f"{path} is not there: defaults apply")
    path.write_text('naming = "open"\n')
    assert findings(place)["config"] == ("ok", str(path))


def test_an_open_state_directory(place: Place) -> None:
    place.state.mkdir(mode=0o755)
    result = place.run("doctor")
    assert result.code == 1
    assert f"chmod 700 {place.state}" in result.out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_paths_of_another_owner(place: Place) -> None:
    place.state.mkdir(mode=0o700)
    (place.state / "registry").mkdir()
    os.chown(place.state / "registry", 12345, 12345)
    result = place.run("doctor")
    assert result.code == 1
    assert f"not yours: {place.state}/registry" in result.out
    assert f"sudo chown -R 0:0 {place.state}" in result.out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_home_of_another_user(place: Place) -> None:
    os.chown(place.home, 12345, 12345)
    assert findings(place)["home"][0] == "fail"


def test_something_else_at_the_sockets_place(place: Place) -> None:
    place.socket.write_text("")
    assert findings(place)["socket"] == ("fail", f"{place.socket} is no socket")


def test_a_stale_socket_is_no_failure(place: Place) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(place.socket))
    place.socket.chmod(0o600)
    place.root.chmod(0o700)
    assert findings(place)["socket"][0] == "ok"
    assert findings(place)["daemon"][0] == "note"


def test_a_socket_path_too_long(place: Place) -> None:
    result = place.run("doctor", MBX_SOCKET=f"/tmp/{'x' * 200}/s")
    assert result.code == 1
    assert "MBX_SOCKET" in result.out


def test_a_broken_configuration_without_a_daemon(place: Place) -> None:
    folder = place.home / ".config" / "mbx"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("naming = \n")
    assert findings(place)["config"][0] == "fail"


def test_leftovers_are_named(place: Place) -> None:
    place.state.mkdir(mode=0o700)
    left = place.state / "stopped.4711"
    left.write_text("")
    os.utime(left, (1, 1))
    (place.state / "daemon.json").write_text('{"socket": "/x", "pid": 4194305, "ticks": 3, "version": "0"}')
    text = place.run("doctor").out
    assert f"{left} was left by an interrupted write" in text
    assert "daemon.json names pid 4194305, which has gone" in text


def test_platform_names_the_evidence() -> None:
    finding = checks_place.platform()
    assert finding.level in {"ok", "warn"}
    assert "deaths are seen" in finding.message


def test_low_space_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_place, "_LOW_SPACE", 1 << 62)
    tmp_path.chmod(0o700)
    assert [finding.check for finding in checks_place.state_dir(str(tmp_path))] == ["space"]
