"""Repair of a damaged log: what can be kept, what is lost, and putting the rest aside.

Owns the plan and its execution, only ever on a person's word. Never deletes a byte: what does not stay in the log
is kept beside it as `.orig-n`. Any step may be interrupted; the next repair goes on from there.
"""

from __future__ import annotations

from typing import NamedTuple

from mbxd.ports import Vfs
from mbxd.store.errors import Damaged
from mbxd.store.format import Header, readable_batches, scan
from mbxd.store.recovery import Segment, link, read_header, survey
from mbxd.store.segment import Listing, free_name, publish, read_whole, segment_name, snapshot_name, write_all
from mbxd.store.snapshot import read_snapshot


class Plan(NamedTuple):
    """What a repair would do.

    damage: what stops the start; keep_to: the last record kept; aside: names to be renamed, in this order;
    cut: (first seq, offset) of the segment to be ended at its last good commit, or None; lost: (first, last)
    seq of the records that go, last 0 when nothing tells it, None when only history goes; readable: ranges of
    lost records that `.orig-n` files still hold in readable form; impossible: why no repair is possible, or "".
    """

    damage: Damaged
    keep_to: int = 0
    aside: tuple[str, ...] = ()
    cut: tuple[int, int] | None = None
    lost: tuple[int, int] | None = None
    readable: tuple[tuple[int, int], ...] = ()
    impossible: str = ""


def plan(vfs: Vfs, directory: str) -> Plan | None:
    """What a repair would do; None when the log opens as it is. Raises NewerFormat, OSError. Changes nothing."""
    listing = Listing(vfs.list_dir(directory))
    try:
        survey(vfs, directory, listing)
    except Damaged as error:
        return _drop_history(vfs, directory, listing, error) or _cut(vfs, directory, listing, error)
    return None


def _drop_history(vfs: Vfs, directory: str, listing: Listing, damage: Damaged) -> Plan | None:
    """When a snapshot covers all that is damaged, only old segments have to go and no record is lost."""
    for count in range(1, len(listing.segments)):
        rest = listing.without_oldest(count)
        try:
            found = survey(vfs, directory, rest)
        except Damaged:
            continue
        names = tuple(segment_name(first) for first in listing.segments[:count])
        return Plan(damage, found.last_seq, names)
    return None


def _cut(vfs: Vfs, directory: str, listing: Listing, damage: Damaged) -> Plan:
    """Keep what reads without a gap from the oldest segment on."""
    kept: list[int] = []
    cut: tuple[int, int] | None = None
    last = end = 0
    readable: list[tuple[int, int]] = []
    broken = False
    for first, header, data in _segments(vfs, directory, listing):
        if broken or header is None or (kept and (header.before.last, header.before.end) != (last, end)):
            broken = True
            if header is not None:
                readable += _all_batches(data, header, first)
            continue
        stop = _stop(vfs, directory, listing, first)
        result = scan(data, header.salt, first, stop)
        if result.batches:
            kept.append(first)
            last, end = first + len(result.records) - 1, result.end
        broken = result.end != stop if stop is not None else result.broken is not None
        if stop is None and not broken:
            broken = bool(readable_batches(data, result.end, header.salt, result.batches + 1))
        if broken:
            readable += readable_batches(data, result.end, header.salt, result.batches)
            cut = (first, result.end) if result.batches else None
    aside = [segment_name(first) for first in reversed(listing.segments) if first not in kept]
    aside += [snapshot_name(seq) for seq in reversed(listing.snapshots) if seq > last]
    lost_to = max([0, *(to for _, to in readable), *listing.snapshots, *(s - 1 for s in listing.segments)])
    lost = (last + 1, lost_to if lost_to > last else 0)
    why = _impossible(vfs, directory, kept, [seq for seq in listing.snapshots if seq <= last])
    return Plan(damage, last, tuple(aside), cut, lost, tuple(merge(readable)), why)


def _segments(vfs: Vfs, directory: str, listing: Listing) -> list[tuple[int, Header | None, bytes]]:
    found: list[tuple[int, Header | None, bytes]] = []
    for first in listing.segments:
        try:
            header = read_header(vfs, directory, first).header
            found.append((first, header, read_whole(vfs, f"{directory}/{segment_name(first)}")))
        except Damaged:
            found.append((first, None, b""))
    return found


def _stop(vfs: Vfs, directory: str, listing: Listing, first: int) -> int | None:
    """Where the successor says that this segment ends; None when it has none that says so."""
    following = listing.segments[listing.segments.index(first) + 1 :][:1]
    try:
        pair: list[Segment] = [read_header(vfs, directory, seq) for seq in (first, *following)]
        return link(directory, pair)[0].end or None
    except Damaged:
        return None


def _all_batches(data: bytes, header: Header, first: int) -> list[tuple[int, int]]:
    result = scan(data, header.salt, first)
    whole = [(first, first + len(result.records) - 1)] if result.records else []
    return whole + readable_batches(data, result.end, header.salt, result.batches)


def _impossible(vfs: Vfs, directory: str, kept: list[int], snapshots: list[int]) -> str:
    if not kept:
        return "no segment can be read from its beginning"
    if kept[0] == 1:
        return ""
    for seq in snapshots:
        if seq + 1 >= kept[0]:
            try:
                read_snapshot(vfs, directory, seq)
            except Damaged:
                continue
            return ""
    return f"records before {kept[0]} are gone and no readable snapshot covers them"


def merge(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Adjacent and overlapping (first, last) ranges joined, in rising order."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def carry_out(vfs: Vfs, directory: str, steps: Plan) -> list[str]:
    """Do what the plan says; returns the names under which originals are kept. The daemon's lock must be held."""
    kept: list[str] = []
    if steps.cut is not None:
        kept.append(_copy(vfs, directory, segment_name(steps.cut[0])))
    for name in steps.aside:
        aside = free_name(vfs, directory, f"{name}.orig")
        vfs.rename(f"{directory}/{name}", f"{directory}/{aside}")
        vfs.sync_dir(directory)
        kept.append(aside)
    if steps.cut is not None:
        first, end = steps.cut
        name = segment_name(first)
        data = read_whole(vfs, f"{directory}/{name}")
        whole = data[:end] + bytes(len(data) - end)
        publish(vfs, directory, name, lambda file: write_all(file, whole, 0)).close()
    return kept


def _copy(vfs: Vfs, directory: str, name: str) -> str:
    data = read_whole(vfs, f"{directory}/{name}")
    aside = free_name(vfs, directory, f"{name}.orig")
    publish(vfs, directory, aside, lambda file: write_all(file, data, 0)).close()
    return aside
