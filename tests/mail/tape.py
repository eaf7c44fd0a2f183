"""Every write, sync, truncation and change of a name that SQLite makes in a directory, in order.

The way of SQLite's own crash tests (https://sqlite.org/testing.html, "Crash testing"): what its algorithms do to the
disk is recorded below them, and played back onto `MemVfs`, the same disk that loses power under the registry's log.
For this some functions of SQLite's default VFS are replaced for a while, in the very library that Python's `sqlite3`
uses: the store under test is the real one, unchanged, on real files. https://sqlite.org/c3ref/vfs.html

    with recorded(directory) as tape:
        ...                              # use the store; tape.mark(x) notes what was promised by now
    for at, disk in enumerate(tape.disks()):
        disk.after_power_cut(seed)       # what may be left of the first `at` calls
"""

from __future__ import annotations

import _sqlite3
import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.support.memvfs import MemFile, MemVfs

_POINTER = ctypes.c_void_p
_OPEN_CREATE = 0x4


class _Vfs(ctypes.Structure):
    """struct sqlite3_vfs, version 3."""

    _fields_ = [
        ("iVersion", ctypes.c_int),
        ("szOsFile", ctypes.c_int),
        ("mxPathname", ctypes.c_int),
        *[(name, _POINTER) for name in ("pNext", "zName", "pAppData", "xOpen", "xDelete", "xAccess", "xFullPathname")],
        *[(name, _POINTER) for name in ("xDlOpen", "xDlError", "xDlSym", "xDlClose", "xRandomness", "xSleep")],
        *[(name, _POINTER) for name in ("xCurrentTime", "xGetLastError", "xCurrentTimeInt64", "xSetSystemCall")],
        *[(name, _POINTER) for name in ("xGetSystemCall", "xNextSystemCall")],
    ]


class _Methods(ctypes.Structure):
    """struct sqlite3_io_methods, version 3."""

    _fields_ = [
        ("iVersion", ctypes.c_int),
        *[(name, _POINTER) for name in ("xClose", "xRead", "xWrite", "xTruncate", "xSync", "xFileSize", "xLock")],
        *[(name, _POINTER) for name in ("xUnlock", "xCheckReservedLock", "xFileControl", "xSectorSize")],
        *[(name, _POINTER) for name in ("xDeviceCharacteristics", "xShmMap", "xShmLock", "xShmBarrier", "xShmUnmap")],
        *[(name, _POINTER) for name in ("xFetch", "xUnfetch")],
    ]


class _File(ctypes.Structure):
    """struct sqlite3_file."""

    _fields_ = [("pMethods", ctypes.POINTER(_Methods))]


_FILE = ctypes.POINTER(_File)
_INT, _INT64, _TEXT = ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
_OPEN = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _FILE, _INT, ctypes.POINTER(_INT))
_DELETE = ctypes.CFUNCTYPE(_INT, _POINTER, _TEXT, _INT)
_CLOSE = ctypes.CFUNCTYPE(_INT, _FILE)
_WRITE = ctypes.CFUNCTYPE(_INT, _FILE, _POINTER, _INT, _INT64)
_TRUNCATE = ctypes.CFUNCTYPE(_INT, _FILE, _INT64)
_SYNC = ctypes.CFUNCTYPE(_INT, _FILE, _INT)
_OPEN_DIRECTORY = ctypes.CFUNCTYPE(_INT, _TEXT, ctypes.POINTER(_INT))
_SET_SYSTEM_CALL = ctypes.CFUNCTYPE(_INT, _POINTER, _TEXT, _POINTER)
_GET_SYSTEM_CALL = ctypes.CFUNCTYPE(_POINTER, _POINTER, _TEXT)


class Call(NamedTuple):
    """create, write, truncate, sync, rename, remove or sync_dir. at: offset of a write or the new size."""

    kind: str
    path: str
    data: bytes = b""
    at: int = 0


