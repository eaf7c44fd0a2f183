"""Files of the log by name: what each name means, how one is read whole, and how a spare is made.

Owns file names and the write-aside-then-rename pattern. Never decides what is damage.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

from mbxd.ports import Vfs, VfsFile
from mbxd.store.errors import Damaged

DEFAULT_SEGMENT = 4 * 1024 * 1024
MAX_SEGMENT = 1 << 30
"""Larger files are no segments of ours, and are refused before they are read into memory."""
SPARE = "next.spare"
TMP = ".tmp"
_ZERO_PIECE = bytes(64 * 1024)
"""A spare is synced piece by piece: one sync of 4 MiB would hold up the appends of that moment for 10 to 20 ms."""

_NAME = re.compile(r"([0-9]{20})\.(wal|snap)")
_ASIDE = re.compile(r".+\.(torn|bad|orig)-[0-9]+")


def segment_name(first: int) -> str:
    """Name of the segment that begins with record `first`."""
    return f"{first:020d}.wal"


def snapshot_name(seq: int) -> str:
    """Name of the snapshot that folds the records up to `seq`."""
    return f"{seq:020d}.snap"


class Listing:
    """The names of a registry directory, sorted by kind.

    segments, snapshots: numbers in rising order; aside: copies kept for people; temporary: leftovers of a crash.
    """

    def __init__(self, names: list[str]) -> None:
        found = [match for name in names if (match := _NAME.fullmatch(name))]
        self.segments = sorted(int(match[1]) for match in found if match[2] == "wal")
        self.snapshots = sorted(int(match[1]) for match in found if match[2] == "snap")
        self.aside = sorted(name for name in names if _ASIDE.fullmatch(name))
        self.temporary = sorted(name for name in names if name.endswith(TMP))
        self.spare = SPARE in names

    def without_oldest(self, count: int) -> Listing:
        """The same directory, had its `count` oldest segments been put aside."""
        other = Listing([])
        other.__dict__.update(self.__dict__, segments=self.segments[count:])
        return other


def write_once(file: VfsFile, data: bytes, offset: int) -> None:
    """One write that must go in whole: into allocated space nothing but a broken disk cuts it short."""
    written = file.pwrite(data, offset)
    if written != len(data):
        raise OSError(f"short write: {written} of {len(data)} bytes at offset {offset}")


def write_all(file: VfsFile, data: bytes, offset: int) -> None:
    """Write to a file that nobody relies on yet; after a short write the next one says why (ENOSPC, EFBIG, ...)."""
    done = 0
    while done < len(data):
        written = file.pwrite(data[done:] if done else data, offset + done)
        if not written:
            raise OSError(f"short write: {done} of {len(data)} bytes at offset {offset}")
        done += written


def read_whole(vfs: Vfs, path: str) -> bytes:
    """The contents of a segment; Damaged when it is larger than any segment can be."""
    file = vfs.open(path, read_only=True)
    try:
        size = file.size()
        if size > MAX_SEGMENT:
            raise Damaged(path, 0, 0, f"it has {size} bytes, more than any segment")
        return file.pread(size, 0)
    finally:
        file.close()


def read_start(vfs: Vfs, path: str, size: int) -> tuple[bytes, int]:
    """The first `size` bytes of a file, and how many it has."""
    file = vfs.open(path, read_only=True)
    try:
        return file.pread(size, 0), file.size()
    finally:
        file.close()


def publish(vfs: Vfs, directory: str, name: str, fill: Callable[[VfsFile], None]) -> VfsFile:
    """Make a file that has its name only when it is complete and durable; returns it open.

    Replaces a file of that name. An error, also one of `fill`, leaves no partial file behind.
    """
    path = f"{directory}/{name}"
    try:
        file = vfs.open(path + TMP, create=True)
    except FileExistsError:
        vfs.remove(path + TMP)  # left over by an attempt that failed
        file = vfs.open(path + TMP, create=True)
    try:
        fill(file)
        file.sync_data()
        vfs.rename(path + TMP, path)
        vfs.sync_dir(directory)
    except Exception:
        file.close()
        with contextlib.suppress(OSError):
            vfs.remove(path + TMP)
        raise
    return file


def make_spare(vfs: Vfs, directory: str, size: int) -> VfsFile:
    """Write `next.spare`, `size` zeroes: blocks that are written again later cost no allocation and no new metadata."""

    def fill(file: VfsFile) -> None:
        for offset in range(0, size, len(_ZERO_PIECE)):
            if offset:
                file.sync_data()
            write_all(file, _ZERO_PIECE[: size - offset], offset)

    return publish(vfs, directory, SPARE, fill)


def open_spare(vfs: Vfs, directory: str, size: int) -> VfsFile | None:
    """The spare left by an earlier run, if it is `size` zeroes; None when it can't be used as it is."""
    path = f"{directory}/{SPARE}"
    try:
        file = vfs.open(path)
    except FileNotFoundError:
        return None
    if file.size() == size and not any_byte(file.pread(size, 0)):
        return file
    file.close()
    return None


def any_byte(data: bytes) -> bool:
    """Whether anything but zeroes is in there."""
    return data.count(0) != len(data)


def free_name(vfs: Vfs, directory: str, name: str) -> str:
    """`name` followed by the first number that is not taken: name-1, name-2, ..."""
    taken = set(vfs.list_dir(directory))
    number = 1
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"
