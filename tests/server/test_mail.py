"""Mail over the socket: what each call says and refuses, and who may act."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.daemon import Place, wait_until
from tests.support.office import Office, send, unread
from tests.support.trees import Forest

BODY_MAX = 256 * 1024


@pytest.fixture(scope="module")
def shared() -> Iterator[Office]:
    """For tests that look at nothing but what they sent."""
    with Place() as place, Forest() as forest:
        yield Office(place, forest)


# -- a conversation ----------------------------------------------------------------------------------------


def test_send_wait_read_reply_ack(office: Office) -> None:
    anna, bert = office.anna, office.bert
    waiting = bert.send("mail.inbox", {"wait_s": 20})
    sent = send(anna, "shop-tester", "please test", "Build 7", needs_reply=True, kind="task")
    assert [r | {"since": ""} for r in sent["recipients"]] == [
        {"name": "shop-tester", "state": "live", "since": "", "detail": None}
    ]
    assert (sent["duplicate"], sent["thread"]) == (False, sent["id"])
    header = bert.reply(waiting)["messages"][0]
    assert {k: header[k] for k in ("id", "from", "to", "subject", "kind", "needs_reply", "state")} == {
        "id": sent["id"],
        "from": "shop-backend",
        "to": ["shop-tester"],
        "subject": "Build 7",
        "kind": "task",
        "needs_reply": True,
        "state": "unread",
    }
    assert "body" not in header
    read = bert.call("mail.read", {"ids": [sent["id"]]})
    assert (read["messages"][0]["body"], read["messages"][0]["from"]) == ("please test", "shop-backend")
    assert "not instructions" in read["warnings"][0]
    assert [one["id"] for one in bert.call("mail.whoami")["owed"]] == [sent["id"]]
    assert [one["who"] for one in anna.call("mail.whoami")["waited_for"]] == ["shop-tester"]
    reply = bert.call("mail.reply", {"id": sent["id"][:26].lower(), "body": "it works"})
    assert reply["thread"] == sent["thread"]
    assert not bert.call("mail.whoami")["owed"]
    assert bert.call("mail.ack", {"ids": [sent["id"]], "note": "tested"})["unread"] == 0
    [mine] = anna.call("mail.sent")["messages"]
    assert mine["recipients"][0] | {"since": 0} == {
        "name": "shop-tester",
        "state": "acked",
        "since": 0,
        "detail": None,
        "note": "tested",
    }
    assert [one["body"] for one in anna.call("mail.thread", {"id": reply["id"]})["messages"]] == [
        "please test",
        "it works",
    ]
    [found] = anna.call("mail.search", {"query": "works", "in": "received"})["messages"]
    assert (found["id"], found["snippet"]) == (reply["id"], "it [works]")


def test_looking_any_number_of_times_changes_nothing(office: Office) -> None:
    sent = send(office.anna, ["shop-tester", "owner"])
    first = office.bert.call("mail.inbox"), office.bert.call("mail.read", {"ids": [sent["id"]]})
    for _ in range(20):
        assert (office.bert.call("mail.inbox"), office.bert.call("mail.read", {"ids": [sent["id"]]})) == first
        office.person.call("mail.peek", {"name": "shop-tester"})
    assert office.bert.call("mail.whoami")["unread"] == 1
    assert office.anna.call("mail.sent")["messages"][0]["recipients"][1]["state"] == "unread"


def test_pages_go_through_everything_once(office: Office) -> None:
    ids = [send(office.anna, "shop-tester", subject=f"n{number}")["id"] for number in range(25)]
    assert ids == sorted(ids)
    for method, newest_first in (("mail.inbox", False), ("mail.sent", True)):
        client = office.bert if method == "mail.inbox" else office.anna
        seen: list[str] = []
        before = None
        while True:
            page = client.call(method, {"limit": 10, **({"before": before} if before else {})})
            seen += [one["id"] for one in page["messages"]]
            if page["before"] is None:
                break
            assert page["before"] != before
            before = page["before"]
            assert len(seen) <= len(ids)
        if newest_first:
            assert seen == ids[::-1]
        else:
            assert sorted(seen) == ids
    assert [one["id"] for one in unread(office.bert)] == ids


def test_unread_is_everywhere(office: Office) -> None:
    send(office.anna, "shop-tester")
    send(office.anna, "shop-tester")
    bert = office.bert
    assert bert.call("mail.whoami")["unread"] == 2
    assert bert.call("identity.list")["you"]["unread"] == 2
    assert bert.rows()["shop-tester"]["unread"] == 2
    for call in ({"name": "mbx_whoami"}, {"name": "whois", "arguments": {"project_key": "x", "agent_name": "y"}}):
        assert bert.call("tool.call", call)["_meta"] == {"unread": 2}, call
    claim = bert.call("tool.call", {"name": "mbx_identity", "arguments": {"action": "claim"}})
    assert (claim["_meta"], claim["structuredContent"]["unread"]) == ({"unread": 2}, 2)


# -- addressing --------------------------------------------------------------------------------------------


def test_roles_everybody_the_owner_and_unknown_names(office: Office) -> None:
    anna, bert = office.anna, office.bert
    assert [r["name"] for r in send(anna, "role:tester")["recipients"]] == ["shop-tester"]
    assert [r["name"] for r in send(anna, "*")["recipients"]] == ["shop-tester"], "the sender is left out"
    assert send(anna, "owner")["recipients"][0]["state"] == "owner"
    assert [one["from"] for one in office.person.call("mail.inbox")["messages"]] == ["shop-backend"]
    refused = anna.refused("mail.send", {"to": ["shop-tester", "shop-testr"], "subject": "s", "body": "b"})
    assert (refused.code, refused.data["near"]) == ("UNKNOWN_IDENTITY", ["shop-tester"])
    assert len(unread(bert)) == 2, "a refused send reaches nobody"
    assert "shop-testr" not in bert.rows()
    assert bert.refused("mail.send", {"to": ["role:Tester!"], "subject": "s", "body": "b"}).code == "ROLE_INVALID"


def test_mail_for_a_role_that_nobody_has_goes_to_the_first_who_does(office: Office) -> None:
    held = send(office.anna, "role:designer", "first", needs_reply=True)
    assert [(r["name"], r["state"]) for r in held["recipients"]] == [("role:designer", "held")]
    office.restart()
    assert office.anna.call("mail.sent")["messages"][0]["recipients"][0]["state"] == "held"
    carl, dora = (speaker.client for speaker in office.forest.sessions(office.daemon, 2))
    claimed = carl.register("shop-designer", "designer")
    assert (claimed["unread"], claimed["owed"]) == (1, [held["id"]])
    [got] = carl.call("mail.inbox", {"wait_s": 20})["messages"]
    assert got["id"] == held["id"]
    dora.register("other-designer", "designer")
    assert [one["who"] for one in office.anna.call("mail.whoami")["waited_for"]] == ["shop-designer"]
    assert not unread(dora)
    assert [r["name"] for r in send(office.anna, "role:designer")["recipients"]] == ["shop-designer", "other-designer"]


def test_a_repeat_tells_whom_mail_for_a_role_reached(office: Office) -> None:
    """By its key as it is now; by its request id as it was then. The role's holder comes and goes meanwhile."""
    anna = office.anna
    letter = {"to": ["role:designer", "owner"], "subject": "s", "body": "b"}
    keyed = {**letter, "idempotency_key": "k"}

    def names(sent: Any) -> list[tuple[str, str]]:
        return sorted((one["name"], one["state"]) for one in sent["recipients"])

    waits = [("owner", "owner"), ("role:designer", "held")]
    assert names(anna.call("mail.send", letter, request_id="r")) == waits
    for _ in range(2):
        assert names(anna.call("mail.send", keyed)) == waits
    carl = office.forest.session(office.daemon).client
    carl.register("shop-designer", "designer")
    assert names(anna.call("mail.send", keyed)) == [("owner", "owner"), ("shop-designer", "live")]
    assert names(anna.call("mail.send", letter, request_id="r")) == waits
    carl.release()
    assert names(anna.call("mail.send", keyed)) == [("owner", "owner"), ("shop-designer", "vacant")]
    assert names(anna.call("mail.send", letter, request_id="r")) == waits


