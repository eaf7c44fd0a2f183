"""Reading mail: inbox, sent, threads, bodies, requests. Each runs in one read transaction of one connection.

Owns the SELECTs of lists. Reading changes nothing, and every list has a limit. `identity=None` is a person who
looks at somebody's mail from outside.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from mbxd.mail import ids as mail_ids
from mbxd.mail.apply import pruned, takes_part, unknown
from mbxd.mail.commands import Role
from mbxd.mail.errors import MailRefused
from mbxd.mail.records import Letter, Open, Page, Part, Reading, Receipt, State

LIMIT_MAX: Final = 200
READ_MAX: Final = 48 * 1024
"""Bytes of bodies in one result."""

COLUMNS: Final = (
    "m.n, m.id, CASE m.thread WHEN m.n THEN m.id ELSE (SELECT r.id FROM messages r WHERE r.n = m.thread) END,"
    " m.sender, m.kind, m.needs_reply, m.subject, m.size, m.refs, m.reply_to, m.sent_at, m.registry_seq"
)
_UNACKED: Final = "deliveries d INDEXED BY deliveries_unacked"
_refs = msgspec.json.Decoder(list[str]).decode


def inbox(conn: sqlite3.Connection, identity: int, *, everything: bool, limit: int, after: str, before: str) -> Page:
    """What came, oldest first: unacked messages, or `everything`.

    Begins at the oldest, or behind `after`. With `before` it is the page that ends just before that.
    """
    limit = bounded(limit)
    # Said outright: left to itself SQLite walks over all that was ever acked, by the primary key.
    source, unacked = ("deliveries d", "") if everything else (_UNACKED, "AND d.acked_at IS NULL")
    order, edge, bound = ("DESC", "<", before_of(conn, before)) if before else ("ASC", ">", after_of(conn, after))
    rows = conn.execute(
        f"SELECT {COLUMNS} FROM {source} JOIN messages m ON m.n = d.message WHERE d.recipient = ?"  # noqa: S608
        f" {unacked} AND d.message {edge} ? ORDER BY d.message {order} LIMIT ?",
        (identity, bound, limit + 1),
    ).fetchall()
    return page(conn, rows, limit, oldest_first=True)


def sent(conn: sqlite3.Connection, identity: int, *, limit: int, before: str) -> Page:
    """What an identity sent, newest first."""
    limit = bounded(limit)
    rows = conn.execute(
        f"SELECT {COLUMNS} FROM messages m WHERE m.sender = ? AND m.n < ? ORDER BY m.n DESC LIMIT ?",  # noqa: S608
        (identity, before_of(conn, before), limit + 1),
    ).fetchall()
    return page(conn, rows, limit)


def thread(conn: sqlite3.Connection, message: str, identity: int | None, *, limit: int, before: str, text: int) -> Page:
    """The thread of a message: its newest page, or the one before `before`, oldest first in itself.

    text: bytes of each body to bring along. Raises MailRefused: an identity sees threads that it takes part in.
    """
    limit = bounded(limit)
    found = conn.execute("SELECT thread FROM messages WHERE id = ?", (message,)).fetchone()
    if found is None:
        raise unknown(conn, message)
    if identity is not None and not takes_part(conn, found[0], identity):
        raise MailRefused(
            "NOT_YOURS",
            f"The message {message} is in a thread that this identity does not take part in.",
            "Look at threads of your own inbox and sent list.",
        )
    rows = conn.execute(
        f"SELECT {COLUMNS} FROM messages m WHERE m.thread = ? AND m.n < ? ORDER BY m.n DESC LIMIT ?",  # noqa: S608
        (found[0], before_of(conn, before), limit + 1),
    ).fetchall()
    return page(conn, rows, limit, oldest_first=True, text=text)


def read(conn: sqlite3.Connection, ids: Sequence[str], identity: int | None, *, offset: int, budget: int) -> Reading:
    """Bodies of messages that an identity sent, got, or can see in its threads; `offset` is the first one's.

    As many as fit into `budget` bytes, at most 48 KiB, cut between characters; the first always gets some. What may
    not be read is left out, with the reason; raises MailRefused when nothing may.
    """
    budget = min(max(budget, 4), READ_MAX)
    parts: list[Part] = []
    refused: list[MailRefused] = []
    for place, message in enumerate(ids):
        if budget < 4:  # a character may be as long
            return Reading(parts, list(ids[place:]), refused)
        try:
            letter, body = _whole(conn, message, identity)
        except MailRefused as refusal:
            refused.append(refusal)
            continue
        begin = _boundary(body, 0 if parts else offset)
        if parts and len(body) > budget:
            return Reading(parts, list(ids[place:]), refused)  # a fresh result fits more of it
        end = _boundary(body, begin + budget)
        parts.append(Part(letter, body[begin:end].decode(), begin, end if end < len(body) else None))
        budget -= end - begin
    if refused and not parts:
        raise refused[0]
    return Reading(parts, [], refused)


def _whole(conn: sqlite3.Connection, message: str, identity: int | None) -> tuple[Letter, bytes]:
    row = conn.execute(f"SELECT {COLUMNS}, m.thread, m.body FROM messages m WHERE m.id = ?", (message,)).fetchone()  # noqa: S608
    if row is None:
        raise unknown(conn, message)
    if identity is not None and not takes_part(conn, row[-2], identity):
        raise MailRefused(
            "NOT_YOURS",
            f"The message {message} was neither sent by this identity nor to it.",
            "Read messages of your own inbox, sent list and threads.",
        )
    return letters(conn, [row[:-2]])[0], row[-1].encode()


def owed(conn: sqlite3.Connection, identity: int, limit: int) -> list[Open]:
    """Requests that an identity should answer, oldest first."""
    return _open(conn, "q.recipient = ?", identity, limit)


def open_counts(conn: sqlite3.Connection, identity: int) -> tuple[int, int]:
    """How many requests an identity should answer, and how many answers it waits for."""
    found: tuple[int, int] = conn.execute(
        "SELECT (SELECT count(*) FROM requests WHERE recipient = ?), (SELECT count(*) FROM requests WHERE sender = ?)",
        (identity, identity),
    ).fetchone()
    return found


def waited_for(conn: sqlite3.Connection, identity: int, limit: int) -> list[Open]:
    """An identity's own requests without an answer, oldest first; one for each who owes it."""
    return _open(conn, "q.sender = ?", identity, limit)


