"""One-shot calls against a stub daemon."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from mbx_client import blocking, dial, paths
from mbx_client.blocking import ClientError
from mbx_wire.methods import METHODS
from tests.support.stub_daemon import HangUp, Message, StubDaemon, failure, no_answer, refused, reply


def where(state: Path) -> paths.Places:
    return paths.resolve({"MBX_STATE_DIR": str(state)})


def code_of(action: object, *args: object, **kwargs: object) -> str:
    assert callable(action)
    with pytest.raises(ClientError) as caught:
        action(*args, **kwargs)
    return caught.value.code


def test_hello_then_call(daemon: StubDaemon, state: Path) -> None:
    with blocking.connect(where(state)) as client:
        assert client.hello(cwd="/w", project={"key": "k", "slug": "s"})["protocol"] == 1
        result = client.call("tool.call", {"name": "x", "arguments": {"ü": "\U0001f642"}}, {"session": "t"})
    assert result["structuredContent"]["echo"] == {"ü": "\U0001f642"}
    (sent,) = daemon.asked("tool.call")
    assert sent["meta"]["session"] == "t"
    assert sent["meta"]["request_id"]
    assert daemon.asked("hello")[0]["params"]["client"]["name"] == "mbxctl"


def test_no_daemon(state: Path) -> None:
    assert code_of(blocking.connect, where(state)) == "DAEMON_DOWN"
    (state / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(state / "run" / "mbxd.sock"))
    assert code_of(blocking.connect, where(state)) == "DAEMON_DOWN"
    assert code_of(blocking.connect_or_start, where(state)) == "DAEMON_DOWN"  # the mark of mbxctl stop stands


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOENT, dial.ABSENT),
        (errno.ECONNREFUSED, dial.ABSENT),
        (errno.EPERM, dial.FORBIDDEN),
        (errno.EACCES, dial.FORBIDDEN),
        (errno.EAGAIN, dial.BUSY),
        (errno.ETIMEDOUT, dial.BUSY),
        (errno.EMFILE, dial.OTHER),
    ],
)
def test_reasons(number: int, reason: str) -> None:
    assert dial.reason(OSError(number, "text")) == reason


def test_a_full_backlog_is_busy_not_gone(state: Path) -> None:
    (state / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(state / "run" / "mbxd.sock"))
        listener.listen(0)
        first.connect(str(state / "run" / "mbxd.sock"))
        assert code_of(blocking.connect, where(state), timeout=0.2) == "DAEMON_UNRESPONSIVE"


def test_a_silent_daemon_is_named(daemon: StubDaemon, state: Path) -> None:
    daemon.handle = no_answer
    (state / "daemon.json").write_text(f'{{"socket": "{daemon.path}", "pid": 4711}}')
    with blocking.connect(where(state)) as client:
        with pytest.raises(ClientError, match="pid 4711") as caught:
            client.call("ping", timeout=0.2)
        assert caught.value.code == "DAEMON_UNRESPONSIVE"


def test_what_only_looks_can_not_have_taken_effect(daemon: StubDaemon, state: Path) -> None:
    daemon.handle = no_answer
    with blocking.connect(where(state)) as client:
        for call in (
            lambda: client.hello(timeout=0.1),
            lambda: client.call("status", timeout=0.1),
            lambda: client.call("identity.list", timeout=0.1),
        ):
            with pytest.raises(ClientError, match="in time") as caught:
                call()
            assert "effect" not in caught.value.message
        with pytest.raises(ClientError, match="in time; it may have taken effect"):
            client.call("identity.claim", timeout=0.1)


def test_looks_are_those_of_the_method_table() -> None:
    acts = {"stop", "mail.backup", "archive.rebuild"}  # not on the registry, and still no looks
    assert {name for name, method in METHODS.items() if not method.changes} - acts == blocking.LOOKS


def test_refusals_carry_everything(daemon: StubDaemon, state: Path) -> None:
    data = {
        "code": "IDENTITY_IN_USE",
        "message": "held",
        "hint": "ask",
        "retryable": False,
        "data": {"pid": 5},
    }
    daemon.handle = lambda sent: failure(sent, -32000, "held", data) if sent["method"] == "identity.claim" else None
    with blocking.connect(where(state)) as client:
        client.hello()
        with pytest.raises(ClientError) as caught:
            client.call("identity.claim", {"name": "x"})
    assert caught.value.body() == data


def test_standard_errors_have_codes_too(daemon: StubDaemon, state: Path) -> None:
    with blocking.connect(where(state)) as client:
        assert code_of(client.call, "nonsense") == "INTERNAL"
        daemon.handle = lambda sent: failure(sent, -32602, "bad")
        assert code_of(client.call, "x") == "PARAMETER_INVALID"
        daemon.handle = lambda sent: refused(sent, "VERSION_SKEW")
        assert code_of(client.hello) == "VERSION_SKEW"


def test_a_lost_reply_is_asked_for_again_under_the_same_id(daemon: StubDaemon, state: Path) -> None:
    def lose_the_first(_sent: Message) -> None:
        if daemon.accepted == 1:
            raise HangUp

    daemon.before_reply = lose_the_first
    with blocking.connect(where(state)) as client:
        client.hello()
        assert client.call("tool.call", {"name": "x", "arguments": {}})["isError"] is False
    assert list(daemon.executed.values()) == [1]
    first, second = daemon.asked("tool.call")
    assert first["meta"] == second["meta"]


def test_a_second_loss_is_an_unknown_outcome(daemon: StubDaemon, state: Path) -> None:
    def lose(_sent: Message) -> None:
        raise HangUp

    daemon.before_reply = lose
    with blocking.connect(where(state)) as client:
        client.hello()
        assert code_of(client.call, "tool.call", {"name": "x", "arguments": {}}) == "OUTCOME_UNKNOWN"
    assert len(daemon.asked("tool.call")) == 2


def test_another_state_directory(daemon: StubDaemon, state: Path) -> None:
    other = state.parent / "other"
    other.mkdir()
    (other / "mbxd.lock").touch()
    daemon.lock_of = other
    with blocking.connect(where(state)) as client:
        assert code_of(client.hello) == "DAEMON_DOWN"
    explicit = paths.resolve({"MBX_STATE_DIR": str(state), "MBX_SOCKET": str(daemon.path)})
    with blocking.connect(explicit) as client:
        assert client.hello()["protocol"] == 1


def test_the_next_socket_is_tried_when_the_first_is_somebody_elses(daemon: StubDaemon, state: Path) -> None:
    other = state.parent / "other"
    other.mkdir()
    with StubDaemon(other) as stranger:
        (state / "daemon.json").write_text(f'{{"socket": "{stranger.path}", "pid": 1}}')
        with blocking.connect(where(state)) as client:
            client.hello()
            client.call("tool.call", {"name": "x", "arguments": {}})
        assert stranger.asked("tool.call") == []
    assert len(daemon.asked("tool.call")) == 1


def test_notifications(daemon: StubDaemon, state: Path) -> None:
    def subscribe(sent: Message) -> Message | None:
        return reply(sent, {"subscribed": True, "seq": 1}) if sent["method"] == "events.subscribe" else None

    daemon.handle = subscribe
    with blocking.connect(where(state)) as client:
        client.hello()
        client.call("events.subscribe")
        assert client.next_notification(0.01) is None
        change = {"jsonrpc": "2.0", "method": "events.change", "params": {"seq": 2}}
        daemon.notify(change)
        daemon.notify(change)
        assert client.next_notification(5) == change
        assert client.call("ping")["pid"] == os.getpid()
        assert client.next_notification(5) == change
        daemon.hang_up()
        assert code_of(client.next_notification, 5) == "DAEMON_DOWN"


def test_bad_parameters_do_not_leave(daemon: StubDaemon, state: Path) -> None:
    with blocking.connect(where(state)) as client:
        assert code_of(client.call, "x", {"name": "\ud800"}) == "PARAMETER_INVALID"
        assert code_of(client.call, "x", {"name": "y" * 5_000_000}) == "PARAMETER_INVALID"
    assert daemon.requests == []
