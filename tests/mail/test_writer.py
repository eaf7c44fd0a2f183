"""Group commit, and that one command never costs another its message."""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mbxd.mail import commands as c
from mbxd.mail import schema, writer
from mbxd.mail.errors import MailBusy, MailError, MailFull, MailRefused, MailUnusable
from mbxd.mail.store import MailStore
from mbxd.mail.writer import Job
from tests.mail.support import NOW, Mail, letter

WAIT_S = 30.0


class Asked:
    """Commands in flight."""

    def __init__(self, store: MailStore) -> None:
        self.store = store
        self.count = 0
        self.came: queue.Queue[tuple[int, Any, MailError | None]] = queue.Queue()

    def submit(self, command: c.Command, request: c.Request | None = None) -> None:
        place = self.count
        self.store.submit(command, lambda result, error: self.came.put((place, result, error)), request)
        self.count += 1

    def outcomes(self) -> list[Any]:
        """What each came to, in the order of asking."""
        found = sorted((self.came.get(timeout=WAIT_S) for _ in range(self.count)), key=lambda one: one[0])
        assert self.came.empty()
        return [error if error is not None else result for _, result, error in found]


@contextmanager
def held_up(store: MailStore) -> Iterator[None]:
    """The writer stands still, so that what is submitted gathers."""
    entered, leave = threading.Event(), threading.Event()

    def stand(_: sqlite3.Connection) -> None:
        entered.set()
        assert leave.wait(WAIT_S)

    store._writer.submit(Job(stand, None, lambda _result, _error: None, 0))
    assert entered.wait(WAIT_S)
    try:
        yield
    finally:
        leave.set()


def test_what_gathers_shares_a_commit(mail: Mail) -> None:
    asked = Asked(mail.store)
    with held_up(mail.store):
        for _ in range(100):
            asked.submit(letter())
    ids = [one.id for one in asked.outcomes()]
    assert ids == sorted(set(ids)) == mail.inbox(2, limit=100)
    assert mail.store.statistics()["commits"] == 1


def test_a_bad_command_costs_the_others_nothing(mail: Mail) -> None:
    asked = Asked(mail.store)
    with held_up(mail.store):
        asked.submit(letter())
        asked.submit(letter(reply_to="nothing"))
        asked.submit(c.Ack(1 << 65, ("x",), NOW))
        asked.submit(letter(key="k"))
        asked.submit(letter(key="k", body="other"))
        asked.submit(letter(key="k"))
        asked.submit(letter(sender=3))
    good, unknown, unstorable, keyed, reused, repeated, last = asked.outcomes()
    assert isinstance(unknown, MailRefused)
    assert isinstance(reused, MailRefused)
    assert type(unstorable) is MailError
    assert repeated.id == keyed.id
    assert mail.inbox(2) == [good.id, keyed.id, last.id]
    assert mail.store.unread(2) == 3


def test_commands_of_one_commit_see_each_other(mail: Mail) -> None:
    asked = Asked(mail.store)
    same = c.Request("i", "r", b"d")
    with held_up(mail.store):
        asked.submit(letter(to=(), held=(c.Role(1, "r"),), body="held words"), same)
        asked.submit(letter(to=(), held=(c.Role(1, "r"),), body="held words"), same)
        asked.submit(c.ReleaseHeld(1, "r", 5))
    first, again, released = asked.outcomes()
    assert first == again
    assert released == c.Released([first.id])
    assert mail.found(5, "held") == [first.id]
    assert mail.store.statistics()["commits"] == 1


def test_pruning_stands_alone_and_in_order(mail: Mail) -> None:
    message = mail.send(now=NOW - 10)
    asked = Asked(mail.store)
    with held_up(mail.store):
        asked.submit(c.Ack(2, (message,), NOW))
        asked.submit(c.Prune(NOW, NOW))
        asked.submit(letter())
    acked, pruned, sent = asked.outcomes()
    assert acked.results == {message: "acked"}
    assert pruned.messages == 1
    assert mail.inbox(2, everything=True) == [sent.id]
    assert mail.store.statistics()["commits"] == 4


def test_answers_come_through_post_once_for_a_commit(path: str) -> None:
    posted: queue.Queue[Callable[[], None]] = queue.Queue()
    store = MailStore.open(path, post=posted.put)
    asked = Asked(store)
    with held_up(store):
        for _ in range(10):
            asked.submit(letter())
    posted.get(timeout=WAIT_S)()  # of what held it up
    tell = posted.get(timeout=WAIT_S)
    assert asked.came.empty()
    assert store.unread(2) == 10  # durable, so counted
    tell()
    assert len(asked.outcomes()) == 10
    assert posted.empty()
    assert store.close()


