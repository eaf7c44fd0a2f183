"""Resources and progress, without a process: every message against the schema of its revision."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types.methods import SERVER_NOTIFICATIONS, validate_server_result

from mbx_mcp import shapes
from mbx_mcp.bridge import LOOK_WAIT, PROGRESS_EVERY, Bridge
from mbx_mcp.eras import Call, Eras, load_tools
from mbx_mcp.resources import IDENTITIES, INBOX, SUBSCRIBED_MAX
from mbx_mcp.updates import KEPT_MAX, LOOKS_MAX, PACE, Updates
from tests.mbx_mcp.spoken import MODERN, VERSIONS, one, opened, say, take
from tests.support.shim_process import ENVELOPE, initialize, modern, request

URIS = [INBOX, IDENTITIES]
HELLO = {"protocol": 1, "server": {"pid": 77}, "lock": {}}


def asked(version: str, method: str, params: dict[str, Any] | None = None, request_id: int | str = 1) -> Any:
    return (modern if version == MODERN else request)(method, params or {}, request_id)


def told(version: str, message: Any) -> Any:
    """A notification that its revision knows; its params."""
    SERVER_NOTIFICATIONS[message["method"], version].model_validate(message)
    return message["params"]


def result(content: dict[str, Any], *, refused: bool = False) -> dict[str, Any]:
    text = [{"type": "text", "text": json.dumps(content)}]
    return {"content": text, "structuredContent": content, "isError": refused}


# -- lists and reads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_lists(version: str) -> None:
    eras = opened(version)
    listed = one(eras, asked(version, "resources/list"))["result"]
    validate_server_result("resources/list", version, listed)
    assert [each["uri"] for each in listed["resources"]] == URIS
    assert all(("title" in each) == (version >= "2025-06-18") for each in listed["resources"])
    templates = one(eras, asked(version, "resources/templates/list"))["result"]
    validate_server_result("resources/templates/list", version, templates)
    assert templates["resourceTemplates"] == []
    assert one(eras, asked(version, "resources/list", {"cursor": "x"}))["error"]["code"] == -32602


@pytest.mark.parametrize("version", VERSIONS)
def test_a_read_is_a_call_and_its_text_the_content(version: str) -> None:
    eras = opened(version)
    assert say(eras, asked(version, "resources/read", {"uri": INBOX}, "r")) == []
    (call,) = eras.calls
    assert (call.name, call.arguments, call.looks) == ("mbx_inbox", {}, True)
    eras.answer_encoded(call.ticket, json.dumps(result({"messages": []})).encode())
    (answer,) = take(eras)
    assert answer["id"] == "r"
    validate_server_result("resources/read", version, answer["result"])
    (content,) = answer["result"]["contents"]
    assert (content["uri"], content["mimeType"]) == (INBOX, "application/json")
    assert json.loads(content["text"]) == {"messages": []}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_refused_read_is_an_error_that_helps(version: str) -> None:
    eras = opened(version)
    say(eras, asked(version, "resources/read", {"uri": INBOX}))
    body = {"code": "NOT_BOUND", "message": "You hold nothing.", "hint": "Claim one.", "retryable": False}
    eras.answer(eras.calls[0].ticket, result({"error": body}, refused=True))
    error = take(eras)[0]["error"]
    assert (error["code"], error["message"], error["data"]) == (-32603, "You hold nothing. Claim one.", body)


@pytest.mark.parametrize("version", VERSIONS)
def test_unknown_resources(version: str) -> None:
    eras = opened(version)
    code = -32602 if version == MODERN else -32002
    assert one(eras, asked(version, "resources/read", {"uri": "mbx://nothing"}))["error"]["code"] == code
    assert one(eras, asked(version, "resources/read", {"uri": 5}))["error"]["code"] == -32602
    assert one(eras, asked(version, "resources/dance"))["error"]["code"] == -32601
    if version != MODERN:
        assert one(eras, asked(version, "resources/subscribe", {"uri": "x"}))["error"]["code"] == code


@pytest.mark.parametrize("version", VERSIONS)
def test_capabilities_name_them(version: str) -> None:
    eras = Eras(load_tools)
    first = modern("server/discover") if version == MODERN else initialize(version)
    assert one(eras, first)["result"]["capabilities"]["resources"] == {"subscribe": True, "listChanged": True}


# -- subscriptions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", shapes.LEGACY)
def test_a_legacy_subscription(version: str) -> None:
    eras = opened(version)
    subscribed = one(eras, request("resources/subscribe", {"uri": INBOX, "_meta": {"threadId": "t"}}))["result"]
    validate_server_result("resources/subscribe", version, subscribed)
    assert eras.subscribers is not None
    assert eras.subscribers.watched == {"t": {INBOX}}
    eras.updated([("t", INBOX), ("t", IDENTITIES)])
    (update,) = take(eras)
    assert told(version, update) == {"uri": INBOX}
    assert one(eras, request("resources/unsubscribe", {"uri": INBOX}))["result"] == {}
    assert one(eras, request("resources/unsubscribe", {"uri": IDENTITIES}))["result"] == {}
    eras.updated([("t", INBOX)])
    assert take(eras) == []
    assert eras.subscribers.watched == {}


@pytest.mark.parametrize("version", shapes.LEGACY)
def test_legacy_subscriptions_of_two_conversations(version: str) -> None:
    eras = opened(version)
    for thread in ("one", "two"):
        one(eras, request("resources/subscribe", {"uri": INBOX, "_meta": {"threadId": thread}}))
    assert eras.subscribers is not None
    assert eras.subscribers.watched == {"one": {INBOX}, "two": {INBOX}}
    eras.updated([("one", INBOX), ("two", INBOX), ("three", INBOX)])
    (update,) = take(eras)  # it names no listener: said once
    assert told(version, update) == {"uri": INBOX}
    one(eras, request("resources/unsubscribe", {"uri": INBOX, "_meta": {"threadId": "two"}}))
    assert eras.subscribers.watched == {"one": {INBOX}}
    one(eras, request("resources/subscribe", {"uri": IDENTITIES, "_meta": {"threadId": "two"}}))
    one(eras, request("resources/unsubscribe", {"uri": INBOX}))
    assert eras.subscribers.watched == {"two": {IDENTITIES}}


def test_legacy_subscriptions_are_bounded() -> None:
    eras = opened("2025-11-25")
    for number in range(SUBSCRIBED_MAX):
        one(eras, request("resources/subscribe", {"uri": INBOX, "_meta": {"threadId": f"t{number}"}}))
    again, more = (request("resources/subscribe", {"uri": INBOX, "_meta": {"threadId": t}}) for t in ("t0", "new"))
    assert one(eras, again)["result"] == {}
    assert one(eras, more)["error"]["code"] == -32600
    one(eras, request("resources/unsubscribe", {"uri": INBOX, "_meta": {"threadId": "t7"}}))
    assert one(eras, more)["result"] == {}


@pytest.mark.parametrize("bad", ["a\ud800", "x" * 201, 7, ["t"], False])
def test_a_handle_that_can_not_be_used_is_refused_before_anything_is_open(bad: Any) -> None:
    """Without it the call would act as another conversation."""
    eras = opened(MODERN)
    handle = {"threadId": bad, "mbx/session": "other"}
    wanted = {"notifications": {"resourceSubscriptions": [INBOX]}, "_meta": {**ENVELOPE, **handle}}
    for method, params in (
        ("subscriptions/listen", wanted),
        ("resources/read", {"uri": INBOX, "_meta": {**ENVELOPE, **handle}}),
        ("tools/call", {"name": "mbx_inbox", "_meta": {**ENVELOPE, **handle}}),
    ):
        error = one(eras, request(method, params))["error"]
        assert (error["code"], "threadId" in error["message"]) == (-32602, True)
    assert (eras.open, eras.calls, eras.subscribers) == (0, [], None)
    eras.finish()
    assert take(eras) == []  # no subscription was begun


def test_a_stream_of_the_stateless_revision() -> None:
    eras = opened(MODERN)
    wanted = {"resourceSubscriptions": [IDENTITIES, INBOX, "mbx://nothing", 5]}
    (ack,) = say(eras, modern("subscriptions/listen", {"notifications": wanted}, 7))
    assert told(MODERN, ack)["notifications"] == {"resourceSubscriptions": URIS}
    say(eras, modern("subscriptions/listen", {"notifications": {"resourceSubscriptions": [INBOX]}}, "7"))
    eras.updated([(None, INBOX)])
    updates = [told(MODERN, message) for message in take(eras)]
    assert [update["_meta"][shapes.SUBSCRIPTION] for update in updates] == [7, "7"]
    say(eras, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
    eras.updated([(None, IDENTITIES)])
    assert take(eras) == []
    assert eras.subscribers is not None
    assert eras.subscribers.watched == {None: {INBOX}}


def test_streams_of_two_conversations() -> None:
    eras = opened(MODERN)
    for thread in ("one", "two"):
        params = {"notifications": {"resourceSubscriptions": [INBOX]}, "_meta": {**ENVELOPE, "threadId": thread}}
        say(eras, request("subscriptions/listen", params, f"of {thread}"))
    assert eras.subscribers is not None
    assert eras.subscribers.watched == {"one": {INBOX}, "two": {INBOX}}
    for changed, streams in ((["one"], ["of one"]), (["two"], ["of two"]), (["one", "two"], ["of one", "of two"])):
        eras.updated([(thread, INBOX) for thread in changed])
        updates = [told(MODERN, message) for message in take(eras)]
        assert [update["_meta"][shapes.SUBSCRIPTION] for update in updates] == streams


# -- what the daemon's events say ---------------------------------------------------------------------------


def lines(updates: Updates) -> list[Any]:
    found = [json.loads(line) for line in updates.outbox]
    updates.outbox.clear()
    return found


def told_of(updates: Updates, now: float) -> list[tuple[str | None, str]]:
    updates.tick(now)
    found = list(updates.due)
    updates.due.clear()
    return found


def due(updates: Updates, now: float) -> list[str]:
    return [uri for _handle, uri in told_of(updates, now)]


def listeners(*uris: str, handles: tuple[str | None, ...] = (None,)) -> dict[str | None, frozenset[str]]:
    return dict.fromkeys(handles, frozenset(uris))


def change(name: str = "shop-api", what: str = "claimed", project: str | None = "shop") -> dict[str, Any]:
    return {"method": "events.change", "params": {"name": name, "what": what, "project": project}}


def mail(to: str = "shop-backend", project: str | None = "shop") -> dict[str, Any]:
    return {"method": "events.mail", "params": {"to": to, "from": "owner", "project": project, "unread": 1}}


def me(name: str | None = "shop-backend", slug: str | None = "shop", look: str = "look-2") -> dict[str, Any]:
    you = None if name is None else {"name": name, "address": name.lower(), "project": "shop"}
    return {"id": look, "result": {"you": you, "project": None if slug is None else {"slug": slug}}}


def answer(updates: Updates, **who: Any) -> None:
    """To the look that is under way."""
    (look,) = [line for line in lines(updates) if line["method"] == "identity.list"]
    updates.answered(me(look=look["id"], **who))


def watching(**who: Any) -> Updates:
    """Connected, listening to everything, and told who it is."""
    updates = Updates()
    updates.connected()
    updates.watch(listeners(*URIS))
    updates.tick(0.0)
    answer(updates, **who)
    assert told_of(updates, 0.0) == []
    return updates


def test_nobody_listens_no_traffic() -> None:
    updates = Updates()
    updates.connected()
    updates.receive(mail())
    assert due(updates, 0.0) == []
    assert lines(updates) == []
    assert updates.next_deadline() is None


def test_subscribes_once_and_ends_it_with_the_last_listener() -> None:
    updates = Updates()
    updates.watch(listeners(INBOX))
    assert lines(updates) == []
    updates.connected()
    updates.watch(listeners(*URIS, handles=("a", "b")))
    updates.watch({})
    sent = lines(updates)
    assert [(line["method"], line["params"]) for line in sent] == [
        ("events.subscribe", {}),
        ("events.subscribe", {"project": ""}),
    ]


def test_asks_who_it_is_before_it_judges() -> None:
    updates = Updates()
    updates.connected()
    updates.watch(listeners(INBOX, handles=("t",)))
    updates.receive(mail())
    assert due(updates, 5.0) == []
    (_events, look) = lines(updates)
    assert (look["method"], look["meta"]["session"]) == ("identity.list", "t")
    updates.answered(me(look="look-9"))  # no look of ours
    assert due(updates, 5.1) == []
    updates.answered(me(look=look["id"]))
    assert told_of(updates, 5.1) == [("t", INBOX)]


def two(first: str | None = "shop-one", second: str | None = "shop-two") -> Updates:
    """Two conversations of one client that both listen to their inbox, and have been told who they are."""
    updates = Updates()
    updates.connected()
    updates.watch(listeners(INBOX, handles=("one", "two")))
    updates.tick(0.0)
    looks = {line["meta"].get("session"): line["id"] for line in lines(updates)}
    updates.answered(me(first, look=looks["one"]))
    updates.answered(me(second, look=looks["two"]))
    assert told_of(updates, 0.0) == []
    return updates


def test_each_conversation_hears_of_its_own_mail() -> None:
    updates = two()
    updates.receive(mail(to="shop-one"))
    assert told_of(updates, 2.0) == [("one", INBOX)]
    updates.receive(mail(to="shop-two"))
    assert told_of(updates, 2.1) == [("two", INBOX)]
    updates.receive(mail(to="shop-one"))
    assert told_of(updates, 2.2) == []
    assert updates.next_deadline() == 2.0 + PACE
    updates.receive(mail(to="shop-two"))
    assert told_of(updates, 2.0 + PACE) == [("one", INBOX)]  # the pace is each one's own


def test_an_act_concerns_its_conversation_and_who_names_none() -> None:
    updates = two()
    updates.acted("mbx_ack", "two")
    assert told_of(updates, 2.0) == [("two", INBOX)]
    updates.acted("mbx_ack", None)  # of the only mailbox there is, whosever it is
    assert told_of(updates, 4.0) == [("one", INBOX), ("two", INBOX)]
    updates.watch(listeners(INBOX, handles=("one", "two", None)))
    updates.tick(6.0)
    answer(updates, name="shop-two")
    updates.acted("mbx_ack", "two")
    assert told_of(updates, 6.0) == [("two", INBOX), (None, INBOX)]


def test_a_conversation_that_changes_its_name_is_asked_alone() -> None:
    updates = two()
    updates.receive(change(name="shop-one", what="renamed"))
    assert told_of(updates, 2.0) == [("one", INBOX)]
    answer(updates, name="shop-eins")
    updates.receive(mail(to="shop-eins"))
    updates.receive(mail(to="shop-one"))
    assert told_of(updates, 3.0) == [("one", INBOX)]
    updates.receive(mail(to="shop-two"))
    assert told_of(updates, 4.0) == [("two", INBOX)]


def test_who_stops_listening_is_forgotten() -> None:
    updates = two()
    updates.receive(change(name="shop-one", what="lost"))
    assert told_of(updates, 2.0) == [("one", INBOX)]
    (look,) = lines(updates)
    updates.watch(listeners(INBOX, handles=("two",)))
    updates.answered(me(None, look=look["id"]))
    updates.receive(mail(to="shop-one"))
    assert told_of(updates, 5.0) == []
    assert updates.next_deadline() is None


def test_looks_at_once_are_bounded() -> None:
    updates = Updates()
    updates.connected()
    names = tuple(f"t{number}" for number in range(LOOKS_MAX + 3))
    updates.watch(listeners(INBOX, handles=names))
    updates.tick(0.0)
    looks = [line for line in lines(updates) if line["method"] == "identity.list"]
    assert len(looks) == LOOKS_MAX
    assert updates.next_deadline() is None
    updates.answered(me(look=looks[0]["id"]))
    assert updates.next_deadline() == 0.0
    updates.tick(0.1)
    assert len(lines(updates)) == 1
    updates.lost()
    updates.connected()
    updates.tick(1.5)
    assert len([line for line in lines(updates) if line["method"] == "identity.list"]) == LOOKS_MAX


def test_another_mailbox_before_the_first_look_is_told() -> None:
    updates = Updates()
    updates.connected()
    updates.watch(listeners(INBOX))
    updates.tick(0.0)
    updates.receive(change(name="shop-backend", what="lost"))
    answer(updates, name=None)
    assert INBOX not in due(updates, 0.0)  # it never was known to be another
    updates = Updates()
    updates.connected()
    updates.watch(listeners(INBOX))
    updates.tick(0.0)
    updates.receive(change(name="shop-api", what="claimed"))
    answer(updates)
    assert INBOX in due(updates, 0.0)  # it may be by that change that it holds this one


@pytest.mark.parametrize(
    ("event", "changed"),
    [
        (mail(), {INBOX, IDENTITIES}),
        (mail(to="shop-api"), {IDENTITIES}),
        (mail(to="blog-api", project="blog"), set()),
        (mail(to="Shop-Backend", project="blog"), set()),
        (mail(to="Shop-Backend"), {INBOX, IDENTITIES}),
        (change(), {IDENTITIES}),
        (change(project="blog"), set()),
        (change(name="shop-backend", what="lost"), {INBOX, IDENTITIES}),
    ],
)
def test_what_an_event_changes(event: dict[str, Any], changed: set[str]) -> None:
    updates = watching()
    updates.receive(event)
    assert set(due(updates, 5.0)) == changed


def test_one_update_a_second() -> None:
    updates = watching()
    moments = []
    for number in range(50):
        updates.receive(mail())
        now = 10 + number / 10
        if INBOX in due(updates, now):
            moments.append(now)
    assert len(moments) == 5
    updates.receive(mail())
    deadline = updates.next_deadline()
    assert deadline is not None
    assert deadline <= moments[-1] + PACE


def test_a_name_of_its_own_that_changes_is_asked_for_again() -> None:
    updates = watching()
    updates.receive(change(name="shop-backend", what="lost"))
    due(updates, 5.0)
    answer(updates, name=None)
    updates.receive(mail())
    assert INBOX in due(updates, 6.5)  # another mailbox now: none
    updates.receive(mail())
    assert INBOX not in due(updates, 8.0)


def test_own_acts() -> None:
    updates = watching()
    updates.acted("mbx_ack", None)
    assert due(updates, 5.0) == [INBOX]
    updates.acted("mbx_identity", None)
    updates.receive(change(name="shop-new"))
    due(updates, 7.0)
    answer(updates, name="shop-new")
    assert set(due(updates, 8.5)) == {INBOX, IDENTITIES}


def test_what_was_missed_may_have_changed() -> None:
    updates = watching()
    updates.lost()
    updates.connected()
    assert [line["method"] for line in lines(updates)] == ["events.subscribe"]
    assert set(due(updates, 5.0)) == set(URIS)
    updates.receive({"method": "events.dropped", "params": {"queued": 5}})
    assert [line["method"] for line in lines(updates)] == ["events.subscribe"]
    assert set(due(updates, 7.0)) == set(URIS)


def test_a_flood_before_the_answer_is_bounded() -> None:
    updates = Updates()
    updates.connected()
    updates.watch(listeners(*URIS))
    for _ in range(KEPT_MAX + 10):
        updates.receive(mail(to="nobody", project="elsewhere"))
    assert len(updates._listeners[None]._kept) == KEPT_MAX
    assert set(due(updates, 5.0)) == set(URIS)
    updates.answered({"id": "look-2", "error": {"code": -32003, "message": "busy"}})
    assert updates._listeners[None]._kept == []
    assert set(due(updates, 7.0)) == set(URIS)


# -- progress -----------------------------------------------------------------------------------------------


def ready(bridge: Bridge) -> None:
    bridge.connected(0.0)
    (hello,) = [json.loads(line) for line in bridge.outbox]
    bridge.outbox.clear()
    bridge.receive(json.dumps({"jsonrpc": "2.0", "id": hello["id"], "result": HELLO}).encode(), 0.0)


def a_bridge() -> Bridge:
    return Bridge(lambda handles: {"sessions": handles}, lambda _hello: None)


def inbox(version: str, wait: Any, meta: dict[str, Any]) -> Any:
    envelope = ENVELOPE if version == MODERN else {}
    params = {"name": "mbx_inbox", "arguments": {"wait_s": wait}, "_meta": {**envelope, **meta}}
    return request("tools/call", params)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("token", ["p", 0])
def test_progress_rises_until_the_answer(version: str, token: Any) -> None:
    eras, bridge = opened(version), a_bridge()
    ready(bridge)
    assert say(eras, inbox(version, 45, {"progressToken": token})) == []
    bridge.submit(eras.calls[0], 0.0)
    values = []
    for now in range(23):
        bridge.receive(b'{"jsonrpc":"2.0","id":"ping","result":{}}', now)
        bridge.tick(now)
        for ticket, seconds, total in bridge.progress:
            eras.progress(ticket, seconds, total)
        bridge.progress.clear()
        values += [told(version, message) for message in take(eras)]
    assert [(value["progressToken"], value["progress"], value["total"]) for value in values] == [
        (token, seconds, 45) for seconds in (5, 10, 15, 20)
    ]
    eras.answer(eras.calls[0].ticket, result({}))
    take(eras)
    eras.progress(eras.calls[0].ticket, 25, 45)
    assert take(eras) == []


@pytest.mark.parametrize(
    ("wait", "meta"),
    [
        (45, {}),
        (45, {"progressToken": None}),
        (45, {"progressToken": True}),
        (45, {"progressToken": [1]}),
        (0, {"progressToken": 1}),
        (-1, {"progressToken": 1}),
        (None, {"progressToken": 1}),
        ("long", {"progressToken": 1}),
        (1e300, {"progressToken": 1}),
    ],
)
def test_no_progress(wait: Any, meta: dict[str, Any]) -> None:
    eras = opened("2025-11-25")
    say(eras, inbox("2025-11-25", wait, meta))
    assert eras.calls[0].waits == 0


def test_progress_after_a_pause_still_rises_and_ends_with_the_time() -> None:
    bridge = a_bridge()
    ready(bridge)
    bridge.submit(Call(1, "mbx_inbox", {}, None, waits=20.0), 0.0)
    for now in (5.0, 12.5, 13.0, 17.5, 22.5, 30.0):
        bridge.receive(b'{"jsonrpc":"2.0","id":"ping","result":{}}', now)
        bridge.tick(now)
    assert bridge.progress == [(1, 5, 20.0), (1, 12, 20.0), (1, 17, 20.0)]
    assert PROGRESS_EVERY == 5


def test_no_daemon_is_started_to_look() -> None:
    bridge = a_bridge()
    bridge.submit(Call(1, "mbx_inbox", {}, None, looks=True), 0.0)
    found = [(bridge.waiting, bridge.starting)]
    bridge.submit(Call(2, "mbx_inbox", {}, None), 0.0)
    found.append((bridge.waiting, bridge.starting))
    assert found == [(True, False), (True, True)]
    bridge.tick(LOOK_WAIT)
    assert [outcome.ticket for outcome in bridge.outcomes] == [1]
