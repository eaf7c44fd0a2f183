"""A file system in memory that can lose power: the fake behind the store's `Vfs` port.

Owns what a disk may do to data that was not synced: lose it, tear it at any byte, keep any of its blocks, forget
renames, creations and removals that no directory sync followed. Never kinder than the assumptions of
docs/wal-format.md, and never crueller.

    vfs = MemVfs()
    vfs.crash_at(7)                   # the 7th changing call happens half, then PowerCut
    disk = vfs.after_power_cut(seed)  # a new file system as the next boot may find it
    disk = vfs.after_kill()           # only the process died: the page cache is still there
"""

from __future__ import annotations

import copy
import errno
import os
import posixpath
import random
from itertools import pairwise
from typing import NamedTuple

MODES = ("nothing", "everything", "torn", "blocks", "mixed")
CHANGES = ("create", "pwrite", "sync_data", "truncate", "rename", "remove", "sync_dir", "make_dir")


class PowerCut(BaseException):
    """The machine is off. Not an Exception: no handler of the code under test may go on."""


class Write(NamedTuple):
    """A change to contents that is not durable yet; `size` alone: a truncation."""

    offset: int
    data: bytes
    size: int | None = None


class Link(NamedTuple):
    """A name that now stands for an inode; `old`: the name it had before (a rename)."""

    name: str
    inode: Inode
    old: str | None = None


class Unlink(NamedTuple):
    """A name removed."""

    name: str
    inode: Inode


class Inode:
    """Contents as programs see them, as the disk has them, and the writes in between."""

    def __init__(self) -> None:
        self.now = bytearray()
        self.disk = bytearray()
        self.pending: list[Write] = []

    def change(self, write: Write) -> None:
        apply(self.now, write)
        self.pending.append(write)

    def sync(self) -> None:
        for write in self.pending:
            apply(self.disk, write)
        self.pending.clear()

    def forget(self) -> None:
        """A sync failed: the kernel marks the pages clean, the disk never gets them, readers still see them."""
        self.pending.clear()


def apply(data: bytearray, write: Write) -> None:
    """Do a write or truncation to contents."""
    if write.size is not None:
        del data[write.size :]
        data.extend(bytes(write.size - len(data)))
        return
    data.extend(bytes(max(0, write.offset - len(data))))
    data[write.offset : write.offset + len(write.data)] = write.data


class Directory:
    """Names as programs see them, as the disk has them, and the changes in between."""

    def __init__(self) -> None:
        self.now: dict[str, Inode] = {}
        self.disk: dict[str, Inode] = {}
        self.pending: list[Link | Unlink] = []

    def change(self, change: Link | Unlink) -> None:
        rename_in(self.now, change)
        self.pending.append(change)

    def sync(self) -> None:
        self.disk = dict(self.now)
        self.pending.clear()


def rename_in(names: dict[str, Inode], change: Link | Unlink) -> None:
    """Do a change of names. One that relies on a lost one still does its own part."""
    if isinstance(change, Unlink):
        if names.get(change.name) is change.inode:
            del names[change.name]
        return
    if change.old is not None and names.get(change.old) is change.inode:
        del names[change.old]
    names[change.name] = change.inode


class Fault(NamedTuple):
    """What happens at a call: an errno, or a short write that puts `keep` bytes in."""

    code: int
    keep: int | None = None


