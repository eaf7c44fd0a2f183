"""The shim with the real daemon, which its first call starts."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mbx_client import blocking, paths
from tests.support.shim_process import ShimProcess, call, environment, initialize, modern

LIMIT = 20


def daemon_pid(state: Path) -> int:
    pointer = paths.read_pointer(paths.resolve({"MBX_STATE_DIR": str(state)}))
    assert pointer is not None
    return int(pointer["pid"])


def gone(pidfd: int) -> None:
    assert select.select([pidfd], [], [], LIMIT)[0]
    os.close(pidfd)


@pytest.fixture
def free_state(state: Path) -> Iterator[Path]:
    """A state directory in which a daemon may start; whichever runs at the end is stopped."""
    (state / "stopped").unlink()
    yield state
    if (state / "daemon.json").exists():
        pidfd = os.pidfd_open(daemon_pid(state))
        with blocking.connect(paths.resolve({"MBX_STATE_DIR": str(state)})) as client:
            client.call("stop")
        gone(pidfd)


def result(shim: ShimProcess, arguments: dict[str, Any]) -> Any:
    return shim.ask(call(arguments))["result"]["structuredContent"]


def test_a_killed_daemon_goes_unnoticed(free_state: Path) -> None:
    with ShimProcess(environment(free_state)) as shim:
        shim.ask(initialize(name="claude-code"))
        registered = result(shim, {"action": "register", "name": "shop-backend", "role": "backend"})
        assert registered["created"] is True
        first = daemon_pid(free_state)
        pidfd = os.pidfd_open(first)
        os.kill(first, signal.SIGKILL)
        gone(pidfd)
        you = result(shim, {"action": "list"})["you"]
        assert (you["name"], you["epoch"]) == ("shop-backend", registered["epoch"])
        assert daemon_pid(free_state) != first


def test_two_conversations_of_one_process(free_state: Path) -> None:
    with ShimProcess(environment(free_state)) as shim:
        for thread in ("one", "two"):
            answer = shim.ask(modern_call({"action": "register", "name": f"shop-{thread}", "role": thread}, thread))
            assert answer["result"]["structuredContent"]["identity"]["name"] == f"shop-{thread}"
        refused = shim.ask(modern_call({"action": "release"}, None))["result"]
    assert refused["isError"] is True
    assert refused["structuredContent"]["error"]["code"] == "AMBIGUOUS_SESSION"
    assert json.loads(refused["content"][0]["text"]) == refused["structuredContent"]


def modern_call(arguments: dict[str, Any], thread: str | None) -> dict[str, Any]:
    message = modern("tools/call", {"name": "mbx_identity", "arguments": arguments})
    if thread is not None:
        message["params"]["_meta"] = {**message["params"]["_meta"], "threadId": thread}
    return message
