"""Alive, dead or unknown: the first table of docs/liveness.md, as one pure function.

Owns that table. Never looks at the machine: the adapters bring the evidence.
"""

from __future__ import annotations

from typing import NamedTuple

from mbxd.ports import ProcessId, Verdict

ALIVE = Verdict("alive", "held")
EXITED = Verdict("dead", "holder-exited")
REUSED = Verdict("dead", "pid-reused")
REBOOTED = Verdict("dead", "rebooted")
UNVERIFIABLE = Verdict("unknown", "unverifiable")


class Evidence(NamedTuple):
    """What can be seen now. None always means "could not be read", never "no".

    handle_dead: whether the held pidfd is readable, None when none is held.
    boot, ns: this boot's id and the daemon's own pid namespace; "" and 0 when unreadable.
    exists: whether the pid is taken (False only on ESRCH); thread: it is a thread of another process.
    ticks, inode: of the process that has the pid now, 0 when unreadable.
    ended: it is a zombie without threads.
    """

    handle_dead: bool | None = None
    boot: str = ""
    ns: int = 0
    exists: bool | None = None
    thread: bool = False
    ticks: int = 0
    inode: int = 0
    ended: bool | None = None


def judge(identity: ProcessId, seen: Evidence) -> Verdict:
    """Apply the table; comments carry its row numbers."""
    if seen.handle_dead is not None:  # 1, 2
        return EXITED if seen.handle_dead else ALIVE
    if identity.boot and seen.boot and identity.boot != seen.boot:  # 3
        return REBOOTED
    if identity.pid <= 0 or identity.ns != seen.ns:  # 4
        return UNVERIFIABLE
    if seen.exists is False:  # 5
        return EXITED
    if seen.thread:  # 6
        return REUSED
    same = is_same(identity, seen.ticks, seen.inode)
    if seen.exists is None or same is None:  # 7
        return UNVERIFIABLE
    if not same:  # 8, 9
        return REUSED
    if seen.ended is None:  # 11
        return UNVERIFIABLE
    return EXITED if seen.ended else ALIVE  # 10, 12


def is_same(identity: ProcessId, ticks: int, inode: int) -> bool | None:
    """Whether the process with these ticks and inode is the one meant; None when nothing can be compared.

    The inode decides alone where both sides have one: ticks repeat, and a time namespace shifts them.
    """
    if identity.inode > 0 and inode > 0:
        return identity.inode == inode
    if identity.ticks > 0 and ticks > 0:
        return identity.ticks == ticks
    return None