class Tape:
    """What was done below a directory, and what was promised meanwhile."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.realpath(directory)
        self.calls: list[Call] = []
        self.promises: list[tuple[int, Any]] = []
        """(how many calls came before it, what was promised)"""
        self._before = {name: _contents(os.path.join(self.directory, name)) for name in os.listdir(self.directory)}

    def add(self, kind: str, path: str, data: bytes = b"", at: int = 0) -> None:
        if os.path.dirname(path) == self.directory or path == self.directory:
            self.calls.append(Call(kind, path, data, at))

    def mark(self, promise: Any) -> None:
        self.promises.append((len(self.calls), promise))

    def promised(self, at: int) -> list[Any]:
        """Everything that somebody was told before the call number `at`."""
        return [promise for place, promise in self.promises if place <= at]

    def disks(self) -> Iterator[MemVfs]:
        """The same disk after 0, 1, 2, ... calls."""
        disk, files = MemVfs(self.directory), dict[str, MemFile]()
        for name, data in self._before.items():
            disk.put(os.path.join(self.directory, name), data)
        yield disk
        for call in self.calls:
            _play(disk, files, call)
            yield disk


def _play(disk: MemVfs, files: dict[str, MemFile], call: Call) -> None:
    if call.kind == "create":
        disk.open(call.path, create=True)
    elif call.kind == "remove":
        disk.remove(call.path)
    elif call.kind == "rename":
        disk.rename(call.path, call.data.decode())
    elif call.kind == "sync_dir":
        disk.sync_dir(call.path)
    else:
        file = disk.open(call.path)
        if call.kind == "write":
            file.pwrite(call.data, call.at)
        elif call.kind == "truncate":
            file.truncate(call.at)
        else:
            file.sync_data()


_IN_USE: list[_Recorder] = []


class _Recorder:
    """Stands between SQLite and its default VFS. Callbacks come from any thread, one at a time (the GIL)."""

    def __init__(self, vfs: _Vfs, tape: Tape) -> None:
        self._vfs = vfs
        self._tape = tape
        self._paths: dict[int, str] = {}
        self._originals: dict[int, _Methods] = {}
        self._methods: dict[int, _Methods] = {}
        self._open = _OPEN(vfs.xOpen)
        self._delete = _DELETE(vfs.xDelete)
        self._open_directory = _OPEN_DIRECTORY(self._system_call(b"openDirectory"))
        self._hooks = [_OPEN(self.opened), _DELETE(self.deleted), _OPEN_DIRECTORY(self.directory_opened)]
        self._file_hooks = {
            "xClose": _CLOSE(self.closed),
            "xWrite": _WRITE(self.written),
            "xTruncate": _TRUNCATE(self.truncated),
            "xSync": _SYNC(self.synced),
        }

    def start(self) -> None:
        opened, deleted, directory = (ctypes.cast(hook, _POINTER).value for hook in self._hooks)
        self._vfs.xOpen, self._vfs.xDelete = opened, deleted
        self._set_system_call(directory)

    def stop(self) -> None:
        self._vfs.xOpen = ctypes.cast(self._open, _POINTER).value
        self._vfs.xDelete = ctypes.cast(self._delete, _POINTER).value
        self._set_system_call(ctypes.cast(self._open_directory, _POINTER).value)
        if self._paths:
            _IN_USE.append(self)  # SQLite will call it again when it closes them
            raise AssertionError(f"still open: {sorted(self._paths.values())}")

    def _system_call(self, name: bytes) -> int:
        found: int = _GET_SYSTEM_CALL(self._vfs.xGetSystemCall)(ctypes.addressof(self._vfs), name)
        return found

    def _set_system_call(self, function: int | None) -> None:
        done = _SET_SYSTEM_CALL(self._vfs.xSetSystemCall)(ctypes.addressof(self._vfs), b"openDirectory", function)
        assert done == 0

    # -- SQLite calls these

    def opened(self, vfs: int, name: int | None, file: Any, flags: int, out: Any) -> int:
        path = os.fsdecode(ctypes.string_at(name)) if name else ""
        new = bool(flags & _OPEN_CREATE) and not os.path.exists(path)
        result: int = self._open(vfs, name, file, flags, out)
        if result == 0 and os.path.dirname(path) == self._tape.directory:
            if new:
                self._tape.add("create", path)
            self._paths[ctypes.addressof(file.contents)] = path
            file.contents.pMethods = ctypes.pointer(self._ours(file.contents.pMethods))
        return result

    def _ours(self, methods: Any) -> _Methods:
        """A copy of a kind of file's methods with some of ours in it."""
        address = ctypes.addressof(methods.contents)
        if address not in self._methods:
            ours = _Methods.from_buffer_copy(methods.contents)
            for name, hook in self._file_hooks.items():
                setattr(ours, name, ctypes.cast(hook, _POINTER).value)
            self._methods[address] = ours
            self._originals[ctypes.addressof(ours)] = methods.contents
        return self._methods[address]

    def _original(self, file: Any, name: str, kind: Callable[[int], Any]) -> Any:
        return kind(getattr(self._originals[ctypes.addressof(file.contents.pMethods.contents)], name))

    def closed(self, file: Any) -> int:
        self._paths.pop(ctypes.addressof(file.contents))
        result: int = self._original(file, "xClose", _CLOSE)(file)
        return result

    def written(self, file: Any, data: int, size: int, offset: int) -> int:
        result: int = self._original(file, "xWrite", _WRITE)(file, data, size, offset)
        self._note("write", file, ctypes.string_at(data, size), offset)
        return result

    def truncated(self, file: Any, size: int) -> int:
        result: int = self._original(file, "xTruncate", _TRUNCATE)(file, size)
        self._note("truncate", file, b"", size)
        return result

    def synced(self, file: Any, flags: int) -> int:
        self._note("sync", file, b"", 0)  # before the call: the first sync of a new file syncs its directory too
        result: int = self._original(file, "xSync", _SYNC)(file, flags)
        return result

    def deleted(self, vfs: int, name: bytes, sync_dir: int) -> int:
        path = os.fsdecode(name)
        if os.path.exists(path):
            self._tape.add("remove", path)
        result: int = self._delete(vfs, name, sync_dir)
        return result

    def directory_opened(self, name: bytes, out: Any) -> int:
        """SQLite opens a directory, given by the path of a file in it, for nothing but its fsync."""
        result: int = self._open_directory(name, out)
        self._tape.add("sync_dir", os.path.dirname(os.fsdecode(name)))
        return result

    def _note(self, kind: str, file: Any, data: bytes, at: int) -> None:
        self._tape.add(kind, self._paths[ctypes.addressof(file.contents)], data, at)


