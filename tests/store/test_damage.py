"""Bytes that are wrong: what is torn, what is damage, and that a refusal changes nothing."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from zlib import crc32

import pytest

from mbxd.store import format as fmt
from mbxd.store.errors import Damaged, LogFailed, NewerFormat
from mbxd.store.log import Log
from mbxd.store.segment import segment_name, snapshot_name
from mbxd.store.vfs import OsVfs
from tests.store.life import DIRECTORY, SEGMENT, entropy, fold, open_log
from tests.support.memvfs import MemVfs, PowerCut

FIRST = f"{DIRECTORY}/{segment_name(1)}"


def wide(records: int, *, segment: int = 8192, size: int = 30) -> tuple[MemVfs, list[bytes]]:
    """A closed log of single-record batches in as many segments as they need."""
    vfs = MemVfs()
    log = open_log(vfs, segment=segment, retain=1 << 20).log
    state = [f"{number:06d}:".encode().ljust(size, b"~") for number in range(1, records + 1)]
    for record in state:
        log.append([record])
    log.close()
    return vfs, state


def batch_offset(number: int, size: int = 30) -> int:
    """Where batch `number` (from 1) of a segment made by `wide` begins."""
    return fmt.HEADER_SIZE + (number - 1) * fmt.batch_size([bytes(size)])


def flip(vfs: MemVfs, path: str, offset: int, mask: int = 0x40) -> None:
    data = bytearray(vfs.contents(path))
    data[offset] ^= mask
    vfs.put(path, bytes(data))


def refuses(vfs: MemVfs, kind: type[Exception] = Damaged) -> Exception:
    """Opening must raise, and must leave every byte and name alone."""
    before, calls = vfs.image(DIRECTORY), len(vfs.calls)
    with pytest.raises(kind) as caught:
        open_log(vfs)
    assert vfs.image(DIRECTORY) == before
    assert set(vfs.calls[calls:]) <= {"make_dir", "sync_dir"}
    if isinstance(caught.value, Damaged):
        assert caught.value.file.startswith(DIRECTORY)
        assert min(caught.value.offset, caught.value.seq) >= 0
    return caught.value


# -- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(0, fmt.batch_size([bytes(30)]), 5))
def test_a_flipped_byte_mid_log_is_damage_not_the_end(part: int) -> None:
    vfs, _ = wide(20)
    flip(vfs, FIRST, batch_offset(7) + part)
    error = refuses(vfs)
    assert isinstance(error, Damaged)
    assert (error.file, error.offset, error.seq) == (FIRST, batch_offset(7), 7)
    assert f"{FIRST}, offset {batch_offset(7)}, record 7: " in str(error)
    assert "mbxd log verify" in str(error)
    assert "mbxd log repair" in str(error)


def test_a_flipped_byte_before_an_unfinished_later_batch_is_damage() -> None:
    """The later batch has no commit frame yet; that it was begun proves that the one before was synced."""
    vfs, _ = wide(5)
    vfs = vfs.after_kill()
    log = open_log(vfs, segment=8192).log
    vfs.short_write(keep=60)  # a whole record frame, no commit frame
    with pytest.raises(LogFailed):
        log.append([b"unfinished".ljust(30, b".")])
    flip(vfs, FIRST, batch_offset(5) + 20)
    error = refuses(vfs.after_kill())
    assert "later batch" in str(error)


def test_a_flipped_byte_in_the_last_batch_is_torn() -> None:
    """It can't be told from a batch that was never acknowledged; its bytes are kept."""
    vfs, state = wide(5)
    flip(vfs, FIRST, batch_offset(5) + 20)
    recovery = open_log(vfs, segment=8192)
    assert fold(recovery) == state[:-1]
    assert any(name.startswith(segment_name(1) + ".torn-") for name in vfs.names(DIRECTORY))


def test_zeroed_block_mid_log_is_damage() -> None:
    vfs, _ = wide(40)
    data = bytearray(vfs.contents(FIRST))
    data[1024:1536] = bytes(512)
    vfs.put(FIRST, bytes(data))
    refuses(vfs)