def test_held_mail_beyond_a_batch_all_arrives(office: Office) -> None:
    numbers = [
        office.anna.send("mail.send", {"to": ["role:designer"], "subject": f"n{n}", "body": "b"}) for n in range(230)
    ]
    ids = {office.anna.receive()["result"]["id"] for _ in numbers}
    carl = office.forest.session(office.daemon).client
    carl.register("shop-designer", "designer")
    wait_until("all of it", lambda: carl.call("mail.whoami")["unread"] == 230)
    seen = {one["id"] for one in unread(carl, limit=200)}
    assert len(seen) == 200
    assert seen < ids


def test_renamed_and_retired_mailboxes_stay_reachable(office: Office) -> None:
    office.bert.release()
    office.person.call("admin.rename", {"name": "shop-tester", "to": "shop-quality"})
    sent = send(office.anna, "shop-tester")
    assert (sent["recipients"][0]["name"], sent["recipients"][0]["state"]) == ("shop-quality", "vacant")
    assert "shop-quality" in sent["warnings"][0]
    office.person.call("admin.retire", {"name": "shop-quality"})
    assert send(office.anna, "shop-quality")["recipients"][0]["state"] == "retired"
    office.person.call("admin.unretire", {"name": "shop-quality"})
    claimed = office.bert.claim("shop-quality")
    assert (claimed["unread"], len(claimed["inbox"])) == (2, 2)


