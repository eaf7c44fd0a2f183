"""Rows that wait to be written together.

Owns the INSERTs of what every message brings. Many rows go in as one statement, for a reason beside its speed: Python
gives up its lock at every step of a statement, and gets it back late while the event loop is busy.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

_TABLES: Final = {
    "messages": (
        *("n", "id", "thread", "sender", "kind", "needs_reply", "reply_to", "refs", "sent_at", "registry_seq"),
        *("key", "digest", "size", "who", "subject", "body"),
    ),
    "members": ("thread", "identity"),
    "deliveries": ("recipient", "message"),
    "requests": ("message", "recipient", "sender"),
    "held": ("project", "role", "message"),
    "replies": ("instance", "n", "request_id", "digest", "result"),
}
"""Table -> columns, in the order in which references allow them."""

_IGNORE: Final = frozenset({"members", "held"})
"""Tables in which a row may be there already."""

RUNS: Final = (32, 8, 1)
"""So many rows go in as one statement; 32 messages have 512 parameters. https://sqlite.org/limits.html, section 9"""


def _insert(table: str) -> str:
    verb = "INSERT OR IGNORE" if table in _IGNORE else "INSERT"
    return f"{verb} INTO {table} ({', '.join(_TABLES[table])})"


def _statement(table: str, rows: int) -> str:
    marks = f"({', '.join('?' * len(_TABLES[table]))})"
    return f"{_insert(table)} VALUES {', '.join([marks] * rows)}"


_STATEMENTS: Final = {table: [(rows, _statement(table, rows)) for rows in RUNS] for table in _TABLES}


class Rows:
    """What a transaction is to insert."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, list[Sequence[Any]]] = {name: [] for name in _TABLES}

    def add(self, table: str, *rows: Sequence[Any]) -> None:
        """Rows of a table, each in the order of its columns."""
        self._waiting[table].extend(rows)

    def clear(self) -> None:
        """Drop what waits."""
        for rows in self._waiting.values():
            rows.clear()

    def flush(self, conn: sqlite3.Connection) -> None:
        """Insert what waits, so that statements see it."""
        for table, rows in self._waiting.items():
            done = 0
            for size, statement in _STATEMENTS[table]:
                while len(rows) - done >= size:
                    conn.execute(statement, list(chain.from_iterable(rows[done : done + size])))
                    done += size
            rows.clear()
