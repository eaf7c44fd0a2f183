"""A life of a log on a file system that may fail: what was acknowledged, and what a recovery shows of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from mbxd.ports import Vfs
from mbxd.store.log import Log, Recovery
from mbxd.store.vfs import OsVfs

DIRECTORY = "/state/registry"
SEGMENT = 512


def entropy(seed: int = 1) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def open_log(vfs: Vfs, *, segment: int = SEGMENT, retain: int = 1024, seed: int = 1) -> Recovery:
    return Log.open(vfs, DIRECTORY, entropy=entropy(seed), segment_size=segment, retain=retain)


def on_disk(directory: Path) -> Recovery:
    """A log in small segments on the real file system. The same acts give the same bytes."""
    return Log.open(OsVfs(), str(directory), entropy=entropy(), segment_size=1024, retain=1 << 20)


def fold(recovery: Recovery) -> list[bytes]:
    """All records as the daemon would know them: our snapshots hold the records themselves, one a chunk."""
    state = list(recovery.snapshot or [])
    assert len(state) == recovery.snapshot_seq
    for seq, record in recovery.records:
        assert seq == len(state) + 1
        state.append(record)
    assert len(state) == recovery.log.durable_seq
    return state


class Life:
    """Keeps the books. acknowledged: records of appends that returned; in_flight: the batch of one that has not."""

    def __init__(self, vfs: Vfs, *, name: str = "a") -> None:
        self.vfs = vfs
        self.name = name
        self.acknowledged: list[bytes] = []
        self.in_flight: list[bytes] = []

    def run(self, rounds: int = 12) -> None:
        """Open, append batches of several sizes over several segments, keep spares and snapshots."""
        recovery = open_log(self.vfs, seed=len(self.acknowledged) + 7)
        self.check(recovery)
        log = recovery.log
        for number in range(rounds):
            sizes = [1, 40, 7][: 1 + number % 3] if number % 5 else [150]
            self.append(log, [self.record(number, at, size) for at, size in enumerate(sizes)])
            log.prepare_spare()
            if number % 4 == 3:
                log.write_snapshot(len(self.acknowledged), list(self.acknowledged))
        assert [record for _, record in log.history()] == self.acknowledged[-kept(log) :][::-1]
        log.close()

    def record(self, number: int, at: int, size: int) -> bytes:
        return f"{self.name}{len(self.acknowledged)}.{number}.{at}:".encode().ljust(size, b"\xff")

    def append(self, log: Log, records: list[bytes]) -> None:
        self.in_flight = records
        last = log.append(records)
        self.acknowledged += records
        self.in_flight = []
        assert last == len(self.acknowledged)

    def check(self, recovery: Recovery) -> None:
        """All that was acknowledged is there; what was in flight is there whole or not at all."""
        state = fold(recovery)
        assert state in (self.acknowledged, self.acknowledged + self.in_flight)
        self.acknowledged, self.in_flight = state, []

    def reborn(self, vfs: Vfs, name: str) -> Life:
        """The same books on the file system that a crash left."""
        other = Life(vfs, name=name)
        other.acknowledged, other.in_flight = list(self.acknowledged), list(self.in_flight)
        return other


def kept(log: Log) -> int:
    """How many records the kept segments hold."""
    return log.durable_seq - int(log.statistics()["oldest_seq"]) + 1
