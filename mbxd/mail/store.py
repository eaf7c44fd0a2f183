"""The way in: one object that opens mail.db, takes commands and answers questions.

Owns the file's connections and their life. Reads may be called from any thread and block that thread for a disk
read at most; they neither wait for the writer nor hold it up. Commands go to the writer's thread.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

from mbxd.mail import commands, queries, replies, schema
from mbxd.mail.errors import MailBusy, MailError, MailRefused, MailUnusable, translate
from mbxd.mail.records import Letter, Open, Page, Reading, Report
from mbxd.mail.search import Scope, prepare, search
from mbxd.mail.writer import Done, Job, Post, Writer, count_unread

T = TypeVar("T")

READERS: Final = 4
"""Reading connections at most, each with a cache of 2 MiB."""
WAIT_S: Final = 5.0


class MailStore:
    """An open mail.db. Opening one file twice at a time is a mistake that loses nothing; a lock is the daemon's."""

    def __init__(self, path: str, *, post: Post, sync: bool) -> None:
        """See `open`."""
        self.path = path
        self._idle: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._permits = threading.BoundedSemaphore(READERS)
        self._closed = False
        self._common: dict[str, None] = {}
        conn = schema.open_writer(path, sync=sync)
        try:
            self._unread = count_unread(conn)
            self._writer = Writer(path, conn, self._unread, post)
        except BaseException:
            conn.close()
            raise
        self._writer.start()

    @classmethod
    def open(cls, path: str, *, post: Post | None = None, sync: bool = True) -> MailStore:
        """Open the file, or make it. Raises MailUnusable, and then the file is as it was.

        post: runs a function where callers live, one for each commit (`TrioToken.run_sync_soon`); without it the
        `done` of a command is called in the writer's thread. sync: False is for measuring alone.
        """
        schema.prepare(path)
        try:
            return cls(path, post=post or _at_once, sync=sync)
        except sqlite3.Error as error:
            raise translate(error, path) from error

    def close(self, timeout: float = 10.0) -> bool:
        """Finish what was queued, then close; whether it was done in time (seconds)."""
        self._closed = True
        self._drop_idle()  # before the writer: who is last moves the WAL into the file, and readers can't
        return self._writer.stop(timeout)

    # -- commands

    def submit(self, command: commands.Command, done: Done, request: commands.Request | None = None) -> None:
        """Have a command carried out; `done(result, error)` is called once, when it is durable or was refused.

        request: keeps the result, and gives the kept one to a repeat. Raises MailRefused for what can't be stored
        whatever the file holds, MailBusy and MailUnusable; `done` is not called then.
        """
        commands.validate(command, request)
        self._writer.submit(Job(command, request, done, _size(command)))

    def call(self, command: commands.Command, request: commands.Request | None = None, timeout: float = 30.0) -> Any:
        """The same, waiting for the result; for tools and tests, and only without `post`. Raises MailError."""
        return _Waiting().wait(lambda done: self.submit(command, done, request), timeout)

    def _in_writer(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """What a function of the writer's connection gives, between two transactions."""
        found: T = _Waiting().wait(lambda done: self._writer.submit(Job(act, None, done, 0)), None)
        return found

    # -- counts, in memory

    @property
    def unread_counts(self) -> Mapping[int, int]:
        """Identity -> unacked messages, without zeroes. Live: look up at will, copy before iterating."""
        return MappingProxyType(self._unread)

    def unread(self, identity: int) -> int:
        """How many messages an identity has not acked."""
        return self._unread.get(identity, 0)

    def statistics(self) -> dict[str, int]:
        """The writer's counters, `unread` in all, and `readers` that are open and idle."""
        return self._writer.statistics() | {"unread": sum(dict(self._unread).values()), "readers": self._idle.qsize()}

    # -- reads

    def inbox(
        self, identity: int, *, everything: bool = False, limit: int = 30, after: str = "", before: str = ""
    ) -> Page:
        """See `queries.inbox`."""
        return self._read(queries.inbox, identity, everything=everything, limit=limit, after=after, before=before)

    def sent(self, identity: int, *, limit: int = 30, before: str = "") -> Page:
        """See `queries.sent`."""
        return self._read(queries.sent, identity, limit=limit, before=before)

    def thread(
        self, message: str, identity: int | None, *, limit: int = 30, before: str = "", text: int = 1024
    ) -> Page:
        """See `queries.thread`."""
        return self._read(queries.thread, message, identity, limit=limit, before=before, text=text)

    def read(
        self, ids: Sequence[str], identity: int | None, *, offset: int = 0, budget: int = queries.READ_MAX
    ) -> Reading:
        """See `queries.read`."""
        return self._read(queries.read, ids, identity, offset=offset, budget=budget)

    def search(
        self, identity: int | None, query: str, *, scope: Scope = "mine", limit: int = 30, before: str = ""
    ) -> Page:
        """See `search.search`."""
        return self._read(search, identity, query, scope=scope, limit=limit, before=before, common=self._common)

    def owed(self, identity: int, limit: int = 50) -> list[Open]:
        """See `queries.owed`."""
        return self._read(queries.owed, identity, limit)

    def waited_for(self, identity: int, limit: int = 50) -> list[Open]:
        """See `queries.waited_for`."""
        return self._read(queries.waited_for, identity, limit)

    def open_counts(self, identity: int) -> tuple[int, int]:
        """See `queries.open_counts`."""
        return self._read(queries.open_counts, identity)

    def open_requests(self) -> list[Open]:
        """See `queries.open_requests`."""
        return self._read(queries.open_requests)

    def instances(self) -> list[str]:
        """Client instances with kept results."""
        return self._read(replies.instances)

    def held_roles(self) -> list[commands.Role]:
        """Roles that mail is held for."""
        return self._read(queries.held_roles)

    def resolve(self, text: str, identity: int | None = None) -> str:
        """See `queries.resolve`."""
        return self._read(queries.resolve, text, identity)

    def resolve_all(
        self, texts: Sequence[str], identity: int | None = None, where: queries.Where = "threads"
    ) -> tuple[dict[str, str], dict[str, MailRefused]]:
        """See `queries.resolve_all`."""
        return self._read(queries.resolve_all, texts, identity, where)

    def reply_to(self, message: str, identity: int, *, everybody: bool = False) -> list[int]:
        """See `queries.reply_to`."""
        return self._read(queries.reply_to, message, identity, everybody=everybody)

    def peek(self, text: str) -> Letter:
        """A message by id or unique beginning, for people: header and receipts. Raises MailRefused."""
        return self._read(queries.peek, text)

    # -- care

    def backup(self, path: str) -> None:
        """Copy the file while it is in use, as of one moment. Blocks: call it in a worker thread.

        Raises FileExistsError rather than replace a file, and MailFull.
        """
        partial = f"{path}.partial"
        os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            with self._reader() as source, contextlib.closing(sqlite3.connect(partial)) as target:
                source.backup(target)  # all pages in one step: the writer goes on in the WAL meanwhile
            _sync_file(partial)
            os.link(partial, path)  # unlike rename, it replaces nothing
            schema.sync_dir(os.path.dirname(path))
        except sqlite3.Error as error:
            raise translate(error, path) from error
        finally:
            os.unlink(partial)

    def check(self) -> Report:
        """Look at everything: the file, the word index against the messages, the counts in memory. Blocks.

        The index is checked between two transactions, so that sends wait meanwhile: for `doctor`, not for a timer.
        """
        problems = self._read(queries.integrity)
        messages, deliveries, found = self._in_writer(self._compare)
        return Report(messages, deliveries, sum(dict(self._unread).values()), problems + found)

    def _compare(self, conn: sqlite3.Connection) -> tuple[int, int, list[str]]:
        problems = []
        if count_unread(conn) != self._unread:
            problems.append("the unread counts in memory differ from the file; restart the daemon")
        try:
            conn.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
        except sqlite3.DatabaseError as error:
            problems.append(f"the word index does not fit the messages ({error}); search may miss some")
        counts = conn.execute("SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM deliveries)").fetchone()
        return (*counts, problems)

    # -- connections

    def _read(self, query: Callable[..., T], *args: Any, **options: Any) -> T:
        with self._reader() as conn:
            try:
                conn.execute("BEGIN")
                return query(conn, *args, **options)
            except sqlite3.Error as error:
                raise translate(error, self.path) from error
            finally:
                with contextlib.suppress(sqlite3.Error):  # there is nothing to undo but the snapshot
                    conn.execute("ROLLBACK")

    @contextlib.contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        if not self._permits.acquire(timeout=WAIT_S):
            raise MailBusy(f"{READERS} readers of {self.path} are busy. Try again in a moment.")
        try:
            conn = self._borrow()
            try:
                yield conn
            finally:
                self._give_back(conn)
        finally:
            self._permits.release()

    def _borrow(self) -> sqlite3.Connection:
        if self._closed:
            raise MailUnusable(f"{self.path} is closed: the daemon is stopping. Try again later.")
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            pass
        try:
            with contextlib.ExitStack() as undo:
                conn = undo.enter_context(contextlib.closing(schema.connect(self.path, read_only=True)))
                prepare(conn)
                undo.pop_all()
            return conn
        except sqlite3.Error as error:
            raise translate(error, self.path) from error

    def _give_back(self, conn: sqlite3.Connection) -> None:
        self._idle.put(conn)
        if self._closed:
            self._drop_idle()

    def _drop_idle(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()


class _Waiting:
    """A caller that waits for one outcome."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self._result: Any = None
        self._error: MailError | None = None

    def wait(self, submit: Callable[[Done], None], timeout: float | None) -> Any:
        submit(self._done)
        if not self._there.wait(timeout):
            raise MailBusy("the disk has not answered in time; whether the mail was stored is not known yet.")
        if self._error is not None:
            raise self._error
        return self._result

    def _done(self, result: Any, error: MailError | None) -> None:
        self._result, self._error = result, error
        self._there.set()


def _at_once(act: Callable[[], None]) -> None:
    act()


def _size(command: commands.Command) -> int:
    """About how many bytes a command makes the writer carry."""
    if isinstance(command, commands.Send):
        return 512 + len(command.body) + 64 * len(command.recipients)
    return 512


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
