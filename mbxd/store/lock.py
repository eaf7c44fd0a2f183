"""The single-instance lock: flock on a file in the real state directory, held until the process ends.

Owns the lock file. Never deletes it (a deleted lock file lets two processes hold "the" lock on two inodes) and
never decides by probing: who has the flock is the daemon. Descriptors are close-on-exec, and the daemon must not
fork without exec, or a child would hold the lock on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path

from mbxd.ownfile import open_own

_CONTENTS = re.compile(rb"([0-9]{1,10}) ([0-9]{1,20})\n")
_ATTEMPTS = 100


class Held(Exception):
    """Another process has the lock.

    pid, ticks: the process named in the file, 0 when it names none (it may be about to write); holders: pids
    that have the file open, as far as /proc shows them; a child that inherited the lock shows up here alone.
    """

    def __init__(self, path: str, pid: int, ticks: int, holders: list[int]) -> None:
        self.path = path
        self.pid = pid
        self.ticks = ticks
        self.holders = holders
        named = f"process {pid}" if pid else "another process"
        others = [holder for holder in holders if holder != pid]
        seen = f"; open in process {', '.join(map(str, others))}" if others else ""
        super().__init__(f"{path} is held by {named}{seen}")


class Lock:
    """A held lock. Made by `acquire`."""

    def __init__(self, path: str, fd: int) -> None:
        """Takes over a descriptor that has the flock; `acquire` is the way in."""
        self.path = path
        self._fd = fd
        found = os.fstat(fd)
        self._identity = (found.st_dev, found.st_ino)

    @classmethod
    def acquire(cls, path: str, *, ticks: int = 0) -> Lock:
        """Take the lock or raise Held at once. The directory must exist; two spellings of it are one lock.

        ticks: raw start time of this process, written beside its pid so that a reused pid is not taken for it.
        OSError: the file can't be opened, or is no plain file of ours (NotOurs).
        """
        folder, name = os.path.split(path)
        real = str(Path(folder or ".").resolve(strict=True) / name)
        for _ in range(_ATTEMPTS):
            fd = open_own(real, os.O_RDWR | os.O_CREAT)
            try:
                _flock(fd, real)
            except BaseException:
                os.close(fd)
                raise
            lock = cls(real, fd)
            if lock.still_mine():
                lock._sign(ticks)
                return lock
            lock.release()  # somebody removed the file between open and flock: this inode locks nothing
        raise OSError(f"{real} is replaced again and again; something removes the lock file")

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the locked file: clients compare them with what they see at its path."""
        return self._identity

    def still_mine(self) -> bool:
        """Whether the path still names the locked file; False once the state directory was removed or replaced."""
        try:
            found = Path(self.path).lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def release(self) -> None:
        """Give the lock back; the file stays. Ending the process does the same."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            fcntl.flock(fd, fcntl.LOCK_UN)  # also for a child that inherited the descriptor
            os.close(fd)

    def _sign(self, ticks: int) -> None:
        data = f"{os.getpid()} {ticks}\n".encode()
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))


def _flock(fd: int, path: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Held(path, *parse_owner(os.pread(fd, 64, 0)), holders(path)) from None


def parse_owner(contents: bytes) -> tuple[int, int]:
    """(pid, ticks) from a lock file's contents; zeroes when they say nothing."""
    match = _CONTENTS.fullmatch(contents)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def holders(path: str) -> list[int]:
    """Pids of other processes that have this file open, as far as /proc lets us see (Linux; empty elsewhere)."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        wanted = Path(path).stat()
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal() and int(entry.name) != os.getpid() and _has_open(entry.path, wanted):
                found.add(int(entry.name))
    return sorted(found)


def _has_open(process: str, wanted: os.stat_result) -> bool:
    try:
        descriptors = os.listdir(f"{process}/fd")
    except OSError:
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            found = Path(f"{process}/fd/{descriptor}").stat()
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    return False
