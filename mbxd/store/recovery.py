"""Recovery: reads a registry directory and decides what it means, as in docs/wal-format.md section 5.

Owns every decision between "torn" and "damaged". Never writes: what has to change on the disk is returned as
a plan, and a refusal leaves the directory as it was. When it can't know, it refuses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import NamedTuple

from mbxd.ports import Vfs
from mbxd.store.errors import Damaged
from mbxd.store.format import (
    HEADER_SIZE,
    SEGMENT_MAGIC,
    SNAPSHOT_MAGIC,
    Header,
    Predecessor,
    Scan,
    decode_header,
    find_later,
    scan,
)
from mbxd.store.segment import Listing, any_byte, read_start, read_whole, segment_name, snapshot_name
from mbxd.store.snapshot import read_snapshot


class Segment(NamedTuple):
    """A segment as its header and its successor's tell. last, end: 0 for the newest until it has been scanned."""

    first: int
    last: int
    end: int
    size: int
    header: Header


@dataclass(slots=True)
class Found:
    """What a directory holds.

    segments: oldest first, the newest with `last` and `end` filled in; snapshot: chunks, or None; replay:
    pairs (first seq, payloads) behind the snapshot; newest: scan of the newest segment, None in a new
    registry; last_batch: the bytes to write again, and where; torn: bytes behind the end, empty when clean;
    bad_snapshots: seqs of those that could not be read; notes: lines for people.
    """

    listing: Listing
    segments: list[Segment] = field(default_factory=list)
    snapshot: list[bytes] | None = None
    snapshot_seq: int = 0
    replay: list[tuple[int, list[bytes]]] = field(default_factory=list)
    newest: Scan | None = None
    last_batch: tuple[int, bytes] = (0, b"")
    torn: bytes = b""
    bad_snapshots: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def last_seq(self) -> int:
        """Newest record of the log; 0 when there is none."""
        return self.segments[-1].last if self.segments else 0

    def records(self) -> Iterator[tuple[int, bytes]]:
        """(seq, record) behind the snapshot, each once; frees what was read as it goes."""
        replay, self.replay = self.replay, []
        replay.reverse()
        while replay:
            first, payloads = replay.pop()
            skip = max(0, self.snapshot_seq + 1 - first)
            yield from islice(enumerate(payloads, first), skip, None)


def survey(vfs: Vfs, directory: str, listing: Listing | None = None, *, reading_only: bool = False) -> Found:
    """Read everything that a start needs. Raises Damaged, NewerFormat or OSError; changes nothing.

    listing: judge the directory as if only these files were there. reading_only: for somebody who will not write,
    so that a newer format is read where it says that it may be.
    """
    listing = listing or Listing(vfs.list_dir(directory))
    found = Found(listing)
    headers = read_headers(vfs, directory, listing, reading_only=reading_only)
    if not listing.segments:
        _expect_new(directory, listing)
        return found
    found.segments = link(directory, headers)
    _read_newest(vfs, directory, found)
    if listing.snapshots and listing.snapshots[-1] > found.last_seq:
        raise Damaged(
            f"{directory}/{segment_name(listing.segments[-1])}",
            found.segments[-1].end,
            found.last_seq + 1,
            f"the log ends at record {found.last_seq}, but a snapshot was made at {listing.snapshots[-1]}",
        )
    _choose_snapshot(vfs, directory, found, reading_only=reading_only)
    _read_sealed(vfs, directory, found)
    return found


def read_headers(vfs: Vfs, directory: str, listing: Listing, *, reading_only: bool = False) -> list[Segment]:
    """Headers of all segments; those of snapshots are looked at for their version alone, for they are caches.

    A newer format anywhere counts more than damage elsewhere: the newer program may know better.
    """
    damaged: Damaged | None = None
    segments: list[Segment] = []
    for seq in listing.snapshots:
        path = f"{directory}/{snapshot_name(seq)}"
        start, _ = read_start(vfs, path, HEADER_SIZE)
        with contextlib.suppress(Damaged):
            decode_header(start, SNAPSHOT_MAGIC, path, reading_only=reading_only)
    for first in listing.segments:
        try:
            segments.append(read_header(vfs, directory, first, reading_only=reading_only))
        except Damaged as error:
            damaged = damaged or error
    if damaged is not None:
        raise damaged
    return segments


def read_header(vfs: Vfs, directory: str, first: int, *, reading_only: bool = False) -> Segment:
    """The header of one segment, which must agree with its name."""
    path = f"{directory}/{segment_name(first)}"
    start, size = read_start(vfs, path, HEADER_SIZE)
    header = decode_header(start, SEGMENT_MAGIC, path, reading_only=reading_only)
    if header.first != first:
        raise Damaged(path, 0, first, f"its header says that it begins with record {header.first}")
    return Segment(first, 0, 0, size, header)


