"""Commands, carried out on the writer's connection inside its transaction.

Owns every change of rows but those of pruning and of kept results. New rows wait in `rows.Rows`. Leaves the word
index and the unread counts to the writer, as `Effects`: SQLite flushes the index at every savepoint, so that it is
written once, at the end of a transaction.
"""

from __future__ import annotations

import math
import sqlite3
from typing import Final, NamedTuple

import msgspec

from mbxd.mail import commands as c
from mbxd.mail.errors import MailRefused
from mbxd.mail.ids import Ids
from mbxd.mail.rows import Rows


class Words(NamedTuple):
    """A row of the word index, as it was or as it is to be."""

    n: int
    subject: str
    body: str
    who: str


class Effects:
    """What commands do beside their rows.

    unread: recipients with changes; first: the lowest number of a message that is new; index: removals and additions
    of older ones, in order.
    """

    __slots__ = ("first", "index", "unread")

    def __init__(self) -> None:
        self.unread: list[tuple[int, int]] = []
        self.first: int | None = None
        self.index: list[tuple[bool, Words]] = []

    def mark(self) -> tuple[int, int]:
        """Where they stand."""
        return len(self.unread), len(self.index)

    def back(self, mark: tuple[int, int]) -> None:
        """Drop what came since; a message that is not there after all does no harm to `first`."""
        del self.unread[mark[0] :]
        del self.index[mark[1] :]

    def sent(self, n: int, recipients: list[int]) -> None:
        """A message is new; its words come with those of all new ones."""
        self.first = n if self.first is None else self.first
        self.unread += [(one, 1) for one in recipients]

    def widen(self, was: Words, who: str) -> None:
        """An older message has more recipients; its words must be what it was indexed with."""
        if self.first is None or was.n < self.first:
            self.index += [(False, was), (True, was._replace(who=who))]


class Work:
    """The writer's side of things: its connection, the next id and number, the effects of the running transaction."""

    __slots__ = ("conn", "effects", "ids", "n", "rows")

    def __init__(self, conn: sqlite3.Connection) -> None:
        self.conn = conn
        self.effects = Effects()
        self.rows = Rows()
        self.ids = Ids()
        self.n = 0
        self.catch_up()

    def flush(self) -> None:
        """Write what waits: before any statement that must see it."""
        self.rows.flush(self.conn)

    def catch_up(self) -> None:
        """Go on behind what the file holds."""
        row = self.conn.execute(
            "SELECT coalesce((SELECT max(n) FROM messages), 0),"
            " max(coalesce((SELECT max(id) FROM messages), ''), coalesce((SELECT max(id) FROM pruned), ''))"
        ).fetchone()
        self.n = max(self.n, row[0])
        self.ids.seen(row[1])


_MEMBER: Final = "INSERT INTO members VALUES (?, ?) ON CONFLICT DO NOTHING"


class _Target(NamedTuple):
    """A message that is referred to."""

    n: int
    thread: int
    root: str
    sender: int
    subject: str


def send(work: Work, cmd: c.Send) -> c.Sent:
    """Store a message with its deliveries, or find what its key sent before."""
    digest = None
    if cmd.key is not None or cmd.reply_to:
        work.flush()
    if cmd.key is not None:
        digest = c.content_digest(cmd)
        before = _sent_before(work.conn, cmd, digest)
        if before is not None:
            return before
    if not cmd.recipients and not cmd.held:  # only now: a retry may name who can't be reached any more
        raise MailRefused("PARAMETER_INVALID", "The message has no recipient.", "Name at least one.")
    target = _reply_target(work.conn, cmd) if cmd.reply_to else None
    return _store(work, cmd, target, digest)


def _store(work: Work, cmd: c.Send, target: _Target | None, digest: str | None) -> c.Sent:
    work.n += 1
    n, message = work.n, work.ids.make(cmd.now, cmd.entropy)
    thread, root = (target.thread, target.root) if target else (n, message)
    recipients = list(dict.fromkeys(cmd.recipients))
    subject = cmd.subject or (_re(target.subject) if target else "")
    who = _tokens(cmd.sender, recipients)
    refs = msgspec.json.encode(cmd.refs).decode()
    rows = work.rows
    rows.add(
        "messages",
        (
            *(n, message, thread, cmd.sender, cmd.kind, int(cmd.needs_reply), cmd.reply_to, refs, cmd.now),
            *(cmd.registry_seq, cmd.key, digest, len(cmd.body.encode()), who, subject, cmd.body),
        ),
    )
    rows.add("members", *[(thread, one) for one in (cmd.sender, *recipients)])
    rows.add("deliveries", *[(one, n) for one in recipients])
    if cmd.needs_reply:
        rows.add("requests", *[(n, one, cmd.sender) for one in recipients])
    if cmd.held:
        rows.add("held", *[(one.project, one.role, n) for one in cmd.held])
    work.effects.sent(n, recipients)
    answered = _answer(work, cmd.sender, target) if target else []
    return c.Sent(message, root, cmd.now, recipients, answered, subject=subject, held=list(cmd.held))


