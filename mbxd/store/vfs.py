"""The real file system behind the store's port, on the `os` module.

Owns flags, modes and which call makes data durable on which system. Never retries a sync.
"""

from __future__ import annotations

import fcntl
import os
import sys
from typing import Final

from mbxd.ownfile import check_own_directory, open_own

_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
"""macOS: flush the drive too; plain fsync there returns before the drive did. fcntl(2) of macOS."""


def durable_sync(fd: int) -> None:
    """Data on the disk when this returns: F_FULLFSYNC on macOS (fsync where that is refused), fdatasync elsewhere."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(fd, _FULL_SYNC)
        except OSError:
            os.fsync(fd)  # network and FUSE volumes refuse F_FULLFSYNC; a real error shows here again
    elif sys.platform == "darwin":
        os.fsync(fd)
    else:
        os.fdatasync(fd)


class OsFile:
    """An open file; implements `VfsFile`."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pread(self, size: int, offset: int) -> bytes:
        """All of `size` bytes unless the file ends before."""
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]  # one read returns at most 2 GiB and may be cut by a signal
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pwrite(self, data: bytes, offset: int) -> int:
        """One write; how many bytes went in."""
        return os.pwrite(self._fd, data, offset)

    def sync_data(self) -> None:
        """See `durable_sync`."""
        durable_sync(self._fd)

    def size(self) -> int:
        """Current size in bytes."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close once."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsVfs:
    """The operating system's files; implements `Vfs`."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> OsFile:
        """Open a plain file of ours; links, pipes and devices in its place are refused (NotOurs)."""
        flags = os.O_RDONLY if read_only else os.O_RDWR
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return OsFile(open_own(path, flags))

    def list_dir(self, path: str) -> list[str]:
        """Names in a directory."""
        return os.listdir(path)

    def make_dir(self, path: str) -> None:
        """Mode 0700, unless it exists; then it must be a directory of ours (NotOurs)."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            check_own_directory(path)

    def rename(self, old: str, new: str) -> None:
        """Atomic replacement."""
        os.rename(old, new)

    def remove(self, path: str) -> None:
        """Unlink a name."""
        os.unlink(path)

    def sync_dir(self, path: str) -> None:
        """fsync(2) of the directory: its names are durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _FULL_SYNC is not None:
                durable_sync(fd)
            else:
                os.fsync(fd)
        finally:
            os.close(fd)