@contextlib.contextmanager
def recorded(directory: str) -> Iterator[Tape]:
    """Record until the end, when everything of SQLite in the directory must be closed."""
    vfs = _default_vfs()
    tape = Tape(directory)
    recorder = _Recorder(vfs, tape)
    with pytest.MonkeyPatch.context() as patch:
        _watch_python(patch, tape)
        recorder.start()
        try:
            yield tape
        finally:
            recorder.stop()


def _default_vfs() -> _Vfs:
    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))  # a symbol is looked up in what it needs too
    try:
        find = library.sqlite3_vfs_find
    except AttributeError:
        pytest.skip("this Python has SQLite built in and hides its functions: nothing can be recorded")
    find.restype, find.argtypes = ctypes.POINTER(_Vfs), [_TEXT]
    vfs: _Vfs = find(None).contents
    assert vfs.iVersion >= 3
    return vfs


def _watch_python(patch: pytest.MonkeyPatch, tape: Tape) -> None:
    """What the store does to names by itself, around SQLite."""
    real_open, real_unlink, real_rename, real_fsync = os.open, os.unlink, os.rename, os.fsync
    paths: dict[int, str] = {}

    def opening(path: str, flags: int, *args: Any, **more: Any) -> int:
        new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        fd = real_open(path, flags, *args, **more)
        paths[fd] = os.path.abspath(path)
        if new:
            tape.add("create", path)
        return fd

    def unlinking(path: str) -> None:
        real_unlink(path)
        tape.add("remove", path)

    def renaming(old: str, new: str) -> None:
        real_rename(old, new)
        tape.add("rename", old, new.encode())

    def syncing(fd: int) -> None:
        real_fsync(fd)
        path = paths[fd]
        tape.add("sync_dir" if os.path.isdir(path) else "sync", path)

    for name, function in (("open", opening), ("unlink", unlinking), ("rename", renaming), ("fsync", syncing)):
        patch.setattr(os, name, function)


def _contents(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