def test_too_much_is_refused_and_it_goes_on(mail: Mail) -> None:
    asked = Asked(mail.store)
    body = "x" * c.BODY_MAX
    with held_up(mail.store), pytest.raises(MailBusy, match="waits"):
        for _ in range(writer.QUEUE_BYTES_MAX // c.BODY_MAX + 1):
            asked.submit(letter(body=body))
    assert len(mail.inbox(2, limit=1)) <= 1
    asked.outcomes()
    assert mail.send()
    assert mail.store._writer._waiting_bytes == 0


def test_closing_finishes_what_was_queued(path: str) -> None:
    store = MailStore.open(path)
    asked = Asked(store)
    with held_up(store):
        for _ in range(5):
            asked.submit(letter())
        closing = threading.Thread(target=store.close)
        closing.start()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert all(isinstance(one, c.Sent) for one in asked.outcomes())
    for act in (lambda: store.call(letter()), lambda: store.inbox(2)):
        with pytest.raises(MailUnusable, match="closed"):
            act()
    assert store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_leaves_nobody_waiting(path: str) -> None:
    store = MailStore.open(path)
    asked = Asked(store)

    def broken(_result: Any, _error: MailError | None) -> None:
        raise RuntimeError("bug")

    with held_up(store):
        store.submit(c.Prune(0, 0), broken)
        asked.submit(letter())
    [failure] = asked.outcomes()
    assert isinstance(failure, MailUnusable)
    with pytest.raises(MailUnusable, match="bug"):
        store.call(letter())
    assert store.inbox(2).letters == []
    assert store.close()


def test_no_room_means_nothing_half_sent_and_it_works_again(mail: Mail) -> None:
    mail.send()
    pages = mail.store._in_writer(lambda conn: conn.execute("PRAGMA page_count").fetchone()[0])
    mail.store._in_writer(lambda conn: conn.execute(f"PRAGMA max_page_count = {pages + 4}").fetchone())
    asked = Asked(mail.store)
    with held_up(mail.store):
        asked.submit(letter(key="large", body="word " * 50_000))
        asked.submit(letter(to=(3,), key="small"))
    large, small = asked.outcomes()
    assert isinstance(large, MailFull)
    assert isinstance(small, c.Sent)
    assert mail.store.unread_counts == {2: 1, 3: 1}
    assert mail.found(None, "word") == []
    assert mail.store.check().problems == []
    mail.store._in_writer(lambda conn: conn.execute("PRAGMA max_page_count = 1073741823").fetchone())
    again = mail.sent(letter(key="large", body="word " * 50_000))
    assert not again.duplicate
    assert mail.found(2, "word") == [again.id]


def test_two_stores_of_one_file_stay_right(mail: Mail, path: str) -> None:
    other = Mail(path)
    ids = []
    for _ in range(5):
        ids.append(mail.send(now=NOW + 50))
        ids.append(other.send())
        other.ack(2, ids[-2])
    assert ids == sorted(ids)
    last = mail.send()
    assert mail.store.unread(2) == 6
    assert mail.inbox(2) == [*ids[1::2], last]
    other.send(to=(3,))
    assert other.store.unread_counts == {2: 6, 3: 1}
    other.close()
    mail.send()


def test_a_reader_and_the_writer_do_not_wait_for_each_other(mail: Mail, path: str) -> None:
    first = mail.send()
    reader = schema.connect(path, read_only=True)
    reader.execute("BEGIN")
    count = "SELECT count(*) FROM messages"
    assert reader.execute(count).fetchone() == (1,)
    second = mail.send()
    assert reader.execute(count).fetchone() == (1,)
    assert mail.inbox(2) == [first, second]
    reader.execute("COMMIT")
    assert reader.execute(count).fetchone() == (2,)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("DELETE FROM messages")
    reader.close()
    with held_up(mail.store):
        assert mail.inbox(2) == [first, second]


def test_readers_see_whole_messages_while_many_are_sent(mail: Mail) -> None:
    stop, problems = threading.Event(), []

    def look() -> None:
        seen = 0
        while not stop.is_set():
            found = mail.store.inbox(2, limit=200).letters
            if len(found) < seen or any(len(one.receipts) != 2 for one in found):
                problems.append(found)
            seen = len(found)

    readers = [threading.Thread(target=look) for _ in range(3)]
    for one in readers:
        one.start()
    for _ in range(150):
        mail.send(to=(2, 3))
    stop.set()
    for one in readers:
        one.join(WAIT_S)
    assert problems == []


def test_checkpoints_keep_the_log_small(mail: Mail, path: str) -> None:
    for number in range(60):
        mail.send(body=f"{number} " * 20_000)
    assert mail.store.statistics()["checkpoints"] > 0
    assert os.path.getsize(f"{path}-wal") < 40 * 1024 * 1024
