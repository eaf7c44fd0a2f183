"""The shim with the real daemon, which its first call starts."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mbx_client import blocking, paths
from tests.support.daemon import Client, Refused, wait_until
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


@contextlib.contextmanager
def busy_stop(state: Path) -> Iterator[Client]:
    """A stop under way for as long as a drain may take: one peer does not take its replies. An introduced client."""
    path = str(state / "run/mbxd.sock")
    with socket.socket(socket.AF_UNIX) as lazy, socket.socket(socket.AF_UNIX) as other:
        for sock in (lazy, other):
            sock.connect(path)
        client = Client(other)
        client.hello()
        lazy.settimeout(1)
        with pytest.raises(TimeoutError):  # it takes no more from one who takes nothing
            lazy.sendall(b'{"jsonrpc":"2.0","id":1,"method":"status"}\n' * 100_000)
        client.call("stop")
        yield client


def refuses_changes(client: Client) -> bool:
    """Whether the daemon has begun to stop: a change by a tool is refused as a JSON-RPC error."""
    try:
        client.call("tool.call", {"name": "mbx_identity", "arguments": {"action": "release"}})
    except Refused as refusal:
        return refusal.code == "STOPPING"
    return False


def test_a_call_during_a_stop_is_answered_by_the_next_daemon(free_state: Path) -> None:
    arguments = {"action": "register", "name": "shop-backend", "role": "backend"}
    with ShimProcess(environment(free_state)) as shim:
        shim.ask(initialize(name="claude-code"))
        result(shim, {"action": "list"})
        first = daemon_pid(free_state)
        with busy_stop(free_state) as client:
            wait_until("STOPPING as an error, not as an answer to an agent", lambda: refuses_changes(client))
            registered = result(shim, arguments)
        assert registered["created"] is True, registered
        assert registered["epoch"] == 1
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


def test_two_conversations_of_one_process_hear_each_of_their_own_mail(free_state: Path) -> None:
    own: list[str] = []

    def told(shim: ShimProcess) -> str:
        """The stream of the next update. Answers in between are passed over."""
        while True:
            message = shim.receive()
            if message.get("method") == "notifications/resources/updated":
                return str(message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"])

    with ShimProcess(environment(free_state)) as shim:
        for thread in ("one", "two"):
            shim.ask(modern_call({"action": "register", "name": f"shop-{thread}", "role": thread}, thread))
        for thread in ("one", "two"):
            listen = modern("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["mbx://inbox"]}})
            listen["params"]["_meta"] = {**listen["params"]["_meta"], "threadId": thread}
            shim.send({**listen, "id": thread})
        for to in ("one", "two", "one", "two"):
            send = modern_call({"to": [f"shop-{to}"], "subject": "s", "body": "b"}, "two")
            send["params"]["name"] = "mbx_send"
            shim.send(send)
            own.append(told(shim))
    assert own == ["one", "two", "one", "two"]


def modern_call(arguments: dict[str, Any], thread: str | None) -> dict[str, Any]:
    message = modern("tools/call", {"name": "mbx_identity", "arguments": arguments})
    if thread is not None:
        message["params"]["_meta"] = {**message["params"]["_meta"], "threadId": thread}
    return message