def _deliver(work: Work, n: int, thread: int, recipient: int) -> bool:
    """Put a message into an inbox; False when it is there already."""
    done = work.conn.execute(
        "INSERT INTO deliveries (recipient, message) VALUES (?, ?) ON CONFLICT DO NOTHING", (recipient, n)
    )
    if done.rowcount == 0:
        return False
    work.conn.execute(_MEMBER, (thread, recipient))
    work.effects.unread.append((recipient, 1))
    return True


def _sent_before(conn: sqlite3.Connection, cmd: c.Send, digest: str) -> c.Sent | None:
    found = conn.execute(
        "SELECT m.id, r.id, m.sent_at, m.digest, m.n FROM messages m JOIN messages r ON r.n = m.thread"
        " WHERE m.sender = ? AND m.key = ? UNION ALL"
        " SELECT id, thread, sent_at, digest, 0 FROM pruned WHERE sender = ? AND key = ?",
        (cmd.sender, cmd.key, cmd.sender, cmd.key),
    ).fetchone()
    if found is None:
        return None
    message, root, sent_at, kept, n = found
    if kept != digest:
        raise MailRefused(
            "KEY_REUSED",
            f"The idempotency key {cmd.key!r} was used for another message, {message}.",
            "Use a new key for a new message; repeat a key only with the same recipients, subject and body.",
        )
    reached = [one for (one,) in conn.execute("SELECT recipient FROM deliveries WHERE message = ?", (n,))]
    held = [c.Role(*row) for row in conn.execute("SELECT project, role FROM held WHERE message = ?", (n,))]
    return c.Sent(message, root, sent_at, reached, duplicate=True, held=held)


def find(conn: sqlite3.Connection, message: str) -> _Target:
    """A message by full id. Raises MailRefused."""
    row = conn.execute(
        "SELECT m.n, m.thread, r.id, m.sender, m.subject FROM messages m JOIN messages r ON r.n = m.thread"
        " WHERE m.id = ?",
        (message,),
    ).fetchone()
    if row is None:
        raise unknown(conn, message)
    return _Target(*row)


def pruned(message: str) -> MailRefused:
    """The refusal for the id of what is there no more."""
    return MailRefused("MESSAGE_PRUNED", f"The message {message} was pruned with its thread.", "Start a new thread.")


def unknown(conn: sqlite3.Connection, message: str) -> MailRefused:
    """The refusal for an id that leads nowhere."""
    if conn.execute("SELECT 1 FROM pruned WHERE id = ?", (message,)).fetchone() is not None:
        return pruned(message)
    return MailRefused(
        "UNKNOWN_MESSAGE",
        f"There is no message {message[:64]!r}.",
        "Take ids from the inbox, the sent list or a search.",
    )


def _reply_target(conn: sqlite3.Connection, cmd: c.Send) -> _Target:
    target = find(conn, cmd.reply_to)
    if cmd.sender > c.OWNER and not takes_part(conn, target.thread, cmd.sender):
        raise MailRefused(
            "NOT_YOURS",
            f"The message {cmd.reply_to} is in a thread that this identity does not take part in.",
            "Reply to messages of your own inbox, sent list or threads.",
        )
    return target


def takes_part(conn: sqlite3.Connection, thread: int, identity: int) -> bool:
    """Whether an identity sent or received something in a thread."""
    row = conn.execute("SELECT 1 FROM members WHERE thread = ? AND identity = ?", (thread, identity)).fetchone()
    return row is not None


def _answer(work: Work, replier: int, target: _Target) -> list[str]:
    """Close the requests that a reply answers (see `Send`); their ids."""
    conn = work.conn
    found = conn.execute(
        "SELECT m.n, m.id FROM requests q JOIN messages m ON m.n = q.message WHERE q.message = ? AND q.recipient = ?",
        (target.n, replier),
    ).fetchall()
    if not found:
        found = conn.execute(
            "SELECT m.n, m.id FROM requests q JOIN messages m ON m.n = q.message"
            " WHERE q.recipient = ? AND q.sender = ? AND q.message < ? AND m.thread = ? ORDER BY m.n",
            (replier, target.sender, target.n, target.thread),
        ).fetchall()
    conn.executemany("DELETE FROM requests WHERE message = ? AND recipient = ?", [(n, replier) for n, _ in found])
    return [message for _, message in found]