class MemVfs:
    """Implements `Vfs`. Directories are flat: only their own path and its parents exist."""

    def __init__(self, root: str = "/state") -> None:
        self.directories: dict[str, Directory] = {root: Directory()}
        self._new_directories: set[str] = set()
        self.calls: list[str] = []
        self.counts: dict[str, int] = {}
        self.space: int | None = None
        self.off = False
        self._faults: dict[tuple[str, int], Fault] = {}
        self._crash_at: int | None = None

    # -- faults --

    def fail(self, kind: str, nth: int = 1, code: int = errno.EIO) -> None:
        """The nth call of this kind from now on raises OSError."""
        self._faults[kind, self.counts.get(kind, 0) + nth] = Fault(code)

    def short_write(self, nth: int = 1, keep: int = 1) -> None:
        """The nth pwrite from now on writes only `keep` bytes and returns that."""
        self._faults["pwrite", self.counts.get("pwrite", 0) + nth] = Fault(0, keep)

    def crash_at(self, nth: int) -> None:
        """Power fails in the nth changing call from now on."""
        self._crash_at = len(self.calls) + nth

    def _enter(self, kind: str) -> Fault | None:
        """Count a call. True power cuts are raised by `_leave`, so that the change is pending by then."""
        if self.off:
            raise PowerCut
        if kind in CHANGES:
            self.calls.append(kind)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        fault = self._faults.pop((kind, self.counts[kind]), None)
        if fault is not None and fault.keep is None:
            return fault
        if self._crash_at == len(self.calls) and kind in ("sync_data", "sync_dir"):
            self._leave()
        return fault

    def _leave(self) -> None:
        if self._crash_at is not None and len(self.calls) >= self._crash_at:
            self.off = True
            raise PowerCut

    # -- what the next boot finds --

    def after_kill(self) -> MemVfs:
        """The process is gone, the machine went on: all contents and names as programs saw them."""
        other = copy.deepcopy(self)
        other.off, other._crash_at, other._faults = False, None, {}
        other.calls, other.counts = [], {}
        return other

    def after_power_cut(self, seed: int, mode: str = "mixed") -> MemVfs:
        """What may be on the disk after power failed now. Same seed, same disk."""
        rng = random.Random(seed)
        other = self.after_kill()
        for path in sorted(other._new_directories):
            if mode == "nothing" or (mode != "everything" and rng.random() < 0.5):
                del other.directories[path]
        other._new_directories.clear()
        for directory in other.directories.values():
            names = directory.disk
            for change in directory.pending:
                if mode == "everything" or (mode != "nothing" and rng.random() < 0.5):
                    rename_in(names, change)
            for inode in set(directory.now.values()) | set(names.values()):
                survive(inode, rng, mode)
            directory.now = names
            directory.disk = dict(names)
            directory.pending = []
        return other

    # -- Vfs --

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> MemFile:
        directory, name = self._at(path)
        fault = self._enter("create" if create else "open")
        _raise(fault, path)
        if create:
            if name in directory.now:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            directory.change(Link(name, Inode()))
            self._leave()
        if name not in directory.now:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return MemFile(self, directory.now[name], read_only=read_only)

    def list_dir(self, path: str) -> list[str]:
        self._enter("list_dir")
        return list(self._directory(path).now)

    def make_dir(self, path: str) -> None:
        _raise(self._enter("make_dir"), path)
        self._directory(posixpath.dirname(path))
        if path not in self.directories:
            self.directories[path] = Directory()
            self._new_directories.add(path)
        self._leave()

    def rename(self, old: str, new: str) -> None:
        fault = self._enter("rename")
        directory, name = self._at(old)
        _raise(fault, old)
        if name not in directory.now:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        directory.change(Link(self._at(new)[1], directory.now[name], name))
        self._leave()

    def remove(self, path: str) -> None:
        fault = self._enter("remove")
        directory, name = self._at(path)
        _raise(fault, path)
        if name not in directory.now:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        directory.change(Unlink(name, directory.now[name]))
        self._leave()

    def sync_dir(self, path: str) -> None:
        fault = self._enter("sync_dir")
        _raise(fault, path)
        self._directory(path).sync()
        self._new_directories -= {new for new in self._new_directories if posixpath.dirname(new) == path}

    # -- for tests --

    def names(self, path: str) -> list[str]:
        return sorted(self._directory(path).now)

    def contents(self, path: str) -> bytes:
        directory, name = self._at(path)
        return bytes(directory.now[name].now)

    def put(self, path: str, data: bytes) -> None:
        """Set a file's contents, durable at once."""
        directory, name = self._at(path)
        inode = directory.now.get(name) or Inode()
        inode.now, inode.disk, inode.pending = bytearray(data), bytearray(data), []
        directory.now[name] = directory.disk[name] = inode

    def image(self, path: str) -> dict[str, bytes]:
        return {name: bytes(inode.now) for name, inode in self._directory(path).now.items()}

    def used(self) -> int:
        inodes = {inode for directory in self.directories.values() for inode in directory.now.values()}
        return sum(len(inode.now) for inode in inodes)

    def _directory(self, path: str) -> Directory:
        if path not in self.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self.directories[path]

    def _at(self, path: str) -> tuple[Directory, str]:
        return self._directory(posixpath.dirname(path)), posixpath.basename(path)


