"""The bridge with a clock of the test's own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbx_mcp.bridge import DOWN, READY, SILENCE_MAX, SILENCE_PING, WAIT_FOR_DAEMON, Bridge, Trouble
from mbx_mcp.eras import Call
from mbx_mcp.resources import INBOX
from mbx_mcp.updates import Updates
from mbx_wire.framing import MAX_LINE, LineReader, Oversized
from mbxd.server.wire import success

HELLO = {"protocol": 1, "server": {"pid": 77}, "lock": {}}


def bridge() -> Bridge:
    return Bridge(lambda handles: {"sessions": handles}, lambda _hello: None)


def a_call(ticket: int = 1, session: str | None = None) -> Call:
    return Call(ticket, "mbx_identity", {"action": "list"}, session)


def sent(subject: Bridge) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in subject.outbox]
    subject.outbox.clear()
    return lines


def connect(subject: Bridge, now: float) -> list[dict[str, Any]]:
    subject.connected(now)
    (hello,) = sent(subject)
    tell(subject, {"id": hello["id"], "result": HELLO}, now)
    return sent(subject)


def tell(subject: Bridge, message: dict[str, Any], now: float) -> None:
    subject.receive(json.dumps({"jsonrpc": "2.0", **message}).encode(), now)


def code(subject: Bridge) -> str:
    outcome = subject.outcomes.pop()
    assert outcome.result is not None
    return str(outcome.result["structuredContent"]["error"]["code"])


def test_a_call_waits_for_hello_and_is_answered() -> None:
    subject = bridge()
    subject.submit(a_call(session="t1"), 0)
    assert subject.waiting
    assert subject.next_deadline() == WAIT_FOR_DAEMON
    (line,) = connect(subject, 1)
    assert line["method"] == "tool.call"
    assert line["meta"] == {"request_id": "c1", "session": "t1"}
    tell(subject, {"id": line["id"], "result": {"content": []}}, 2)
    assert subject.outcomes[0].result == {"content": []}
    assert subject.idle
    assert subject.next_deadline() is None


def test_a_call_whose_project_can_not_be_told_is_refused_here() -> None:
    faults = ["/shop/.mbx.toml, line 2: project must be ..."]

    def projects(_arguments: dict[str, Any]) -> dict[str, Any]:
        if faults:
            raise ValueError(faults[0])
        return {}

    subject = Bridge(lambda handles: {"sessions": handles}, lambda _hello: None, projects)
    connect(subject, 0)
    subject.submit(a_call(), 0)
    assert (sent(subject), subject.idle) == ([], True)
    outcome = subject.outcomes.pop()
    assert outcome.result is not None
    error = outcome.result["structuredContent"]["error"]
    assert (error["code"], error["message"], error["retryable"]) == ("PARAMETER_INVALID", faults.pop(), False)
    subject.submit(a_call(2), 0)
    (line,) = sent(subject)
    assert line["method"] == "tool.call"


def test_answers_of_our_daemon_are_passed_on_without_decoding() -> None:
    subject = bridge()
    connect(subject, 0)
    result = {"content": [{"type": "text", "text": 'ü","jsonrpc":"2.0"}'}], "structuredContent": {"id": 1}}
    for ticket in (1, 2):
        subject.submit(a_call(ticket), 0)
    (first, second) = sent(subject)
    subject.receive(success(second["id"], result).rstrip(b"\n"), 0)
    (outcome,) = subject.outcomes
    assert outcome.ticket == 2
    assert outcome.encoded is not None, "the daemon writes its replies in another form now"
    assert json.loads(outcome.encoded) == result
    subject.receive(success(second["id"], result), 0)  # once more: nobody waits for it
    assert len(subject.outcomes) == 1
    subject.receive(success(first["id"], "no object"), 0)
    assert subject.outcomes[1].code == -32603


def test_deadline_without_a_daemon() -> None:
    subject = bridge()
    subject.submit(a_call(), 0)
    subject.tick(WAIT_FOR_DAEMON - 0.1)
    assert not subject.outcomes
    subject.tick(WAIT_FOR_DAEMON)
    assert code(subject) == "DAEMON_DOWN"


def test_trouble_is_told_at_the_deadline_or_at_once() -> None:
    subject = bridge()
    subject.submit(a_call(), 0)
    subject.unavailable(Trouble("SANDBOXED", "text", "hint"))
    assert not subject.outcomes
    subject.tick(WAIT_FOR_DAEMON)
    assert code(subject) == "SANDBOXED"
    subject.submit(a_call(), 10)
    subject.unavailable(Trouble("VERSION_SKEW", "text", "hint", final=True))
    assert code(subject) == "VERSION_SKEW"


def test_old_trouble_is_not_told_to_new_calls() -> None:
    subject = bridge()
    subject.submit(a_call(), 0)
    subject.unavailable(Trouble("SANDBOXED", "text", "hint", final=True))
    assert code(subject) == "SANDBOXED"
    subject.submit(a_call(), 60)
    subject.tick(60 + WAIT_FOR_DAEMON)
    assert code(subject) == "DAEMON_DOWN"


def test_a_daemon_that_does_not_answer_hello() -> None:
    subject = bridge()
    subject.submit(a_call(), 0)
    subject.connected(0)
    subject.tick(WAIT_FOR_DAEMON)
    assert code(subject) == "DAEMON_UNRESPONSIVE"


def test_refused_hello_closes_and_says_why() -> None:
    subject = bridge()
    subject.submit(a_call(), 0)
    subject.connected(0)
    error = {"code": "VERSION_SKEW", "message": "too old", "hint": "mbxctl restart"}
    tell(subject, {"id": "hello-1", "error": {"code": -32002, "message": "skew", "data": error}}, 1)
    assert subject.phase == DOWN
    assert code(subject) == "VERSION_SKEW"


def test_replay_keeps_request_ids_and_order() -> None:
    subject = bridge()
    connect(subject, 0)
    for ticket in (1, 2, 3):
        subject.submit(a_call(ticket), 0)
    first = sent(subject)
    tell(subject, {"id": first[1]["id"], "result": {}}, 0)
    subject.lost(1)
    assert connect(subject, 2) == [first[0], first[2]]


def test_lost_for_good_is_an_unknown_outcome() -> None:
    subject = bridge()
    connect(subject, 0)
    subject.submit(a_call(), 0)
    subject.lost(1)
    subject.tick(1 + WAIT_FOR_DAEMON)
    assert code(subject) == "OUTCOME_UNKNOWN"


def test_stopping_daemon_hands_the_call_to_the_next() -> None:
    subject = bridge()
    connect(subject, 0)
    subject.submit(a_call(), 0)
    (line,) = sent(subject)
    tell(subject, {"id": line["id"], "error": {"code": -32000, "message": "", "data": {"code": "STOPPING"}}}, 0)
    assert not subject.outcomes
    subject.lost(0.1)
    assert connect(subject, 0.2) == [line]


def test_a_call_that_no_stopping_daemon_took_has_a_known_outcome() -> None:
    subject = bridge()
    connect(subject, 0)
    subject.submit(a_call(), 0)
    (line,) = sent(subject)
    tell(subject, {"id": line["id"], "error": {"code": -32000, "message": "", "data": {"code": "STOPPING"}}}, 0)
    subject.lost(0.1)
    subject.tick(0.1 + WAIT_FOR_DAEMON)
    assert code(subject) == "DAEMON_DOWN"


def test_the_next_daemon_has_its_time_however_long_the_stopping_one_took() -> None:
    subject = bridge()
    connect(subject, 0)
    subject.submit(a_call(), 0)
    (line,) = sent(subject)
    tell(subject, {"id": line["id"], "error": {"code": -32000, "message": "", "data": {"code": "STOPPING"}}}, 0)
    subject.lost(WAIT_FOR_DAEMON - 0.1)
    subject.tick(2 * WAIT_FOR_DAEMON - 0.2)
    assert not subject.outcomes
    assert connect(subject, 2 * WAIT_FOR_DAEMON - 0.2) == [line]


def test_a_reconnect_mentions_the_session_without_a_handle() -> None:
    subject = bridge()
    connect(subject, 0)
    subject.submit(a_call(), 0)
    subject.submit(a_call(2, session="t1"), 0)
    subject.lost(1)
    subject.connected(2)
    assert sent(subject)[0]["params"]["sessions"] == ["", "t1"]


def test_a_new_name_during_the_introduction_is_told_too() -> None:
    subject = bridge()
    subject.submit(a_call(), 0)
    subject.connected(0)
    subject.introduce_again()
    first, second = sent(subject)
    tell(subject, {"id": first["id"], "result": HELLO}, 0)
    assert sent(subject) == []
    tell(subject, {"id": second["id"], "result": HELLO}, 0)
    assert [line["method"] for line in sent(subject)] == ["tool.call"]


def test_silence_is_pinged_then_told() -> None:
    subject = bridge()
    connect(subject, 0)
    subject.submit(a_call(), 0)
    sent(subject)
    assert subject.next_deadline() == SILENCE_PING
    subject.tick(SILENCE_PING)
    assert [line["method"] for line in sent(subject)] == ["ping"]
    tell(subject, {"id": "ping", "result": {"pong": True}}, SILENCE_PING + 0.5)
    assert subject.next_deadline() == SILENCE_PING + 0.5 + SILENCE_PING  # it lives: the call may take its time
    now = SILENCE_PING + 0.5 + SILENCE_MAX
    subject.tick(now)
    assert code(subject) == "DAEMON_UNRESPONSIVE"
    assert subject.phase == READY
    assert subject.idle


def test_standard_errors_pass_through() -> None:
    subject = bridge()
    connect(subject, 0)
    subject.submit(a_call(), 0)
    (line,) = sent(subject)
    tell(subject, {"id": line["id"], "error": {"code": -32602, "message": "Unknown tool: x"}}, 0)
    outcome = subject.outcomes.pop()
    assert (outcome.code, outcome.message) == (-32602, "Unknown tool: x")


def test_an_error_without_an_id_leaves_nobody_waiting() -> None:
    subject = bridge()
    connect(subject, 0)
    subject.submit(a_call(), 0)
    tell(subject, {"id": None, "error": {"code": -32700, "message": "parse error"}}, 0)
    assert subject.outcomes.pop().code == -32700
    subject.submit(a_call(), 0)
    subject.receive(Oversized(5_000_000), 0)
    assert code(subject) == "OUTCOME_UNKNOWN"
    subject.submit(a_call(), 0)
    subject.receive(b"no JSON", 0)
    assert code(subject) == "OUTCOME_UNKNOWN"


@pytest.mark.parametrize(
    ("tool", "expected", "hint"),
    [
        ("mbx_sent", "PARAMETER_INVALID", "smaller `limit`"),
        ("mbx_inbox", "PARAMETER_INVALID", "smaller `limit`"),
        ("mbx_thread", "PARAMETER_INVALID", "smaller `limit`"),
        ("mbx_search", "PARAMETER_INVALID", "smaller `limit`"),
        ("mbx_read", "PARAMETER_INVALID", "fewer"),
        ("mbx_send", "OUTCOME_UNKNOWN", "before you repeat"),
    ],
)
def test_an_answer_that_is_too_long_says_what_to_ask_for(tool: str, expected: str, hint: str) -> None:
    subject = bridge()
    connect(subject, 0)
    subject.submit(a_call(1), 0)
    subject.submit(Call(2, tool, {}, None), 0)
    (_other, line) = sent(subject)
    reader = LineReader()
    found = reader.feed(success(line["id"], {"content": "x" * MAX_LINE}))
    subject.receive(found[0], 0)
    (outcome,) = subject.outcomes  # the other one still waits for its own
    assert (outcome.ticket, outcome.result is not None and outcome.result["isError"]) == (2, True)
    error = outcome.result["structuredContent"]["error"]  # type: ignore[index]
    assert (error["code"], hint in error["hint"]) == (expected, True)
    assert not subject.idle


def test_a_look_that_is_answered_too_long_is_over() -> None:
    subject = bridge()
    subject.updates = Updates()
    subject.updates.watch({None: frozenset({INBOX})})
    connect(subject, 0)
    subject.tick(0)
    (_events, look) = sent(subject)
    subject.receive(Oversized(5_000_000, b'{"id":"' + look["id"].encode() + b'","result":{'), 0)
    assert subject.updates._looks == {}


def test_long_arguments_are_refused_here() -> None:
    subject = bridge()
    connect(subject, 0)
    subject.submit(Call(1, "mbx_identity", {"x": "y" * 5_000_000}, None), 0)
    assert code(subject) == "PARAMETER_INVALID"
    assert subject.outbox == []


@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [
        ({"subject": "s", "body": "a\ud800b"}, "body"),
        ({"to": ["x", "\udc00"]}, "to"),
        ({"body": {"deep": ["\ud83d"]}}, "body"),
        ({"\ud800": 1}, None),
    ],
)
def test_half_a_surrogate_pair_is_refused_in_words(arguments: dict[str, Any], parameter: str | None) -> None:
    subject = bridge()
    connect(subject, 0)
    subject.submit(Call(1, "mbx_send", arguments, "t"), 0)
    (outcome,) = subject.outcomes
    assert outcome.result is not None
    error = outcome.result["structuredContent"]["error"]
    assert (outcome.result["isError"], error["code"], bool(error["hint"])) == (True, "TEXT_INVALID", True)
    assert error.get("data") == (None if parameter is None else {"parameter": parameter})
    json.dumps(outcome.result, ensure_ascii=False).encode()
    assert subject.outbox == []
    assert subject.idle


events = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from([None, "a", "b"])),
    st.tuples(st.just("cancel"), st.integers(1, 20)),
    st.tuples(st.just("connected"), st.none()),
    st.tuples(st.just("lost"), st.none()),
    st.tuples(st.just("line"), st.binary(max_size=20)),
    st.tuples(st.just("json"), st.dictionaries(st.sampled_from(["id", "result", "error", "method"]),
              st.integers(0, 9) | st.sampled_from(["hello-1", "hello-2", "ping"]) | st.none()
              | st.dictionaries(st.sampled_from(["code", "data", "message"]), st.integers() | st.text()), max_size=4)),
    st.tuples(st.just("wait"), st.floats(0, 4)),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(events, max_size=40))
def test_every_call_is_answered_at_most_once_and_never_forgotten(steps: list[tuple[str, Any]]) -> None:
    subject = bridge()
    now = 0.0
    tickets = 0
    cancelled: set[int] = set()
    answered: list[int] = []
    for what, value in steps:
        if what == "submit":
            tickets += 1
            subject.submit(a_call(tickets, value), now)
        elif what == "cancel":
            cancelled.add(value)
            subject.cancel(value)
        elif what == "connected" and subject.phase == DOWN:
            subject.connected(now)
        elif what == "lost":
            subject.lost(now)
        elif what == "line":
            subject.receive(value, now)
        elif what == "json":
            tell(subject, value, now)
        elif what == "wait":
            now += value
            subject.tick(now)
        answered += [outcome.ticket for outcome in subject.outcomes]
        subject.outcomes.clear()
    subject.lost(now)
    subject.tick(now + WAIT_FOR_DAEMON)
    answered += [outcome.ticket for outcome in subject.outcomes]
    assert len(answered) == len(set(answered))
    assert set(range(1, tickets + 1)) - cancelled <= set(answered)
