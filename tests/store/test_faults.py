"""Calls that fail while the machine stays on: short writes, EIO, full disks, and what a restart makes of them."""

from __future__ import annotations

import errno

import pytest

from mbxd.store.errors import LogFailed, LogFull
from mbxd.store.log import COMMIT_OVERHEAD, Log
from tests.store.life import DIRECTORY, Life, fold, open_log
from tests.support.memvfs import MemVfs


def started(records: int = 3) -> tuple[MemVfs, Log]:
    vfs = MemVfs()
    log = open_log(vfs).log
    for number in range(records):
        log.append([f"record {number + 1}".encode()])
    return vfs, log


def reopened(vfs: MemVfs) -> list[bytes]:
    return fold(open_log(vfs))


def test_short_write_poisons_and_leaves_no_half_record() -> None:
    vfs, log = started()
    vfs.short_write(keep=11)
    with pytest.raises(LogFailed, match="short write"):
        log.append([b"too much"])
    syncs = vfs.counts["sync_data"]
    with pytest.raises(LogFailed):
        log.append([b"later"])
    assert vfs.counts["sync_data"] == syncs
    assert reopened(vfs.after_kill()) == [b"record 1", b"record 2", b"record 3"]


@pytest.mark.parametrize("kind", ["pwrite", "sync_data"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_failed_append_poisons_for_good(kind: str, code: int) -> None:
    vfs, log = started()
    vfs.fail(kind, code=code)
    with pytest.raises(LogFailed) as caught:
        log.append([b"unlucky"])
    assert isinstance(caught.value.__cause__, OSError)
    assert log.failed is not None
    calls = len(vfs.calls)
    with pytest.raises(LogFailed):
        log.append([b"unlucky"])
    assert len(vfs.calls) == calls, "nothing is written or synced after a failure"
    assert not log.needs_spare
    assert [record for _, record in log.history()] == [b"record 3", b"record 2", b"record 1"]


@pytest.mark.parametrize("kind", ["pwrite", "sync_data", "rename", "sync_dir"])
def test_failed_roll_poisons_and_recovers(kind: str) -> None:
    vfs, log = started()
    big = b"x" * 200
    log.append([big])
    log.prepare_spare()
    vfs.fail(kind)
    with pytest.raises(LogFailed):
        log.append([big])
    state = reopened(vfs.after_kill())
    assert state[:4] == [b"record 1", b"record 2", b"record 3", big]
    assert state[4:] in ([], [big])
    life = Life(vfs.after_power_cut(3))
    life.acknowledged, life.in_flight = state[:4], [big]
    life.run(3)


def test_sync_is_never_tried_twice_and_its_lost_pages_are_written_again() -> None:
    """The kernel drops dirty pages when a sync fails, yet the next process reads them from the page cache."""
    vfs, log = started()
    vfs.fail("sync_data")
    with pytest.raises(LogFailed):
        log.append([b"in the page cache only"])
    restarted = vfs.after_kill()
    recovery = open_log(restarted)
    state = fold(recovery)
    recovery.log.append([b"acknowledged on top"])
    after = reopened(restarted.after_power_cut(1, "nothing"))
    assert after == [*state, b"acknowledged on top"]


def test_lost_pages_of_a_roll_are_written_again() -> None:
    vfs, log = started()
    log.append([b"x" * 200])
    log.prepare_spare()
    vfs.fail("sync_dir")
    with pytest.raises(LogFailed):
        log.append([b"y" * 300])
    restarted = vfs.after_kill()
    recovery = open_log(restarted)
    state = fold(recovery)
    assert state[-1] == b"y" * 300
    recovery.log.append([b"on top"])
    assert reopened(restarted.after_power_cut(2, "nothing")) == [*state, b"on top"]


def test_seq_of_a_failed_append_is_not_used_twice() -> None:
    vfs, log = started()
    vfs.fail("sync_data", code=errno.ENOSPC)
    with pytest.raises(LogFailed):
        log.append([b"first try"])
    recovery = open_log(vfs.after_kill())
    state = fold(recovery)
    assert state == [b"record 1", b"record 2", b"record 3", b"first try"]
    assert recovery.log.append([b"next"]) == 5


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
@pytest.mark.parametrize("kind", ["create", "pwrite", "sync_data", "rename", "sync_dir"])
def test_spare_that_can_not_be_made_leaves_nothing_and_appends_go_on(kind: str, code: int) -> None:
    vfs, log = started()
    log.append([b"x" * 400])
    assert log.needs_spare
    names = vfs.names(DIRECTORY)
    room = log.room()
    vfs.fail(kind, code=code)
    with pytest.raises(OSError) as caught:
        log.prepare_spare()
    assert caught.value.errno == code
    if kind != "sync_dir":
        assert vfs.names(DIRECTORY) == names
    assert (log.room(), log.failed) == (room, None)
    log.prepare_spare()
    assert log.append([b"y" * 400]) == 5


def test_full_disk_refuses_the_next_segment_and_keeps_the_log_good() -> None:
    vfs, log = started()
    vfs.space = vfs.used() + 300
    log.append([b"x" * 200])
    with pytest.raises(OSError, match="No space"):
        log.prepare_spare()
    assert [name for name in vfs.names(DIRECTORY) if "spare" in name] == []
    with pytest.raises(LogFull):
        log.append([b"y" * 400])
    room = log.room()
    assert log.append([b"z" * (room - COMMIT_OVERHEAD - Log.frame_size(0))]) == 5
    assert log.room() == 0
    recovery = open_log(vfs.after_kill())
    assert fold(recovery)[-1].startswith(b"z")
    assert any("no spare" in note for note in recovery.notes)
    vfs.space = None
    log.prepare_spare()
    assert log.append([b"y" * 400]) == 6


def test_what_room_promises_fits_however_it_is_cut() -> None:
    for size in (1, 5, 60, 130):
        vfs, log = started(2)
        vfs.space = vfs.used()
        cost = Log.frame_size(size) + COMMIT_OVERHEAD
        left = log.room()
        while left >= cost:
            log.append([b"r" * size])
            left -= cost
        assert log.failed is None


@pytest.mark.parametrize("kind", ["create", "pwrite", "sync_data", "rename", "sync_dir"])
def test_failed_snapshot_leaves_the_log_alone(kind: str) -> None:
    vfs, log = started()
    vfs.fail(kind, code=errno.ENOSPC)
    with pytest.raises(OSError):
        log.write_snapshot(3, [b"record 1", b"record 2", b"record 3"])
    assert not [name for name in vfs.names(DIRECTORY) if name.endswith(".tmp")]
    assert log.append([b"record 4"]) == 4
    assert reopened(vfs.after_power_cut(5, "nothing"))[3] == b"record 4"
    log.write_snapshot(4, [b"record 1", b"record 2", b"record 3", b"record 4"])
    assert open_log(vfs.after_kill()).snapshot_seq == 4


def test_snapshot_whose_chunks_fail_leaves_nothing() -> None:
    vfs, log = started()

    def chunks() -> list[bytes]:
        raise RuntimeError("encoder")

    with pytest.raises(RuntimeError):
        log.write_snapshot(3, (piece for _ in "x" for piece in chunks()))
    assert not [name for name in vfs.names(DIRECTORY) if "snap" in name]


def test_failing_trim_is_reported_and_done_again() -> None:
    vfs = MemVfs()
    log = open_log(vfs, retain=0).log
    for number in range(8):
        log.append([bytes([number]) * 200])
        log.prepare_spare()
    state = [record for _, record in log.history()][::-1]
    log.write_snapshot(4, state[:4])
    vfs.fail("remove")
    with pytest.raises(OSError):
        log.write_snapshot(6, state[:6])
    log.append([b"more"])
    log.write_snapshot(9, [*state, b"more"])
    assert log.statistics()["oldest_seq"] == 7
    assert reopened(vfs.after_kill()) == [*state, b"more"]


@pytest.mark.parametrize("kind", ["open", "pread", "pwrite", "sync_data", "sync_dir", "create", "rename"])
def test_failures_while_opening_are_errors_not_guesses(kind: str) -> None:
    vfs, log = started()
    log.append([b"x" * 400])
    log.close()
    for nth in range(1, 8):
        disk = vfs.after_kill()
        disk.fail(kind, nth)
        try:
            recovery = open_log(disk)
        except OSError:
            recovery = open_log(disk.after_kill())
        assert fold(recovery) == [b"record 1", b"record 2", b"record 3", b"x" * 400]


def test_torn_bytes_that_can_not_be_copied_do_not_stop_the_start() -> None:
    vfs, log = started()
    vfs.short_write(keep=20)
    with pytest.raises(LogFailed):
        log.append([b"torn"])
    disk = vfs.after_kill()
    disk.space = disk.used()
    recovery = open_log(disk)
    assert fold(recovery) == [b"record 1", b"record 2", b"record 3"]
    assert any("could not be copied" in note for note in recovery.notes)
    assert not [name for name in disk.names(DIRECTORY) if name.endswith(".tmp")]


def test_closed_log_refuses() -> None:
    _, log = started()
    log.close()
    log.close()
    with pytest.raises(LogFailed, match="closed"):
        log.append([b"late"])
