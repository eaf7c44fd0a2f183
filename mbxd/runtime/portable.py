"""The process table through psutil: where there is no /proc (macOS), and what is told of a process anywhere.

Owns the calls into psutil. Never uses `create_time()`: it moves with the wall clock. Errors of psutil leave
here as OSError, or as empty facts.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import sys
import time

import psutil  # type: ignore[import-untyped] # its stubs are a separate distribution

from mbxd.runtime.procfs import NO_FACTS, Facts, Stat


def facts(pid: int) -> Facts:
    """Owner, arguments and executable; what can't be read stays empty. Never raises."""
    try:
        process = psutil.Process(pid)
        uid = int(process.uids().effective)
    except (psutil.Error, OSError, ValueError):
        return NO_FACTS
    try:
        argv = tuple(process.cmdline()[:64])
    except (psutil.Error, OSError, ValueError):
        argv = ()
    try:
        exe = process.exe() or ""
    except (psutil.Error, OSError, ValueError):
        exe = ""
    return Facts(uid, argv, exe)


class PsutilTable:
    """The process table of a system without /proc. Start times are whole microseconds."""

    namespace = 0

    def __init__(self) -> None:
        """Reads the boot's id once; it can't change."""
        self.boot = _boot_session()

    def stat(self, pid: int) -> Stat:
        """Read a process; the start time is the raw one of the kernel."""
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                status, ppid = process.status(), process.ppid()
        except psutil.NoSuchProcess as error:
            raise ProcessLookupError(errno.ESRCH, str(error)) from None
        except psutil.Error as error:
            raise PermissionError(errno.EPERM, str(error)) from None
        return Stat("Z" if status in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD} else "S", ppid, _raw_start(process))

    def facts(self, pid: int) -> Facts:
        """See the function `facts`."""
        return facts(pid)

    def is_thread(self, pid: int) -> bool:  # noqa: ARG002 - the protocol's shape
        """Threads have no pids here."""
        return False

    def threads_remain(self, pid: int) -> bool:  # noqa: ARG002 - the protocol's shape
        """A process whose leader exited has ended here."""
        return False

    def age(self, stat: Stat) -> float:
        """Seconds since the start by the wall clock."""
        return max(0.0, time.time() - stat.ticks / 1e6)


def _raw_start(process: psutil.Process) -> int:
    # (pid, start) is what psutil itself compares processes by: the kernel's own figure, unlike create_time(),
    # which is corrected by the difference between the present and the first reading of the boot time.
    start = process._get_ident()[1]  # noqa: SLF001 - the raw value has no public name
    return round(start * 1e6) if start else 0


def _boot_session() -> str:
    """kern.bootsessionuuid (macOS, sysctl(3)); empty elsewhere."""
    if sys.platform == "darwin":
        buffer = ctypes.create_string_buffer(64)
        size = ctypes.c_size_t(len(buffer))
        libc = ctypes.CDLL(ctypes.util.find_library("c"))
        failed = libc.sysctlbyname(b"kern.bootsessionuuid", buffer, ctypes.byref(size), None, 0)
        return "" if failed else buffer.value.decode("ascii", "replace")
    return ""
