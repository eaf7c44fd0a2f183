"""Lists of mail that are longer than a line, and what is said beside them."""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgspec
import pytest

from mbx_wire import mail as wire
from mbx_wire.framing import MAX_LINE
from mbxd.core.state import State
from mbxd.mail.commands import Role
from mbxd.mail.records import Letter, Receipt
from mbxd.server import letters, tools
from tests.support.office import Office, send

# -- as much as fits ---------------------------------------------------------------------------------------


def pages(client: Any, method: str, **params: Any) -> list[list[str]]:
    """The ids of each page, asked for as tools until the end."""
    found: list[list[str]] = []
    while True:
        call = client.call("tool.call", {"name": method, "arguments": params})
        page = call["structuredContent"]
        found.append([one["id"] for one in page["messages"]])
        if page["before"] is None:
            return found
        params = {**params, "before": page["before"]}


def test_pages_of_large_messages_are_shorter(office: Office) -> None:
    """What a line can't carry comes with the next cursor. A control character is 6 bytes, 7 in a tool's text."""
    workers = [office.forest.session(office.daemon).client for _ in range(6)]
    names = [f"shop-w{number}" for number in range(len(workers))]
    for worker, name in zip(workers, names, strict=True):
        worker.register(name)
    ids = [send(office.anna, names, "\1" * 1024, subject=f"n{number} word")["id"] for number in range(50)]
    for worker in workers:
        worker.call("mail.ack", {"ids": ids, "note": "\1" * 500})
    newest_first = ids[::-1]
    for method, params in (("mbx_sent", {}), ("mbx_search", {"query": "word"})):
        found = pages(office.anna, method, limit=200, **params)
        assert len(found) > 1, method
        assert [*chain(*found)] == newest_first, method


def test_a_long_thread_of_large_messages_goes_back_page_by_page(office: Office) -> None:
    first = send(office.anna, "shop-tester", "\1" * 1024)["id"]
    ids = [first] + [office.anna.call("mail.reply", {"id": first, "body": "\1" * 1024})["id"] for _ in range(110)]
    found = pages(office.anna, "mbx_thread", id=first, limit=200)
    assert len(found) > 1
    assert [*chain(*found[::-1])] == ids


def test_a_page_ends_where_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "PAGE_BYTES", 700)
    shown = [
        wire.Header(f"{number}", "t", "a", ["b"], "s" * 100, "message", needs_reply=False, sent_at="", state="unread")
        for number in range(9)
    ]
    page = letters.listed(shown, "cursor")
    assert (len(page.messages), page.before) == (3, "2")
    page = letters.listed(shown, None, newest_last=True)
    assert ([one.id for one in page.messages], page.before) == (["6", "7", "8"], "6")
    page = letters.listed(shown[:3], "cursor")
    assert (len(page.messages), page.before) == (3, "cursor")
    monkeypatch.setattr(letters, "PAGE_BYTES", 7)
    assert letters.fitting(shown) == 1
    assert letters.fitting([]) == 0


def test_one_message_fits_a_line_whatever_its_recipients_noted() -> None:
    receipts = [Receipt(number, "acked", None, 1.0, "\1" * 500, owes_reply=False) for number in range(1, 301)]
    letter = Letter("m", "t", 1, "message", False, "s", 1, [], None, 1.0, 1, receipts, [Role(1, "x")])
    shown = letters.Reader(State(), 1, 0).own(letter)
    assert shown.recipients is not None
    assert (len(shown.to), shown.to[-1]) == (201, "and 101 more")
    assert (len(shown.recipients), shown.state) == (201, "unread")
    assert (shown.recipients[-1].name, shown.recipients[-1].detail) == ("and 101 more", "100 acked")
    page = letters.listed([shown, shown], None)
    assert (len(page.messages), page.before) == (1, "m")
    whole = tools.result(msgspec.json.encode(page), 0)
    assert len(msgspec.json.encode(whole)) < MAX_LINE * 3 / 4


# -- what is said ------------------------------------------------------------------------------------------


def test_what_is_not_mine_is_a_warning_beside_what_is(office: Office) -> None:
    mine, foreign = send(office.anna, "shop-tester")["id"], send(office.anna, "owner")["id"]
    for other in (foreign, "0" * 26):
        for asked in ([mine, other], [other, mine]):
            read = office.bert.call("mail.read", {"ids": asked})
            assert [one["id"] for one in read["messages"]] == [mine]
            assert ("NOT_YOURS" if other == foreign else "UNKNOWN_MESSAGE") in read["warnings"][1]


def test_more_open_requests_than_are_listed_are_counted(office: Office) -> None:
    ids = [send(office.anna, "shop-tester", needs_reply=True)["id"] for _ in range(20)]
    assert office.bert.call("mail.whoami")["warnings"] == []
    ids += [send(office.anna, "shop-tester", needs_reply=True)["id"] for _ in range(3)]
    owes, waits = office.bert.call("mail.whoami"), office.anna.call("mail.whoami")
    assert [one["id"] for one in owes["owed"]] == [one["id"] for one in waits["waited_for"]] == ids[:20]
    assert owes["warnings"] == ["You owe 23 answers; only the oldest 20 are listed here."]
    assert waits["warnings"] == ["You wait for 23 answers; only the oldest 20 are listed here."]
    assert "You owe 23 answers" in office.bert.claim("shop-tester")["warnings"][0]


def test_nobody_is_told_to_wait_for_who_is_not_there(office: Office) -> None:
    asking = {"subject": "s", "body": "b", "needs_reply": True}
    carl = office.forest.session(office.daemon).client
    for name in ("shop-old", "shop-older"):
        carl.register(name, "archivist")
        carl.release()
    office.person.call("admin.retire", {"name": "shop-old"})
    for to in (["shop-old"], ["shop-older"], ["role:designer"], ["shop-old", "role:designer"]):
        assert office.anna.call("mail.send", {"to": to, **asking})["next"] is None, to
    for to in (["shop-tester"], ["shop-old", "shop-tester"], ["owner"]):
        assert office.anna.call("mail.send", {"to": to, **asking})["next"] == 'mbx_inbox {"wait_s":45}', to


def test_a_role_that_no_mailbox_has_is_told_with_those_like_it(office: Office) -> None:
    [warning] = send(office.anna, ["role:tseter"])["warnings"]
    assert "no mailbox" in warning.lower()
    assert "role:tester" in warning
    assert len(send(office.anna, ["role:poet"])["warnings"]) == 1
    office.bert.release()
    assert send(office.anna, ["role:tester"])["warnings"] == [], "a vacant one has it"
