"""Daemons and shims of two versions: they work together, or say what to do about it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.builds import LATER, Build
from tests.support.daemon import SOURCES, DaemonProcess, Place
from tests.support.shim_process import ShimProcess, environment, initialize, request

REGISTER = {"action": "register", "name": "shop-backend", "role": "backend"}


def shim_of(place: Place, build: Build | None = None) -> ShimProcess:
    """A shim, introduced to its client; `build` None: of this version."""
    env = environment(place.state) if build is None else environment(place.state, PYTHONPATH=build.path)
    shim = ShimProcess(env)
    shim.ask(initialize(name="claude-code"))
    return shim


def use(shim: ShimProcess, tool: str, **arguments: Any) -> Any:
    """What the tool gives: its result, or its error object."""
    result = shim.ask(request("tools/call", {"name": tool, "arguments": arguments}))["result"]
    content = result["structuredContent"]
    assert json.loads(result["content"][0]["text"]) == content
    assert result["isError"] == ("error" in content)
    return content.get("error", content)


def works(shim: ShimProcess) -> None:
    """A session's usual day."""
    held = use(shim, "mbx_identity", **REGISTER)
    assert (held["created"], held["epoch"]) == (True, 1)
    sent = use(shim, "mbx_send", to=["shop-backend"], subject="s", body="to myself")
    assert use(shim, "mbx_read", ids=[sent["id"]])["messages"][0]["body"] == "to myself"
    assert use(shim, "mbx_whoami")["unread"] == 1
    assert use(shim, "mbx_ack", ids=[sent["id"]])["results"][0]["ok"] is True
    assert use(shim, "mbx_identity", action="list")["you"]["name"] == "shop-backend"


def told(error: Any, code: str, *words: str) -> None:
    assert error["code"] == code
    assert error["retryable"] is False
    for word in words:
        assert word in f"{error['message']} {error['hint']}", error


def stays(daemon: DaemonProcess) -> None:
    """Nobody ended or replaced it."""
    assert daemon.process.poll() is None
    assert daemon.person().call("ping")["pid"] == daemon.pid


def test_a_newer_shim_with_this_daemon(place: Place) -> None:
    daemon = place.start()
    newer = Build(place.root / "newer", "9.0.0", protocol=(1, 3))
    newer.say_more()
    with shim_of(place, newer) as shim:
        works(shim)
        skew = use(shim, "mbx_later")
        told(skew, "VERSION_SKEW", 'Unknown tool: "mbx_later"', "version 0.1.0", "9.0.0", "Run: mbxctl restart")
        told(use(shim, "mbx_sent", later=1), "PARAMETER_UNKNOWN", "`later`", "9.0.0", "Run: mbxctl restart")
        works_on = use(shim, "mbx_identity", action="list")
    assert works_on["you"]["name"] == "shop-backend"
    stays(daemon)


def test_an_older_shim_with_this_daemon(place: Place) -> None:
    """It says less of itself, and has a tool and a parameter that went away."""
    daemon = place.start()
    older = Build(place.root / "older", "0.0.9")
    older.say_more()
    older.edit("mbx_mcp/introduction.py", '"cwd": place["cwd"],', "")
    with shim_of(place, older) as shim:
        works(shim)
        told(use(shim, "mbx_later"), "VERSION_SKEW", "0.0.9", "restart your agent CLI")
        told(use(shim, "mbx_sent", later=1), "PARAMETER_UNKNOWN", "`later`", "restart your agent CLI")
    stays(daemon)


def test_a_shim_that_speaks_only_a_newer_protocol_is_told_the_command(place: Place) -> None:
    """Its next call is fine once somebody ran that command: the shim itself need not be restarted."""
    daemon = place.start()
    newer = Build(place.root / "newer", "9.0.0", protocol=(2, 3))
    with shim_of(place, newer) as shim:
        told(use(shim, "mbx_identity", **REGISTER), "VERSION_SKEW", "1 to 1", "2 to 3", "mbxctl restart")
        stays(daemon)
        assert daemon.stop() == 0
        place.start(PYTHONPATH=newer.path)
        works(shim)


@pytest.mark.parametrize("protocol", [(1, 1), (1, 3)])
def test_this_shim_with_a_newer_daemon(place: Place, protocol: tuple[int, int]) -> None:
    newer = Build(place.root / "newer", "9.0.0", protocol=protocol)
    newer.answer_more()
    daemon = place.start(PYTHONPATH=newer.path)
    assert daemon.person().call("status")["later"] == LATER
    with shim_of(place) as shim:
        works(shim)
    stays(daemon)


def test_a_session_keeps_its_name_over_upgrades_of_the_daemon(place: Place) -> None:
    newer = Build(place.root / "newer", "9.0.0", protocol=(1, 3))
    newer.answer_more()
    daemon = place.start()
    with shim_of(place) as shim:
        works(shim)
        for path in (newer.path, None):  # up, and down again
            assert daemon.stop() == 0
            daemon = place.start() if path is None else place.start(PYTHONPATH=path)
            you = use(shim, "mbx_identity", action="list")["you"]
            assert (you["name"], you["epoch"]) == ("shop-backend", 1)
            assert use(shim, "mbx_send", to=["shop-backend"], subject="s", body="b")["id"]


def test_a_daemon_that_speaks_only_a_newer_protocol_is_left_alone(place: Place) -> None:
    newer = Build(place.root / "newer", "9.0.0", protocol=(2, 3))
    daemon = place.start(PYTHONPATH=newer.path)
    with shim_of(place) as shim:
        told(use(shim, "mbx_identity", **REGISTER), "VERSION_SKEW", "2 to 3", "1 to 1", "restart your agent CLI")
    assert daemon.process.poll() is None


def mbxctl(place: Place, path: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**environment(place.state), "PYTHONPATH": path}
    command = [sys.executable, "-m", "mbxctl", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False, cwd="/")


def test_mbxctl_and_daemons_of_other_versions(place: Place) -> None:
    """The frozen methods work between any two; for the rest there is a command to run."""
    newer = Build(place.root / "newer", "9.0.0", protocol=(2, 3))
    old = place.start()
    skew = mbxctl(place, newer.path, "list")
    assert (skew.returncode, "mbxctl restart" in skew.stderr) == (69, True), skew
    assert mbxctl(place, newer.path, "status").returncode == 0
    try:
        assert mbxctl(place, newer.path, "restart").returncode == 0, "the command that was named"
        assert old.process.wait(30) == 0
        assert "9.0.0" in mbxctl(place, newer.path, "status").stdout
        assert mbxctl(place, newer.path, "list").returncode == 0
        skew = mbxctl(place, SOURCES, "list")
        assert (skew.returncode, "agent CLI" in skew.stderr) == (69, False), skew
        assert "use the mbxctl of mbxd 9.0.0" in skew.stderr
        assert f"python:     {sys.executable}" in mbxctl(place, SOURCES, "status").stdout
        doctor = mbxctl(place, SOURCES, "doctor").stdout
        assert (
            f"running 9.0.0, installed 0.1.0 -> use the newer mbxctl ({sys.executable} -m mbxctl), or update" in doctor
        )
    finally:
        assert mbxctl(place, SOURCES, "stop").returncode == 0


def test_mbxctl_with_a_method_that_an_older_daemon_has_not(place: Place) -> None:
    newer = Build(place.root / "newer", "9.0.0")
    newer.edit("mbxctl/mailfile.py", '"mail.check"', '"mail.later"')
    place.start()
    done = mbxctl(place, newer.path, "mail", "check")
    assert done.returncode == 69, done
    assert "There is no method" in done.stderr
    assert "Run: mbxctl restart" in done.stderr
