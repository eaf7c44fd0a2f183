"""The single-instance lock, with real processes and a real file system."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mbxd.store.lock import Held, Lock, _has_open, holders, parse_owner

HOLD = """
import os, sys, time
from mbxd.store.lock import Lock
lock = Lock.acquire(sys.argv[1], ticks=77)
if len(sys.argv) > 2:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
print("held", flush=True)
sys.stdin.read()
"""


def holder(path: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", HOLD, str(path), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": "."},
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=20)


def test_the_second_is_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "daemon.lock"
    process = holder(path)
    try:
        assert line(process) == "held"
        with pytest.raises(Held) as caught:
            Lock.acquire(str(path))
        assert (caught.value.pid, caught.value.ticks) == (process.pid, 77)
        assert str(caught.value) == f"{path} is held by process {process.pid}"
    finally:
        end(process)
    lock = Lock.acquire(str(path), ticks=5)
    assert path.read_text() == f"{os.getpid()} 5\n"
    lock.release()


def test_the_file_is_private_and_never_deleted(tmp_path: Path) -> None:
    path = tmp_path / "daemon.lock"
    lock = Lock.acquire(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    inode = path.stat().st_ino
    lock.release()
    lock.release()
    again = Lock.acquire(str(path))
    assert path.stat().st_ino == inode
    assert again.identity == (path.stat().st_dev, inode)
    again.release()


def test_a_lock_file_removed_between_open_and_flock_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "daemon.lock"
    flock = fcntl.flock
    removed: list[str] = []

    def remove_first(fd: int, operation: int) -> None:
        if operation != fcntl.LOCK_UN and len(removed) < 3:
            path.unlink()
            removed.append(path.name)
        flock(fd, operation)

    monkeypatch.setattr("mbxd.store.lock.fcntl.flock", remove_first)
    lock = Lock.acquire(str(path))
    assert len(removed) == 3
    assert lock.still_mine()
    with pytest.raises(Held):
        Lock.acquire(str(path))
    lock.release()


def test_a_removed_lock_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "daemon.lock"
    lock = Lock.acquire(str(path))
    assert lock.still_mine()
    path.unlink()
    assert not lock.still_mine()
    path.write_text("somebody else's")
    assert not lock.still_mine()
    lock.release()


def test_a_removed_state_directory_is_noticed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    lock = Lock.acquire(str(state / "daemon.lock"))
    shutil.rmtree(state)
    assert not lock.still_mine()
    state.mkdir()
    second = Lock.acquire(str(state / "daemon.lock"))
    assert second.still_mine()
    assert not lock.still_mine()
    lock.release()
    second.release()


def test_two_spellings_of_a_directory_are_one_lock(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to("state")
    lock = Lock.acquire(str(tmp_path / "state/daemon.lock"))
    with pytest.raises(Held):
        Lock.acquire(str(tmp_path / "link/daemon.lock"))
    lock.release()


def test_a_link_as_lock_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    (tmp_path / "daemon.lock").symlink_to("precious")
    with pytest.raises(OSError, match="symbolic link"):
        Lock.acquire(str(tmp_path / "daemon.lock"))
    assert (tmp_path / "precious").read_text() == "data"


def test_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "daemon.lock"
    process = holder(path)
    assert line(process) == "held"
    process.kill()
    end(process)
    Lock.acquire(str(path)).release()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells who has a file open on Linux alone")
def test_a_forked_child_that_inherited_the_lock_is_named(tmp_path: Path) -> None:
    path = tmp_path / "daemon.lock"
    process = holder(path, "fork")
    child = int(line(process))
    try:
        assert line(process) == "held"
        process.kill()
        process.wait(timeout=20)
        with pytest.raises(Held) as caught:
            Lock.acquire(str(path))
        assert caught.value.pid == process.pid
        assert caught.value.holders == [child]
        assert f"open in process {child}" in str(caught.value)
    finally:
        os.kill(child, signal.SIGKILL)
        end(process)
    wait_free(path)  # the child is no child of ours: the kernel takes it down in its own time
    Lock.acquire(str(path)).release()


def wait_free(path: Path) -> None:
    for _ in range(5000):
        if not holders(str(path)):
            return
    pytest.fail("the lock file stays open")


def test_a_process_that_can_not_be_looked_into_is_not_called_a_holder(tmp_path: Path) -> None:
    assert not _has_open(str(tmp_path / "gone"), tmp_path.stat())


def test_lock_is_not_inherited_by_programs(tmp_path: Path) -> None:
    path = tmp_path / "daemon.lock"
    lock = Lock.acquire(str(path))
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        close_fds=False,
    )
    try:
        assert line(child) == "up"
        os.close(lock._fd)  # as a kill would: no unlock
        lock._fd = -1
        Lock.acquire(str(path)).release()
    finally:
        end(child)


@pytest.mark.parametrize("contents", [b"", b"\n", b"12", b"12 x\n", b"12 3", b"-1 3\n", b"1 2\n3 4\n", b"\xff" * 64])
def test_strange_contents_name_nobody(contents: bytes) -> None:
    assert parse_owner(contents) == (0, 0)


def test_owner_is_parsed() -> None:
    assert parse_owner(b"4194303 18446744073709551615\n") == (4194303, 18446744073709551615)