class MemFile:
    """Implements `VfsFile`."""

    def __init__(self, vfs: MemVfs, inode: Inode, *, read_only: bool) -> None:
        self._vfs = vfs
        self._inode = inode
        self._read_only = read_only
        self._closed = False

    def pread(self, size: int, offset: int) -> bytes:
        self._check()
        _raise(self._vfs._enter("pread"), "pread")
        return bytes(self._inode.now[offset : offset + size])

    def pwrite(self, data: bytes, offset: int) -> int:
        self._check(writing=True)
        vfs = self._vfs
        fault = vfs._enter("pwrite")
        if fault is not None and fault.keep is None:
            _raise(fault, "pwrite")
        keep = len(data) if fault is None or fault.keep is None else min(fault.keep, len(data))
        if vfs.space is not None:
            growth = max(0, offset + keep - len(self._inode.now))
            lacking = growth - max(0, vfs.space - vfs.used())
            if lacking > 0:
                keep -= lacking
                if keep <= 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._inode.change(Write(offset, bytes(data[:keep])))
        vfs._leave()
        return keep

    def sync_data(self) -> None:
        self._check()
        fault = self._vfs._enter("sync_data")
        if fault is not None:
            self._inode.forget()
            _raise(fault, "sync_data")
        self._inode.sync()

    def truncate(self, size: int) -> None:
        """Cut or extend with zeroes, as SQLite does and the store doesn't."""
        self._check(writing=True)
        _raise(self._vfs._enter("truncate"), "truncate")
        self._inode.change(Write(0, b"", size))
        self._vfs._leave()

    def size(self) -> int:
        self._check()
        return len(self._inode.now)

    def close(self) -> None:
        self._closed = True

    def _check(self, *, writing: bool = False) -> None:
        if self._closed or (writing and self._read_only):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _raise(fault: Fault | None, what: str) -> None:
    if fault is not None:
        raise OSError(fault.code, os.strerror(fault.code), what)


def survive(inode: Inode, rng: random.Random, mode: str) -> None:
    """Decide what of the unsynced writes is on the disk; contents become that, with nothing pending."""
    for write in inode.pending:
        for piece in _pieces(write, rng, mode):
            apply(inode.disk, piece)
    inode.pending = []
    inode.now = bytearray(inode.disk)


def _pieces(write: Write, rng: random.Random, mode: str) -> list[Write]:
    if mode == "mixed":
        mode = rng.choice(MODES[:-1])
    if mode == "nothing":
        return []
    if mode == "everything":
        return [write]
    if write.size is not None:
        return [write] if rng.random() < 0.5 else []
    if mode == "torn":
        return [Write(write.offset, write.data[: rng.randrange(len(write.data) + 1)])]
    block = rng.choice((16, 512, 4096))
    first = write.offset // block * block
    edges = [max(at, write.offset) for at in range(first, write.offset + len(write.data), block)]
    edges.append(write.offset + len(write.data))
    return [
        Write(start, write.data[start - write.offset : end - write.offset])
        for start, end in pairwise(edges)
        if rng.random() < 0.5
    ]
