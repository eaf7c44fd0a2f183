"""The log: opens a registry directory, appends batches durably, rolls, keeps snapshots and trims.

Owns every write to the registry directory while the daemon runs. Never tries a sync twice, never appends behind
bytes it does not know, never looks into a record. Threads: `append` belongs to one thread; `prepare_spare`,
`write_snapshot` and `history` may run in others at the same time; `room`, `durable_seq`, `needs_spare` and
`statistics` may be read from anywhere.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from mbxd.ports import Vfs, VfsFile
from mbxd.store import format as fmt
from mbxd.store.errors import Damaged, LogFailed, LogFull
from mbxd.store.recovery import Found, Segment, read_sealed, survey
from mbxd.store.segment import (
    DEFAULT_SEGMENT,
    MAX_SEGMENT,
    SPARE,
    make_spare,
    open_spare,
    read_whole,
    segment_name,
    snapshot_name,
    write_once,
)
from mbxd.store.snapshot import write_snapshot
from mbxd.store.tidy import tidy

DEFAULT_RETAIN = 256 * 1024 * 1024
COMMIT_OVERHEAD = fmt.COMMIT_SIZE
"""Bytes that every batch costs over the frames of its records."""
MIN_SEGMENT = 256
"""Smallest segment size accepted; small ones are for tests."""
SNAPSHOTS_KEPT = 2


class _Current(NamedTuple):
    """The open segment. batches: complete ones in it; end: offset after the last; full: nothing may follow."""

    file: VfsFile
    first: int
    salt: int
    size: int
    batches: int
    end: int
    full: bool


class Recovery(NamedTuple):
    """What `Log.open` found. snapshot: payload chunks or None; records: (seq, record) behind it, to be read once;
    notes: lines for people about what was unusual.
    """

    log: Log
    snapshot: list[bytes] | None
    snapshot_seq: int
    records: Iterator[tuple[int, bytes]]
    notes: list[str]


class Log:
    """An open registry log. Made by `open`; see docs/wal-format.md."""

    def __init__(
        self,
        vfs: Vfs,
        directory: str,
        found: Found,
        *,
        entropy: Callable[[int], bytes],
        segment_size: int,
        retain: int,
    ) -> None:
        """Takes over what `survey` found; `open` is the way in."""
        self._vfs = vfs
        self._directory = directory
        self._entropy = entropy
        self._segment_size = segment_size
        self._retain = retain
        self._mutex = threading.Lock()  # guards _sealed, _snapshots, _spare, _room; never held during I/O
        self._spare_mutex = threading.Lock()  # one maker of spares at a time
        self._snapshot_mutex = threading.Lock()  # one snapshot and trim at a time
        self._sealed: list[Segment] = found.segments[:-1]
        self._snapshots = [seq for seq in found.listing.snapshots if seq not in found.bad_snapshots]
        self._spare: VfsFile | None = None
        self._current: _Current | None = None
        self._room = 0
        self._durable = found.last_seq
        self._failed: str | None = None
        self._counts = {"batches": 0, "records": 0, "bytes": 0, "rolls": 0, "snapshots": 0, "trimmed": 0}

    @classmethod
    def open(
        cls,
        vfs: Vfs,
        directory: str,
        *,
        entropy: Callable[[int], bytes],
        segment_size: int = DEFAULT_SEGMENT,
        retain: int = DEFAULT_RETAIN,
    ) -> Recovery:
        """Recover `directory` (absolute; made when missing, its parent must exist) and open it for appending.

        entropy(n): n random bytes, for salts. segment_size, retain: bytes. The daemon's lock must be held.
        Raises Damaged or NewerFormat with the directory untouched, OSError when the disk fails.
        """
        if not MIN_SEGMENT <= segment_size <= MAX_SEGMENT:
            raise ValueError(f"segment_size is {segment_size}; it must be {MIN_SEGMENT} to {MAX_SEGMENT} bytes")
        vfs.make_dir(directory)
        vfs.sync_dir(directory.rpartition("/")[0] or "/")
        found = survey(vfs, directory)
        log = cls(vfs, directory, found, entropy=entropy, segment_size=segment_size, retain=retain)
        try:
            log._settle(found)
        except BaseException:
            log.close()
            raise
        return Recovery(log, found.snapshot, found.snapshot_seq, found.records(), found.notes)

    # -- appending -------------------------------------------------------------------------------------------

    def append(self, records: Sequence[bytes]) -> int:
        """Write one batch durably; returns the seq of its last record.

        ValueError: no record, or a batch that no segment can hold. LogFull: nothing was written. LogFailed: a
        write or sync failed now or before; the batch may or may not be there after a restart.
        """
        if self._failed is not None:
            raise LogFailed(self._failed)
        size = fmt.batch_size(records)
        if not records or fmt.HEADER_SIZE + size > self._segment_size:
            raise ValueError(
                f"a batch of {len(records)} records, {size} bytes, does not fit a segment of {self._segment_size}"
            )
        last = self._durable + len(records)
        current = self._current
        rolls = current is None or current.full or current.end + size > current.size
        if rolls:
            self._ensure_spare(size)
        try:
            if current is None or rolls:
                self._roll(records, last)
            else:
                self._extend(current, records, last)
        except BaseException as error:
            self._failed = f"the registry log failed: {str(error) or type(error).__name__}; restart the daemon"
            if isinstance(error, OSError):
                raise LogFailed(self._failed) from error
            raise
        self._durable = last
        counts = self._counts
        counts["batches"] += 1
        counts["records"] += len(records)
        counts["bytes"] += size
        return last

    def _extend(self, current: _Current, records: Sequence[bytes], last: int) -> None:
        batch = current.batches + 1
        data = fmt.encode_batch(records, salt=current.salt, batch=batch, last_seq=last)
        write_once(current.file, data, current.end)
        current.file.sync_data()
        self._current = current._replace(batches=batch, end=current.end + len(data))
        self._update_room()

    def _roll(self, records: Sequence[bytes], last: int) -> None:
        """The batch opens a new segment: complete and synced under the spare's name before it gets its own."""
        spare, old = self._spare, self._current
        if spare is None:
            raise LogFull("there is no spare segment")
        first, salt = self._durable + 1, int.from_bytes(self._entropy(4), "little")
        header = fmt.encode_header(fmt.SEGMENT_MAGIC, fmt.Header(salt, first, self._predecessor()))
        data = header + fmt.encode_batch(records, salt=salt, batch=1, last_seq=last)
        write_once(spare, data, 0)
        spare.sync_data()
        self._vfs.rename(f"{self._directory}/{SPARE}", f"{self._directory}/{segment_name(first)}")
        self._vfs.sync_dir(self._directory)
        fresh = _Current(spare, first, salt, self._segment_size, 1, len(data), full=False)
        with self._mutex:
            if old is not None:
                # Its predecessor is left out: that is asked only when a log is opened, from the disk.
                sealed = Segment(old.first, first - 1, old.end, old.size, fmt.Header(old.salt, old.first))
                self._sealed.append(sealed)
            self._current, self._spare = fresh, None
        if old is not None:
            old.file.close()
        self._update_room()
        self._counts["rolls"] += 1

    def _predecessor(self) -> fmt.Predecessor:
        """What the header of a segment opened now says about the current one."""
        current = self._current
        if current is None:
            return fmt.Predecessor()
        return fmt.Predecessor(current.first, self._durable, current.end)

    # -- room ------------------------------------------------------------------------------------------------

    def room(self) -> int:
        """Bytes of batches (`frame_size` of each record, COMMIT_OVERHEAD for each batch) that certainly fit now.

        However they are cut into batches, and without allocating. What is queued or being written is not taken
        off until its append has returned.
        """
        return self._room

    @staticmethod
    def frame_size(record_len: int) -> int:
        """Bytes that a record of this length takes in a batch."""
        return fmt.frame_size(record_len)

    @property
    def needs_spare(self) -> bool:
        """Whether `prepare_spare` has something to do."""
        return self._spare is None and self._failed is None

    @property
    def durable_seq(self) -> int:
        """Newest record that is on the disk."""
        return self._durable

    @property
    def failed(self) -> str | None:
        """Why nothing can be appended any more; None while the log is good."""
        return self._failed

    def prepare_spare(self) -> None:
        """Make `next.spare` if it is missing. OSError (ENOSPC, EDQUOT, EFBIG, ...): nothing is left over."""
        with self._spare_mutex:
            if not self.needs_spare:
                return
            spare = make_spare(self._vfs, self._directory, self._segment_size)
            with self._mutex:
                if self._failed is not None:
                    spare.close()
                    return
                self._spare = spare
            self._update_room()

    def _ensure_spare(self, size: int) -> None:
        """The engine asks `room` first, so this is the slow way out of a race, not the usual one."""
        if self._spare is not None:
            return
        try:
            self.prepare_spare()
        except OSError as error:
            raise LogFull(f"no room for a batch of {size} bytes, and no new segment: {error}") from error

    def _update_room(self) -> None:
        with self._mutex:
            current = self._current
            rest = 0 if current is None or current.full else current.size - current.end
            spare = 0 if self._spare is None else self._segment_size - fmt.HEADER_SIZE
            self._room = max(rest, spare)

    # -- snapshots -------------------------------------------------------------------------------------------

    def write_snapshot(self, seq: int, chunks: Iterable[bytes]) -> None:
        """Keep the fold of records 1 to `seq`, given as chunks; then trim. Older than the newest: nothing is done.

        ValueError: `seq` is not durable yet. OSError: no partial file is left and the log is not affected.
        """
        with self._snapshot_mutex:
            if not 0 < seq <= self._durable:
                raise ValueError(f"snapshot at record {seq}, but records 1 to {self._durable} are durable")
            if self._snapshots and seq <= self._snapshots[-1]:
                return
            salt = int.from_bytes(self._entropy(4), "little")
            write_snapshot(self._vfs, self._directory, seq, salt, chunks)
            with self._mutex:
                self._snapshots.append(seq)
            self._counts["snapshots"] += 1
            self._trim()

    def _trim(self) -> None:
        """Remove what is neither needed nor kept as history, each removal durable before the next."""
        while len(self._snapshots) > SNAPSHOTS_KEPT:
            self._remove(snapshot_name(self._snapshots[0]))
            with self._mutex:
                del self._snapshots[0]
        if len(self._snapshots) < SNAPSHOTS_KEPT:
            return
        covered = self._snapshots[0]
        while self._sealed and self._sealed[0].last <= covered:
            if sum(segment.size for segment in list(self._sealed)) <= self._retain:
                return
            self._remove(segment_name(self._sealed[0].first))
            with self._mutex:
                del self._sealed[0]
            self._counts["trimmed"] += 1

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._vfs.remove(f"{self._directory}/{name}")
        self._vfs.sync_dir(self._directory)

    # -- reading back ----------------------------------------------------------------------------------------

    def history(self, upto: int | None = None) -> Iterator[tuple[int, bytes]]:
        """(seq, record) of the kept segments, newest first, from `upto` (default: what is durable now) downwards.

        Safe while another thread appends; holds one segment in memory at a time; ends early when a trim
        removes what would come next. Raises Damaged where a segment can't be read.
        """
        bound = self._durable if upto is None else min(upto, self._durable)
        with self._mutex:
            current, sealed = self._current, list(self._sealed)
        if current is not None and bound >= current.first:
            path = f"{self._directory}/{segment_name(current.first)}"
            result = fmt.scan(read_whole(self._vfs, path), current.salt, current.first, upto=bound)
            records, last = result.records, current.first + len(result.records) - 1
            if last < bound:
                raise Damaged(path, result.end, last + 1, result.why)
            yield from _backwards(current.first, records, bound)
        for segment in reversed(sealed):
            if segment.first > bound:
                continue
            try:
                records = read_sealed(self._vfs, self._directory, segment)
            except FileNotFoundError:
                return
            yield from _backwards(segment.first, records, bound)

    def statistics(self) -> dict[str, int | float]:
        """Counters since opening, and sizes in bytes."""
        with self._mutex:
            current, sealed, snapshots = self._current, list(self._sealed), list(self._snapshots)
            return {
                **self._counts,
                "durable_seq": self._durable,
                "room": self._room,
                "spare": int(self._spare is not None),
                "segments": len(sealed) + (current is not None),
                "sealed_bytes": sum(segment.size for segment in sealed),
                "oldest_seq": sealed[0].first if sealed else current.first if current else 0,
                "snapshot_seq": snapshots[-1] if snapshots else 0,
                "failed": int(self._failed is not None),
            }

    def close(self) -> None:
        """Close the files; later appends raise LogFailed. Nothing is left to be written."""
        self._failed = self._failed or "the registry log is closed"
        with self._mutex:
            current, spare = self._current, self._spare
            self._current = self._spare = None
            self._room = 0
        if current is not None:
            current.file.close()
        if spare is not None:
            spare.close()

    # -- after recovery --------------------------------------------------------------------------------------

    def _settle(self, found: Found) -> None:
        """Carry out what recovery decided; every step may be interrupted and is done again by the next start."""
        if found.segments:
            self._reopen(found)
        tidy(self._vfs, self._directory, found)
        self._spare = open_spare(self._vfs, self._directory, self._segment_size)
        if self._spare is None:
            if found.listing.spare:
                self._remove(SPARE)
            try:
                self.prepare_spare()
            except OSError as error:
                found.notes.append(f"no spare segment could be made: {error}")
        self._update_room()

    def _reopen(self, found: Found) -> None:
        """Open the newest segment, and write its last batch again: the page cache may have it and the disk not."""
        newest = found.segments[-1]
        file = self._vfs.open(f"{self._directory}/{segment_name(newest.first)}")
        batches = found.newest.batches if found.newest else 0
        self._current = _Current(
            file,
            newest.first,
            newest.header.salt,
            newest.size,
            batches,
            newest.end,
            # What an older program may read must hold nothing that it does not know.
            full=bool(found.torn) or newest.header.version < fmt.VERSION,
        )
        offset, data = found.last_batch
        write_once(file, data, offset)
        file.sync_data()


def _backwards(first: int, records: list[bytes], bound: int) -> Iterator[tuple[int, bytes]]:
    kept = records[: bound - first + 1]
    return islice(zip(range(first + len(kept) - 1, first - 1, -1), reversed(kept), strict=True), None)
