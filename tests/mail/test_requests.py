"""Requests that wait for an answer, what waits for a role, and notices about both."""

from __future__ import annotations

import pytest

from mbxd.mail import commands as c
from mbxd.mail.errors import MailRefused
from tests.mail.support import NOW, Mail, entropy


def ask(mail: Mail, sender: int = 1, to: tuple[int, ...] = (2,)) -> str:
    return mail.send(sender, to, kind="request", needs_reply=True)


def owed(mail: Mail, identity: int) -> list[str]:
    return [one.id for one in mail.store.owed(identity)]


def waited(mail: Mail, identity: int) -> list[tuple[str, int]]:
    return [(one.id, one.recipient) for one in mail.store.waited_for(identity)]


def notice(request: str, epoch: int = 1, kind: str = "orphaned", recipient: int = 2) -> c.Notice:
    return c.Notice(kind, request, recipient, epoch, "gone", "the holder is gone", NOW, entropy(), 9)


def test_a_request_is_owed_until_it_is_answered(mail: Mail) -> None:
    request = ask(mail, to=(2, 3))
    mail.send(needs_reply=False)
    assert (owed(mail, 2), owed(mail, 3)) == ([request], [request])
    assert waited(mail, 1) == [(request, 2), (request, 3)]
    assert mail.reply(request, 2).answered == [request]
    assert (owed(mail, 2), owed(mail, 3), waited(mail, 1)) == ([], [request], [(request, 3)])
    states = {one.identity: one.owes_reply for one in mail.store.peek(request).receipts}
    assert states == {2: False, 3: True}


def test_an_ack_is_no_answer(mail: Mail) -> None:
    request = ask(mail)
    mail.ack(2, request)
    assert owed(mail, 2) == [request]


def test_somebody_elses_reply_is_no_answer(mail: Mail) -> None:
    request = ask(mail, to=(2, 3))
    mail.send(1, (3,))
    assert mail.reply(request, 1, (2,)).answered == []
    assert mail.reply(request, c.OWNER).answered == []
    assert owed(mail, 2) == [request]


def test_a_reply_answers_the_request_that_it_replies_to_alone(mail: Mail) -> None:
    first = ask(mail)
    second = mail.reply(first, 1, (2,), kind="request", needs_reply=True).id
    assert mail.reply(second, 2).answered == [second]
    assert owed(mail, 2) == [first]


def test_a_reply_to_a_later_note_of_the_asker_answers_what_came_before_it(mail: Mail) -> None:
    first = ask(mail)
    second = mail.reply(first, 1, (2,), needs_reply=True).id
    note = mail.reply(first, 1, (2,), body="by the way").id
    later = mail.reply(first, 1, (2,), needs_reply=True).id
    elsewhere = ask(mail)
    assert mail.reply(note, 2).answered == [first, second]
    assert owed(mail, 2) == [later, elsewhere]


def test_a_question_back_is_an_answer_and_a_request(mail: Mail) -> None:
    request = ask(mail)
    back = mail.reply(request, 2, (1,), needs_reply=True)
    assert back.answered == [request]
    assert (owed(mail, 2), owed(mail, 1)) == ([], [back.id])


def test_mail_for_a_role_waits_for_its_first_identity(mail: Mail) -> None:
    role = c.Role(4, "reviewer")
    message = mail.send(1, (), needs_reply=True, held=(role, role), body="unusual words")
    also = mail.send(1, (5,), held=(role,))
    mail.send(1, (6,))
    assert mail.store.held_roles() == [role]
    assert mail.store.peek(message).held == [role]
    assert mail.store.unread_counts == {5: 1, 6: 1}
    assert waited(mail, 1) == []
    assert mail.found(5, "unusual") == []
    assert mail.store.call(c.ReleaseHeld(4, "tester", 5)) == c.Released([])
    assert mail.store.call(c.ReleaseHeld(4, "reviewer", 5)) == c.Released([message])  # the other one came by name
    assert mail.inbox(5) == [message, also]
    assert owed(mail, 5) == [message]
    assert mail.found(5, "unusual") == [message]
    assert mail.store.held_roles() == []
    assert mail.store.call(c.ReleaseHeld(4, "reviewer", 6)) == c.Released([])
    assert mail.store.unread_counts == {5: 2, 6: 1}


def test_nobody_is_given_what_it_sent_to_its_own_role(mail: Mail) -> None:
    role = c.Role(4, "reviewer")
    own = mail.send(5, (), needs_reply=True, held=(role,))
    other = mail.send(1, (), held=(role,))
    assert mail.store.call(c.ReleaseHeld(4, "reviewer", 5)) == c.Released([other])
    assert (mail.inbox(5), owed(mail, 5), mail.store.held_roles()) == ([other], [], [role])
    assert mail.store.call(c.ReleaseHeld(4, "reviewer", 6)) == c.Released([own])
    assert (owed(mail, 6), waited(mail, 5)) == ([own], [(own, 6)])


def test_much_that_is_held_comes_in_runs(mail: Mail) -> None:
    role = c.Role(4, "reviewer")
    ids = [mail.send(1, (), held=(role,)) for _ in range(c.RELEASE_BATCH + 5)]
    first = mail.store.call(c.ReleaseHeld(4, "reviewer", 5))
    rest = mail.store.call(c.ReleaseHeld(4, "reviewer", 5))
    assert (first.more, rest.more) == (True, False)
    assert first.ids + rest.ids == ids
    assert mail.store.unread(5) == len(ids)


def test_a_notice_is_given_once(mail: Mail) -> None:
    request = ask(mail)
    first = mail.store.call(notice(request))
    assert first.id is not None
    assert mail.store.call(notice(request)).id is None
    successor = mail.store.call(notice(request, kind="adopted", epoch=2))
    assert successor.id is not None
    assert mail.inbox(1) == [first.id, successor.id]
    got = mail.store.inbox(1).letters[0]
    assert (got.sender, got.kind, got.thread, got.reply_to) == (c.SYSTEM, "status", request, request)
    assert owed(mail, 2) == [request]


def test_no_notice_without_a_debt(mail: Mail) -> None:
    request = ask(mail)
    mail.reply(request)
    assert mail.store.call(notice(request)).id is None
    assert mail.store.call(notice(request, recipient=3)).id is None
    with pytest.raises(MailRefused):
        mail.store.call(notice("nothing"))


def test_a_notice_can_be_replied_to_by_its_reader(mail: Mail) -> None:
    request = ask(mail)
    told = mail.store.call(notice(request))
    assert mail.reply(told.id, 1, (2,)).answered == []
