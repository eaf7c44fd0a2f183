"""The fake must be able to do what a disk does, or the crash tests prove nothing."""

from __future__ import annotations

import errno

import pytest

from tests.support.memvfs import MODES, MemVfs, PowerCut


def written(synced: bytes, unsynced: bytes) -> MemVfs:
    vfs = MemVfs()
    file = vfs.open("/state/a", create=True)
    file.pwrite(synced, 0)
    file.sync_data()
    vfs.sync_dir("/state")
    file.pwrite(unsynced, len(synced))
    return vfs


@pytest.mark.parametrize("mode", MODES)
def test_synced_data_survives_every_cut(mode: str) -> None:
    for seed in range(20):
        after = written(b"kept", b"lost?" * 20).after_power_cut(seed, mode)
        assert after.contents("/state/a")[:4] == b"kept"


def test_unsynced_data_is_lost_torn_or_there() -> None:
    seen = {written(b"kept", b"lost?" * 20).after_power_cut(seed).contents("/state/a") for seed in range(60)}
    whole = b"kept" + b"lost?" * 20
    assert {b"kept", whole} <= seen
    assert any(whole.startswith(data) and 4 < len(data) < len(whole) for data in seen), "torn"
    assert any(not whole.startswith(data) for data in seen), "a later block without an earlier one"


def test_a_truncation_cuts_and_extends_with_zeroes_once_it_is_synced() -> None:
    vfs = written(b"abcdef", b"")
    file = vfs.open("/state/a")
    file.truncate(2)
    file.truncate(5)
    assert file.pread(10, 0) == b"ab\0\0\0"
    seen = {vfs.after_power_cut(seed).contents("/state/a") for seed in range(60)}
    assert seen == {b"abcdef", b"ab", b"ab\0\0\0", b"abcde"}
    file.sync_data()
    assert vfs.after_power_cut(1, "nothing").contents("/state/a") == b"ab\0\0\0"


def test_names_need_a_directory_sync() -> None:
    seen = set()
    for seed in range(60):
        vfs = MemVfs()
        file = vfs.open("/state/a", create=True)
        file.pwrite(b"data", 0)
        file.sync_data()
        vfs.rename("/state/a", "/state/b")
        seen.add(tuple(vfs.after_power_cut(seed).names("/state")))
        assert vfs.after_power_cut(seed, "nothing").names("/state") == []
    assert {(), ("a",), ("b",)} <= seen


def test_removals_need_a_directory_sync() -> None:
    vfs = written(b"kept", b"")
    vfs.remove("/state/a")
    assert {tuple(vfs.after_power_cut(seed).names("/state")) for seed in range(20)} == {(), ("a",)}


def test_a_failed_sync_shows_readers_what_the_disk_never_gets() -> None:
    vfs = written(b"kept", b"lost")
    vfs.fail("sync_data")
    file = vfs.open("/state/a")
    with pytest.raises(OSError):
        file.sync_data()
    file.sync_data()
    assert vfs.after_kill().contents("/state/a") == b"keptlost"
    assert vfs.after_power_cut(1, "everything").contents("/state/a") == b"kept"


def test_nothing_works_after_a_power_cut() -> None:
    vfs = written(b"kept", b"")
    vfs.crash_at(1)
    with pytest.raises(PowerCut):
        vfs.open("/state/b", create=True)
    for call in (
        lambda: vfs.open("/state/a"),
        lambda: vfs.remove("/state/a"),
        lambda: vfs.list_dir("/state"),
    ):
        with pytest.raises(PowerCut):
            call()


def test_a_full_disk_writes_what_fits_then_fails() -> None:
    vfs = written(b"kept", b"")
    vfs.space = vfs.used() + 3
    file = vfs.open("/state/a")
    assert file.pwrite(b"12345", 4) == 3
    with pytest.raises(OSError) as caught:
        file.pwrite(b"45", 7)
    assert caught.value.errno == errno.ENOSPC
    assert file.pwrite(b"over", 0) == 4


def test_same_seed_same_disk() -> None:
    vfs = written(b"kept", b"lost?" * 20)
    assert vfs.after_power_cut(7).image("/state") == vfs.after_power_cut(7).image("/state")