def ack(work: Work, cmd: c.Ack) -> c.Acked:
    """Mark deliveries as done with, each for itself."""
    results: dict[str, str] = {}
    for message in dict.fromkeys(cmd.ids):
        row = work.conn.execute(
            "SELECT d.message, d.acked_at FROM messages m JOIN deliveries d ON d.message = m.n AND d.recipient = ?"
            " WHERE m.id = ?",
            (cmd.identity, message),
        ).fetchone()
        if row is None or row[1] is not None:
            results[message] = "unknown" if row is None else "already"
            continue
        work.conn.execute(
            "UPDATE deliveries SET acked_at = ?, note = ? WHERE recipient = ? AND message = ?",
            (cmd.now, cmd.note, cmd.identity, row[0]),
        )
        work.effects.unread.append((cmd.identity, -1))
        results[message] = "acked"
    return c.Acked(results)


def deliver(work: Work, cmd: c.Deliver) -> c.Delivered:
    """Note when deliveries first reached a session."""
    count = 0
    for message in dict.fromkeys(cmd.ids):
        count += work.conn.execute(
            "UPDATE deliveries SET delivered_at = ? WHERE delivered_at IS NULL AND acked_at IS NULL AND recipient = ?"
            " AND message = (SELECT n FROM messages WHERE id = ?)",
            (cmd.now, cmd.identity, message),
        ).rowcount
    return c.Delivered(count)


def release_held(work: Work, cmd: c.ReleaseHeld) -> c.Released:
    """Deliver what waited for a role, but what the identity sent itself: that goes on waiting. What it got already by
    name comes no second time.
    """
    conn = work.conn
    rows = conn.execute(
        "SELECT m.n, m.id, m.thread, m.sender, m.needs_reply, m.who, m.subject, m.body FROM held h"
        " JOIN messages m ON m.n = h.message WHERE h.project = ? AND h.role = ? AND m.sender <> ? AND m.sent_at < ?"
        " ORDER BY m.n LIMIT ?",
        (cmd.project, cmd.role, cmd.identity, math.inf if cmd.before is None else cmd.before, c.RELEASE_BATCH),
    ).fetchall()
    came = []
    for n, message, thread, sender, needs_reply, who, subject, body in rows:
        conn.execute("DELETE FROM held WHERE project = ? AND role = ? AND message = ?", (cmd.project, cmd.role, n))
        if not _deliver(work, n, thread, cmd.identity):
            continue
        if needs_reply:
            conn.execute("INSERT INTO requests VALUES (?, ?, ?)", (n, cmd.identity, sender))
        wider = f"{who} r{cmd.identity}"
        conn.execute("UPDATE messages SET who = ? WHERE n = ?", (wider, n))
        work.effects.widen(Words(n, subject, body, who), wider)
        came.append(message)
    return c.Released(came, more=len(rows) == c.RELEASE_BATCH)


def notice(work: Work, cmd: c.Notice) -> c.Noticed:
    """Tell a request's sender once, in its thread, while an answer is owed."""
    request = find(work.conn, cmd.request)
    owed = work.conn.execute(
        "SELECT 1 FROM requests WHERE message = ? AND recipient = ?", (request.n, cmd.recipient)
    ).fetchone()
    if owed is None:
        return c.Noticed(None)
    fresh = work.conn.execute(
        "INSERT INTO notices VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (request.n, cmd.kind, cmd.recipient, cmd.epoch),
    )
    if fresh.rowcount == 0:
        return c.Noticed(None)
    letter = c.Send(
        *(c.SYSTEM, (request.sender,), cmd.subject, cmd.body, cmd.now, cmd.entropy, cmd.registry_seq),
        kind="status",
        reply_to=cmd.request,
    )
    return c.Noticed(_store(work, letter, request, None).id)


def _re(subject: str) -> str:
    """A reply's subject; `Re: ` is not repeated."""
    return (subject if subject[:3].lower() == "re:" else f"Re: {subject}")[: c.SUBJECT_MAX]


def _tokens(sender: int, recipients: list[int]) -> str:
    """Who takes part, as words for the index; the daemon's own notices have no sender to search by."""
    words = [f"s{sender}"] if sender >= 0 else []
    return " ".join([*words, *(f"r{one}" for one in recipients)])
