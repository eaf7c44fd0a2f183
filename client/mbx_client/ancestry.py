"""This process's ancestors and the one that hosts its session, read from /proc, proc(5).

Owns the reading of the chain and the watch of one process. The rule of who the host is stands in
`mbx_wire.hostrule`. Unreadable is never dead: such a process counts as alive here. Standard library only.
"""

from __future__ import annotations

import os

from mbx_wire import hostrule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_DEEPEST = 64
_CMDLINE = 65536


class Host:
    """The watched process. `pidfd` is None where the kernel gives none: then `alive` must be asked."""

    __slots__ = ("label", "pid", "pidfd", "ticks")

    def __init__(self, pid: int, ticks: int, label: str, pidfd: int | None) -> None:
        self.pid = pid
        self.ticks = ticks
        self.label = label
        self.pidfd = pidfd

    def alive(self) -> bool:
        """False only when the process is proven gone."""
        return not _gone(self.pid, self.ticks)


def chain(pid: int) -> list[tuple[hostrule.Process, int]]:
    """The process and its ancestors with their start ticks; empty where there is no /proc.

    Each link is read twice: a parent that died in between would put a stranger into the chain.
    """
    found: list[tuple[hostrule.Process, int]] = []
    while pid > 0 and len(found) < _DEEPEST:
        first = _stat(pid)
        if first is None:
            break
        _state, parent, ticks = first
        process = hostrule.Process(pid, _uid(pid), _argv(pid), _exe(pid))
        again = _stat(pid)
        if again is None or again[2] != ticks:
            break
        if again[1] != parent:
            continue  # reparented while it was read
        if found and ticks > found[-1][1]:
            break  # younger than its child: the number was used again
        found.append((process, ticks))
        pid = parent
    return found


def find_host(pid: int | None = None) -> Host | None:
    """The host process of a shim (default: this process), or None when it is its own host or unreadable."""
    links = chain(os.getpid() if pid is None else pid)
    if not links:
        return None
    choice = hostrule.choose_host([process for process, _ticks in links])
    if choice.place == 0:
        return None
    process, ticks = links[choice.place]
    return Host(process.pid, ticks, choice.label, _open(process.pid, ticks))


def _open(pid: int, ticks: int) -> int | None:
    pidfd_open: Callable[[int], int] | None = getattr(os, "pidfd_open", None)
    if pidfd_open is None:
        return None
    try:
        pidfd = pidfd_open(pid)
    except OSError:
        return None
    now = _stat(pid)
    if now is None or now[2] != ticks:  # another process by now; the old one is gone, which `alive` will tell
        os.close(pidfd)
        return None
    return pidfd


def _gone(pid: int, ticks: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read(4096)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
    parsed = _parse_stat(text)
    if parsed is None:
        return False
    state, _parent, found = parsed
    if found != ticks:
        return True
    return state in {"Z", "X"} and _threads(pid) <= 1


def _threads(pid: int) -> int:
    """Threads that remain. A main thread that exited leaves a zombie while others still run."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def _stat(pid: int) -> tuple[str, int, int] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return _parse_stat(file.read(4096))
    except OSError:
        return None


def _parse_stat(text: bytes) -> tuple[str, int, int] | None:
    """(state, ppid, start ticks): fields 3, 4 and 22. The name before them may hold spaces and parentheses."""
    fields = text[text.rfind(b")") + 2 :].split()
    try:
        return fields[0].decode("ascii"), int(fields[1]), int(fields[19])
    except (IndexError, ValueError):
        return None


def _uid(pid: int) -> int:
    """The real uid, or -1, which is nobody's."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Uid:"):
                    return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return -1


def _argv(pid: int) -> tuple[str, ...]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read(_CMDLINE)
    except OSError:
        return ()
    return tuple(os.fsdecode(part) for part in text.rstrip(b"\0").split(b"\0")) if text else ()


def _exe(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""