def _expect_new(directory: str, listing: Listing) -> None:
    """Without segments only an empty registry is good: the first acknowledged batch makes a durable segment."""
    if listing.snapshots:
        what = f"there is a snapshot at record {listing.snapshots[-1]}, but no segment"
        raise Damaged(directory, 0, listing.snapshots[-1] + 1, what)
    if listing.aside:
        raise Damaged(directory, 0, 1, f"there is {listing.aside[0]}, which was set aside, but no segment")


def link(directory: str, segments: list[Segment]) -> list[Segment]:
    """The chain: every segment but the newest with the last seq and end that its successor names."""
    linked: list[Segment] = []
    for segment, after in pairwise(segments):
        before = after.header.before
        path = f"{directory}/{segment_name(after.first)}"
        if before.first != segment.first:
            raise Damaged(
                path,
                0,
                segment.first,
                f"its predecessor should be {segment_name(before.first)}, which is missing",
            )
        if before.last != after.first - 1 or not HEADER_SIZE < before.end <= segment.size:
            raise Damaged(
                path, 0, segment.first, f"it does not continue {segment_name(segment.first)} as it lies there"
            )
        linked.append(segment._replace(last=before.last, end=before.end))
    first = segments[0]
    if first.first == 1 and first.header.before != Predecessor():
        raise Damaged(f"{directory}/{segment_name(1)}", 0, 1, "it names a predecessor before record 1")
    linked.append(segments[-1])
    return linked


def _read_newest(vfs: Vfs, directory: str, found: Found) -> None:
    segment = found.segments[-1]
    path = f"{directory}/{segment_name(segment.first)}"
    data = read_whole(vfs, path)
    salt = segment.header.salt
    result = scan(data, salt, segment.first)
    last = segment.first + len(result.records) - 1
    if result.broken:
        raise Damaged(path, result.broken[0], last + 1, result.broken[1])
    later = find_later(data, result.end, salt, result.batches + 1) if any_byte(data[result.end :]) else None
    if later is not None:
        raise Damaged(path, result.end, last + 1, f"{result.why}, and a later batch follows at offset {later}")
    if not result.batches:
        raise Damaged(path, result.end, segment.first, f"{result.why} within its first batch")
    found.newest = result
    found.segments[-1] = segment._replace(last=last, end=result.end)
    found.torn = data[result.end :].rstrip(b"\0")
    found.last_batch = (result.last_batch, data[result.last_batch : result.end])
    if found.torn:
        found.notes.append(
            f"{path}: {len(found.torn)} bytes of an unfinished batch at offset {result.end}, never acknowledged "
            f"({result.why}); the log goes on after record {last}"
        )


def _choose_snapshot(vfs: Vfs, directory: str, found: Found, *, reading_only: bool) -> None:
    """The newest readable snapshot that the segments reach back to; a bad one is only a lost cache."""
    oldest = found.segments[0].first
    why = ""
    for seq in reversed(found.listing.snapshots):
        if seq + 1 < oldest:
            break
        try:
            found.snapshot = read_snapshot(vfs, directory, seq, reading_only=reading_only)
        except Damaged as error:
            why = f"; {error.file}: {error.why}"
            found.bad_snapshots.append(seq)
            found.notes.append(f"{error.file} can't be read ({error.why}); an older start is used")
            continue
        found.snapshot_seq = seq
        return
    if oldest != 1:
        raise Damaged(
            f"{directory}/{segment_name(oldest)}",
            0,
            1,
            f"records before {oldest} are gone and no readable snapshot covers them{why}",
        )


def _read_sealed(vfs: Vfs, directory: str, found: Found) -> None:
    for segment in found.segments[:-1]:
        if segment.last > found.snapshot_seq:
            found.replay.append((segment.first, read_sealed(vfs, directory, segment)))
    newest = found.newest
    if newest is not None:
        found.replay.append((found.segments[-1].first, newest.records))


def read_sealed(vfs: Vfs, directory: str, segment: Segment) -> list[bytes]:
    """Records of a sealed segment: exactly those up to the end that its successor names, else Damaged."""
    path = f"{directory}/{segment_name(segment.first)}"
    result = scan(read_whole(vfs, path), segment.header.salt, segment.first, segment.end)
    last = segment.first + len(result.records) - 1
    if result.broken:
        raise Damaged(path, result.broken[0], last + 1, result.broken[1])
    if result.end != segment.end or last != segment.last:
        raise Damaged(path, result.end, last + 1, f"{result.why} before the end that the next segment names")
    return result.records
