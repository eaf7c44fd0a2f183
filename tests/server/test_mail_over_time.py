"""Mail over the socket while others come and go: who owes answers, retries, waiting, subscribers, care of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import PROJECT, DaemonProcess, Place, wait_until
from tests.support.office import Office, notices, send, unread
from tests.support.trees import Forest

# -- who owes an answer goes and comes ---------------------------------------------------------------------


@pytest.mark.parametrize("how", ["released", "freed", "died", "died while the daemon was down"])
def test_one_notice_when_the_holder_goes_and_one_when_another_comes(office: Office, how: str) -> None:
    sent = send(office.anna, "shop-tester", subject="Build", needs_reply=True)
    if how == "released":
        office.bert.release()
    elif how == "freed":
        office.person.call("admin.free", {"name": "shop-tester", "reason": "hangs"})
    elif how == "died":
        office.speakers[1].host.kill()
    else:
        office.daemon.kill()
        office.speakers[1].host.kill()
        office.daemon = office.place.start()
        office.anna = office.speakers[0].reconnect(office.daemon)
    gone = ["No one to answer: Build"]
    wait_until("the notice", lambda: notices(office.anna) == gone)
    office.daemon.kill()
    office.daemon = office.place.start()
    office.anna = office.speakers[0].reconnect(office.daemon)
    assert notices(office.anna) == gone
    carl = office.forest.session(office.daemon).client
    claimed = carl.claim("shop-tester")
    assert (claimed["owed"], [one["id"] for one in claimed["inbox"]]) == ([sent["id"]], [sent["id"]])
    assert claimed["predecessor"]["last_act_at"]
    both = [*gone, "Somebody is there: Build"]
    wait_until("the other notice", lambda: notices(office.anna) == both)
    office.daemon.kill()
    office.daemon = office.place.start()
    office.anna = office.speakers[0].reconnect(office.daemon)
    assert office.anna.call("mail.inbox", {"wait_s": 0})["messages"][1]["thread"] == sent["id"]
    assert notices(office.anna) == both


def test_no_notice_once_it_is_answered(office: Office) -> None:
    sent = send(office.anna, "shop-tester", needs_reply=True)
    office.bert.call("mail.reply", {"id": sent["id"], "body": "done"})
    office.bert.release()
    send(office.anna, "shop-tester", "later", needs_reply=True)
    office.bert.claim("shop-tester")
    wait_until("the successor's notice", lambda: notices(office.anna) == ["Somebody is there: s"])


def test_the_brief_of_a_successor_is_bounded(office: Office) -> None:
    office.bert.call("mail.whoami")
    for number in range(8):
        send(office.anna, ["shop-tester", "owner"], subject=f"{number}" + "x" * 150, needs_reply=True)
    office.bert.release()
    claimed = office.forest.session(office.daemon).client.claim("shop-tester")
    brief = {key: claimed[key] for key in ("inbox", "owed", "waited_for", "predecessor")}
    assert len(json.dumps(brief, separators=(",", ":"))) <= 2048 + 64
    assert 1 <= len(claimed["inbox"]) <= 5
    assert [one["subject"][0] for one in claimed["inbox"]] == [str(n) for n in range(len(claimed["inbox"]))]
    assert (claimed["unread"], len(claimed["owed"])) == (8, 5)
    assert claimed["predecessor"]["reason"] == "released"


# -- retries -----------------------------------------------------------------------------------------------


def test_a_retry_never_doubles(office: Office) -> None:
    first = send(office.anna, "*", request_id="r1")
    keyed = send(office.anna, "*", idempotency_key="k1")
    office.restart()
    third = office.forest.session(office.daemon).client
    third.register("shop-designer")
    assert send(office.anna, "*", request_id="r1")["id"] == first["id"]
    again = send(office.anna, "*", idempotency_key="k1")
    assert (again["id"], again["duplicate"]) == (keyed["id"], True)
    assert [r["name"] for r in again["recipients"]] == ["shop-tester"], "whom it reached then"
    assert [one["id"] for one in unread(office.bert)] == [first["id"], keyed["id"]]
    other = {"to": ["*"], "subject": "s", "body": "other"}
    assert office.anna.refused("mail.send", other, request_id="r1").code == "REQUEST_ID_REUSED"
    assert office.anna.refused("mail.send", {**other, "idempotency_key": "k1"}).code == "KEY_REUSED"


def test_kept_results_of_mail_are_known_after_a_restart(office: Office) -> None:
    """Else nobody would ever forget those of a client that is gone and changed nothing but mail."""
    other = office.daemon.person()
    send(other, "owner", request_id="r1")
    other.close()
    office.daemon.kill()
    office.daemon = office.place.start()
    gone = office.daemon.person().call("admin.stats")["parts"]["instances"]["gone"]
    assert gone == 3, "anna's and bert's, who are not back yet, and the other's"


def test_a_retry_is_answered_when_its_recipients_are_gone(office: Office) -> None:
    first = send(office.anna, "*", request_id="r1")
    keyed = send(office.anna, "*", idempotency_key="k1")
    office.bert.release()
    assert office.anna.refused("mail.send", {"to": ["*"], "subject": "s", "body": "b"}).code == "UNKNOWN_IDENTITY"
    for again in (send(office.anna, "*", request_id="r1"), send(office.anna, "*", idempotency_key="k1")):
        assert again["id"] in {first["id"], keyed["id"]}
        assert [(r["name"], r["state"]) for r in again["recipients"]] == [("shop-tester", "vacant")]
    assert send(office.anna, "*", idempotency_key="k1")["duplicate"] is True
    assert office.anna.refused("mail.send", {"to": ["*"], "subject": "s", "body": "x"}, request_id="r1").code == (
        "REQUEST_ID_REUSED"
    )
    assert office.bert.claim("shop-tester")["unread"] == 2


# -- waiting, subscribers ----------------------------------------------------------------------------------


def test_waiting_ends_with_its_time_and_at_once_when_something_is_there(office: Office) -> None:
    assert office.bert.call("mail.inbox", {"wait_s": 0.05})["messages"] == []
    send(office.anna, "shop-tester")
    assert len(office.bert.call("mail.inbox", {"wait_s": 45})["messages"]) == 1


def test_a_stopping_daemon_answers_who_waits(office: Office) -> None:
    waiting = office.bert.send("mail.inbox", {"wait_s": 45})
    assert office.anna.call("ping")
    assert office.daemon.stop() == 0
    answer = office.bert.receive()
    assert (answer["id"], answer["result"]["messages"]) == (waiting, [])


def test_a_thousand_waiters_hold_up_nobody(office: Office) -> None:
    clients = [office.speakers[1].shim.connect(office.daemon.socket_path) for _ in range(5)]
    for client in clients:
        client.hello()
        for _ in range(200):
            client.send("mail.inbox", {"wait_s": 45})
    assert all(client.call("ping")["pong"] for client in clients)
    wait_until("all wait", lambda: office.person.call("admin.stats")["parts"]["mail"]["waiting_readers"] == 1000)
    sent = send(office.anna, "shop-tester")
    assert office.anna.call("ping")["pong"]
    for client in clients:
        for _ in range(200):
            assert client.receive()["result"]["messages"][0]["id"] == sent["id"]
    assert office.person.call("admin.stats")["parts"]["mail"]["waiting_readers"] == 0


def test_who_goes_away_waits_no_more(office: Office) -> None:
    office.bert.send("mail.inbox", {"wait_s": 45})
    wait_until("it waits", lambda: office.person.call("admin.stats")["parts"]["mail"]["waiting_readers"] == 1)
    office.bert.close()
    wait_until("it is gone", lambda: office.person.call("admin.stats")["parts"]["mail"]["waiting_readers"] == 0)


def test_subscribers_hear_of_mail(office: Office) -> None:
    office.person.call("events.subscribe", {"project": PROJECT["slug"]})
    sent = send(office.anna, "shop-tester", subject="Build", kind="alert")
    note = office.person.note()
    assert note["method"] == "events.mail"
    assert note["params"] == {
        "to": "shop-tester",
        "from": "shop-backend",
        "subject": "Build",
        "kind": "alert",
        "id": sent["id"],
        "unread": 1,
        "project": "shop",
    }
    office.bert.call("mail.reply", {"id": sent["id"], "body": "ok"})
    assert office.person.note()["params"]["subject"] == "Re: Build"


def test_a_subscriber_that_stops_reading_is_cut_off(office: Office) -> None:
    office.person.call("events.subscribe")
    for _ in range(60):
        numbers = [
            office.anna.send("mail.send", {"to": ["shop-tester", "owner"], "subject": "s" * 200, "body": ""})
            for _ in range(100)
        ]
        for _ in numbers:
            office.anna.receive()
        if office.anna.call("admin.stats")["parts"]["fanout"]["dropped"]:
            break
    else:
        raise AssertionError("nobody was cut off")
    last: dict[str, Any] = {}
    while last.get("method") != "events.dropped":
        last = office.person.receive()
    assert office.anna.call("ping")["pong"]


# -- care, and files that can't be used ---------------------------------------------------------------------


def test_backup_check_and_prune(office: Office) -> None:
    sent = send(office.anna, "shop-tester")
    person = office.person
    assert person.call("mail.check") == {"ok": True, "messages": 1, "deliveries": 1, "unread": 1, "problems": []}
    path = str(office.place.root / "copy.db")
    assert person.call("mail.backup", {"path": path})["bytes"] > 0
    for bad in (path, "relative.db", str(office.place.root / "no/such/dir.db"), "/a\0b"):
        assert person.refused("mail.backup", {"path": bad}).code == "PARAMETER_INVALID", bad
    assert f"{path} exists" in str(person.refused("mail.backup", {"path": path}))
    left = Path(f"{path}.2.partial")
    left.write_bytes(b"a backup that a crash cut short")
    assert f"{left} exists" in str(person.refused("mail.backup", {"path": f"{path}.2"}))
    assert left.read_bytes().startswith(b"a backup")
    assert person.call("mail.prune", {"older_than_s": 0})["messages"] == 0, "unread mail stays"
    office.bert.call("mail.ack", {"ids": [sent["id"]]})
    assert person.call("mail.prune", {"older_than_s": 0, "dry_run": True})["messages"] == 1
    assert person.call("mail.prune", {"older_than_s": 0})["messages"] == 1
    assert office.anna.refused("mail.thread", {"id": sent["id"]}).code == "MESSAGE_PRUNED"


@pytest.mark.parametrize("contents", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_mail_file_that_is_none_stops_mail_alone(place: Place, forest: Forest, contents: bytes) -> None:
    place.state.mkdir(mode=0o700)
    (place.state / "mail.db").write_bytes(contents)
    daemon: DaemonProcess = place.start()
    anna = forest.session(daemon).client
    assert anna.register("shop-backend")["epoch"] == 1
    assert "mail" in json.dumps(anna.call("status")["degraded"])
    for method, params in (("mail.inbox", {}), ("mail.send", {"to": ["owner"], "subject": "s", "body": "b"})):
        assert anna.refused(method, params).code == "MAIL_UNAVAILABLE"
    who = anna.call("mail.whoami")
    assert (who["name"], who["unread"]) == ("shop-backend", 0)
    assert "MAIL_UNAVAILABLE" in who["warnings"][0]
    assert anna.refused("mail.inbox", {"wait_s": 45}).code == "MAIL_UNAVAILABLE"
    assert (place.state / "mail.db").read_bytes() == contents
    anna.release()
    assert anna.claim("shop-backend")["epoch"] == 2