def open_requests(conn: sqlite3.Connection) -> list[Open]:
    """All requests without an answer, oldest first: what a start has to look at."""
    rows = conn.execute(
        "SELECT m.id, m.subject, q.sender, q.recipient, m.sent_at FROM requests q JOIN messages m ON m.n = q.message"
        " ORDER BY q.message, q.recipient"
    )
    return [Open(*row) for row in rows]


def _open(conn: sqlite3.Connection, which: str, identity: int, limit: int) -> list[Open]:
    rows = conn.execute(
        "SELECT m.id, m.subject, q.sender, q.recipient, m.sent_at FROM requests q JOIN messages m ON m.n = q.message"  # noqa: S608
        f" WHERE {which} ORDER BY q.message, q.recipient LIMIT ?",
        (identity, bounded(limit)),
    )
    return [Open(*row) for row in rows]


Where = Literal["threads", "inbox"]


def resolve(conn: sqlite3.Connection, text: str, identity: int | None = None, where: Where = "threads") -> str:
    """The full id of a message from an id or a unique beginning of 8 characters or more. Raises MailRefused.

    The beginning of an id is its time, so that short ones are unique only among messages seconds apart; and so they
    are looked up only among what an identity sees in its threads, or got. A whole id is found in any case.
    """
    prefix = mail_ids.canonical(text)
    if prefix is None:
        raise MailRefused(
            "UNKNOWN_MESSAGE",
            f"{text[:64]!r} is no message id: they have 26 letters and digits, or at least the first 8 of them.",
            "Take ids from the inbox, the sent list or a search.",
        )
    among = "" if identity is None or len(prefix) == mail_ids.LENGTH else _AMONG[where]
    found = [
        message
        for (message,) in conn.execute(
            f"SELECT id FROM messages m WHERE id >= :from AND id < :to {among} ORDER BY id LIMIT 5",  # noqa: S608
            {"from": prefix, "to": prefix + "~", "identity": identity},
        )
    ]
    if not found:
        raise _gone(conn, prefix, text)
    if len(found) > 1:
        raise MailRefused(
            "MESSAGE_AMBIGUOUS", f"More than one message id begins with {prefix}.", f"Say which: {', '.join(found)}."
        )
    return str(found[0])


