"""The processes of this machine: the real adapter of the port `Processes`.

Owns every pidfd and the epoll set that watches them. Never signals a process, never decides on its own what
is dead (that is `evidence.judge`), and never lets an error of the system out of a probe.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import sys
from collections.abc import Callable

import trio

from mbx_wire import hostrule
from mbxd.ports import ProcessId, ProcessInfo, Verdict
from mbxd.runtime.evidence import REBOOTED, UNVERIFIABLE, Evidence, judge
from mbxd.runtime.portable import PsutilTable, facts
from mbxd.runtime.procfs import Procfs, Table, pid_of_pidfd

Opener = Callable[[int], int]
"""pidfd_open(2): pid -> a close-on-exec pidfd, or OSError."""

_NOWHERE = ProcessId("", 0, 0, 0, 0)
_GONE = judge(_NOWHERE, Evidence(handle_dead=True))
_THERE = judge(_NOWHERE, Evidence(handle_dead=False))
"""What a held handle says decides alone, whoever's it is: the first rows of the table, looked up once."""

_CHAIN_MAX = 64
"""Ancestors looked at: deeper nesting than any real one, and an end for a table that changes under us."""
_WALKS = 4
"""Attempts at reading a chain of ancestors while its processes come and go."""


def _default_table() -> Table:
    return Procfs() if sys.platform == "linux" else PsutilTable()


