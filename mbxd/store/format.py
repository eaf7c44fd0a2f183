"""The bytes of the log, sans-io: headers, frames, batches, and how a segment is read.

Owns the layout of docs/wal-format.md sections 3 and 7. Never opens a file and never decides about recovery:
it says where the good part ends and what it met there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from mbxd.store.errors import Damaged, NewerFormat

VERSION = 1
"""Format that this program writes, and the newest that it knows."""
MIN_READER = 1
"""Oldest format whose programs read correctly what this one writes."""

SEGMENT_MAGIC = b"MBXDWAL\n"
SNAPSHOT_MAGIC = b"MBXDSNP\n"

RECORD = 1
COMMIT = 2
CHUNK = 3
END = 4

_VERSIONS = Struct("<8sHH")
_HEADER = Struct("<8sHHIQQQQ12s")
_CRC = Struct("<I")
FRAME = Struct("<IIIB")
"""Frame head: CRC, length of what follows the length field, batch number, kind."""
_FRAME_REST = Struct("<IIB")
_LENGTH_AND_MARK = Struct("<I5s")
_MARK = Struct("<IB")
"""Batch number and kind: the same bytes in all record frames of a batch."""
COMMIT_PAYLOAD = Struct("<QII")
"""Last seq, records in the batch, CRC of their frames (from the salt)."""
END_PAYLOAD = Struct("<IQ")
"""Chunks, payload bytes."""

HEADER_SIZE = _HEADER.size + _CRC.size
FRAME_OVERHEAD = FRAME.size
"""Bytes that a frame costs over its payload."""
COMMIT_SIZE = FRAME_OVERHEAD + COMMIT_PAYLOAD.size
"""Bytes that a batch costs over its record frames."""
_AFTER_LENGTH = FRAME_OVERHEAD - 8
_COMMIT_REST = Struct("<IIBQII")
"""A commit frame behind its CRC."""
_COMMIT_LENGTH = _AFTER_LENGTH + COMMIT_PAYLOAD.size
_CRC_AND_LENGTH = 8


class Predecessor(NamedTuple):
    """The segment before: its first and last seq, and the offset after its last commit frame. Zeroes: none."""

    first: int = 0
    last: int = 0
    end: int = 0


class Header(NamedTuple):
    """Header of a segment or snapshot. `first`: first seq of a segment, or the seq that a snapshot folds up to."""

    salt: int
    first: int
    before: Predecessor = Predecessor()
    version: int = VERSION
    min_reader: int = MIN_READER


class Scan(NamedTuple):
    """What a segment holds up to the first thing that is no good next frame.

    records: payloads of complete batches; batches: how many; last_batch: offset of the last one;
    end: offset after its commit frame (HEADER_SIZE when there is none); broken: a good checksum out of place,
    which no torn write makes: (offset, why); why: what stopped the reading.
    """

    records: list[bytes]
    batches: int
    last_batch: int
    end: int
    broken: tuple[int, str] | None
    why: str


def encode_header(magic: bytes, header: Header) -> bytes:
    """HEADER_SIZE bytes."""
    before = header.before
    body = _HEADER.pack(
        magic,
        header.version,
        header.min_reader,
        header.salt,
        header.first,
        before.first,
        before.last,
        before.end,
        b"",
    )
    return body + _CRC.pack(crc32(body))


def decode_header(data: bytes, magic: bytes, file: str, *, reading_only: bool = False) -> Header:
    """Header of `file` from its first bytes; raises Damaged or NewerFormat.

    The versions come before the checksum: a newer format may have another header behind its first 12 bytes.
    A program that writes needs to know the version; one that only reads needs to be at least `min_reader`.
    """
    if len(data) < HEADER_SIZE:
        raise Damaged(file, 0, 0, f"it ends after {len(data)} bytes, within its header")
    found, version, min_reader = _VERSIONS.unpack_from(data)
    if found != magic:
        raise Damaged(file, 0, 0, "it does not begin with the mark of its kind")
    needed = min_reader if reading_only else version
    if needed > VERSION:
        raise NewerFormat(file, version, VERSION)
    if crc32(data[: _HEADER.size]) != _CRC.unpack_from(data, _HEADER.size)[0]:
        raise Damaged(file, 0, 0, "the checksum of its header is wrong")
    _, version, min_reader, salt, first, *before, _ = _HEADER.unpack_from(data)
    return Header(salt, first, Predecessor(*before), version, min_reader)


def frame_size(record_len: int) -> int:
    """Bytes of the frame of a record of `record_len` bytes."""
    return FRAME_OVERHEAD + record_len


def batch_size(records: Sequence[bytes]) -> int:
    """Bytes of a batch with its commit frame."""
    return sum(map(len, records)) + FRAME_OVERHEAD * len(records) + COMMIT_SIZE


def encode_frame(salt: int, batch: int, kind: int, payload: bytes) -> bytes:
    """One frame."""
    rest = _FRAME_REST.pack(len(payload) + _AFTER_LENGTH, batch, kind) + payload
    return _CRC.pack(crc32(rest, salt)) + rest


def encode_batch(records: Sequence[bytes], *, salt: int, batch: int, last_seq: int) -> bytes:
    """Record frames and their commit frame, ready for one write. `last_seq`: seq of the last record."""
    parts: list[bytes] = []
    pack_crc, pack_rest = _CRC.pack, _FRAME_REST.pack
    for record in records:
        rest = pack_rest(len(record) + _AFTER_LENGTH, batch, RECORD) + record
        parts += (pack_crc(crc32(rest, salt)), rest)
    frames = b"".join(parts)
    return frames + encode_commit(salt, batch, last_seq, len(records), crc32(frames, salt))


def encode_commit(salt: int, batch: int, last_seq: int, count: int, frames_crc: int) -> bytes:
    """The frame that closes a batch of `count` records."""
    rest = _COMMIT_REST.pack(_COMMIT_LENGTH, batch, COMMIT, last_seq, count, frames_crc)
    return _CRC.pack(crc32(rest, salt)) + rest


def scan(data: bytes, salt: int, first: int, stop: int | None = None, *, upto: int | None = None) -> Scan:
    """Read a segment's batches from behind its header to `stop` (an offset; the end of `data` otherwise).

    first: seq of the first record. upto: stop behind the batch that reaches this seq, if any does.
    Never fails and never allocates more than `data` holds. A batch is taken by the checksum in its commit
    frame; frame by frame is looked at only what stopped the reading.
    """
    end = len(data) if stop is None else min(stop, len(data))
    view, unpack, limit = memoryview(data), _LENGTH_AND_MARK.unpack_from, end - FRAME_OVERHEAD
    crc_at, close = _CRC.unpack_from, _COMMIT_REST.pack
    records: list[bytes] = []
    append = records.append
    committed, last_batch = 0, HEADER_SIZE
    at = good = HEADER_SIZE
    batch = 1
    mark = _MARK.pack(batch, RECORD)
    while at <= limit:
        length, found = unpack(data, at + 4)
        if found == mark:
            append(data[at + FRAME_OVERHEAD : (at := at + _CRC_AND_LENGTH + length)])
            continue
        count = len(records) - committed
        if at + COMMIT_SIZE > end or not count:
            break
        frames_crc = crc32(view[good:at], salt)
        commit = close(_COMMIT_LENGTH, batch, COMMIT, first + len(records) - 1, count, frames_crc)
        if data[at + 4 : at + COMMIT_SIZE] != commit or crc_at(data, at)[0] != crc32(commit, salt):
            break
        last_batch, committed, batch = good, len(records), batch + 1
        mark = _MARK.pack(batch, RECORD)
        at = good = at + COMMIT_SIZE
        if upto is not None and first + committed > upto:
            return Scan(records, batch - 1, last_batch, good, None, "enough was read")
    del records[committed:]
    broken, why = _diagnose(view[:end], salt, good, batch, first + committed - 1)
    return Scan(records, batch - 1, last_batch, good, broken, why)


def _diagnose(data: memoryview, salt: int, start: int, batch: int, last_seq: int) -> tuple[tuple[int, str] | None, str]:
    """Why the batch at `start` does not read: (broken, why) of `Scan`. Checks every frame by itself."""
    at, count = start, 0
    while at + FRAME_OVERHEAD <= len(data):
        crc, length, found, kind = FRAME.unpack_from(data, at)
        after = at + _CRC_AND_LENGTH + length
        if length < _AFTER_LENGTH or after > len(data):
            return None, "there is a frame of impossible length" if length or crc else "the written part ends"
        if crc32(data[at + 4 : after], salt) != crc:
            return None, "the checksum of a frame is wrong"
        if found != batch:
            return (at, f"a frame of batch {found} stands where batch {batch} should"), ""
        if kind == COMMIT:
            return (at, f"a commit frame does not match its batch of {count} records up to {last_seq}"), ""
        if kind != RECORD:
            return (at, f"a frame of unknown kind {kind}"), ""
        at, count, last_seq = after, count + 1, last_seq + 1
    return None, "the file ends"


_KINDS = re.compile(rb"[\x01\x02]")


def find_later(data: bytes, start: int, salt: int, batch: int) -> int | None:
    """Offset of the first good frame of a batch after `batch`, from `start` on at any alignment; None: no such."""
    last = len(data.rstrip(b"\0"))
    view = memoryview(data)
    most = batch + len(data) // COMMIT_SIZE
    # A frame's kind byte is its 13th: look only where one may stand.
    for match in _KINDS.finditer(data, start + FRAME_OVERHEAD - 1, last):
        at = match.start() - FRAME_OVERHEAD + 1
        crc, length, number, _ = FRAME.unpack_from(data, at)
        after = at + _CRC_AND_LENGTH + length
        if length < _AFTER_LENGTH or after > len(data) or not batch < number <= most:
            continue
        if crc32(view[at + 4 : after], salt) == crc:
            return at
    return None


def readable_batches(data: bytes, start: int, salt: int, batch: int) -> list[tuple[int, int]]:
    """(first seq, last seq) of the whole batches after number `batch` that can still be read behind `start`."""
    found: list[tuple[int, int]] = []
    at, current, count = find_later(data, start, salt, batch), 0, 0
    while at is not None:
        _, length, number, kind = FRAME.unpack_from(data, at)
        after = at + _CRC_AND_LENGTH + length
        if kind == RECORD:
            current, count = number, count + 1 if number == current else 1
        elif after - at == COMMIT_SIZE:
            last, wanted, _ = COMMIT_PAYLOAD.unpack_from(data, at + FRAME_OVERHEAD)
            if (number, count) == (current, wanted):
                found.append((last - wanted + 1, last))
            current, count = 0, 0
        following = find_later(data, after, salt, batch)
        if following != after:
            current, count = 0, 0
        at = following
    return found
