"""Framing and the readers on good and on arbitrary bytes."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbxd.store import format as fmt
from mbxd.store import snapshot
from mbxd.store.errors import Damaged, NewerFormat
from mbxd.store.log import COMMIT_OVERHEAD, Log
from mbxd.store.segment import segment_name, snapshot_name
from mbxd.store.snapshot import read_snapshot, write_snapshot
from tests.store.life import DIRECTORY, fold, open_log
from tests.support.memvfs import MemVfs

batches = st.lists(st.lists(st.binary(max_size=60), min_size=1, max_size=5), max_size=6)
salts = st.integers(0, 2**32 - 1)


def segment(content: list[list[bytes]], salt: int, first: int = 1, tail: int = 64) -> bytes:
    data, last = fmt.encode_header(fmt.SEGMENT_MAGIC, fmt.Header(salt, first)), first - 1
    for number, records in enumerate(content, 1):
        last += len(records)
        data += fmt.encode_batch(records, salt=salt, batch=number, last_seq=last)
    return data + bytes(tail)


@given(batches, salts, st.integers(1, 2**40), st.integers(0, 80))
def test_batches_come_back_as_they_went_in(content: list[list[bytes]], salt: int, first: int, tail: int) -> None:
    data = segment(content, salt, first, tail)
    result = fmt.scan(data, salt, first)
    assert result.records == [record for records in content for record in records]
    assert (result.batches, result.end, result.broken) == (len(content), len(data) - tail, None)
    if content:
        assert result.last_batch == result.end - fmt.batch_size(content[-1])


@given(batches.filter(bool), salts, st.data())
def test_a_cut_segment_shows_whole_batches_only(content: list[list[bytes]], salt: int, data: st.DataObject) -> None:
    whole = segment(content, salt, tail=0)
    cut = data.draw(st.integers(0, len(whole)))
    result = fmt.scan(whole[:cut] + bytes(data.draw(st.integers(0, 40))), salt, 1)
    ends = [0]
    for records in content:
        ends.append(ends[-1] + len(records))
    everything = [record for records in content for record in records]
    assert len(result.records) in ends
    assert result.records == everything[: len(result.records)]
    assert result.broken is None
    assert fmt.find_later(whole[:cut], result.end, salt, result.batches + 1) is None


@given(batches.filter(bool), salts, st.data())
def test_a_flipped_bit_never_shows_a_wrong_record(content: list[list[bytes]], salt: int, data: st.DataObject) -> None:
    whole = bytearray(segment(content, salt))
    at = data.draw(st.integers(fmt.HEADER_SIZE, len(whole) - 65))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    result = fmt.scan(bytes(whole), salt, 1)
    everything = [record for records in content for record in records]
    assert result.records == everything[: len(result.records)]
    assert result.batches < len(content)
    if result.batches + 1 < len(content):
        later = fmt.find_later(bytes(whole), result.end, salt, result.batches + 1)
        assert later is not None


@given(st.binary(max_size=400), salts)
def test_arbitrary_bytes_hold_no_batch(data: bytes, salt: int) -> None:
    result = fmt.scan(bytes(fmt.HEADER_SIZE) + data, salt, 1)
    assert result.batches == 0
    assert fmt.find_later(data, 0, salt, 0) is None
    assert fmt.readable_batches(data, 0, salt, 0) == []


@given(batches, salts)
def test_another_salt_reads_nothing(content: list[list[bytes]], salt: int) -> None:
    assert fmt.scan(segment(content, salt), salt ^ 1, 1).batches == 0


@given(st.binary(max_size=80))
def test_arbitrary_headers_raise_our_errors_only(data: bytes) -> None:
    for start in (b"", b"MBXDWAL\n", b"MBXDWAL\n\1\0\1\0"):
        with pytest.raises((Damaged, NewerFormat)):
            fmt.decode_header(start + data, fmt.SEGMENT_MAGIC, "file")


@settings(max_examples=150)
@given(
    st.dictionaries(
        st.sampled_from(
            [segment_name(1), segment_name(7), snapshot_name(3), "next.spare", "next.spare.tmp", "x.torn-1"]
        ),
        st.one_of(
            st.binary(max_size=300),
            st.binary(max_size=100).map(lambda data: b"MBXDWAL\n\1\0\1\0" + data),
            batches.map(lambda content: segment(content, 5)),
            batches.map(lambda content: segment(content, 5, 7)),
        ),
    )
)
def test_arbitrary_directories_raise_our_errors_only(files: dict[str, bytes]) -> None:
    vfs = MemVfs()
    vfs.make_dir(DIRECTORY)
    for name, data in files.items():
        vfs.put(f"{DIRECTORY}/{name}", data)
    before = vfs.image(DIRECTORY)
    try:
        recovery = open_log(vfs)
    except (Damaged, NewerFormat):
        assert vfs.image(DIRECTORY) == before
        return
    state = fold(recovery)
    recovery.log.append([b"next"])
    assert fold(open_log(vfs.after_kill())) == [*state, b"next"]


def test_a_huge_length_allocates_nothing() -> None:
    data = bytearray(segment([[b"record"]], 5, tail=4096))
    at = len(data) - 4096
    data[at : at + 13] = b"\1\2\3\4\xff\xff\xff\xff\2\0\0\0\1"
    vfs = MemVfs()
    vfs.make_dir(DIRECTORY)
    vfs.put(f"{DIRECTORY}/{segment_name(1)}", bytes(data))
    short = fmt.encode_header(fmt.SNAPSHOT_MAGIC, fmt.Header(5, 1)) + data[at : at + 13]
    vfs.put(f"{DIRECTORY}/{snapshot_name(1)}", short)
    tracemalloc.start()
    assert fold(open_log(vfs)) == [b"record"]
    assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    tracemalloc.stop()


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_snapshots_come_back_chunk_by_chunk(chunks: list[bytes]) -> None:
    vfs = MemVfs()
    write_snapshot(vfs, "/state", 9, 77, iter(chunks))
    assert read_snapshot(vfs, "/state", 9) == chunks


@given(st.lists(st.binary(max_size=40), max_size=4), st.data())
def test_a_changed_snapshot_is_damaged(chunks: list[bytes], data: st.DataObject) -> None:
    vfs = MemVfs()
    write_snapshot(vfs, "/state", 9, 77, chunks)
    path = f"/state/{snapshot_name(9)}"
    whole = vfs.contents(path)
    changed = data.draw(
        st.one_of(
            st.integers(0, len(whole) - 1).map(lambda at: whole[:at]),
            st.integers(0, len(whole) - 1).map(lambda at: whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]),
            st.binary(min_size=1, max_size=20).map(lambda more: whole + more),
        )
    )
    vfs.put(path, changed)
    with pytest.raises((Damaged, NewerFormat)):
        read_snapshot(vfs, "/state", 9)


def chunk(number: int, payload: bytes, kind: int = fmt.CHUNK) -> bytes:
    return fmt.encode_frame(77, number, kind, payload)


def ending(count: int, total: int) -> bytes:
    return fmt.encode_frame(77, 0, fmt.END, fmt.END_PAYLOAD.pack(count, total))


@pytest.mark.parametrize(
    "frames",
    [
        [chunk(2, b"b"), chunk(1, b"a"), ending(2, 2)],
        [chunk(1, b"a"), chunk(1, b"b"), ending(2, 2)],
        [chunk(1, b"a"), chunk(3, b"b"), ending(2, 2)],
        [chunk(1, b"a"), chunk(2, b"b", fmt.RECORD), ending(2, 2)],
        [chunk(1, b"a"), chunk(2, b"b"), ending(3, 2)],
        [chunk(1, b"a"), chunk(2, b"b"), ending(2, 3)],
        [chunk(1, b"a"), chunk(2, b"b")],
        [chunk(1, b"a"), chunk(2, b"b"), ending(2, 2), ending(2, 2)],
    ],
)
def test_a_snapshot_with_good_frames_out_of_place_is_damaged(frames: list[bytes]) -> None:
    header = fmt.encode_header(fmt.SNAPSHOT_MAGIC, fmt.Header(77, 9))
    path = f"/state/{snapshot_name(9)}"
    vfs = MemVfs()
    vfs.put(path, header + b"".join([chunk(1, b"a"), chunk(2, b"b"), ending(2, 2)]))
    assert read_snapshot(vfs, "/state", 9) == [b"a", b"b"]
    data = header + b"".join(frames)
    vfs.put(path, data)
    with pytest.raises(Damaged) as caught:
        read_snapshot(vfs, "/state", 9)
    assert (caught.value.file, caught.value.seq) == (path, 0)
    assert fmt.HEADER_SIZE < caught.value.offset <= len(data)


def test_a_snapshot_that_is_written_in_several_pieces() -> None:
    chunks = [bytes([number]) * size for number, size in enumerate([200_000, 0, 100_000, 700_000, 1])]
    vfs = MemVfs()
    size = write_snapshot(vfs, "/state", 9, 77, iter(chunks))
    assert size == len(vfs.contents(f"/state/{snapshot_name(9)}"))
    assert read_snapshot(vfs, "/state", 9) == chunks


def test_a_chunk_has_a_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_CHUNK", 16)
    vfs = MemVfs()
    write_snapshot(vfs, "/state", 9, 77, [b"x" * 16, b"y"])
    assert read_snapshot(vfs, "/state", 9) == [b"x" * 16, b"y"]
    with pytest.raises(ValueError, match="has 17 bytes; cut chunks at 16"):
        write_snapshot(vfs, "/state", 10, 77, [b"x" * 17])
    path = f"/state/{snapshot_name(9)}"
    vfs.put(path, fmt.encode_header(fmt.SNAPSHOT_MAGIC, fmt.Header(77, 9)) + chunk(1, b"x" * 17) + ending(1, 17))
    with pytest.raises(Damaged, match="impossible length") as caught:
        read_snapshot(vfs, "/state", 9)
    assert (caught.value.file, caught.value.offset, caught.value.seq) == (path, fmt.HEADER_SIZE, 0)


def test_a_snapshot_of_another_record_than_its_name_says_is_damaged() -> None:
    vfs = MemVfs()
    write_snapshot(vfs, "/state", 9, 77, [b"a"])
    vfs.put(f"/state/{snapshot_name(8)}", vfs.contents(f"/state/{snapshot_name(9)}"))
    with pytest.raises(Damaged, match="folds up to record 9"):
        read_snapshot(vfs, "/state", 8)


def test_sizes_are_what_the_accounting_says() -> None:
    records = [b"", b"a", b"b" * 300]
    data = fmt.encode_batch(records, salt=1, batch=1, last_seq=3)
    assert len(data) == sum(Log.frame_size(len(record)) for record in records) + COMMIT_OVERHEAD
    assert len(fmt.encode_header(fmt.SEGMENT_MAGIC, fmt.Header(1, 1))) == fmt.HEADER_SIZE


def test_line_separators_and_zeroes_in_records_mean_nothing() -> None:
    records = ["a\u2028b\u0085\f\n".encode(), bytes(50), b"", b"\n\n"]
    vfs = MemVfs()
    log = open_log(vfs).log
    for record in records:
        log.append([record])
    assert fold(open_log(vfs.after_kill())) == records


def test_a_record_that_quotes_log_bytes_is_no_frame() -> None:
    """The torn batch carries the bytes of a later batch of another segment: another salt, no frame."""
    quoted = segment([[b"a"], [b"b"], [b"c"]], salt=9)
    data = segment([[b"good"]], salt=5, tail=0)
    torn = fmt.encode_batch([quoted], salt=5, batch=2, last_seq=2)[:-5]
    result = fmt.scan(data + torn + bytes(50), 5, 1)
    assert result.records == [b"good"]
    assert fmt.find_later(data + torn + bytes(50), result.end, 5, 2) is None
