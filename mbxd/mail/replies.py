"""Kept results: a client instance that repeats a request gets the first result.

Owns the table `replies`. The rule is the registry's (mbxd.core.machine): the same id with other content is
refused, refusals are not kept, the last 256 results of an instance are.
"""

from __future__ import annotations

import sqlite3

import msgspec

from mbxd.mail.commands import REPLIES_KEPT, Request, Result
from mbxd.mail.errors import MailRefused

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Result).decode


def recall(conn: sqlite3.Connection, request: Request) -> Result | None:
    """The first result of a request, None when it is new. Raises MailRefused."""
    row = conn.execute(
        "SELECT digest, result FROM replies WHERE instance = ? AND request_id = ?",
        (request.instance, request.request_id),
    ).fetchone()
    if row is None:
        return None
    if row[0] != request.digest:
        raise MailRefused(
            "REQUEST_ID_REUSED",
            f"The request id {request.request_id[:64]!r} was used before, for something else.",
            "Use a new request id for every new request; repeat an id only to repeat the same request.",
        )
    return _decode(row[1])


def keep(conn: sqlite3.Connection, request: Request, result: Result) -> None:
    """Keep a result and drop the oldest beyond the limit."""
    (last,) = conn.execute("SELECT max(n) FROM replies WHERE instance = ?", (request.instance,)).fetchone()
    n = (last or 0) + 1
    conn.execute(
        "INSERT INTO replies (instance, n, request_id, digest, result) VALUES (?, ?, ?, ?, ?)",
        (request.instance, n, request.request_id, request.digest, _encode(result)),
    )
    conn.execute("DELETE FROM replies WHERE instance = ? AND n <= ?", (request.instance, n - REPLIES_KEPT))


def forget(conn: sqlite3.Connection, instance: str) -> int:
    """Drop an instance's results; how many there were."""
    return conn.execute("DELETE FROM replies WHERE instance = ?", (instance,)).rowcount
