"""Made-up registries: events as a busy host would have logged them, in memory or in a state directory.

Owns their shape: a hundred identities a project, names and roles of usual length, half of them held before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from bench.daemon import BenchVfs, NoSync
from mbxd.core import events as ev
from mbxd.core import snapshot
from mbxd.core.evolve import replay
from mbxd.core.state import State
from mbxd.ports import ProcessId
from mbxd.store.log import Log

IN_PROJECT = 100
AT = 1_700_000_000.0
BATCH = 16
_ROLES = ("backend", "frontend", "reviewer", "release manager")


def registered(count: int, first: int = 1) -> Iterator[ev.Event]:
    """`count` identities in their projects, never held."""
    for number in range(first, first + count):
        project = (number - 1) // IN_PROJECT + 1
        if (number - 1) % IN_PROJECT == 0:
            yield ev.ProjectCreated(project, f"/home/dev/src/shop-{project:05d}", f"shop-{project:05d}", AT)
        role = _ROLES[number % len(_ROLES)]
        name = f"shop-{project:05d}-worker-{number:06d}"
        yield ev.IdentityRegistered(number, name, name, role, "Takes orders and looks after them", project, AT)


def held(numbers: range, epoch: int = 1) -> Iterator[ev.Event]:
    """Each of them claimed and released by a session of its own, with the kept result of both."""
    for number in numbers:
        host = ProcessId(
            "5f2f4c1e-7a2b-4a44-9a0e-6f1f0f3f2b11", 4026531836, 1000 + number, 9_000_000 + number, 70_000 + number
        )
        session = ev.SessionRef(host, f"thread-{number:08d}", "claude-code", (f"claude-code:thread-{number:08d}",))
        shim = host._replace(pid=host.pid + 1, inode=host.inode + 1)
        instance = f"{number % 500:016x}"
        yield ev.Granted(number, epoch, session, (shim,), AT)
        yield ev.Replied(instance, f"call-{number:08d}-{epoch}", b"12345678", bytes(600))
        yield ev.Released(number, epoch, AT + 60, AT + 60)
        yield ev.Replied(instance, f"call-{number:08d}-{epoch}r", b"12345678", bytes(120))


def directory(state: str, identities: int, *, tail: int = 0) -> None:
    """A state directory with a snapshot of `identities` and `tail` events behind it."""
    recovery = Log.open(BenchVfs(NoSync), f"{state}/registry", entropy=os.urandom)
    log = recovery.log
    try:
        made = list(registered(identities))
        _append(log, made)
        log.write_snapshot(log.durable_seq, snapshot.encode(snapshot.freeze(replay(State(), made), {})))
        if tail:
            _append(log, list(held(range(1, tail // 4 + 1))))
    finally:
        log.close()


def _append(log: Log, history: list[ev.Event]) -> None:
    for start in range(0, len(history), BATCH):
        log.append([ev.encode(event) for event in history[start : start + BATCH]])