_AMONG: Final[dict[Where, str]] = {
    "threads": "AND EXISTS (SELECT 1 FROM members WHERE thread = m.thread AND identity = :identity)",
    "inbox": "AND EXISTS (SELECT 1 FROM deliveries WHERE message = m.n AND recipient = :identity)",
}


def resolve_all(
    conn: sqlite3.Connection, texts: Sequence[str], identity: int | None = None, where: Where = "threads"
) -> tuple[dict[str, str], dict[str, MailRefused]]:
    """Full ids by what was asked for, and why the others are none; see `resolve`."""
    full: dict[str, str] = {}
    errors: dict[str, MailRefused] = {}
    for one in texts:
        try:
            full[one] = resolve(conn, one, identity, where)
        except MailRefused as error:
            errors[one] = error
    return full, errors


def _gone(conn: sqlite3.Connection, prefix: str, asked: str) -> MailRefused:
    row = conn.execute("SELECT 1 FROM pruned WHERE id >= ? AND id < ? LIMIT 1", (prefix, prefix + "~")).fetchone()
    return pruned(prefix) if row else unknown(conn, asked)


def reply_to(conn: sqlite3.Connection, message: str, identity: int, *, everybody: bool) -> list[int]:
    """Whom a reply to a message goes to: its sender, or everybody of it but the replier.

    A reply to a message of one's own goes to its recipients.
    """
    row = conn.execute("SELECT n, sender FROM messages WHERE id = ?", (message,)).fetchone()
    if row is None:
        raise unknown(conn, message)
    n, sender = row
    others = [one for (one,) in conn.execute("SELECT recipient FROM deliveries WHERE message = ?", (n,))]
    whom = [sender] if sender != identity else others
    if everybody:
        whom = [sender, *others]
    whom = list(dict.fromkeys(whom))
    return [one for one in whom if one >= 0 and (one != identity or whom == [identity])]


def before_of(conn: sqlite3.Connection, cursor: str) -> int:
    """The number that messages before a cursor are below; empty: the end. Also good for one that was pruned."""
    if not cursor:
        return _END
    row = conn.execute("SELECT n FROM messages WHERE id >= ? ORDER BY id LIMIT 1", (_cursor(cursor),)).fetchone()
    return int(row[0]) if row else _END


def after_of(conn: sqlite3.Connection, cursor: str) -> int:
    """The number that messages after a cursor are above; empty: the beginning."""
    if not cursor:
        return 0
    row = conn.execute("SELECT n FROM messages WHERE id <= ? ORDER BY id DESC LIMIT 1", (_cursor(cursor),)).fetchone()
    return int(row[0]) if row else 0


def _cursor(text: str) -> str:
    whole = mail_ids.canonical(text)
    if whole is None or len(whole) != mail_ids.LENGTH:
        raise MailRefused("PARAMETER_INVALID", f"{text[:64]!r} is no cursor.", "Take the cursor of the last page.")
    return whole


_END: Final = 1 << 62


