"""Run as pid 1 of a new pid namespace: forces pids to be reused and prints what the adapter says, one JSON object.

ns_last_pid (proc_sys_kernel(5)) sets the pid that the namespace hands out next; it belongs to this namespace alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

from mbxd.ports import Processes
from mbxd.runtime.processes import LocalProcesses

ROUNDS = 40
PID = 300


def spawn() -> tuple[int, int]:
    """A child that lives until its pipe is closed: (pid, our end)."""
    theirs, ours = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        os.read(theirs, 1)
        os._exit(0)
    os.close(theirs)
    return pid, ours


def end(child: tuple[int, int]) -> None:
    """Let a child exit and reap it."""
    os.close(child[1])
    os.waitpid(child[0], 0)


def spawn_at(pid: int) -> tuple[int, int]:
    """A child with exactly this pid."""
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    child = spawn()
    assert child[0] == pid, (child, pid)
    return child


def refuse(pid: int) -> int:
    """A pidfd_open that this kernel does not have."""
    raise OSError(38, f"no pidfd_open for {pid}")


def main() -> None:
    """Reuse one pid again and again."""
    port: Processes = LocalProcesses()
    blind: Processes = LocalProcesses(opener=refuse)
    found: Counter[str] = Counter()
    for _ in range(ROUNDS):
        child = spawn_at(PID)
        identity = port.ancestry(PID)[0].identity
        handle = port.open(identity)
        end(child)
        successor = spawn_at(PID)
        other = port.ancestry(PID)[0].identity
        found["same_tick"] += identity.ticks == other.ticks
        found["same_identity"] += identity == other
        found["by_handle " + port.probe(identity, handle).reason] += 1
        found["by_inode " + port.probe(identity, None).reason] += 1
        found["by_ticks " + blind.probe(identity, None).reason] += identity.ticks != other.ticks
        found["reopened"] += port.open(identity) is not None
        found["successor " + port.probe(other, None).reason] += 1
        if handle is not None:
            port.close(handle)
        end(successor)
    json.dump({"pid": os.getpid(), "inodes": int(identity.inode > 0), **found}, sys.stdout)


if __name__ == "__main__":
    main()