@pytest.mark.parametrize("change", ["duplicate", "gap", "wrong count"])
def test_duplicate_or_missing_seq_with_good_checksums_is_damage(change: str) -> None:
    vfs, _ = wide(3)
    salt = fmt.decode_header(vfs.contents(FIRST), fmt.SEGMENT_MAGIC, FIRST).salt
    last = {"duplicate": 3, "gap": 6, "wrong count": 4}[change]
    data = bytearray(vfs.contents(FIRST))
    extra = fmt.encode_frame(salt, 4, fmt.RECORD, b"fourth")
    count = 2 if change == "wrong count" else 1
    extra += fmt.encode_commit(salt, 4, last, count, crc32(extra, salt))
    at = batch_offset(4)
    data[at : at + len(extra)] = extra
    vfs.put(FIRST, bytes(data))
    assert "a commit frame does not match its batch of 1 records up to 4" in str(refuses(vfs))


@pytest.mark.parametrize(
    ("batch", "kind", "why"),
    [
        (3, fmt.RECORD, "a frame of batch 3 stands where batch 4 should"),
        (5, fmt.RECORD, "a frame of batch 5 stands where batch 4 should"),
        (4, fmt.CHUNK, "a frame of unknown kind 3"),
        (4, fmt.COMMIT, "a commit frame does not match its batch of 0 records up to 3"),
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("payload", [b"", bytes(16)])
def test_a_good_frame_out_of_place_is_damage(batch: int, kind: int, why: str, sealed: bool, payload: bytes) -> None:
    vfs, _ = wide(3)
    header = fmt.decode_header(vfs.contents(FIRST), fmt.SEGMENT_MAGIC, FIRST)
    data = bytearray(vfs.contents(FIRST))
    stray = fmt.encode_frame(header.salt, batch, kind, payload)
    data[batch_offset(4) : batch_offset(4) + len(stray)] = stray
    vfs.put(FIRST, bytes(data))
    if sealed:
        before = fmt.Predecessor(1, 3, batch_offset(4) + len(stray))
        following = fmt.encode_header(fmt.SEGMENT_MAGIC, fmt.Header(9, 4, before))
        vfs.put(f"{DIRECTORY}/{segment_name(4)}", following + fmt.encode_batch([b"4"], salt=9, batch=1, last_seq=4))
    error = refuses(vfs)
    assert isinstance(error, Damaged)
    assert (error.file, error.offset, error.seq, error.why) == (FIRST, batch_offset(4), 4, why)


@pytest.mark.parametrize("offset", [0, 9, 13, 17, 40, 60])
def test_a_bad_header_is_damage_also_in_the_newest_segment(offset: int) -> None:
    vfs, _ = wide(3)
    flip(vfs, FIRST, offset)
    refuses(vfs, NewerFormat if offset == 9 else Damaged)


@pytest.mark.parametrize("data", [b"", bytes(64), bytes(8192), b"MBXDWAL\n", b"garbage" * 100])
def test_an_unreadable_log_never_starts_empty(data: bytes) -> None:
    """No crash makes such a file: it gets its name only with its header and first batch on the disk."""
    vfs, _ = wide(3)
    vfs.put(FIRST, data)
    refuses(vfs)


def test_a_damaged_first_batch_of_the_newest_segment_is_damage() -> None:
    vfs, _ = wide(1)
    flip(vfs, FIRST, batch_offset(1) + 20)
    assert "first batch" in str(refuses(vfs))


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    vfs, directory = OsVfs(), str(tmp_path / "registry")
    log = Log.open(vfs, directory, entropy=entropy(), segment_size=SEGMENT).log
    log.append([b"record"])
    log.close()
    os.truncate(f"{directory}/{segment_name(1)}", 1 << 40)  # sparse: costs nothing on the disk
    with pytest.raises(Damaged, match="offset 0: it has 1099511627776 bytes, more than any segment"):
        Log.open(vfs, directory, entropy=entropy(), segment_size=SEGMENT)


# -- segments ------------------------------------------------------------------------------------------------


def three_segments() -> tuple[MemVfs, list[bytes], list[str]]:
    vfs, state = wide(30, segment=1024)
    names = [name for name in vfs.names(DIRECTORY) if name.endswith(".wal")]
    assert len(names) >= 3
    return vfs, state, names


def test_damage_in_a_sealed_segment_is_not_skipped() -> None:
    vfs, _, names = three_segments()
    flip(vfs, f"{DIRECTORY}/{names[0]}", batch_offset(3) + 20)
    assert names[0] in str(refuses(vfs))


def test_damage_in_the_last_batch_of_a_sealed_segment_is_damage_not_torn() -> None:
    vfs, _, names = three_segments()
    second = int(names[1].split(".")[0])
    flip(vfs, f"{DIRECTORY}/{names[0]}", batch_offset(second - 1) + 20)
    assert "before the end that the next segment names" in str(refuses(vfs))


@pytest.mark.parametrize("which", [0, 1, -2])
def test_a_missing_segment_is_damage(which: int) -> None:
    vfs, _, names = three_segments()
    vfs.remove(f"{DIRECTORY}/{names[which]}")
    refuses(vfs)


def test_a_missing_old_segment_is_damage_also_when_a_snapshot_covers_it() -> None:
    vfs, state, names = three_segments()
    log = open_log(vfs, segment=1024, retain=1 << 20).log
    log.write_snapshot(30, state)
    log.close()
    vfs.remove(f"{DIRECTORY}/{names[1]}")
    assert "missing" in str(refuses(vfs))


def test_a_missing_newest_segment_is_damage_when_a_snapshot_knows_better() -> None:
    vfs, state, names = three_segments()
    log = open_log(vfs, segment=1024, retain=1 << 20).log
    log.write_snapshot(30, state)
    log.close()
    vfs.remove(f"{DIRECTORY}/{names[-1]}")
    assert "snapshot was made at 30" in str(refuses(vfs))


@pytest.mark.parametrize(("records", "behind"), [(3, 8), (3, -8), (2, 0), (4, 0)])
def test_a_sealed_segment_holds_exactly_what_its_successor_says(records: int, behind: int) -> None:
    """records: that the successor says it has; behind: how far the end that it names is off."""
    vfs, _ = wide(3)
    before = fmt.Predecessor(1, records, batch_offset(4) + behind)
    following = fmt.encode_header(fmt.SEGMENT_MAGIC, fmt.Header(9, records + 1, before))
    following += fmt.encode_batch([b"next"], salt=9, batch=1, last_seq=records + 1)
    vfs.put(f"{DIRECTORY}/{segment_name(records + 1)}", following)
    assert "before the end that the next segment names" in str(refuses(vfs))


def test_a_segment_of_another_log_is_damage() -> None:
    vfs, _, names = three_segments()
    other, _ = wide(60, segment=2048, size=21)
    theirs = [name for name in other.names(DIRECTORY) if name.endswith(".wal")]
    vfs.put(f"{DIRECTORY}/{names[1]}", other.contents(f"{DIRECTORY}/{theirs[1]}"))
    refuses(vfs)


def test_a_first_segment_that_names_a_predecessor_is_damage() -> None:
    vfs, _ = wide(3)
    data = vfs.contents(FIRST)
    header = fmt.decode_header(data, fmt.SEGMENT_MAGIC, FIRST)._replace(before=fmt.Predecessor(1, 0, 100))
    vfs.put(FIRST, fmt.encode_header(fmt.SEGMENT_MAGIC, header) + data[fmt.HEADER_SIZE :])
    assert "record 1: it names a predecessor before record 1" in str(refuses(vfs))


def test_a_truncated_sealed_segment_is_damage() -> None:
    vfs, _, names = three_segments()
    path = f"{DIRECTORY}/{names[1]}"
    vfs.put(path, vfs.contents(path)[:500])
    refuses(vfs)


def test_snapshot_without_any_segment_is_damage() -> None:
    vfs, state = wide(3)
    log = open_log(vfs, segment=8192).log
    log.write_snapshot(3, state)
    log.close()
    vfs.remove(FIRST)
    assert "no segment" in str(refuses(vfs))


def test_set_aside_bytes_without_any_segment_are_damage() -> None:
    vfs, _ = wide(3)
    vfs.put(f"{DIRECTORY}/{segment_name(1)}.orig-1", b"x")
    vfs.remove(FIRST)
    refuses(vfs)


# -- torn tails ----------------------------------------------------------------------------------------------


def torn(keep: int = 50) -> tuple[MemVfs, list[bytes]]:
    vfs, state = wide(4)
    log = open_log(vfs, segment=8192).log
    vfs.short_write(keep=keep)
    with pytest.raises(LogFailed):
        log.append([b"half of this".ljust(100, b"-")])
    return vfs.after_kill(), state


def test_nothing_is_appended_behind_a_torn_tail() -> None:
    vfs, state = torn()
    sealed = vfs.contents(FIRST)
    log = open_log(vfs, segment=8192).log
    log.append([b"C"])
    log.append([b"D"])
    log.close()
    assert vfs.contents(FIRST) == sealed
    assert segment_name(5) in vfs.names(DIRECTORY)
    second = open_log(vfs.after_power_cut(1, "nothing"), segment=8192)
    assert fold(second) == [*state, b"C", b"D"]
    assert second.notes == []
    header = fmt.decode_header(vfs.contents(f"{DIRECTORY}/{segment_name(5)}"), fmt.SEGMENT_MAGIC, "")
    assert header.before == fmt.Predecessor(1, 4, batch_offset(5))


def test_torn_bytes_are_kept_once() -> None:
    vfs, state = torn()
    tail = vfs.contents(FIRST)[batch_offset(5) :].rstrip(b"\0")
    for _ in range(3):
        recovery = open_log(vfs, segment=8192)
        assert fold(recovery) == state
        recovery.log.close()
    copies = [name for name in vfs.names(DIRECTORY) if ".torn-" in name]
    assert [vfs.contents(f"{DIRECTORY}/{name}") for name in copies] == [tail]


def test_torn_tail_then_clean_segment_hides_nothing() -> None:
    """Twice in a row: a torn tail in 1, then 2 with a torn tail, then 3."""
    vfs, state = torn()
    log = open_log(vfs, segment=8192).log
    log.append([b"E"])
    vfs.short_write(keep=30)
    with pytest.raises(LogFailed):
        log.append([b"half again".ljust(90)])
    vfs = vfs.after_kill()
    log = open_log(vfs, segment=8192).log
    log.append([b"F"])
    log.close()
    assert fold(open_log(vfs, segment=8192)) == [*state, b"E", b"F"]
    assert len([name for name in vfs.names(DIRECTORY) if name.endswith(".wal")]) == 3


def test_a_clean_end_goes_on_in_the_same_segment() -> None:
    vfs, state = wide(4)
    log = open_log(vfs, segment=8192).log
    log.append([b"more"])
    assert [name for name in vfs.names(DIRECTORY) if name.endswith(".wal")] == [segment_name(1)]
    assert fold(open_log(vfs.after_kill(), segment=8192)) == [*state, b"more"]


@pytest.mark.parametrize("seed", range(20))
def test_blocks_of_an_unfinished_batch_in_any_order_are_torn(seed: int) -> None:
    """Later frames of the batch may be on the disk without its earlier ones, its commit frame too."""
    vfs, state = wide(4, segment=65536)
    log = open_log(vfs, segment=65536).log
    batch = [bytes([65 + number]) * 300 for number in range(60)]
    vfs.crash_at(2)
    with pytest.raises(PowerCut):
        log.append(batch)
    after = vfs.after_power_cut(seed, "blocks")
    log = open_log(after, segment=65536).log
    assert [record for _, record in log.history()] in (state[::-1], [*state, *batch][::-1])
    log.append([b"next"])
    assert fold(open_log(after.after_kill(), segment=65536))[-1] == b"next"


# -- creation and spares -------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [b"", bytes(10), bytes(512), b"\1" * 512, bytes(511)])
@pytest.mark.parametrize("name", ["next.spare", "next.spare.tmp"])
def test_leftovers_of_a_first_start_are_no_log(name: str, left: bytes) -> None:
    vfs = MemVfs()
    vfs.make_dir(DIRECTORY)
    vfs.put(f"{DIRECTORY}/{name}", left)
    recovery = open_log(vfs)
    assert fold(recovery) == []
    assert recovery.log.append([b"first"]) == 1
    assert fold(open_log(vfs.after_power_cut(1, "nothing"))) == [b"first"]


def test_a_spare_that_can_not_be_used_gives_its_space_to_the_next() -> None:
    vfs = MemVfs()
    vfs.make_dir(DIRECTORY)
    vfs.put(f"{DIRECTORY}/next.spare", b"\1" * SEGMENT)
    vfs.space = vfs.used()
    recovery = open_log(vfs)
    assert (recovery.log.needs_spare, recovery.notes) == (False, [])
    assert vfs.contents(f"{DIRECTORY}/next.spare") == bytes(SEGMENT)


def test_a_spare_that_an_interrupted_roll_wrote_to_is_not_used_again() -> None:
    vfs = MemVfs()
    log = open_log(vfs).log
    vfs.fail("rename")
    with pytest.raises(LogFailed):
        log.append([b"x" * 200])
    vfs = vfs.after_kill()
    log = open_log(vfs).log
    log.append([b"y"])
    end = fmt.HEADER_SIZE + fmt.batch_size([b"y"])
    assert not vfs.contents(FIRST)[end:].strip(b"\0")


def test_roll_whose_directory_sync_was_interrupted_is_made_durable_by_the_start() -> None:
    vfs = MemVfs()
    log = open_log(vfs).log
    vfs.crash_at(4)  # pwrite, sync_data, rename, sync_dir
    with pytest.raises(PowerCut):
        log.append([b"renamed, not synced"])
    vfs = vfs.after_kill()
    vfs.space = vfs.used()  # no spare, so no other directory sync comes to help
    log = open_log(vfs).log
    log.append([b"on top"])
    assert fold(open_log(vfs.after_power_cut(1, "nothing"))) == [b"renamed, not synced", b"on top"]


def test_the_directory_itself_survives_a_power_cut() -> None:
    vfs = MemVfs()
    open_log(vfs).log.append([b"first"])
    assert fold(open_log(vfs.after_power_cut(1, "nothing"))) == [b"first"]


# -- snapshots -----------------------------------------------------------------------------------------------


def with_snapshots(retain: int = 1 << 20) -> tuple[MemVfs, list[bytes]]:
    vfs = MemVfs()
    log = open_log(vfs, retain=retain).log
    state: list[bytes] = []
    for number in range(12):
        state.append(bytes([97 + number]) * 150)
        log.append(state[-1:])
        log.prepare_spare()
        if number in {5, 9}:
            log.write_snapshot(number + 1, list(state))
    log.close()
    return vfs, state


@pytest.mark.parametrize("retain", [0, 1 << 20])
def test_a_bad_newest_snapshot_falls_back_to_the_older_one(retain: int) -> None:
    vfs, state = with_snapshots(retain)
    flip(vfs, f"{DIRECTORY}/{snapshot_name(10)}", 100)
    recovery = open_log(vfs)
    assert recovery.snapshot_seq == 6
    assert fold(recovery) == state
    assert f"{snapshot_name(10)}.bad-1" in vfs.names(DIRECTORY)
    assert any("can't be read" in note for note in recovery.notes)


def test_a_bad_snapshot_does_not_count_among_the_two_that_are_kept() -> None:
    vfs, state = with_snapshots(retain=0)
    flip(vfs, f"{DIRECTORY}/{snapshot_name(10)}", 100)
    log = open_log(vfs, retain=0).log
    log.write_snapshot(12, state)
    log.close()
    flip(vfs, f"{DIRECTORY}/{snapshot_name(12)}", 100)
    recovery = open_log(vfs)
    assert recovery.snapshot_seq == 6
    assert fold(recovery) == state


def test_without_readable_snapshots_the_whole_log_is_replayed() -> None:
    vfs, state = with_snapshots()
    for seq in (6, 10):
        flip(vfs, f"{DIRECTORY}/{snapshot_name(seq)}", 100)
    recovery = open_log(vfs)
    assert (recovery.snapshot, recovery.snapshot_seq) == (None, 0)
    assert fold(recovery) == state


def test_without_readable_snapshots_a_trimmed_log_is_refused() -> None:
    vfs, _ = with_snapshots(retain=0)
    assert segment_name(1) not in vfs.names(DIRECTORY)
    for seq in (6, 10):
        flip(vfs, f"{DIRECTORY}/{snapshot_name(seq)}", 100)
    error = refuses(vfs)
    assert "no readable snapshot covers them" in str(error)
    assert isinstance(error, Damaged)
    assert (error.offset, error.seq) == (0, 1)


def test_trimming_many_segments_is_safe_at_every_crash_point() -> None:
    for at in range(1, 60):
        vfs = MemVfs()
        log = open_log(vfs, retain=1 << 20).log
        state = [bytes([97 + number]) * 150 for number in range(12)]
        for record in state:
            log.append([record])
        log.write_snapshot(9, state[:9])
        log._retain = 0
        vfs.crash_at(at)
        try:
            log.write_snapshot(11, state[:11])
        except PowerCut:
            for seed in range(6):
                assert fold(open_log(vfs.after_power_cut(seed))) == state
            continue
        assert at > 10
        break
    else:
        pytest.fail("the trim never ended")


# -- versions ------------------------------------------------------------------------------------------------


def newer(vfs: MemVfs, path: str, magic: bytes, *, min_reader: int) -> None:
    data = vfs.contents(path)
    header = fmt.decode_header(data, magic, path)._replace(version=2, min_reader=min_reader)
    vfs.put(path, fmt.encode_header(magic, header) + data[fmt.HEADER_SIZE :])


@pytest.mark.parametrize("min_reader", [1, 2])
def test_a_newer_segment_is_refused_untouched(min_reader: int) -> None:
    vfs, _, names = three_segments()
    newer(vfs, f"{DIRECTORY}/{names[-1]}", fmt.SEGMENT_MAGIC, min_reader=min_reader)
    message = str(refuses(vfs, NewerFormat))
    assert "version 2" in message
    assert "up to 1" in message


def test_a_newer_snapshot_is_refused_untouched() -> None:
    vfs, _ = with_snapshots()
    newer(vfs, f"{DIRECTORY}/{snapshot_name(10)}", fmt.SNAPSHOT_MAGIC, min_reader=2)
    assert f"{DIRECTORY}/{snapshot_name(10)} has format version 2" in str(refuses(vfs, NewerFormat))


def test_a_newer_format_counts_more_than_damage_elsewhere() -> None:
    vfs, _, names = three_segments()
    flip(vfs, f"{DIRECTORY}/{names[0]}", 20)
    newer(vfs, f"{DIRECTORY}/{names[-1]}", fmt.SEGMENT_MAGIC, min_reader=2)
    refuses(vfs, NewerFormat)


# -- anything ------------------------------------------------------------------------------------------------


def test_any_change_to_a_good_directory_is_refused_or_loses_no_synced_prefix() -> None:
    """Random bytes over random files: only our own errors come out, and what is shown is a prefix of what was."""
    rng = random.Random(5)
    for _ in range(300):
        vfs, state = with_snapshots(retain=rng.choice((0, 1 << 20)))
        path = f"{DIRECTORY}/{rng.choice(vfs.names(DIRECTORY))}"
        data = bytearray(vfs.contents(path))
        for _ in range(rng.choice((1, 1, 3))):
            start = rng.randrange(len(data))
            piece = rng.randbytes(rng.choice((1, 4, 70)))
            data[start : start + len(piece)] = rng.choice((piece, bytes(len(piece))))
        vfs.put(path, bytes(data[: rng.choice((len(data), rng.randrange(len(data))))]))
        try:
            shown = fold(open_log(vfs))
        except (Damaged, NewerFormat):
            continue
        assert shown == state[: len(shown)]
        assert len(shown) >= len(state) - 1


def test_a_link_in_place_of_a_segment_is_an_error_not_a_new_log() -> None:
    vfs, _ = wide(1)
    vfs.fail("open", code=errno.ELOOP)
    with pytest.raises(OSError):
        open_log(vfs)
