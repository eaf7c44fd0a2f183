from __future__ import annotations

import pytest

from mbxd.mail import commands as c
from mbxd.mail.errors import MailRefused
from tests.mail.support import NOW, Mail, letter

OLD = NOW - 1000


def prune(mail: Mail, now: float = NOW, **options: object) -> c.Pruned:
    result = mail.store.call(c.Prune(NOW - 500, now, **options))  # type: ignore[arg-type]
    assert isinstance(result, c.Pruned)
    return result


def test_only_what_nobody_needs_goes(mail: Mail) -> None:
    unacked = mail.send(to=(2, 3), now=OLD)
    mail.ack(2, unacked)
    owed = mail.send(needs_reply=True, now=OLD)
    held = mail.send(held=(c.Role(1, "r"),), now=OLD)
    young = mail.send(now=OLD)
    answer = mail.reply(young, now=NOW).id
    gone = mail.send(body="gone for good", now=OLD)
    gone_too = mail.reply(gone, now=OLD).id
    for identity, message in ((2, owed), (2, held), (2, young), (1, answer), (2, gone), (1, gone_too)):
        assert mail.ack(identity, message) == {message: "acked"}
    assert prune(mail, dry_run=True) == c.Pruned(1, 2, 19, None)
    assert mail.store.check().messages == 7
    assert prune(mail) == c.Pruned(1, 2, 19, None)
    assert prune(mail) == c.Pruned(0, 0, 0, None)
    report = mail.store.check()
    assert (report.messages, report.problems) == (5, [])
    assert mail.found(None, "gone") == []
    assert mail.inbox(2, everything=True) == [unacked, owed, held, young]


def test_pruned_mail_is_named_as_such_and_never_doubled(mail: Mail) -> None:
    command = letter(now=OLD, key="k")
    sent = mail.sent(command)
    mail.ack(2, sent.id)
    assert prune(mail).messages == 1
    for act in (
        lambda: mail.store.read([sent.id], 2),
        lambda: mail.store.resolve(sent.id[:20]),
        lambda: mail.reply(sent.id),
        lambda: mail.store.thread(sent.id, None),
    ):
        with pytest.raises(MailRefused) as refused:
            act()
        assert refused.value.code == "MESSAGE_PRUNED"
    again = mail.sent(letter(now=NOW, key="k"))
    assert (again.id, again.thread, again.duplicate) == (sent.id, sent.id, True)
    assert mail.inbox(2, everything=True) == []
    assert mail.send() > sent.id
    prune(mail, now=NOW + c.TOMBSTONES_KEPT_S + 1)
    with pytest.raises(MailRefused, match="no message"):
        mail.store.resolve(sent.id)


def test_ids_stay_behind_pruned_ones_after_a_restart(mail: Mail, path: str) -> None:
    late = mail.send(now=OLD)
    mail.ack(2, late)
    prune(mail)
    mail.close()
    mail.store = mail.store.open(path)
    assert mail.send(now=1.0) > late


def test_threads_are_looked_at_in_runs(mail: Mail) -> None:
    ids = [mail.send(now=OLD) for _ in range(5)]
    mail.ack(2, *ids[1:])
    first = prune(mail, limit=2)
    assert (first.threads, first.after) == (1, 2)
    second = prune(mail, limit=2, after=first.after)
    assert (second.threads, second.after) == (2, 4)
    last = prune(mail, limit=2, after=second.after)
    assert (last.threads, last.after) == (1, None)
    assert mail.inbox(2, everything=True) == ids[:1]


def test_cursors_outlive_what_they_point_at(mail: Mail) -> None:
    ids = [mail.send(now=OLD) for _ in range(3)]
    mail.ack(2, ids[1])
    prune(mail)
    assert mail.inbox(2, after=ids[1]) == [ids[2]]
    assert mail.inbox(2, before=ids[1]) == [ids[0]]


def test_notices_go_with_their_request(mail: Mail) -> None:
    request = mail.send(needs_reply=True, now=OLD)
    told = mail.store.call(c.Notice("gone", request, 2, 1, "s", "b", OLD, bytes(10), 1)).id
    answer = mail.reply(request, now=OLD).id
    mail.ack(1, told, answer)
    mail.ack(2, request)
    assert prune(mail).messages == 3
