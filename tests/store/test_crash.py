"""Power cuts and kills at every changing call of a log's life, and of the recovery after it."""

from __future__ import annotations

import pytest

from tests.store.life import Life, open_log
from tests.support.memvfs import MODES, MemVfs, PowerCut


def total_calls() -> int:
    vfs = MemVfs()
    Life(vfs).run()
    return len(vfs.calls)


def crash(at: int) -> Life:
    """A life whose machine lost power in its `at`th changing call."""
    vfs = MemVfs()
    vfs.crash_at(at)
    life = Life(vfs)
    with pytest.raises(PowerCut):
        life.run()
    return life


def machine(life: Life) -> MemVfs:
    assert isinstance(life.vfs, MemVfs)
    return life.vfs


TOTAL = total_calls()


def test_a_life_uses_every_changing_call() -> None:
    vfs = MemVfs()
    Life(vfs).run()
    assert set(vfs.calls) >= {"create", "pwrite", "sync_data", "rename", "remove", "sync_dir", "make_dir"}


@pytest.mark.parametrize("mode", MODES)
def test_power_cut_at_every_call_loses_nothing_acknowledged(mode: str) -> None:
    for at in range(1, TOTAL + 1):
        life = crash(at)
        again = life.reborn(machine(life).after_power_cut(at, mode), "b")
        again.run(3)  # opens, checks, and appends behind whatever was left
        again.run(1)


def test_kill_at_every_call_loses_nothing_acknowledged() -> None:
    for at in range(1, TOTAL + 1):
        life = crash(at)
        again = life.reborn(machine(life).after_kill(), "b")
        again.run(3)
        # What the killed process left in the page cache only must not have become the ground of later batches.
        later = again.reborn(machine(again).after_power_cut(at, "nothing"), "c")
        later.run(1)


def test_power_cut_during_recovery_from_every_power_cut() -> None:
    for at in range(1, TOTAL + 1, 2):
        life = crash(at)
        for second in range(1, 14, 1 + at % 3):
            disk = machine(life).after_power_cut(at)
            disk.crash_at(second)
            again = life.reborn(disk, "b")
            try:
                again.run(2)
                continue
            except PowerCut:
                pass
            again.reborn(disk.after_power_cut(second), "c").run(2)


@pytest.mark.slow
def test_many_tearings_of_every_call() -> None:
    for at in range(1, TOTAL + 1):
        life = crash(at)
        for seed in range(60):
            disk = machine(life).after_power_cut(seed)
            disk.crash_at(1 + seed % 25)
            again = life.reborn(disk, "b")
            try:
                again.run(4)
            except PowerCut:
                again = again.reborn(disk.after_power_cut(seed + 1), "c")
            again.run(2)


def test_a_crash_while_the_first_segment_is_made_starts_new() -> None:
    """Nothing was acknowledged before the first batch, whatever lies there."""
    vfs = MemVfs()
    log = open_log(vfs).log
    before = len(vfs.calls)
    log.append([b"first"])
    steps = len(vfs.calls) - before
    assert steps == 4  # pwrite, sync_data, rename, sync_dir
    for at in range(1, steps + 1):
        for seed in range(12):
            disk = MemVfs()
            log = open_log(disk).log
            disk.crash_at(at)
            with pytest.raises(PowerCut):
                log.append([b"first"])
            recovery = open_log(disk.after_power_cut(seed))
            assert [record for _, record in recovery.records] in ([], [b"first"])
            assert recovery.log.append([b"next"]) == recovery.log.durable_seq
