"""The log as its callers use it: batches, history, snapshots, retention, threads, on the real file system too."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mbxd.store import format as fmt
from mbxd.store.errors import Damaged, LogFull
from mbxd.store.log import COMMIT_OVERHEAD, DEFAULT_RETAIN, Log, Recovery
from mbxd.store.segment import DEFAULT_SEGMENT, segment_name, snapshot_name
from mbxd.store.snapshot import MAX_CHUNK
from mbxd.store.vfs import OsVfs
from tests.store.life import DIRECTORY, SEGMENT, entropy, fold, open_log
from tests.support.memvfs import MemVfs


def test_a_new_registry_is_empty_and_has_room() -> None:
    recovery = open_log(MemVfs())
    assert (recovery.snapshot, recovery.snapshot_seq, list(recovery.records)) == (None, 0, [])
    assert recovery.log.room() == SEGMENT - fmt.HEADER_SIZE
    assert not recovery.log.needs_spare
    assert list(recovery.log.history()) == []


def test_where_nothing_could_be_made_there_is_no_room() -> None:
    vfs = MemVfs()
    vfs.make_dir(DIRECTORY)
    vfs.space = vfs.used()
    log = open_log(vfs).log
    assert (log.room(), log.needs_spare, log.failed) == (0, True, None)
    with pytest.raises(LogFull):
        log.append([b"a"])
    vfs.space = None
    log.prepare_spare()
    assert log.append([b"a"]) == 1


def test_batches_are_numbered_densely() -> None:
    log = open_log(MemVfs()).log
    assert log.append([b"a", b"b", b"c"]) == 3
    assert log.append([b"d"]) == 4
    assert log.durable_seq == 4


def test_one_write_and_one_sync_a_batch() -> None:
    """A reply that waits for `append` waits for a sync that began after its own bytes were written."""
    vfs = MemVfs()
    log = open_log(vfs).log
    log.append([b"first"])
    before = len(vfs.calls)
    log.append([b"a", b"b", b"c"])
    assert vfs.calls[before:] == ["pwrite", "sync_data"]


def test_names_are_synced_after_every_creation_rename_and_removal() -> None:
    vfs = MemVfs()
    log = open_log(vfs, retain=0).log
    state = [bytes([65 + number]) * 200 for number in range(6)]
    for record in state:
        log.append([record])
        log.prepare_spare()
    log.write_snapshot(3, state[:3])
    log.write_snapshot(5, state[:5])
    changed = False
    for call in vfs.calls:
        if call in {"rename", "remove"}:
            assert not changed, "a second change of names before the first is durable"
            changed = True
        elif call == "sync_dir":
            changed = False
    assert not changed
    assert set(vfs.names(DIRECTORY)) & {segment_name(1), segment_name(2)} == set()


def test_a_batch_that_no_segment_holds_is_refused() -> None:
    log = open_log(MemVfs()).log
    most = SEGMENT - fmt.HEADER_SIZE - COMMIT_OVERHEAD - Log.frame_size(0)
    with pytest.raises(ValueError, match="does not fit"):
        log.append([bytes(most + 1)])
    with pytest.raises(ValueError, match="0 records"):
        log.append([])
    assert log.append([bytes(most)]) == 1
    assert log.failed is None


def test_history_is_newest_first_and_bounded() -> None:
    log = open_log(MemVfs(), retain=1 << 20).log
    for number in range(20):
        log.append([f"{number}.{part}".encode().ljust(40) for part in range(3)])
    everything = list(log.history())
    assert [seq for seq, _ in everything] == list(range(60, 0, -1))
    assert everything[0][1].startswith(b"19.2")
    assert list(log.history(upto=31)) == everything[-31:]
    assert list(log.history(upto=10**9)) == everything
    assert list(log.history(upto=0)) == []


def test_history_names_damage() -> None:
    vfs = MemVfs()
    log = open_log(vfs, retain=1 << 20).log
    for number in range(20):
        log.append([bytes([number]) * 80])
    path = f"{DIRECTORY}/{segment_name(1)}"
    data = bytearray(vfs.contents(path))
    data[150] ^= 1
    vfs.put(path, bytes(data))
    reader = log.history()
    assert next(reader)[0] == 20
    with pytest.raises(Damaged):
        list(reader)


def test_history_names_damage_in_the_segment_that_is_written_to() -> None:
    vfs = MemVfs()
    log = open_log(vfs).log
    for number in range(4):
        log.append([bytes([number]) * 20])
    path = f"{DIRECTORY}/{segment_name(1)}"
    data = bytearray(vfs.contents(path))
    batch = fmt.batch_size([bytes(20)])
    data[fmt.HEADER_SIZE + 2 * batch + 20] ^= 1
    vfs.put(path, bytes(data))
    assert list(log.history(upto=2)) == [(2, b"\1" * 20), (1, b"\0" * 20)]
    with pytest.raises(Damaged) as caught:
        list(log.history())
    assert (caught.value.file, caught.value.offset, caught.value.seq) == (path, fmt.HEADER_SIZE + 2 * batch, 3)
    assert caught.value.why == "the checksum of a frame is wrong"


def test_history_ends_where_a_trim_took_segments_away() -> None:
    log = open_log(MemVfs(), retain=0).log
    state = [bytes([65 + number]) * 200 for number in range(8)]
    for record in state:
        log.append([record])
    reader = log.history()
    assert next(reader) == (8, state[7])
    log.write_snapshot(4, state[:4])
    log.write_snapshot(7, state[:7])
    assert [seq for seq, _ in reader] == [7, 6, 5]


def test_snapshot_and_log_are_joined_without_a_double() -> None:
    vfs = MemVfs()
    log = open_log(vfs).log
    state = [bytes([65 + number]) * 20 for number in range(9)]
    log.append(state[:4])
    log.append(state[4:])
    log.write_snapshot(6, state[:6])  # in the middle of a batch, too
    recovery = open_log(vfs.after_kill())
    assert recovery.snapshot_seq == 6
    assert list(recovery.records) == [(7, state[6]), (8, state[7]), (9, state[8])]


def test_snapshots_of_the_future_and_the_past() -> None:
    vfs = MemVfs()
    log = open_log(vfs).log
    log.append([b"a", b"b"])
    for seq in (0, 3):
        with pytest.raises(ValueError, match="durable"):
            log.write_snapshot(seq, [])
    log.write_snapshot(2, [b"a", b"b"])
    log.write_snapshot(1, [b"a"])
    log.write_snapshot(2, [b"x"])
    assert [name for name in vfs.names(DIRECTORY) if name.endswith(".snap")] == [snapshot_name(2)]
    assert open_log(vfs.after_kill()).snapshot == [b"a", b"b"]


def test_two_snapshots_and_the_retained_history_are_kept() -> None:
    vfs = MemVfs()
    log = open_log(vfs, retain=3 * SEGMENT).log
    state: list[bytes] = []
    for number in range(30):
        state.append(bytes([number]) * 200)
        log.append(state[-1:])
        log.prepare_spare()
        if number % 5 == 4:
            log.write_snapshot(number + 1, state)
    figures = log.statistics()
    assert figures["sealed_bytes"] <= 3 * SEGMENT + 5 * SEGMENT  # what the older snapshot does not cover stays
    snapshots = [name for name in vfs.names(DIRECTORY) if name.endswith(".snap")]
    assert snapshots == [snapshot_name(25), snapshot_name(30)]
    assert figures["oldest_seq"] <= 26
    assert fold(open_log(vfs.after_kill())) == state


def test_one_snapshot_alone_trims_nothing() -> None:
    log = open_log(MemVfs(), retain=0).log
    for number in range(6):
        log.append([bytes([number]) * 200])
    log.write_snapshot(6, [b"all"])
    assert log.statistics()["oldest_seq"] == 1


def test_opening_twice_changes_nothing() -> None:
    vfs = MemVfs()
    log = open_log(vfs).log
    log.append([b"a"])
    log.prepare_spare()
    log.close()
    before = vfs.image(DIRECTORY)
    for _ in range(2):
        open_log(vfs).log.close()
    assert vfs.image(DIRECTORY) == before


def test_another_segment_size_goes_on_with_the_old_segments() -> None:
    vfs = MemVfs()
    log = open_log(vfs, segment=512).log
    log.append([b"a" * 100])
    log.close()
    recovery = open_log(vfs, segment=2048)
    assert fold(recovery) == [b"a" * 100]
    recovery.log.append([b"b" * 1000])
    assert fold(open_log(vfs.after_kill(), segment=1024)) == [b"a" * 100, b"b" * 1000]


def test_nothing_is_added_to_a_segment_of_an_older_format() -> None:
    """The older program may still read that segment, and must refuse what is new."""
    vfs = MemVfs()
    log = open_log(vfs).log
    log.append([b"old"])
    log.close()
    path = f"{DIRECTORY}/{segment_name(1)}"
    data = vfs.contents(path)
    header = fmt.decode_header(data, fmt.SEGMENT_MAGIC, path)._replace(version=fmt.VERSION - 1)
    vfs.put(path, fmt.encode_header(fmt.SEGMENT_MAGIC, header) + data[fmt.HEADER_SIZE :])
    before = vfs.contents(path)
    recovery = open_log(vfs)
    assert recovery.log.room() == SEGMENT - fmt.HEADER_SIZE
    recovery.log.append([b"new"])
    recovery.log.append([b"newer"])
    recovery.log.close()
    assert vfs.contents(path) == before
    later = f"{DIRECTORY}/{segment_name(2)}"
    assert fmt.decode_header(vfs.contents(later), fmt.SEGMENT_MAGIC, later).version == fmt.VERSION
    assert fold(open_log(vfs)) == [b"old", b"new", b"newer"]


def test_sizes_are_those_of_the_page() -> None:
    """docs/wal-format.md."""
    assert (DEFAULT_RETAIN, DEFAULT_SEGMENT, MAX_CHUNK) == (256 << 20, 4 << 20, 64 << 20)


def test_segment_size_has_limits() -> None:
    for size in (10, 1 << 40):
        with pytest.raises(ValueError, match="segment_size"):
            open_log(MemVfs(), segment=size)


def test_statistics_are_numbers() -> None:
    log = open_log(MemVfs()).log
    log.append([b"a", b"b"])
    figures = log.statistics()
    assert (figures["batches"], figures["records"], figures["rolls"], figures["segments"]) == (1, 2, 1, 1)
    assert all(isinstance(value, int) for value in figures.values())


def real(tmp_path: Path, *, segment: int = 4096) -> Recovery:
    return Log.open(OsVfs(), str(tmp_path / "registry"), entropy=entropy(3), segment_size=segment, retain=8 * segment)


def test_on_the_real_file_system(tmp_path: Path) -> None:
    log = real(tmp_path).log
    state = [f"record {number}".encode() for number in range(500)]
    for at in range(0, 500, 5):
        log.append(state[at : at + 5])
        log.prepare_spare()
    log.write_snapshot(200, state[:200])
    log.write_snapshot(400, state[:400])
    log.close()
    assert fold(real(tmp_path)) == state
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "registry").iterdir()} == {0o600}
    assert (tmp_path / "registry").stat().st_mode & 0o777 == 0o700


def test_spares_snapshots_and_readers_beside_the_committer(tmp_path: Path) -> None:
    """Four threads for a while: nothing is lost, no reader sees what is not durable or out of order."""
    log = real(tmp_path).log
    done = threading.Event()
    failures: list[BaseException] = []
    state = [f"{number:05d}".encode() * 8 for number in range(900)]

    def guarded(work: object) -> threading.Thread:
        def body() -> None:
            try:
                while not done.is_set():
                    work()  # type: ignore[operator]
            except BaseException as error:
                failures.append(error)

        return threading.Thread(target=body)

    def read() -> None:
        bound = log.durable_seq
        rows = list(log.history(bound))
        assert [seq for seq, _ in rows] == list(range(bound, bound - len(rows), -1))
        assert all(record == state[seq - 1] for seq, record in rows)

    def snapshot() -> None:
        seq = log.durable_seq
        if seq:
            log.write_snapshot(seq, state[:seq])

    threads = [guarded(log.prepare_spare), guarded(snapshot), guarded(read)]
    for thread in threads:
        thread.start()
    try:
        for at in range(0, 900, 3):
            log.append(state[at : at + 3])
            assert log.room() >= 0
    finally:
        done.set()
        for thread in threads:
            thread.join(timeout=30)
    assert failures == []
    log.close()
    assert fold(real(tmp_path)) == state
