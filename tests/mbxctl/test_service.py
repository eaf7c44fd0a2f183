"""`mbxctl service` with a scripted systemctl on PATH; the real one is never called."""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mbxctl.conftest import Place

FAKE = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
*is-system-running*) echo {state}; test {state} = running ;;
*is-active*) echo active ;;
*"is-failed mbxd.service"*) echo {service}; test {service} = failed ;;
*is-enabled*) echo enabled ;;
*enable*) test {enable} = ok || {{ echo 'Created symlink a -> b.' >&2; echo 'Failed to enable unit' >&2; exit 1; }} ;;
*" start "*) cd "$XDG_RUNTIME_DIR/mbx" && mv listening mbxd.sock; exit {start} ;;
*" stop "*) rm -f "$XDG_RUNTIME_DIR/mbx/mbxd.sock" ;;
esac
"""


def fake_systemctl(
    place: Place, *, state: str = "running", enable: str = "ok", start: int = 0, service: str = "active"
) -> str:
    folder = place.root / "bin"
    folder.mkdir(exist_ok=True)
    script = folder / "systemctl"
    log = shlex.quote(str(place.root / "calls"))
    script.write_text(FAKE.format(log=log, state=state, enable=enable, start=start, service=service))
    script.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def calls(place: Place) -> list[str]:
    log = place.root / "calls"
    words = [line.replace("--user --no-pager --no-ask-password ", "") for line in log.read_text().splitlines()]
    return [word for word in words if not word.startswith("is-")]


def units(place: Place) -> Path:
    return place.home / ".config" / "systemd" / "user"


def test_dry_run_shows_all_and_does_nothing(place: Place) -> None:
    result = place.run("service", "install", "--dry-run", PATH="/usr/bin:/bin")
    assert result.code == 0
    assert f"# write {units(place)}/mbxd.service" in result.out
    assert "# run systemctl --user enable --now mbxd.socket mbxd.service" in result.out
    starts = [line for line in result.out.splitlines() if line.startswith("ExecStart=")]
    assert len(starts) == 1
    assert starts[0].startswith(f"ExecStart={Path(sys.executable).parent}/")
    document = place.run("service", "install", "--dry-run", "--json").document
    assert set(document) == {"dry_run", "writes", "removes", "runs"}
    assert not units(place).exists()


def test_install_status_uninstall(place: Place) -> None:
    path = fake_systemctl(place)
    installed = place.run("service", "install", "--json", PATH=path)
    assert installed.document["installed"] == [f"{units(place)}/mbxd.socket", f"{units(place)}/mbxd.service"]
    assert calls(place) == ["daemon-reload", "enable --now mbxd.socket mbxd.service"]
    status = place.run("service", "status", "--json", PATH=path).document
    assert [unit["current"] for unit in status["units"]] == [True, True]
    (units(place) / "mbxd.service").write_text("[Service]\n")
    assert "differs from this version's" in place.run("service", "status", PATH=path).out
    removed = place.run("service", "uninstall", PATH=path)
    assert removed.code == 0
    assert calls(place)[2:] == ["disable --now mbxd.socket mbxd.service", "daemon-reload"]
    assert list(units(place).iterdir()) == []
    assert "nothing is installed" in place.run("service", "uninstall", PATH=path).err


@pytest.mark.parametrize("state", ["offline", "unknown"])
def test_without_a_user_manager_nothing_is_written(place: Place, state: str) -> None:
    result = place.run("service", "install", PATH=fake_systemctl(place, state=state))
    assert result.code == 1
    assert "NO_USER_MANAGER" in result.err
    assert "mbxctl start" in result.err
    assert not units(place).exists()


def test_systemctl_words_are_passed_on(place: Place) -> None:
    result = place.run("service", "install", PATH=fake_systemctl(place, enable="no"))
    assert result.code == 1
    assert "failed: Failed to enable unit [SYSTEMCTL_FAILED]" in result.err
    assert "journalctl --user -u mbxd.service" in result.err


def test_install_takes_the_mark_of_a_stop_back(place: Place) -> None:
    path = fake_systemctl(place)
    default = {"PATH": path, "XDG_RUNTIME_DIR": str(place.root), "MBX_STATE_DIR": "", "MBX_SOCKET": ""}
    mark = place.home / ".local/state/mbx/stopped"
    assert place.run("stop", cwd=place.project, **default).code == 0
    assert mark.exists()
    assert place.run("service", "install", PATH=path).code == 0  # of another place than the units'
    assert mark.exists()
    assert place.run("service", "install", cwd=place.project, **default).code == 0
    assert not mark.exists()


@pytest.fixture
def failing_service(place: Place) -> Iterator[dict[str, str]]:
    """The environment of a user whose service does not start: systemd listens, and nobody answers there."""
    runtime = place.root / "run"
    (runtime / "mbx").mkdir(parents=True, mode=0o700)
    units(place).mkdir(parents=True)
    (units(place) / "mbxd.socket").write_text("[Socket]\n")
    env = {
        "PATH": fake_systemctl(place, start=1),
        "XDG_RUNTIME_DIR": str(runtime),
        "MBX_STATE_DIR": "",
        "MBX_SOCKET": "",
    }
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(runtime / "mbx/listening"))
        listening.listen()
        yield env
    place.run("stop", cwd=place.project, **env)


def test_a_service_that_does_not_start_is_no_daemon(place: Place, failing_service: dict[str, str]) -> None:
    registry = place.home / ".local/state/mbx/registry"
    registry.mkdir(parents=True, mode=0o700)
    registry.parent.chmod(0o700)
    (registry / "00000000000000000001.wal").write_bytes(b"this is no log" * 100)
    result = place.run("start", cwd=place.project, **failing_service)
    assert result.code == 69, result
    assert "the registry log is damaged" in result.err
    assert "start mbxd.socket mbxd.service" in calls(place)[-2]
    assert calls(place)[-1] == "stop mbxd.socket mbxd.service"


def test_a_daemon_that_runs_without_its_service_says_so(place: Place, failing_service: dict[str, str]) -> None:
    result = place.run("start", cwd=place.project, **failing_service)
    assert result.code == 0, result
    assert "systemd could not start mbxd.service" in result.err
    assert place.run("status", "--json", cwd=place.project, **failing_service).document["socket_activated"] is False


@pytest.mark.parametrize("failed", [True, False])
def test_the_doctor_tells_of_a_unit_that_systemd_gave_up(place: Place, *, failed: bool) -> None:
    assert place.run("service", "install", PATH=fake_systemctl(place)).code == 0
    path = fake_systemctl(place, service="failed" if failed else "active")
    found = [one for one in place.run("doctor", "--json", PATH=path).document["checks"] if one["check"] == "service"]
    assert [one["level"] for one in found] == (["ok", "warn"] if failed else ["ok"])
    if failed:
        assert "given up on mbxd.service" in found[1]["message"]
        assert found[1]["fix"] == "mbxctl start"


def test_a_percent_sign_in_the_path_is_no_specifier() -> None:
    from mbxctl import service

    assert service._quoted(Path("/opt/50%/my mbx/$x")) == '"/opt/50%%/my mbx/$$x"'
