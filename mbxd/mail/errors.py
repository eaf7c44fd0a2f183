"""What can go wrong with mail, each with what to do next.

Owns the exception types and the translation of SQLite's error codes; nobody else looks at those.
"""

from __future__ import annotations

import sqlite3
from typing import Final

_NO_ROOM: Final = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,  # EFBIG and EDQUOT come out as this, and so does a disk that refuses a write
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_TRUNCATE,
    }
)
"""Failures before the sync of a commit: the transaction is undone and nothing of it can become durable.
A failed sync is not among them, for what it wrote may or may not be on the disk. https://sqlite.org/rescode.html"""

_TRANSIENT: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class MailError(Exception):
    """Anything this package raises on purpose. Nothing was changed, unless a subclass says otherwise."""


class MailUnusable(MailError):
    """The file can't be used: foreign, damaged, newer, or its disk failed. It was left as it is.

    The registry goes on without mail. After a failed sync the last commit's outcome is unknown until the next open.
    """


class MailFull(MailError):
    """No room on the disk. Nothing of the command was stored; it works again when there is room."""


class MailBusy(MailError):
    """Too much waits already, or another program holds the file. Try again."""


class MailRefused(MailError):
    """The rules refuse a command or a question.

    code: one of BODY_TOO_LONG, TEXT_INVALID, PARAMETER_INVALID, UNKNOWN_MESSAGE, MESSAGE_PRUNED,
    MESSAGE_AMBIGUOUS, NOT_YOURS, KEY_REUSED, REQUEST_ID_REUSED; message: what is wrong; hint: what to do.
    """

    def __init__(self, code: str, message: str, hint: str) -> None:
        """Keep the parts; the text of the exception is the message."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


def code_of(error: sqlite3.Error) -> int:
    """SQLite's extended result code; 0 when the error is the module's own."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0)


def ends_transaction(error: sqlite3.Error) -> bool:
    """Whether the whole transaction is lost, not only the statement. https://sqlite.org/lang_transaction.html"""
    return (code_of(error) & 0xFF) not in {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG, 0}


def translate(error: sqlite3.Error, path: str) -> MailError:
    """Our error for SQLite's."""
    code = code_of(error)
    basic = code & 0xFF
    if basic == sqlite3.SQLITE_FULL or code in _NO_ROOM:
        return MailFull(
            f"there is no room to store mail in {path} ({error}). Nothing was sent or changed. "
            "Free disk space, a quota or a file size limit, then send again with the same idempotency key."
        )
    if basic in _TRANSIENT:
        return MailBusy(f"another program holds {path} ({error}). Nothing was changed; try again in a moment.")
    if basic in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return MailUnusable(
            f"{path} is damaged ({error}). It was left as it is; identities work without mail. "
            "Stop the daemon, move the file aside with its -wal and -shm, and restore a backup."
        )
    return MailUnusable(
        f"{path} can't be used ({error}). Identities work without mail. Look after the disk, then restart the daemon."
    )
