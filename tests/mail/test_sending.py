"""Sending, the inbox, acks, reading: what goes in comes out."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mbx_wire.mail as wire
from mbxd.mail import commands as c
from mbxd.mail import queries
from mbxd.mail.errors import MailError, MailRefused
from tests.mail.support import NOW, Mail, letter


def test_limits_fit_the_wire() -> None:
    assert (c.BODY_MAX, c.NOTE_MAX, c.KEY_MAX) == (wire.BODY_MAX, wire.NOTE_MAX, wire.KEY_MAX)
    assert (queries.READ_MAX, queries.LIMIT_MAX) == (wire.READ_MAX, wire.LIMIT_MAX)
    assert c.SUBJECT_MAX > wire.SUBJECT_MAX + 4
    assert c.REFS_MAX >= wire.REFS_MAX
    assert c.Kind == wire.Kind


def test_a_message_arrives_whole(mail: Mail) -> None:
    sent = mail.sent(letter(1, (2, 3, 2), "héllo", "b\0dy\x1b[31m\r\n", kind="decision", refs=("x", "y")))
    assert sent == c.Sent(sent.id, sent.id, NOW, [2, 3], subject="héllo")
    [got] = mail.store.inbox(2).letters
    assert (got.id, got.thread, got.sender, got.kind) == (sent.id, sent.id, 1, "decision")
    assert (got.subject, got.size, got.refs, got.reply_to, got.sent_at) == ("héllo", 11, ["x", "y"], None, NOW)
    assert got.registry_seq == 7
    assert [one.identity for one in got.receipts] == [2, 3]
    [part] = mail.store.read([sent.id], 2).parts
    assert (part.text, part.offset, part.next_offset) == ("b\0dy\x1b[31m\r\n", 0, None)


def test_reading_consumes_nothing_and_acking_does(mail: Mail) -> None:
    first, second = mail.send(), mail.send(sender=3)
    for _ in range(2):
        assert mail.inbox(2) == [first, second]
        mail.store.read([first, second], 2)
    assert mail.store.unread(2) == 2
    assert mail.ack(2, first, note="done") == {first: "acked"}
    assert mail.ack(2, first, second, "nothing", note="again") == {
        first: "already",
        second: "acked",
        "nothing": "unknown",
    }
    assert mail.inbox(2) == []
    assert mail.inbox(2, everything=True) == [first, second]
    assert mail.store.unread(2) == 0
    receipt = mail.store.peek(first).receipt(2)
    assert receipt is not None
    assert (receipt.state, receipt.acked_at, receipt.note) == ("acked", NOW, "done")


def test_nobody_acks_for_others(mail: Mail) -> None:
    message = mail.send(to=(2, 3))
    assert mail.ack(1, message) == {message: "unknown"}
    assert mail.ack(3, message) == {message: "acked"}
    assert dict(mail.store.unread_counts) == {2: 1}


def test_the_owner_is_a_recipient_and_a_sender_like_any_other(mail: Mail) -> None:
    to_owner = mail.send(to=(c.OWNER,))
    from_owner = mail.send(sender=c.OWNER, to=(2,))
    assert mail.inbox(c.OWNER) == [to_owner]
    assert [one.id for one in mail.store.sent(c.OWNER).letters] == [from_owner]
    assert mail.found(c.OWNER, "body") == [from_owner, to_owner]


def test_delivery_is_noted_once_and_leaves_mail_unread(mail: Mail) -> None:
    message = mail.send()
    assert mail.store.call(c.Deliver(2, (message, message, "nothing"), NOW + 1)) == c.Delivered(1)
    assert mail.store.call(c.Deliver(2, (message,), NOW + 2)) == c.Delivered(0)
    receipt = mail.store.peek(message).receipt(2)
    assert receipt is not None
    assert (receipt.state, receipt.delivered_at) == ("delivered", NOW + 1)
    assert mail.store.unread(2) == 1
    assert mail.store.peek(message).receipt(9) is None


def test_inbox_pages_from_the_oldest_and_backwards(mail: Mail) -> None:
    ids = [mail.send() for _ in range(7)]
    first = mail.store.inbox(2, limit=3)
    assert [one.id for one in first.letters] == ids[:3]
    assert first.cursor == ids[2]
    assert mail.inbox(2, limit=3, after=ids[2]) == ids[3:6]
    last = mail.store.inbox(2, limit=3, after=ids[5])
    assert ([one.id for one in last.letters], last.cursor) == (ids[6:], None)
    newest = mail.store.inbox(2, limit=3, before="7ZZZZZZZZZZZZZZZZZZZZZZZZZ")
    assert ([one.id for one in newest.letters], newest.cursor) == (ids[4:], ids[4])
    assert mail.inbox(2, limit=9, before=ids[4]) == ids[:4]
    mail.ack(2, ids[3])
    assert mail.inbox(2, limit=2, after=ids[2]) == [ids[4], ids[5]]


def test_sent_pages_from_the_newest_with_what_became_of_each(mail: Mail) -> None:
    ids = [mail.send(to=(2, 3)) for _ in range(3)]
    mail.ack(3, ids[1], note="ok")
    page = mail.store.sent(1, limit=2)
    assert [one.id for one in page.letters] == [ids[2], ids[1]]
    assert [(one.identity, one.state, one.note) for one in page.letters[1].receipts] == [
        (2, "pending", ""),
        (3, "acked", "ok"),
    ]
    assert page.cursor is not None
    assert [one.id for one in mail.store.sent(1, before=page.cursor).letters] == [ids[0]]


def test_a_cursor_must_be_one(mail: Mail) -> None:
    for cursor in ("x", "01M8Q9HEK2", "'; DROP TABLE messages"):
        with pytest.raises(MailRefused, match="no cursor"):
            mail.store.sent(1, before=cursor)


def test_threads_belong_to_those_who_take_part(mail: Mail) -> None:
    first = mail.send(1, (2,), "plan")
    answer = mail.reply(first, 2, (1, 3))
    assert answer.thread == first
    third = mail.reply(answer.id, 3, (2,), body="x" * 2000)
    page = mail.store.thread(answer.id, 3)
    assert [one.id for one in page.letters] == [first, answer.id, third.id]
    assert [one.subject for one in page.letters] == ["plan", "Re: plan", "Re: plan"]
    assert [(len(one.text or ""), one.truncated) for one in page.letters] == [(4, False), (6, False), (1024, True)]
    with pytest.raises(MailRefused, match="does not take part"):
        mail.store.thread(first, 4)
    assert len(mail.store.thread(first, None).letters) == 3
    newest = mail.store.thread(first, 1, limit=2)
    assert ([one.id for one in newest.letters], newest.cursor) == ([answer.id, third.id], answer.id)
    assert [one.id for one in mail.store.thread(first, 1, before=answer.id).letters] == [first]
    with pytest.raises(MailRefused) as refused:
        mail.reply(first, 4)
    assert refused.value.code == "NOT_YOURS"
    assert mail.reply(first, c.OWNER).thread == first


def test_whom_a_reply_goes_to(mail: Mail) -> None:
    message = mail.send(1, (2, 3, 0))
    assert mail.store.reply_to(message, 2) == [1]
    assert mail.store.reply_to(message, 2, everybody=True) == [1, 0, 3]
    assert mail.store.reply_to(message, 1) == [0, 2, 3]
    assert mail.store.reply_to(message, 1, everybody=True) == [0, 2, 3]
    to_self = mail.send(5, (5,))
    assert mail.store.reply_to(to_self, 5) == [5]
    assert mail.store.reply_to(to_self, 5, everybody=True) == [5]
    with pytest.raises(MailRefused):
        mail.store.reply_to("01M8Q9HEK2H5KCCCGVDSMX1C1Z", 1)


def test_ids_are_found_by_a_unique_beginning(mail: Mail) -> None:
    first = mail.send(now=NOW)
    second = mail.send(now=NOW + 5000)
    assert mail.store.resolve(first[:8].lower()) == first
    assert mail.store.resolve(second) == second
    third = mail.send(now=NOW + 5000.001)
    with pytest.raises(MailRefused) as refused:
        mail.store.resolve(second[:8])
    assert refused.value.code == "MESSAGE_AMBIGUOUS"
    assert second in refused.value.hint
    assert third in refused.value.hint
    for typed in ("01", "not an id", "0" * 26):
        with pytest.raises(MailRefused) as refused:
            mail.store.resolve(typed)
    with pytest.raises(MailRefused, match="There is no message 'nonsense'"):  # as it was asked for, not as it is read
        mail.store.resolve("nonsense")
        assert refused.value.code == "UNKNOWN_MESSAGE"


def test_the_beginning_of_an_id_is_looked_up_among_what_one_sees(mail: Mail) -> None:
    private = [mail.send(7, (8,)) for _ in range(6)]
    mine = mail.send(1, (2,))
    answer = mail.reply(mine, 2, (1,)).id
    later = mail.send(1, (3,), now=NOW + 60)
    short = mine[:8]
    assert all(one.startswith(short) for one in (*private, answer))
    for identity in (1, 2):  # both are in the thread, and each got one of it
        with pytest.raises(MailRefused, match="More than one") as refusal:
            mail.store.resolve(short, identity)
        assert refusal.value.hint == f"Say which: {mine}, {answer}."
        whole = answer if identity == 1 else mine
        assert mail.store.resolve_all([short], identity, "inbox") == ({short: whole}, {})
    assert mail.store.resolve(later[:8], 3) == later
    with pytest.raises(MailRefused, match="no message") as unseen:
        mail.store.resolve(later[:8], 2)
    assert unseen.value.code == "UNKNOWN_MESSAGE"
    assert mail.store.resolve(later, 2) == later, "a whole id: what may be done with it is another question"


def test_what_may_not_be_read_costs_nothing_of_what_may(mail: Mail) -> None:
    mine, foreign, also = mail.send(1, (2,), body="one"), mail.send(7, (8,)), mail.send(1, (2,), body="two")
    reading = mail.store.read([foreign, mine, "nothing", also], 2, offset=1)
    assert [(part.letter.id, part.text) for part in reading.parts] == [(mine, "ne"), (also, "two")]
    assert [one.code for one in reading.refused] == ["NOT_YOURS", "UNKNOWN_MESSAGE"]
    with pytest.raises(MailRefused) as refusal:
        mail.store.read([foreign, "nothing"], 2)
    assert refusal.value.code == "NOT_YOURS"


def test_bodies_come_in_parts(mail: Mail) -> None:
    body = "aé€😀" * 12_000  # 10 bytes each time
    message = mail.send(body=body)
    offset, text, calls = 0, "", 0
    while True:
        reading = mail.store.read([message], 2, offset=offset)
        [part] = reading.parts
        assert part.offset == offset
        assert len(part.text.encode()) <= queries.READ_MAX
        text, calls = text + part.text, calls + 1
        if part.next_offset is None:
            break
        offset = part.next_offset
    assert text == body
    assert calls == 3
    assert mail.store.read([message], 2, offset=10**9).parts[0].text == ""
    assert mail.store.read([message], 2, offset=2).parts[0].offset == 1  # within a character: its beginning


def test_several_bodies_share_the_room(mail: Mail) -> None:
    small = [mail.send(body="x" * 20_000) for _ in range(4)]
    reading = mail.store.read(small, 2)
    assert [part.letter.id for part in reading.parts] == small[:2]
    assert reading.left == small[2:]
    whole = mail.store.read(reading.left, 2)
    assert (len(whole.parts), whole.left) == (2, [])
    large = mail.send(body="y" * 100_000)
    both = mail.store.read([large, small[0]], 2)
    assert (len(both.parts), both.left) == (1, [small[0]])


def test_others_mail_is_not_read(mail: Mail) -> None:
    message = mail.send()
    with pytest.raises(MailRefused) as refused:
        mail.store.read([message], 5)
    assert refused.value.code == "NOT_YOURS"
    assert mail.store.read([message], None).parts[0].text == "body"
    with pytest.raises(MailRefused, match="no message"):
        mail.store.read(["nothing"], 2)


def test_sizes_are_exact(mail: Mail) -> None:
    fits = "é" * (c.BODY_MAX // 2)
    assert mail.store.peek(mail.send(body=fits)).size == c.BODY_MAX
    with pytest.raises(MailRefused) as refused:
        mail.send(body=fits + "x")
    assert refused.value.code == "BODY_TOO_LONG"
    assert mail.ack(2, "x", note="n" * c.NOTE_MAX) == {"x": "unknown"}
    with pytest.raises(MailRefused, match="note"):
        mail.ack(2, "x", note="n" * (c.NOTE_MAX + 1))


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"body": "a\ud800"}, "surrogate"),
        ({"subject": "\udfff"}, "surrogate"),
        ({"subject": "s" * (c.SUBJECT_MAX + 1)}, "subject"),
        ({"kind": "rumour"}, "kind"),
        ({"to": ()}, "recipient"),
        ({"to": tuple(range(c.RECIPIENTS_MAX + 1))}, "recipients"),
        ({"refs": ("r",) * (c.REFS_MAX + 1)}, "refs"),
        ({"refs": ("\ud800",)}, "surrogate"),
        ({"key": ""}, "idempotency"),
        ({"key": "k" * (c.KEY_MAX + 1)}, "idempotency"),
        ({"reply_to": "nothing"}, "no message"),
    ],
)
def test_what_is_refused_leaves_nothing(mail: Mail, wrong: dict[str, object], match: str) -> None:
    with pytest.raises(MailRefused, match=match):
        mail.send(**wrong)  # type: ignore[arg-type]
    assert mail.store.check().messages == 0


@pytest.mark.parametrize("wrong", [{"registry_seq": 1 << 70}, {"to": (-5,)}, {"now": float("nan")}])
def test_numbers_out_of_range(mail: Mail, wrong: dict[str, object]) -> None:
    with pytest.raises(MailRefused, match="out of range"):
        mail.send(**wrong)  # type: ignore[arg-type]
    with pytest.raises(MailError, match="can't be stored"):
        mail.ack(1 << 70, "x")
    assert mail.send()


def test_the_clock_steps_back_and_order_stays(mail: Mail) -> None:
    late = mail.send(now=NOW)
    early = mail.send(now=NOW - 9999)
    assert late < early
    assert mail.inbox(2) == [late, early]
    assert mail.store.peek(early).sent_at == NOW - 9999


def test_order_survives_a_restart(mail: Mail, path: str) -> None:
    first = mail.send(now=NOW + 100)
    mail.close()
    mail.store = mail.store.open(path)
    assert mail.send(now=NOW) > first
    assert mail.store.unread(2) == 2


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(subject=TEXT.filter(bool), body=TEXT, size=st.integers(4, 40))
def test_any_text_comes_back(mail: Mail, subject: str, body: str, size: int) -> None:
    message = mail.send(subject=subject, body=body)
    read, offset = "", 0
    while True:
        [part] = mail.store.read([message], 2, offset=offset, budget=size).parts
        read += part.text
        if part.next_offset is None:
            break
        offset = part.next_offset
    assert (part.letter.subject, read) == (subject, body)
    begun = mail.store.thread(message, 1, text=size).letters[0]
    assert body.startswith(begun.text or "")
    assert msgspec.json.decode(msgspec.json.encode(part.letter)) is not None
