"""The ground before the daemon trusts it: file systems that can't keep a lock or a socket."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mbxd import ground
from tests.support.places import short_state


@pytest.fixture
def where() -> Iterator[ground.Ground]:
    with short_state() as state:
        yield ground.Ground(str(state), f"{state}/run/mbxd.sock", "/nowhere/config.toml")


@pytest.mark.parametrize("kind", sorted(ground.NETWORK_FILE_SYSTEMS))
def test_a_state_directory_on_a_network_file_system(
    where: ground.Ground, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(ground, "_file_system", lambda path: kind if path == where.state_dir else "ext4")
    before = sorted(os.listdir(where.state_dir))
    with pytest.raises(ground.Unfit, match=rf"network file system \({kind}\).*set MBX_STATE_DIR to a local directory"):
        ground.prepare_state(where, {})
    assert sorted(os.listdir(where.state_dir)) == before


def test_the_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    assert ground._file_system("/proc/self") == "proc"
    assert ground._file_system(str(tmp_path)) not in {"", "proc"}
    link = tmp_path / "link"
    link.symlink_to("/proc")
    assert ground._file_system(str(link)) == "proc"


def test_a_place_that_can_not_have_sockets(where: ground.Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unsupported(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(socket, "socket", Unsupported)
    with pytest.raises(ground.Unfit, match="not supported; set MBX_SOCKET to a path on a local file system"):
        ground.bind(where)


def test_a_local_place_is_fine(where: ground.Ground) -> None:
    ground.prepare_state(where, {})
    with ground.bind(where) as sock:
        assert sock.getsockname() == where.socket
