"""Who holds the daemon's lock, as its file says, checked against the process that runs under that pid now.

Owns the reading of the lock file and the one signal that mbxctl ever sends: SIGTERM to the process named
there, and only when its start ticks are the ones written beside its pid. Never takes or tests the lock itself:
a starting daemon would find it held. Never takes a pid from a socket's peer.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import time

from mbx_client import paths
from mbx_wire import places

_OWNER = re.compile(rb"([0-9]{1,10}) ([0-9]{1,20})\s*")
_PID_MAX = 2**31 - 1
"""pid_t is an int: a larger number is no process, and no call of the system takes it."""


class LockHolder:
    """The process that the lock file names and that is verified to be the same one now.

    On Linux a pidfd keeps it apart from any later process of that pid; elsewhere its ticks are compared again
    before the signal.
    """

    def __init__(self, pid: int, ticks: int, descriptor: int | None) -> None:
        self.pid = pid
        self._ticks = ticks
        self._descriptor = descriptor

    def terminate(self) -> None:
        """SIGTERM, unless it has gone by now."""
        try:
            if self._descriptor is not None:
                signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)
            elif start_ticks(self.pid) == self._ticks:
                os.kill(self.pid, signal.SIGTERM)
        except ProcessLookupError:
            return

    def wait_gone(self, seconds: float) -> bool:
        """Whether it ended within so many seconds."""
        if self._descriptor is not None:
            readable, _, _ = select.select([self._descriptor], [], [], seconds)
            return bool(readable)
        deadline = time.monotonic() + seconds
        while start_ticks(self.pid) == self._ticks:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def holder(where: paths.Places) -> LockHolder | None:
    """The live process that the lock file names, or None when it names none, or one that has gone."""
    named = named_process(where)
    if named is None:
        return None
    pid, ticks = named
    descriptor = _pidfd(pid)
    # Ticks are read after the pidfd was opened: then both speak of one process.
    if ticks == 0 or start_ticks(pid) != ticks:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return LockHolder(pid, ticks, descriptor)


def named_process(where: paths.Places) -> tuple[int, int] | None:
    """(pid, start ticks) as the lock file has them, or None."""
    try:
        descriptor = paths.open_own(where.file(places.LOCK_NAME), os.O_RDONLY)
        with open(descriptor, "rb") as file:
            found = _OWNER.fullmatch(file.read(200))
    except OSError:
        return None
    pid = int(found[1]) if found else 0
    return (pid, int(found[2])) if found and 1 < pid <= _PID_MAX else None


def start_ticks(pid: int) -> int:
    """Start of a process as the daemon writes it, 0 when there is none or it can't be read.

    Linux: field 22 of /proc/pid/stat, clock ticks since boot, proc(5). Elsewhere: microseconds since the epoch.
    """
    if sys.platform != "linux":
        return _portable_ticks(pid)
    try:
        fields = _stat(pid)
        return 0 if fields[0] == b"Z" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def is_stopped(pid: int) -> bool:
    """Whether a signal stopped it (SIGSTOP, Ctrl-Z): it answers nothing and takes no other signal before SIGCONT."""
    if sys.platform != "linux":
        return _portable_stopped(pid)
    try:
        return _stat(pid)[0] in {b"T", b"t"}
    except (OSError, ValueError, IndexError):
        return False


def _stat(pid: int) -> list[bytes]:
    """Fields of /proc/pid/stat from the third, the state, on."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        text = file.read(4096)
    return text[text.rindex(b")") + 2 :].split()


def _portable_ticks(pid: int) -> int:
    import psutil  # type: ignore[import-untyped]  # psutil ships no annotations

    try:
        # The kernel's own figure, as the daemon logs it: create_time() moves with the wall clock.
        start = psutil.Process(pid)._get_ident()[1]  # noqa: SLF001 - the raw value has no public name
        return round(start * 1e6) if start else 0
    except psutil.Error:
        return 0


def _portable_stopped(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _pidfd(pid: int) -> int | None:
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        descriptor: int = opener(pid)
    except OSError:
        return None
    return descriptor