def page(
    conn: sqlite3.Connection, rows: list[Any], limit: int, *, oldest_first: bool = False, text: int | None = None
) -> Page:
    """Rows, one more than `limit` when there are more, as a page."""
    cursor = rows[limit - 1][1] if len(rows) > limit else None
    rows = rows[:limit]
    if oldest_first:
        rows.sort()
    found = letters(conn, rows)
    if text is not None:
        found = [_with_text(conn, row[0], letter, text) for row, letter in zip(rows, found, strict=True)]
    return Page(found, cursor)


def letters(conn: sqlite3.Connection, rows: Sequence[Any]) -> list[Letter]:
    """Rows of COLUMNS as records, with their recipients."""
    if not rows:
        return []
    numbers = [row[0] for row in rows]
    marks = ",".join("?" * len(numbers))
    receipts: dict[int, list[Receipt]] = {n: [] for n in numbers}
    for n, identity, delivered, acked, note, owes in conn.execute(
        "SELECT d.message, d.recipient, d.delivered_at, d.acked_at, d.note, q.message IS NOT NULL FROM deliveries d"  # noqa: S608
        " LEFT JOIN requests q ON q.message = d.message AND q.recipient = d.recipient"
        f" WHERE d.message IN ({marks}) ORDER BY d.message, d.recipient",
        numbers,
    ):
        state: State = "acked" if acked is not None else "delivered" if delivered is not None else "pending"
        receipts[n].append(Receipt(identity, state, delivered, acked, note, bool(owes)))
    held: dict[int, list[Role]] = {}
    waiting = f"SELECT message, project, role FROM held WHERE message IN ({marks})"  # noqa: S608
    for n, project, role in conn.execute(waiting, numbers):
        held.setdefault(n, []).append(Role(project, role))
    return [
        Letter(
            message,
            root,
            sender,
            kind,
            bool(needs_reply),
            subject,
            size,
            [] if refs == "[]" else _refs(refs),
            reply or None,
            sent_at,
            seq,
            receipts[n],
            held.get(n, []),
        )
        for n, message, root, sender, kind, needs_reply, subject, size, refs, reply, sent_at, seq in rows
    ]


def _with_text(conn: sqlite3.Connection, n: int, letter: Letter, size: int) -> Letter:
    """The beginning of the body, read as bytes: SQL's text functions stop at a NUL."""
    (data,) = conn.execute(
        "SELECT substr(CAST(body AS BLOB), 1, ?) FROM messages WHERE n = ?", (size + 1, n)
    ).fetchone()
    data = data or b""  # of an empty body, SQL makes NULL
    end = _boundary(data, size)
    return msgspec.structs.replace(letter, text=data[:end].decode(), truncated=end < letter.size)


def _boundary(data: bytes, offset: int) -> int:
    """The last start of a character at or before `offset`."""
    offset = min(max(offset, 0), len(data))
    while 0 < offset < len(data) and data[offset] & 0xC0 == 0x80:
        offset -= 1
    return offset


def bounded(limit: int) -> int:
    """A limit within 1 and 200."""
    return min(max(limit, 1), LIMIT_MAX)


def held_roles(conn: sqlite3.Connection) -> list[Role]:
    """Roles that mail is held for, each once."""
    return [Role(*row) for row in conn.execute("SELECT DISTINCT project, role FROM held ORDER BY project, role")]


def peek(conn: sqlite3.Connection, text: str) -> Letter:
    """A message's header and receipts, by id or unique beginning."""
    message = resolve(conn, text)
    row = conn.execute(f"SELECT {COLUMNS} FROM messages m WHERE m.id = ?", (message,)).fetchone()  # noqa: S608
    return letters(conn, [row])[0]


def integrity(conn: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong with the file, and references to rows that are not there; empty when all is well."""
    found = [str(line) for (line,) in conn.execute("PRAGMA integrity_check(20)") if line != "ok"]
    found += [
        f"{row[0]} refers to a row of {row[2]} that is not there" for row in conn.execute("PRAGMA foreign_key_check")
    ]
    return found[:20]
