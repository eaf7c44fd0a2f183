"""The tables of mail.db, how a file is recognised, made and brought up to date.

Owns DDL, `application_id` and `user_version`. Never changes a file that it refuses.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from typing import Final

from mbxd.mail.errors import MailUnusable, translate
from mbxd.ownfile import NotOurs, check_own, open_own

APPLICATION_ID: Final = 0x6D627864
"""The ASCII of `mbxd`, at offset 68 of the file. https://sqlite.org/fileformat2.html"""
VERSION: Final = 1
BUSY_S: Final = 5.0
PAGE_SIZE: Final = 2048
"""Bytes. A message touches some twenty pages, all of which its commit has to bring to the disk: of SQLite's own 4096
it would be twice the bytes, and a seventh more time.
"""

_MAGIC: Final = b"SQLite format 3\0"

TABLES: Final = """
-- n follows the order of ids. who: the index's tokens of who takes part, `s1 r2 r3` (sender, recipients).
-- The body comes last so that headers are read without it.
CREATE TABLE messages (
  n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, thread INTEGER NOT NULL, sender INTEGER NOT NULL,
  kind TEXT NOT NULL, needs_reply INTEGER NOT NULL, reply_to TEXT NOT NULL, refs TEXT NOT NULL,
  sent_at REAL NOT NULL, registry_seq INTEGER NOT NULL, key TEXT, digest TEXT,
  size INTEGER NOT NULL, who TEXT NOT NULL, subject TEXT NOT NULL, body TEXT NOT NULL
);
CREATE INDEX messages_sender ON messages (sender);
CREATE INDEX messages_thread ON messages (thread);
CREATE UNIQUE INDEX messages_key ON messages (sender, key) WHERE key IS NOT NULL;

CREATE TABLE deliveries (
  recipient INTEGER NOT NULL, message INTEGER NOT NULL REFERENCES messages (n),
  delivered_at REAL, acked_at REAL, note TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (recipient, message)
) WITHOUT ROWID;
CREATE INDEX deliveries_unacked ON deliveries (recipient, message) WHERE acked_at IS NULL;
CREATE INDEX deliveries_message ON deliveries (message);

-- Who takes part in a thread, so that asking costs the same in a thread of any length.
CREATE TABLE members (
  thread INTEGER NOT NULL REFERENCES messages (n), identity INTEGER NOT NULL, PRIMARY KEY (thread, identity)
) WITHOUT ROWID;

-- A row for as long as an answer is owed.
CREATE TABLE requests (
  message INTEGER NOT NULL REFERENCES messages (n), recipient INTEGER NOT NULL, sender INTEGER NOT NULL,
  PRIMARY KEY (message, recipient)
) WITHOUT ROWID;
CREATE INDEX requests_recipient ON requests (recipient, message);
CREATE INDEX requests_sender ON requests (sender, message);

CREATE TABLE held (
  project INTEGER NOT NULL, role TEXT NOT NULL, message INTEGER NOT NULL REFERENCES messages (n),
  PRIMARY KEY (project, role, message)
) WITHOUT ROWID;
CREATE INDEX held_message ON held (message);

CREATE TABLE notices (
  request INTEGER NOT NULL REFERENCES messages (n), kind TEXT NOT NULL, recipient INTEGER NOT NULL,
  epoch INTEGER NOT NULL, PRIMARY KEY (request, kind, recipient, epoch)
) WITHOUT ROWID;

-- What was pruned, for longer than anybody retries.
CREATE TABLE pruned (
  id TEXT PRIMARY KEY, thread TEXT NOT NULL, sender INTEGER NOT NULL, key TEXT, digest TEXT,
  sent_at REAL NOT NULL, pruned_at REAL NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX pruned_key ON pruned (sender, key) WHERE key IS NOT NULL;
CREATE INDEX pruned_at ON pruned (pruned_at);

CREATE TABLE replies (
  instance TEXT NOT NULL, n INTEGER NOT NULL, request_id TEXT NOT NULL, digest TEXT NOT NULL, result TEXT NOT NULL,
  PRIMARY KEY (instance, n), UNIQUE (instance, request_id)
) WITHOUT ROWID;

-- columnsize=0: lengths serve ranking alone, and results come by time.
CREATE VIRTUAL TABLE words USING fts5 (
  subject, body, who, content = 'messages', content_rowid = 'n', columnsize = 0,
  tokenize = "unicode61 remove_diacritics 2"
);
-- Two leaves of the index fit a page of the file; left to itself each reaches into two more.
INSERT INTO words (words, rank) VALUES ('pgsz', 960);
"""

UPGRADES: Final[dict[int, Callable[[sqlite3.Connection], None]]] = {}
"""Version -> what brings a file of it to the next version, inside one transaction with the new version's number."""


def connect(path: str, *, read_only: bool) -> sqlite3.Connection:
    """A connection in autocommit mode that any one thread at a time may use.

    A read-only one can't change the file, not even by a checkpoint when it closes.
    """
    mode = "ro" if read_only else "rw"
    return sqlite3.connect(
        f"file:{_quoted(path)}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_S,
        cached_statements=512,  # the writer's inserts of any number of rows
    )


