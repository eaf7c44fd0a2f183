"""Raw readings of /proc (Linux): boot id, pid namespace, stat, threads, pidfd information.

Owns the parsing of these files. Never judges, never caches, and never turns a failed read into an answer:
every failure is an OSError for the caller. See proc(5), pidfd_open(2).
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import NamedTuple, Protocol

_CMDLINE_MAX = 8192
"""Bytes read of a command line, and arguments kept: the rule about wrappers needs the first few."""
_ARGV_MAX = 64


class Stat(NamedTuple):
    """One reading of a process, from one read of one file. ticks: raw start time, in units of the table."""

    state: str
    ppid: int
    ticks: int

    @property
    def zombie(self) -> bool:
        """Whether the leader has exited; threads of it may still run."""
        return self.state in {"Z", "X", "x"}


class Facts(NamedTuple):
    """What a process says about itself. uid is the effective one, as in SO_PEERCRED; -1 when unreadable."""

    uid: int
    argv: tuple[str, ...]
    exe: str


NO_FACTS = Facts(-1, (), "")


class Table(Protocol):
    """A system's process table. Methods raise OSError (ProcessLookupError when it is gone) on failure."""

    @property
    def boot(self) -> str:
        """This boot's id, empty where unreadable."""
        ...

    @property
    def namespace(self) -> int:
        """The pid namespace whose numbers this table uses, 0 where there is none or it is unreadable."""
        ...

    def stat(self, pid: int) -> Stat:
        """Read a process."""
        ...

    def facts(self, pid: int) -> Facts:
        """Owner, arguments and executable; what can't be read stays empty. Never raises."""
        ...

    def is_thread(self, pid: int) -> bool:
        """Whether the number belongs to a thread that is no process of its own."""
        ...

    def threads_remain(self, pid: int) -> bool:
        """Whether threads of a process run whose leader is a zombie."""
        ...

    def age(self, stat: Stat) -> float:
        """Seconds since the process started; for people only."""
        ...


def parse_stat(data: bytes) -> Stat:
    """Parse /proc/<pid>/stat. ValueError when it is no such line.

    The second field is the name in parentheses, which the process chooses itself and which may hold spaces,
    parentheses and newlines: fields are counted after the last ")". Field 3 is the state, 4 the parent,
    22 the start time in clock ticks since boot.
    """
    head, found, tail = data.rpartition(b")")
    fields = tail.split()
    if not found or b"(" not in head or len(fields) < 20:
        raise ValueError(f"not a line of /proc/<pid>/stat: {data[:80]!r}")
    return Stat(fields[0].decode("ascii", "replace"), int(fields[1]), int(fields[19]))


def split_cmdline(data: bytes) -> tuple[str, ...]:
    """Split /proc/<pid>/cmdline: arguments end with NUL. A rewritten title stays one argument, padding is dropped."""
    text = os.fsdecode(data.rstrip(b"\0"))
    return tuple(text.split("\0")[:_ARGV_MAX]) if text else ()


class Procfs:
    """/proc of this process's own pid namespace.

    A /proc mounted for another pid namespace speaks of other numbers than pidfd_open and SO_PEERCRED do:
    then nothing of it is believed and every reading fails with EPERM.
    """

    def __init__(self, root: str = "/proc") -> None:
        """`root`: where procfs is mounted."""
        self._root = root
        self.boot = self._read_boot()
        self.ours = self._is_ours()
        self.namespace = self._read_namespace()
        self._ticks_a_second = os.sysconf("SC_CLK_TCK")

    def stat(self, pid: int) -> Stat:
        """Read state, parent and start ticks of a process (or thread) in one read."""
        self._check_ours()
        try:
            return parse_stat(_read(f"{self._root}/{pid}/stat"))
        except ValueError as error:
            raise OSError(errno.EIO, str(error)) from None

    def facts(self, pid: int) -> Facts:
        """Owner, arguments and executable, read directly: psutil takes five times as long, at every connection."""
        if not self.ours:
            return NO_FACTS
        uid, line, exe = -1, b"", ""
        with contextlib.suppress(OSError, ValueError, IndexError):
            uid = int(self._status(pid, b"Uid:").split()[1])
        with contextlib.suppress(OSError):
            line = _read(f"{self._root}/{pid}/cmdline", _CMDLINE_MAX)
        with contextlib.suppress(OSError):
            exe = str(Path(self._root, str(pid), "exe").readlink())
        return Facts(uid, split_cmdline(line), exe)

    def is_thread(self, pid: int) -> bool:
        """Whether the thread group of this number has another leader."""
        self._check_ours()
        return int(self._status(pid, b"Tgid:")) != pid

    def threads_remain(self, pid: int) -> bool:
        """Whether any thread beside the leader is listed."""
        self._check_ours()
        return any(path.name != str(pid) for path in Path(self._root, str(pid), "task").iterdir())

    def age(self, stat: Stat) -> float:
        """Seconds since the start, asleep or awake; no clock step moves it."""
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - stat.ticks / self._ticks_a_second)

    def _status(self, pid: int, field: bytes) -> bytes:
        data = _read(f"{self._root}/{pid}/status")
        start = data.find(b"\n" + field)
        if start < 0:
            raise OSError(errno.EIO, f"no {field.decode()} in /proc/{pid}/status")
        return data[start + 1 + len(field) : data.find(b"\n", start + 1)]

    def _check_ours(self) -> None:
        if not self.ours:
            raise PermissionError(errno.EPERM, "/proc belongs to another pid namespace")

    def _is_ours(self) -> bool:
        try:
            return str(Path(self._root, "self").readlink()) == str(os.getpid())
        except OSError:
            return False

    def _read_namespace(self) -> int:
        try:
            return Path(self._root, "self", "ns", "pid").stat().st_ino
        except OSError:
            return 0

    def _read_boot(self) -> str:
        try:
            return _read(f"{self._root}/sys/kernel/random/boot_id").decode("ascii", "replace").strip()
        except OSError:
            return ""


def pid_of_pidfd(fd: int) -> int:
    """The pid behind a pidfd: -1 when it was reaped, 0 when it can't be seen from here or read.

    From the line "Pid:" of /proc/self/fdinfo/<fd>, see pidfd_open(2) and fs/pidfs.c.
    """
    try:
        for line in _read(f"/proc/self/fdinfo/{fd}").splitlines():
            if line.startswith(b"Pid:"):
                return int(line[4:])
    except (OSError, ValueError):
        return 0
    return 0


def _read(path: str, limit: int = 8192) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, limit)
    finally:
        os.close(fd)
