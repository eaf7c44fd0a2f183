"""Rows that wait to be written together.

Owns the INSERTs of what every message brings. Many rows go in as one statement, for a reason beside its speed: Python
gives up its lock at every step of a statement, and gets it back late while the event loop is busy.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
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

RUN_MAX: Final = 64
"""So many rows go in as one statement; 64 messages have 1,024 parameters. https://sqlite.org/limits.html, section 9"""


@cache
def _statement(table: str, rows: int) -> str:
    verb = "INSERT OR IGNORE" if table in _IGNORE else "INSERT"
    marks = f"({', '.join('?' * len(_TABLES[table]))})"
    return f"{verb} INTO {table} ({', '.join(_TABLES[table])}) VALUES {', '.join([marks] * rows)}"


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
            for begin in range(0, len(rows), RUN_MAX):
                run = rows[begin : begin + RUN_MAX]
                conn.execute(_statement(table, len(run)), list(chain.from_iterable(run)))
            rows.clear()