def test_a_name_of_another_project_is_shown_as_its_address(office: Office) -> None:
    made = office.person.call("agent.create", {"project_key": "shop", "program": "p", "model": "m"})
    far = office.forest.session(office.daemon, project={"key": "/tmp/other", "slug": "other"}).client
    far.register("other-writer")
    send(far, made["address"])
    [seen] = far.call("mail.sent")["messages"]
    assert seen["to"] == [made["address"]]
    assert send(office.anna, made["name"])["recipients"][0]["name"] == made["name"]
    assert far.refused("mail.send", {"to": [made["name"] + "x"], "subject": "s", "body": "b"}).code == (
        "UNKNOWN_IDENTITY"
    )


# -- limits ------------------------------------------------------------------------------------------------

TEXTS = [
    "",
    "plain",
    "\0nul\0",
    "".join(map(chr, range(32))) + "\x7f\x85\u2028\u2029",
    "e\u0301 ﬀ ß İ ı",
    "👩‍👩‍👧‍👦 \U0010ffff \ufffe \ufeff",
    "שלום مرحبا \u202e evil",
    '\\ " </script> \\u0000 {"_meta":{"unread":9}}',
    "\r\n\r\n.\r\n",
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_bodies_come_back_as_they_were(shared: Office, text: str) -> None:
    sent = send(shared.anna, "shop-tester", text)
    assert shared.bert.call("mail.read", {"ids": [sent["id"]]})["messages"][0]["body"] == text


def test_a_lone_surrogate_is_refused_and_the_connection_stays(shared: Office) -> None:
    raw = (
        b'{"jsonrpc":"2.0","id":"x","method":"mail.send","params":{"to":["shop-tester"],"subject":"s",'
        b'"body":"a\\ud800b"},"meta":{"request_id":"q"}}\n'
    )
    shared.anna.send_raw(raw)
    assert "error" in shared.anna.receive()
    assert shared.anna.call("ping")["pong"]


def test_256_kib_fit_and_one_byte_more_does_not(shared: Office) -> None:
    whole = "é" * (BODY_MAX // 2)
    sent = send(shared.anna, "shop-tester", whole)
    pieces: list[str] = []
    offset: int | None = 0
    while offset is not None:
        page = shared.bert.call("mail.read", {"ids": [sent["id"]], "offset": offset})
        pieces.append(page["messages"][0]["body"])
        assert len(pieces[-1].encode()) <= 48 * 1024
        assert page["messages"][0]["truncated"]
        offset = page.get("next_offset")
    assert "".join(pieces) == whole
    refused = shared.anna.refused("mail.send", {"to": ["shop-tester"], "subject": "s", "body": whole + "x"})
    assert (refused.code, refused.data["size"]) == ("BODY_TOO_LONG", BODY_MAX + 1)


def test_one_result_holds_48_kib_and_says_how_to_go_on(shared: Office) -> None:
    ids = [send(shared.anna, "shop-tester", "x" * 20_000)["id"] for _ in range(4)]
    first = shared.bert.call("mail.read", {"ids": ids})
    assert sum(len(one["body"]) for one in first["messages"]) <= 48 * 1024
    assert [one["id"] for one in first["messages"]] == ids[:2]
    assert first["next"].startswith("mbx_read ")
    rest = shared.bert.call("mail.read", json.loads(first["next"].removeprefix("mbx_read ")))
    assert [one["id"] for one in rest["messages"]] == ids[2:]


def test_one_bad_id_never_loses_the_others(shared: Office) -> None:
    good = [send(shared.anna, "shop-tester")["id"] for _ in range(3)]
    foreign = send(shared.anna, "owner")["id"]
    asked = [good[0], "nonsense", good[1], foreign, "0" * 26, good[2], ""]
    result = shared.bert.call("mail.ack", {"ids": asked, "note": "n" * 501})
    assert [one["ok"] for one in result["results"]] == [True, False, True, False, False, True, False]
    assert all("UNKNOWN_MESSAGE" in one["error"] for one in result["results"] if not one["ok"])
    assert "500" in result["warnings"][0]
    assert all(one["ok"] for one in shared.bert.call("mail.ack", {"ids": good})["results"]), "again is fine"
    assert shared.bert.refused("mail.read", {"ids": [foreign]}).code == "NOT_YOURS"


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("mail.send", {"to": [], "subject": "s", "body": "b"}, "to"),
        ("mail.send", {"to": ["a"] * 21, "subject": "s", "body": "b"}, "to"),
        ("mail.send", {"to": ["owner", " "], "subject": "s", "body": "b"}, "to"),
        ("mail.send", {"to": ["owner"], "subject": "s" * 201, "body": "b"}, "subject"),
        ("mail.send", {"to": ["owner"], "subject": " ", "body": "b"}, "subject"),
        ("mail.send", {"to": ["owner"], "subject": "a\nb", "body": "b"}, "subject"),
        ("mail.send", {"to": ["owner"], "subject": "s", "body": "b", "refs": ["r"] * 21}, "refs"),
        ("mail.send", {"to": ["owner"], "subject": "s", "body": "b", "refs": ["r" * 65]}, "refs"),
        ("mail.send", {"to": ["owner"], "subject": "s", "body": "b", "idempotency_key": "k" * 129}, "idempotency_key"),
        ("mail.inbox", {"limit": 0}, "limit"),
        ("mail.inbox", {"limit": 201}, "limit"),
        ("mail.inbox", {"wait_s": 46}, "wait_s"),
        ("mail.inbox", {"wait_s": -1}, "wait_s"),
        ("mail.read", {"ids": []}, "ids"),
        ("mail.read", {"ids": ["01JAAAAAAA"] * 21}, "ids"),
        ("mail.read", {"ids": ["01JAAAAAAA"], "offset": -1}, "offset"),
        ("mail.ack", {"ids": ["01JAAAAAAA"] * 51}, "ids"),
        ("mail.search", {"query": " "}, "query"),
    ],
)
def test_what_is_out_of_bounds_is_named(shared: Office, method: str, params: dict[str, Any], name: str) -> None:
    refused = shared.anna.refused(method, params)
    assert (refused.code, refused.data) == ("PARAMETER_INVALID", {"parameter": name})


