"""One suite for the real file system and the fake: what the store relies on holds for both."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from mbxd.ports import Vfs
from mbxd.store import vfs as real
from mbxd.store.vfs import OsVfs
from tests.support.memvfs import MemVfs


@pytest.fixture(params=["real", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Vfs, str]:
    if request.param == "real":
        return OsVfs(), str(tmp_path)
    return MemVfs("/root"), "/root"


def test_create_write_read(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    assert file.pwrite(b"hello", 3) == 5
    assert file.size() == 8
    assert file.pread(100, 0) == b"\0\0\0hello"
    assert file.pread(2, 4) == b"el"
    assert file.pread(5, 8) == b""
    assert file.pread(0, 0) == b""
    file.sync_data()
    file.close()
    file.close()
    assert vfs.list_dir(root) == ["a"]


def test_create_fails_when_it_exists(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    vfs.open(f"{root}/a", create=True).close()
    with pytest.raises(FileExistsError):
        vfs.open(f"{root}/a", create=True)


def test_missing_files_and_directories(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    for call in (
        lambda: vfs.open(f"{root}/none"),
        lambda: vfs.open(f"{root}/none", read_only=True),
        lambda: vfs.open(f"{root}/no/where", create=True),
        lambda: vfs.remove(f"{root}/none"),
        lambda: vfs.rename(f"{root}/none", f"{root}/b"),
        lambda: vfs.list_dir(f"{root}/none"),
        lambda: vfs.make_dir(f"{root}/no/where"),
        lambda: vfs.sync_dir(f"{root}/none"),
    ):
        with pytest.raises(FileNotFoundError):
            call()


def test_read_only_refuses_writes(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    vfs.open(f"{root}/a", create=True).close()
    file = vfs.open(f"{root}/a", read_only=True)
    with pytest.raises(OSError):
        file.pwrite(b"x", 0)
    file.close()


def test_closed_files_refuse(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.close()
    with pytest.raises(OSError) as caught:
        file.pread(1, 0)
    assert caught.value.errno == errno.EBADF


def test_rename_replaces_and_open_files_follow(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    one = vfs.open(f"{root}/one", create=True)
    vfs.open(f"{root}/two", create=True).close()
    vfs.rename(f"{root}/one", f"{root}/two")
    vfs.sync_dir(root)
    one.pwrite(b"written behind the rename", 0)
    one.close()
    assert vfs.list_dir(root) == ["two"]
    again = vfs.open(f"{root}/two")
    assert again.pread(7, 0) == b"written"
    again.close()


def test_removed_files_stay_readable_while_open(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.pwrite(b"x", 0)
    vfs.remove(f"{root}/a")
    assert file.pread(1, 0) == b"x"
    assert vfs.list_dir(root) == []
    file.close()


def test_make_dir_twice(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    vfs.make_dir(f"{root}/d")
    vfs.open(f"{root}/d/file", create=True).close()
    vfs.make_dir(f"{root}/d")
    assert vfs.list_dir(f"{root}/d") == ["file"]
    vfs.sync_dir(root)


# -- the real one only ---------------------------------------------------------------------------------------


def test_modes_and_close_on_exec(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        vfs = OsVfs()
        vfs.make_dir(str(tmp_path / "d"))
        file = vfs.open(str(tmp_path / "d/a"), create=True)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "d/a").stat().st_mode) == 0o600
    assert fcntl.fcntl(file._fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    file.close()


def test_symbolic_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "link").symlink_to("target")
    for create in (False, True):
        with pytest.raises(OSError) as caught:
            OsVfs().open(str(tmp_path / "link"), create=create)
        assert caught.value.errno in {errno.ELOOP, errno.EEXIST}
    assert (tmp_path / "target").read_bytes() == b"precious"


@pytest.fixture
def small_files() -> Iterator[int]:
    """RLIMIT_FSIZE stands in for a full disk: a short write, then EFBIG."""
    limit = 100_000
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


def test_short_writes_are_returned_not_hidden(tmp_path: Path, small_files: int) -> None:
    file = OsVfs().open(str(tmp_path / "a"), create=True)
    assert file.pwrite(bytes(200), small_files - 50) == 50
    with pytest.raises(OSError) as caught:
        file.pwrite(b"x", small_files)
    assert caught.value.errno == errno.EFBIG
    file.close()


def test_a_read_that_the_system_cuts_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One read gives at most 2 GiB."""
    (tmp_path / "a").write_bytes(bytes(range(20)))
    file = OsVfs().open(str(tmp_path / "a"), read_only=True)
    pread = os.pread
    monkeypatch.setattr("mbxd.store.vfs.os.pread", lambda fd, size, offset: pread(fd, min(size, 3), offset))
    assert file.pread(8, 1) == bytes(range(1, 9))
    assert file.pread(8, 15) == bytes(range(15, 20))
    assert file.pread(8, 20) == b""
    file.close()


@pytest.mark.skipif(real._FULL_SYNC is not None, reason="macOS flushes the drive instead")
def test_data_is_synced_by_fdatasync_and_names_by_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, int]] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(
            f"mbxd.store.vfs.os.{name}", lambda fd, name=name: called.append((name, os.fstat(fd).st_ino))
        )
    file = OsVfs().open(str(tmp_path / "a"), create=True)
    file.sync_data()
    OsVfs().sync_dir(str(tmp_path))
    assert called == [("fdatasync", (tmp_path / "a").stat().st_ino), ("fsync", tmp_path.stat().st_ino)]
    file.close()


def test_full_sync_on_macos_with_its_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def control(fd: int, command: int) -> int:
        os.fstat(fd)
        called.append(f"fcntl {command}")
        if len(called) > 1:
            raise OSError(errno.ENOTSUP, "network volume")
        return 0

    monkeypatch.setattr(real, "_FULL_SYNC", 51)
    monkeypatch.setattr("mbxd.store.vfs.fcntl.fcntl", control)
    monkeypatch.setattr("mbxd.store.vfs.os.fsync", lambda _fd: called.append("fsync"))
    file = OsVfs().open(str(tmp_path / "a"), create=True)
    file.sync_data()
    assert called == ["fcntl 51"]
    file.sync_data()
    assert called == ["fcntl 51", "fcntl 51", "fsync"]
    OsVfs().sync_dir(str(tmp_path))
    assert called[3:] == ["fcntl 51", "fsync"]
    file.close()