def open_writer(path: str, *, sync: bool = True) -> sqlite3.Connection:
    """The writer's connection. `sync=False` is for measuring alone: a power cut then loses acknowledged mail."""
    conn = connect(path, read_only=False)
    for pragma in (
        "journal_mode = WAL",
        f"synchronous = {'FULL' if sync else 'OFF'}",
        "fullfsync = ON",  # macOS: flush the drive too; elsewhere it does nothing
        "checkpoint_fullfsync = ON",
        "foreign_keys = ON",
        "secure_delete = FAST",
        "cache_size = -8192",
        "wal_autocheckpoint = 8000",  # only a limit: the writer checkpoints earlier, between commits
        "journal_size_limit = 67108864",
    ):
        conn.execute(f"PRAGMA {pragma}")
    return conn


def prepare(path: str) -> None:
    """Make the file unless it exists, check it, bring it up to date.

    Raises MailUnusable when it is not ours, newer or damaged; it is then untouched.
    """
    try:
        for name in (path, f"{path}-wal", f"{path}-shm", f"{path}-journal"):
            check_own(name)  # SQLite opens them by name, and writes wherever that leads
        if not os.path.lexists(path):
            _make(path)
        version = _recognise(path)
        if version < VERSION:
            _upgrade(path, version)
    except sqlite3.Error as error:
        raise translate(error, path) from error
    except NotOurs as error:
        raise MailUnusable(f"{error}. Identities work without mail; then restart the daemon.") from error
    except OSError as error:
        raise MailUnusable(
            f"{path} can't be opened ({error.strerror or error}). Identities work without mail; "
            "look after the file's owner, mode and disk, then restart the daemon."
        ) from error


def _recognise(path: str) -> int:
    """The version of a file of ours. The header is read first: SQLite may write beside a file that it opens."""
    fd = open_own(path, os.O_RDONLY)
    try:
        head = os.read(fd, 100)
    finally:
        os.close(fd)
    if len(head) < 100 or not head.startswith(_MAGIC):
        raise MailUnusable(f"{path} is no SQLite file, or a damaged one. {_ASIDE}")
    if int.from_bytes(head[68:72], "big") != APPLICATION_ID:
        raise MailUnusable(f"{path} is a SQLite file of another program. {_ASIDE}")
    _refuse_newer(path, int.from_bytes(head[60:64], "big"))
    # In SQLite's older journal mode, as copies by its tools are, only a writer can roll back what a crash left.
    reading = not os.path.lexists(f"{path}-journal")
    with contextlib.closing(connect(path, read_only=reading)) as conn:
        version = int(conn.execute("PRAGMA user_version").fetchone()[0])  # also what the WAL says
        _refuse_newer(path, version)
        if version == VERSION:
            _refuse_incomplete(path, conn)
    return version


_ASIDE: Final = (
    "It was left as it is; identities work without mail. Move it aside (with its -wal and -shm) and restart the "
    "daemon to begin anew, or restore a backup."
)


def _refuse_newer(path: str, version: int) -> None:
    if version > VERSION:
        raise MailUnusable(
            f"{path} has schema version {version}, this mbxd knows up to {VERSION}. It was left as it is; identities "
            "work without mail. Start the newer mbxd, or restore the backup made before the upgrade."
        )


def _refuse_incomplete(path: str, conn: sqlite3.Connection) -> None:
    found = {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    wanted = {"messages", "deliveries", "members", "requests", "held", "notices", "pruned", "replies", "words"}
    if wanted - found:
        raise MailUnusable(f"{path} lacks the tables {', '.join(sorted(wanted - found))}. {_ASIDE}")


def _make(path: str) -> None:
    """A new file, complete before it has its name: a crash leaves no half of one."""
    if os.path.exists(f"{path}-wal"):  # it belongs to a file that went missing, and would be replayed onto ours
        raise MailUnusable(
            f"{path} is missing but {path}-wal is there. Nothing was changed; identities work without mail. "
            "Put the file back, or move the -wal and -shm files aside too, then restart the daemon."
        )
    fresh = f"{path}.new"
    for left in (fresh, f"{fresh}-journal", f"{fresh}-wal", f"{fresh}-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(left)
    os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with contextlib.closing(connect(fresh, read_only=False)) as conn:
        conn.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        conn.execute("PRAGMA synchronous = FULL")
        conn.execute("PRAGMA journal_mode = MEMORY")  # half a file is thrown away: there is nothing to go back to
        conn.executescript(
            f"PRAGMA application_id = {APPLICATION_ID}; BEGIN; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;"
        )
        # Already here: a crash in the change to a WAL would leave a journal that a reader can't roll back.
        conn.execute("PRAGMA journal_mode = WAL")
    sync_dir(os.path.dirname(path))  # the -wal's removal comes before the rename
    os.rename(fresh, path)
    sync_dir(os.path.dirname(path))


def _upgrade(path: str, version: int) -> None:
    with contextlib.closing(open_writer(path)) as conn:
        for step in range(version, VERSION):
            conn.execute("BEGIN IMMEDIATE")
            UPGRADES[step](conn)
            conn.execute(f"PRAGMA user_version = {step + 1}")
            conn.execute("COMMIT")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the header tells an older mbxd


def sync_dir(path: str) -> None:
    """Make names in a directory durable. fsync(2)."""
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _quoted(path: str) -> str:
    """A path in a file: URI. https://sqlite.org/uri.html"""
    return os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