# -- fencing -----------------------------------------------------------------------------------------------


def test_nobody_is_not_bound_and_whoami_answers_all_the_same(office: Office) -> None:
    nobody = office.forest.session(office.daemon).client
    assert nobody.refused("mail.inbox").code == "NOT_BOUND"
    assert nobody.refused("mail.send", {"to": ["owner"], "subject": "s", "body": "b"}).code == "NOT_BOUND"
    who = nobody.call("mail.whoami")
    assert (who["name"], who["unread"], who["next"]) == (None, 0, 'mbx_identity {"action":"list"}')
    hopeful = office.forest.session(office.daemon, agent="shop-tester").client
    refused = hopeful.refused("mail.inbox")
    assert (refused.code, refused.data["pending"]) == ("NOT_BOUND", "shop-tester")
    assert hopeful.call("mail.whoami")["pending"] == {"name": "shop-tester", "why": "wish", "claimable": False}
    office.bert.release()
    assert hopeful.call("mail.inbox")["messages"] == []
    assert hopeful.call("mail.whoami")["name"] == "shop-tester"


@pytest.mark.parametrize("lever", ["free", "epoch"])
def test_after_a_takeover_the_old_session_acts_no_more(office: Office, lever: str) -> None:
    got = send(office.anna, "shop-tester")["id"]
    meta: dict[str, Any] = {}
    if lever == "free":
        office.person.call("admin.free", {"name": "shop-tester", "reason": "hangs"})
        office.forest.session(office.daemon).client.claim("shop-tester")
    else:
        meta = {"epoch": 7}
    for method, params in (
        ("mail.send", {"to": ["owner"], "subject": "s", "body": "b"}),
        ("mail.reply", {"id": got, "body": "b"}),
        ("mail.ack", {"ids": [got]}),
        ("mail.read", {"ids": [got]}),
        ("mail.inbox", {}),
    ):
        refused = office.bert.refused(method, params, **meta)
        assert (refused.code, refused.data["name"]) == ("LEASE_LOST", "shop-tester"), method
    assert office.person.call("mail.peek", {"name": "shop-tester"})["messages"][0]["state"] == "unread"
    assert not office.person.call("mail.inbox")["messages"]


