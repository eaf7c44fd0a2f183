"""The thread that writes mail: one transaction after another, each with all that came during the last.

Owns the writing connection, the unread counts and the order of things. Nobody is answered before the
commit is durable. Never calls into an event loop: it hands one function per transaction to `post`.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, assert_never

from mbxd.mail import apply, commands, prune, replies
from mbxd.mail.errors import MailBusy, MailError, MailFull, MailRefused, MailUnusable, ends_transaction, translate

Done: TypeAlias = Callable[[Any, MailError | None], None]
"""Called once with the result and None, or with None and what went wrong."""

Post: TypeAlias = Callable[[Callable[[], None]], object]
"""Runs a function where callers live, as `TrioToken.run_sync_soon`."""

QUEUE_MAX: Final = 8_192
QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024
BATCH_MAX: Final = 512
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
CHECKPOINT_PAGES: Final = 2_000
"""About so many pages in the WAL between checkpoints, 4 MiB."""


class Job(NamedTuple):
    """A command, or a function that needs the writer's connection between transactions."""

    command: commands.Command | Callable[[sqlite3.Connection], Any]
    request: commands.Request | None
    done: Done
    size: int


class Outcome(NamedTuple):
    """What one job came to."""

    result: Any
    error: MailError | None


class _Unstorable(Exception):
    """A command that no rule refused and that can't be stored all the same."""


