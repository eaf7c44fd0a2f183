"""Kept results: a client instance that repeats a request gets the first result.

Owns the table `replies`. The rule is the registry's (mbxd.core.machine): the same id with other content is
refused, refusals are not kept, the last 256 results of an instance are.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

import msgspec

from mbxd.mail.commands import REPLIES_KEPT, Request, Result
from mbxd.mail.errors import MailRefused
from mbxd.mail.rows import Rows

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Result).decode

_KNOWN: Final = (
    "SELECT r.instance, r.request_id, r.digest, r.result FROM json_each(?) j CROSS JOIN replies r"
    " ON r.instance = json_extract(j.value, '$[0]') AND r.request_id = json_extract(j.value, '$[1]')"
)


def instances(conn: sqlite3.Connection) -> list[str]:
    """Client instances with kept results."""
    return [instance for (instance,) in conn.execute("SELECT DISTINCT instance FROM replies")]


class Replies:
    """The results that concern the running transaction."""

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn = conn
        self._known: dict[tuple[str, str], tuple[str, str]] = {}
        self._last: dict[str, int] = {}
        self._full: dict[str, int] = {}

    def begin(self, requests: Iterable[Request]) -> None:
        """Look up all requests of a transaction at once."""
        pairs = [(one.instance, one.request_id) for one in requests]
        self._known.clear()
        self._full.clear()
        if pairs:
            for instance, request_id, digest, result in self._conn.execute(_KNOWN, (_encode(pairs).decode(),)):
                self._known[instance, request_id] = digest, result

    def lost(self) -> None:
        """A transaction was undone, or another writer was here: what was counted is not so."""
        self._last.clear()

    def recall(self, request: Request) -> Result | None:
        """The first result of a request, None when it is new. Raises MailRefused."""
        known = self._known.get((request.instance, request.request_id))
        if known is None:
            return None
        if known[0] != request.digest.hex():
            raise MailRefused(
                "REQUEST_ID_REUSED",
                f"The request id {request.request_id[:64]!r} was used before, for something else.",
                "Use a new request id for every new request; repeat an id only to repeat the same request.",
            )
        return _decode(known[1])

    def keep(self, request: Request, result: Result, rows: Rows) -> None:
        """Keep a result; the row is written with the others."""
        instance, digest, text = request.instance, request.digest.hex(), _encode(result).decode()
        last = self._last.get(instance)
        if last is None:
            (last,) = self._conn.execute("SELECT max(n) FROM replies WHERE instance = ?", (instance,)).fetchone()
        n = self._last[instance] = (last or 0) + 1
        rows.add("replies", (instance, n, request.request_id, digest, text))
        self._known[instance, request.request_id] = digest, text
        if n > REPLIES_KEPT:
            self._full[instance] = n - REPLIES_KEPT

    def finish(self) -> None:
        """Drop the oldest beyond the limit, once the new ones are written."""
        if self._full:
            self._conn.executemany("DELETE FROM replies WHERE instance = ? AND n <= ?", list(self._full.items()))

    def forget(self, instance: str) -> int:
        """Drop an instance's results, all of them written; how many there were."""
        self._last.pop(instance, None)
        for key in [key for key in self._known if key[0] == instance]:
            del self._known[key]
        return self._conn.execute("DELETE FROM replies WHERE instance = ?", (instance,)).rowcount