class LocalProcesses:
    """See `mbxd.ports.Processes`. Handles are pidfds; without pidfd there are none, and probes read the table."""

    def __init__(self, *, opener: Opener | None = None, table: Table | None = None) -> None:
        """`opener` and `table` are for tests; by default they are this system's own."""
        self._opener = opener if opener is not None else getattr(os, "pidfd_open", None)
        self._table = table if table is not None else _default_table()
        self._watched: dict[int, select.poll] = {}
        """By handle, what asks the kernel about it: made once, for it is asked before every change."""
        self._counts = {"opened": 0, "deaths": 0, "open_failed": 0, "watch_failed": 0, "probes": 0, "unknown": 0}
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._anonymous = None if self._epoll is None else _place(self._epoll.fileno())
        self._has_pidfd = self._try_pidfd()

    def boot_id(self) -> str:
        """This boot's id, empty where unreadable."""
        return self._table.boot

    def has_pidfd(self) -> bool:
        """Whether a pidfd of our own process could be opened and watched at the start."""
        return self._has_pidfd

    def statistics(self) -> dict[str, int]:
        """Counters since the start, and the number of handles held now."""
        return {"watched": len(self._watched), "pidfd": int(self._has_pidfd), **self._counts}

    # Reading

    def ancestry(self, pid: int) -> list[ProcessInfo]:
        """The process and its ancestors, nearest first; cut short where an ancestor can't be seen."""
        chain: list[ProcessInfo] = []
        for _ in range(_WALKS):
            chain, settled = self._walk(pid)
            if settled:
                return chain
        return chain

    def probe(self, identity: ProcessId, handle: int | None) -> Verdict:
        """Apply the table of docs/liveness.md. Never raises."""
        self._counts["probes"] += 1
        dead = None if handle is None else self._handle_dead(handle)
        if dead is not None:
            return _GONE if dead else _THERE
        try:
            verdict = judge(identity, self._gather(identity))
        except (OSError, ValueError, OverflowError):
            verdict = UNVERIFIABLE
        self._counts["unknown"] += verdict.status == "unknown"
        return verdict

    def describe(self, pid: int) -> str | None:
        """`name (pid N, started 3 h ago)`: the program's name alone, never its arguments."""
        try:
            stat = self._table.stat(pid)
        except (OSError, ValueError):
            return None
        told = facts(pid)
        name = hostrule.label(hostrule.Process(pid, told.uid, told.argv, told.exe))
        return f"{name} (pid {pid}, started {_ago(self._table.age(stat))} ago)"

    # Handles

    def open(self, identity: ProcessId) -> int | None:
        """A pidfd on exactly this process, or None: it is dead, or no pidfd can be had (then it is polled)."""
        if identity.pid <= 0:
            return None
        try:
            fd = self._pidfd(identity.pid)
        except ProcessLookupError:
            return None
        if fd is None:
            return None
        if judge(identity, self._look_through(identity.pid, fd)).status != "alive":
            os.close(fd)
            return None
        return self._watch(fd)

    def adopt(self, pidfd: int) -> tuple[ProcessId, int]:
        """Identity and handle of a pidfd from elsewhere; pid 0 when it is dead or can't be seen from here."""
        os.set_inheritable(pidfd, False)
        inode = self._inode(pidfd)
        pid = pid_of_pidfd(pidfd)
        ticks = self._ticks(pid) if pid > 0 else 0
        if pid > 0 and pid_of_pidfd(pidfd) != pid:
            # Reaped between the two readings: the ticks may be those of a successor.
            pid = 0
        if pid <= 0:
            identity = ProcessId(self.boot_id(), 0, 0, 0, inode or unseen())
        else:
            identity = ProcessId(self.boot_id(), self._table.namespace, pid, ticks, inode)
        return identity, self._watch(pidfd)

    def close(self, handle: int) -> None:
        """Give a handle back; one that is not held is left alone."""
        if self._watched.pop(handle, None) is None:
            return
        if self._epoll is not None:
            # A handle that could not be put into the set is not in it.
            with contextlib.suppress(OSError):
                self._epoll.unregister(handle)
        os.close(handle)

    def shutdown(self) -> None:
        """Give all handles back, and the set that watches them. Nothing may be called afterwards."""
        for handle in list(self._watched):
            self.close(handle)
        if self._epoll is not None:
            self._epoll.close()

    async def wait_deaths(self) -> list[int]:
        """Handles of processes that died, each reported once. For one waiting task."""
        if self._epoll is None or not self._has_pidfd:
            await trio.sleep_forever()
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            dead = [fd for fd, _ in self._epoll.poll(0) if fd in self._watched]
            if dead:
                self._counts["deaths"] += len(dead)
                return dead

    # Inside

    def _walk(self, pid: int) -> tuple[list[ProcessInfo], bool]:
        chain: list[ProcessInfo] = []
        current = self._info(pid)
        while current is not None:
            chain.append(current)
            if current.identity.pid == 1 or current.ppid <= 0 or len(chain) == _CHAIN_MAX:
                return chain, True
            parent = self._info(current.ppid)
            # The child still has this parent after the parent was opened and read: so it was its parent meanwhile,
            # and all that was read of the child is the child's.
            if not self._unchanged(current):
                return chain, False
            current = parent
        return chain, True

    def _unchanged(self, info: ProcessInfo) -> bool:
        try:
            stat = self._table.stat(info.identity.pid)
        except (OSError, ValueError):
            return False
        return (stat.ticks, stat.ppid) == (info.identity.ticks, info.ppid)

    def _info(self, pid: int) -> ProcessInfo | None:
        try:
            fd = self._pidfd(pid)
        except ProcessLookupError:
            return None
        try:
            stat = self._table.stat(pid)
            inode = 0 if fd is None else self._inode(fd)
        except (OSError, ValueError):
            return None
        finally:
            if fd is not None:
                os.close(fd)
        identity = ProcessId(self.boot_id(), self._table.namespace, pid, stat.ticks, inode)
        return ProcessInfo(identity, stat.ppid, *self._table.facts(pid))

    def _handle_dead(self, handle: int) -> bool | None:
        poll = self._watched.get(handle)
        return None if poll is None else _answer(poll)

    def _gather(self, identity: ProcessId) -> Evidence:
        seen = Evidence(boot=self.boot_id(), ns=self._table.namespace)
        if judge(identity, seen) == REBOOTED or identity.pid <= 0 or identity.ns != seen.ns:
            return seen
        try:
            fd = self._pidfd(identity.pid)
        except ProcessLookupError:
            return seen._replace(exists=False)
        if fd is None:
            return self._look_without(identity.pid)
        try:
            return self._look_through(identity.pid, fd)
        finally:
            os.close(fd)

    def _look_through(self, pid: int, fd: int) -> Evidence:
        """Evidence about a pid while a pidfd on it is open. The pid can be reused only after a readable pidfd."""
        return Evidence(
            boot=self.boot_id(),
            ns=self._table.namespace,
            exists=True,
            ticks=self._ticks(pid),
            inode=self._inode(fd),
            ended=_readable(fd),
        )

    def _look_without(self, pid: int) -> Evidence:
        """Evidence about a pid from the process table alone."""
        seen = Evidence(boot=self.boot_id(), ns=self._table.namespace)
        try:
            stat = self._table.stat(pid)
            thread = self._table.is_thread(pid)
            ended = stat.zombie and not self._table.threads_remain(pid)
        except (OSError, ValueError):
            return seen._replace(exists=None if _exists(pid) else False)
        return seen._replace(exists=True, thread=thread, ticks=stat.ticks, ended=ended)

    def _pidfd(self, pid: int) -> int | None:
        """A new pidfd; None when none can be had, ProcessLookupError when the pid is gone."""
        if self._opener is None or self._epoll is None:
            return None
        try:
            return self._opener(pid)
        except ProcessLookupError:
            raise
        except (OSError, ValueError, OverflowError):
            # EMFILE, ENOSYS, EPERM, ...; EINVAL or ENOENT when the number is a thread's: the table tells.
            self._counts["open_failed"] += 1
            return None

    def _watch(self, fd: int) -> int:
        self._watched[fd] = _asking(fd)
        self._counts["opened"] += 1
        if self._epoll is not None:
            try:
                self._epoll.register(fd, select.EPOLLIN | select.EPOLLONESHOT)
            except OSError:
                # ENOSPC: the handle is good all the same, the sweep reads it.
                self._counts["watch_failed"] += 1
        return fd

    def _inode(self, fd: int) -> int:
        """Inode of a pidfd on pidfs; 0 on older kernels, where all pidfds share the anonymous inode of epoll."""
        device, inode = _place(fd)
        return 0 if (device, inode) == self._anonymous or sys.maxsize < 2**32 else inode

    def _ticks(self, pid: int) -> int:
        try:
            return self._table.stat(pid).ticks
        except (OSError, ValueError):
            return 0

    def _try_pidfd(self) -> bool:
        try:
            fd = self._pidfd(os.getpid())
        except ProcessLookupError:
            return False
        if fd is None:
            return False
        try:
            return _readable(fd) is False
        finally:
            os.close(fd)


def unseen() -> int:
    """A random negative number in the place of an inode, for a process that nothing else tells apart."""
    return -1 - secrets.randbits(62)


def _place(fd: int) -> tuple[int, int]:
    stat = os.fstat(fd)
    return stat.st_dev, stat.st_ino


def _readable(fd: int) -> bool | None:
    """Whether a pidfd is readable, which means dead; None when the descriptor is bad."""
    return _answer(_asking(fd))


def _asking(fd: int) -> select.poll:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return poll


def _answer(poll: select.poll) -> bool | None:
    for _, events in poll.poll(0):
        return None if events & select.POLLNVAL else True
    return False


def _exists(pid: int) -> bool:
    """False only when the kernel knows no such process; signal 0 is checked and not sent, kill(2)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