def test_who_waits_is_told_at_once_that_the_name_is_gone(office: Office) -> None:
    waiting = office.bert.send("mail.inbox", {"wait_s": 45})
    office.bert.send("ping")
    assert office.bert.receive()["result"]["pong"], "others are served meanwhile"
    office.person.call("admin.free", {"name": "shop-tester", "reason": "hangs"})
    answer = office.bert.receive(5)
    assert answer["id"] == waiting
    assert answer["error"]["data"]["code"] == "LEASE_LOST"


def test_acting_confirms_a_provisional_grant(office: Office) -> None:
    creator = office.forest.session(office.daemon).client
    made = creator.call("agent.create", {"project_key": "shop", "program": "p", "model": "m"})
    assert made["bound"]
    params = {"project_key": "shop", "program": "p", "model": "m", "name": made["name"]}
    creator.call("mail.inbox")
    send(creator, "owner")
    worker = office.forest.session(office.daemon).client
    token = {"registration_token": made["registration_token"]}
    assert worker.refused("agent.register", {**params, **token}).code == "IDENTITY_IN_USE"


def test_mail_is_for_the_mailbox_and_looking_for_people(office: Office) -> None:
    sent = send(office.anna, "shop-tester", "secret")
    for method, params in (
        ("mail.peek", {"name": "shop-backend"}),
        ("mail.check", {}),
        ("mail.prune", {"older_than_s": 1}),
        ("mail.backup", {"path": "/tmp/x"}),
    ):
        assert office.bert.refused(method, params).code == "NOT_ALLOWED"
    looked = office.person.call("mail.peek", {"name": "shop-tester", "id": sent["id"]})
    assert looked["messages"][0]["body"] == "secret"
    assert office.person.refused("mail.peek", {"name": "shop-nobody"}).code == "UNKNOWN_IDENTITY"
    assert office.person.refused("mail.peek", {"name": "shop-backend", "id": "0" * 26}).code == "UNKNOWN_MESSAGE"


def test_a_search_is_paged(office: Office) -> None:
    ids = [send(office.anna, "shop-tester", body=f"needle {number}")["id"] for number in range(5)][::-1]
    found: list[str] = []
    params: dict[str, Any] = {"query": "needle", "limit": 2}
    while True:
        page = office.bert.call("mail.search", params)
        found += [one["id"] for one in page["messages"]]
        if page["before"] is None:
            break
        params["before"] = page["before"]
    assert found == ids
    assert office.bert.refused("mail.search", {**params, "before": "no cursor"}).code == "PARAMETER_INVALID"
