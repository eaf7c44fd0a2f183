"""Finding messages by words.

Owns how a query is read, and the one SELECT over the word index. Results come by time, never by rank: the index is
walked backwards until the page is full, whatever its size. Never shows mail of others: who takes part is
in the index too, so that looking for a common word in a small mailbox costs what the mailbox costs.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from mbxd.mail.queries import COLUMNS, before_of, bounded, page
from mbxd.mail.records import Letter, Page
from mbxd.mail.snippets import pattern, snippet

Scope = Literal["mine", "received", "sent"]

QUERY_MAX: Final = 2_000
WORDS_MAX: Final = 64
RARE: Final = 100
"""Messages of the whole host in which words are still rare."""
COMMON_KEPT: Final = 256
"""Queries whose words are known to be common; the oldest is forgotten."""
_WORD: Final = re.compile(r"\w")


def search(
    conn: sqlite3.Connection,
    identity: int | None,
    query: str,
    *,
    scope: Scope,
    limit: int,
    before: str,
    common: dict[str, None],
) -> Page:
    """Messages with the query's words in subject or body, newest first, each with a snippet of its body.

    query: FTS5's language (https://sqlite.org/fts5.html, section 3); what that refuses is taken as plain words,
    all of which must occur. identity None: a person, who finds everything. common: what was found to be common
    before, and stays so while nothing is pruned, is not looked at again; it is kept up here.
    """
    limit = bounded(limit)
    wanted = understood(conn, query)
    if wanted is None:
        return Page([], None)
    match, below = f"{{subject body}} : ({wanted})", before_of(conn, before)
    rows = None
    if identity is not None and match not in common:
        rows = _rare(conn, match, _tokens(identity, scope), below, limit)
    if rows is None:
        if identity is not None:
            _remember(common, match)
            match = f"({match}) AND who : ({' OR '.join(_tokens(identity, scope))})"
        rows = conn.execute(
            f"SELECT {COLUMNS} FROM words JOIN messages m ON m.n = words.rowid"  # noqa: S608
            " WHERE words MATCH ? AND words.rowid < ? ORDER BY words.rowid DESC LIMIT ?",
            (match, below, limit + 1),
        ).fetchall()
    found = page(conn, rows, limit)
    return Page(_with_snippets(conn, rows[:limit], found.letters, pattern(wanted)), found.cursor)


def _remember(common: dict[str, None], match: str) -> None:
    common[match] = None
    if len(common) > COMMON_KEPT:
        common.pop(next(iter(list(common))), None)  # readers are several threads


def prepare(conn: sqlite3.Connection) -> None:
    """What a connection needs to search, beside the file: the index has a column `who`, which no query may name."""
    conn.execute("PRAGMA temp_store = MEMORY")
    conn.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.grammar USING fts5 (subject, body, content = '')")


def _with_snippets(
    conn: sqlite3.Connection, rows: Sequence[Any], letters: list[Letter], marked: re.Pattern[str]
) -> list[Letter]:
    numbers = [row[0] for row in rows]
    marks = ",".join("?" * len(numbers))
    bodies = conn.execute(f"SELECT body FROM messages WHERE n IN ({marks}) ORDER BY n DESC", numbers)  # noqa: S608
    # One body at a time: they may be large.
    return [
        msgspec.structs.replace(letter, snippet=snippet(body, marked))
        for letter, (body,) in zip(letters, bodies, strict=True)
    ]


def understood(conn: sqlite3.Connection, query: str) -> str | None:
    """The query as FTS5 takes it, None when it has no words. What is returned is a whole expression by itself,
    so that nothing in it reaches beyond the brackets around it.
    """
    query = query[:QUERY_MAX].replace("\0", " ").encode("utf-8", "replace").decode()
    if _WORD.search(query) is None:
        return None
    if _parses(conn, query):
        return query
    plain = [word for word in query.replace('"', " ").split() if _WORD.search(word)]
    return " AND ".join(f'"{word}"' for word in plain[:WORDS_MAX]) or None


def _parses(conn: sqlite3.Connection, query: str) -> bool:
    """Ask FTS5 itself, with a table that has nothing but the columns that a query may name, and no rows."""
    try:
        conn.execute("SELECT 1 FROM temp.grammar WHERE grammar MATCH ? AND rowid < 0 LIMIT 1", (query,)).fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
            return False
        raise
    return True


def _rare(conn: sqlite3.Connection, match: str, tokens: list[str], below: int, limit: int) -> list[Any] | None:
    """The rows of words that are rare on the whole host; None when they are not.

    The index would step through everything that the identity ever sent or got to find the few; looking at each of the
    few costs the same in a mailbox of any size.
    """
    hits = conn.execute(
        "SELECT rowid FROM words WHERE words MATCH ? AND rowid < ? ORDER BY rowid DESC LIMIT ?",
        (match, below, RARE + 1),
    ).fetchall()
    if len(hits) > RARE:
        return None
    mine = f" WHERE m.n = ? AND ({' OR '.join(['instr(m.who || char(32), ?)'] * len(tokens))})"
    named = [f"{token} " for token in tokens]
    rows: list[Any] = []
    for hit in hits:
        rows += conn.execute(f"SELECT {COLUMNS} FROM messages m{mine}", (*hit, *named))  # noqa: S608
        if len(rows) > limit:
            break
    return rows


def _tokens(identity: int, scope: Scope) -> list[str]:
    """The words of the index that say who takes part."""
    return {"mine": [f"s{identity}", f"r{identity}"], "received": [f"r{identity}"], "sent": [f"s{identity}"]}[scope]