class Writer:
    """Owns its thread from `start` to `stop`."""

    def __init__(self, path: str, conn: sqlite3.Connection, unread: Counter[int], post: Post) -> None:
        """`conn` belongs to the thread from now on; `unread` is changed by it alone, as commits become durable."""
        self._path = path
        self._conn = conn
        self._unread = unread
        self._post = post
        self._work = apply.Work(conn)
        self._replies = replies.Replies(conn)
        self._version = self._data_version()
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._closed = False
        self._next: Job | None = None
        self._running: list[Job] = []
        self._pages = 0
        self._failed: MailError | None = None
        self._counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="mail-writer", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job; any thread may. Raises MailBusy when too much waits, MailUnusable when the writer is gone."""
        with self._lock:
            if self._closed:
                raise self._failed or MailUnusable(f"{self._path} is closed: the daemon is stopping. Try again later.")
            if self._queue.qsize() >= QUEUE_MAX or self._waiting_bytes + job.size > QUEUE_BYTES_MAX:
                raise MailBusy("too much mail waits for the disk. Nothing was sent; try again in a moment.")
            self._waiting_bytes += job.size
            self._queue.put(job)

    def stop(self, timeout: float) -> bool:
        """End after what was queued, and close the connection; whether it ended in time."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def statistics(self) -> dict[str, int]:
        """commits, commands, refused, full, checkpoints, checkpoints_failed, waiting."""
        names = ("commits", "commands", "refused", "full", "checkpoints", "checkpoints_failed")
        return {name: self._counts[name] for name in names} | {"waiting": self._queue.qsize()}

    # -- the thread

    def _run(self) -> None:
        try:
            while (batch := self._gather()) is not None:
                self._running = batch
                outcomes = self._carry_out(batch)
                self._running = []
                self._answer(batch, outcomes)
                self._checkpoint_when_due()
        except Exception as error:
            self._give_up(error)
            raise
        finally:
            self._conn.close()

    def _gather(self) -> list[Job] | None:
        """Everything that waits, up to a limit; None at the end."""
        first, self._next = self._next or self._queue.get(), None
        if first is None:
            return None
        batch, size = [first], first.size
        while not _alone(batch[-1]) and len(batch) < BATCH_MAX and size < BATCH_BYTES_MAX:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is None:
                self._queue.put(None)  # it is the last thing in the queue, and stays that
                break
            if _alone(job):
                self._next = job
                break
            batch.append(job)
            size += job.size
        with self._lock:
            self._waiting_bytes -= size
        self._pages += size // 1024 + 16
        return batch

    def _carry_out(self, batch: Sequence[Job]) -> list[Outcome]:
        if isinstance(batch[0].command, Callable):  # type: ignore[arg-type]
            return [self._call(batch[0].command)]  # type: ignore[arg-type]
        outcomes = self._attempt(batch)
        if len(batch) > 1 and any(isinstance(one.error, MailFull) for one in outcomes):
            # What is large found no room; what is small may: an ack must not fail for another's message.
            outcomes = [self._attempt([job])[0] for job in batch]
        self._counts["commands"] += len(batch)
        self._counts["refused"] += sum(isinstance(one.error, MailRefused) for one in outcomes)
        self._counts["full"] += sum(isinstance(one.error, MailFull) for one in outcomes)
        return outcomes

    def _attempt(self, batch: Sequence[Job]) -> list[Outcome]:
        if self._failed is not None:
            return [Outcome(None, self._failed)] * len(batch)
        try:
            return self._transaction(batch)
        except sqlite3.Error as error:
            failure = translate(error, self._path)
            with contextlib.suppress(sqlite3.Error):  # SQLite may have undone it already, or find the disk gone
                self._conn.execute("ROLLBACK")
            self._replies.lost()
            if isinstance(failure, MailUnusable):
                self._failed = failure  # whether the commit reached the disk is unknown: only a new start can tell
            return [Outcome(None, failure)] * len(batch)

    def _transaction(self, batch: Sequence[Job]) -> list[Outcome]:
        """All of a batch in one commit. Refusals come before the first row of their command, so that nothing
        must be undone for them; should a command fail later than that, all begins anew with savepoints.
        """
        try:
            return self._commands(batch, savepoints=False)
        except _Unstorable:
            self._conn.execute("ROLLBACK")
            self._replies.lost()
            return self._commands(batch, savepoints=True)

    def _commands(self, batch: Sequence[Job], *, savepoints: bool) -> list[Outcome]:
        conn, work, outcomes = self._conn, self._work, []
        effects = work.effects = apply.Effects()
        work.rows.clear()
        conn.execute("BEGIN IMMEDIATE")
        self._look_for_others()
        self._replies.begin(job.request for job in batch if job.request is not None)
        for job in batch:
            mark = effects.mark()
            outcome = self._guarded(job) if savepoints else self._job(job)
            if outcome.error is not None:
                effects.back(mark)
            outcomes.append(outcome)
        self._write()
        self._index(effects)
        conn.execute("COMMIT")
        self._counts["commits"] += 1
        self._count(effects.unread)
        return outcomes

    def _write(self) -> None:
        try:
            self._work.flush()
            self._replies.finish()
        except sqlite3.Error as error:
            if ends_transaction(error):
                raise
            raise _Unstorable(error) from error

    def _index(self, effects: apply.Effects) -> None:
        """Change the word index, in order of rows as FTS5 likes it; a row's removal stays before its addition."""
        for add, words in sorted(effects.index, key=_number):
            self._conn.execute(_ADD if add else _REMOVE, words)
        if effects.first is not None:
            self._conn.execute(_ADD_NEW, (effects.first,))

    def _guarded(self, job: Job) -> Outcome:
        """One command whose failure is its own alone."""
        self._conn.execute("SAVEPOINT job")
        try:
            outcome = self._job(job)
            self._write()
            return outcome
        except _Unstorable as failure:
            self._work.rows.clear()
            self._replies.lost()
            self._conn.execute("ROLLBACK TO job")
            return Outcome(None, MailError(f"the command can't be stored: {failure}. Nothing of it was."))
        finally:
            if self._conn.in_transaction:
                self._conn.execute("RELEASE job")

    def _job(self, job: Job) -> Outcome:
        """Carry out one command, or find out that it is refused."""
        try:
            if job.request is not None:
                known = self._replies.recall(job.request)
                if known is not None:
                    return Outcome(known, None)
            result = self._execute(job.command)  # type: ignore[arg-type]
            if job.request is not None:
                self._replies.keep(job.request, result, self._work.rows)
            return Outcome(result, None)
        except MailRefused as refusal:
            return Outcome(None, refusal)
        except sqlite3.Error as error:
            if ends_transaction(error):
                raise
            raise _Unstorable(error) from error
        except (OverflowError, TypeError, ValueError) as error:  # a value that SQLite has no form for
            raise _Unstorable(error) from error

    def _execute(self, command: commands.Command) -> commands.Result:
        work = self._work
        if isinstance(command, commands.Send):
            return apply.send(work, command)
        work.flush()
        match command:
            case commands.Ack():
                return apply.ack(work, command)
            case commands.Deliver():
                return apply.deliver(work, command)
            case commands.ReleaseHeld():
                return apply.release_held(work, command)
            case commands.Notice():
                return apply.notice(work, command)
            case commands.Prune():
                return prune.prune(work.conn, command)
            case commands.Forget():
                return commands.Forgotten(self._replies.forget(command.instance))
            case _:
                assert_never(command)

    def _call(self, act: Callable[[sqlite3.Connection], Any]) -> Outcome:
        try:
            return Outcome(act(self._conn), None)
        except sqlite3.Error as error:
            if self._conn.in_transaction:
                self._conn.execute("ROLLBACK")
            return Outcome(None, translate(error, self._path))

    def _count(self, changes: Sequence[tuple[int, int]]) -> None:
        for recipient, change in changes:
            left = self._unread[recipient] + change
            if left:
                self._unread[recipient] = left
            else:
                self._unread.pop(recipient, None)

    def _answer(self, batch: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
        def tell() -> None:
            for job, outcome in zip(batch, outcomes, strict=True):
                job.done(outcome.result, outcome.error)

        self._post(tell)

    def _data_version(self) -> int:
        """Changes when another connection changed the file. https://sqlite.org/pragma.html#pragma_data_version"""
        return int(self._conn.execute("PRAGMA data_version").fetchone()[0])

    def _look_for_others(self) -> None:
        """Stay right when somebody opened the file twice: count anew, go on behind their ids."""
        version = self._data_version()
        if version == self._version:
            return
        self._version = version
        self._work.catch_up()
        self._replies.lost()
        counted = count_unread(self._conn)
        for recipient in self._unread.keys() - counted.keys():
            self._unread.pop(recipient)
        for recipient, count in counted.items():
            self._unread[recipient] = count

    def _checkpoint_when_due(self) -> None:
        """Move pages from the WAL to the file, after the answers: nobody waits for it but the next commit."""
        if self._pages < CHECKPOINT_PAGES:
            return
        self._pages = 0
        try:
            self._conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self._counts["checkpoints"] += 1
        except sqlite3.Error:  # a full disk: the WAL keeps everything, and the next one moves it
            self._counts["checkpoints_failed"] += 1

    def _give_up(self, error: Exception) -> None:
        """A bug: refuse everything, so that nobody waits for ever."""
        failure = MailUnusable(f"the mail writer ended with a bug ({error!r}). Restart the daemon.")
        with self._lock:
            self._failed, self._closed = failure, True
        waiting = [*self._running, *([self._next] if self._next is not None else [])]
        while not self._queue.empty():
            job = self._queue.get()
            waiting += [job] if job is not None else []
        self._answer(waiting, [Outcome(None, failure)] * len(waiting))


_ADD: Final = "INSERT INTO words (rowid, subject, body, who) VALUES (?, ?, ?, ?)"
_ADD_NEW: Final = (
    "INSERT INTO words (rowid, subject, body, who) SELECT n, subject, body, who FROM messages WHERE n >= ? ORDER BY n"
)
_REMOVE: Final = "INSERT INTO words (words, rowid, subject, body, who) VALUES ('delete', ?, ?, ?, ?)"


def count_unread(conn: sqlite3.Connection) -> Counter[int]:
    """Unacked deliveries by recipient, from their own index."""
    return Counter(dict(conn.execute("SELECT recipient, count(*) FROM deliveries WHERE acked_at IS NULL GROUP BY 1")))


def _number(change: tuple[bool, apply.Words]) -> int:
    return change[1].n


def _alone(job: Job) -> bool:
    """Whether a job shares no transaction: functions begin their own; pruning takes index rows out at once,
    which must come after the index has the rows of everything before.
    """
    return not isinstance(job.command, _SHARING)


_SHARING: Final = (
    commands.Send,
    commands.Ack,
    commands.Deliver,
    commands.ReleaseHeld,
    commands.Notice,
    commands.Forget,
)
