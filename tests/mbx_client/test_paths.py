"""Where things are: the shared rules, and the facts that a client adds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mbx_client import __version__, paths
from mbx_wire import places
from mbxd import __version__ as daemon_version
from mbxd import ground

HOME = {"HOME": "/home/ann"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (HOME, "/home/ann/.local/state/mbx"),
        ({"HOME": "/home/ann/"}, "/home/ann/.local/state/mbx"),
        ({**HOME, "XDG_STATE_HOME": "/x"}, "/home/ann/.local/state/mbx"),
        ({**HOME, "MBX_STATE_DIR": "/s/"}, "/s"),
        ({**HOME, "MBX_STATE_DIR": ""}, "/home/ann/.local/state/mbx"),
        ({}, "/home/account/.local/state/mbx"),
        ({"HOME": ""}, "/home/account/.local/state/mbx"),
        ({"HOME": "relative"}, "/home/account/.local/state/mbx"),
        ({"HOME": "/"}, "/.local/state/mbx"),
    ],
)
def test_state_dir(env: dict[str, str], expected: str) -> None:
    assert places.state_dir(env, "/home/account") == expected


def test_state_dir_without_any_home_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="set HOME or MBX_STATE_DIR"):
        places.state_dir({}, "")
    with pytest.raises(ValueError, match="absolute"):
        places.state_dir({"MBX_STATE_DIR": "here"}, "/home/ann")


@pytest.mark.parametrize(
    ("env", "ours", "expected"),
    [
        ({**HOME, "MBX_SOCKET": "/sock", "XDG_RUNTIME_DIR": "/run/user/7"}, {"/run/user/7"}, "/sock"),
        ({**HOME, "XDG_RUNTIME_DIR": "/xdg"}, {"/xdg", "/run/user/7"}, "/xdg/mbx/mbxd.sock"),
        ({**HOME, "XDG_RUNTIME_DIR": "relative"}, {"relative"}, "/state/run/mbxd.sock"),
        ({**HOME, "XDG_RUNTIME_DIR": "/run/user/8"}, {"/run/user/7"}, "/run/user/7/mbx/mbxd.sock"),
        ({**HOME, "XDG_RUNTIME_DIR": "/run/user/8"}, set(), "/state/run/mbxd.sock"),
        (HOME, {"/run/user/7"}, "/run/user/7/mbx/mbxd.sock"),
        ({}, {"/run/user/7"}, "/run/user/7/mbx/mbxd.sock"),
        (HOME, set(), "/state/run/mbxd.sock"),
        ({"HOME": "/tmp/other"}, {"/run/user/7"}, "/state/run/mbxd.sock"),
        ({**HOME, "XDG_RUNTIME_DIR": "/xdg", "MBX_STATE_DIR": "/state"}, {"/xdg"}, "/state/run/mbxd.sock"),
    ],
)
def test_default_socket(env: dict[str, str], ours: set[str], expected: str) -> None:
    assert places.default_socket(env, 7, "/state", "/home/ann", ours.__contains__) == expected


def test_a_runtime_directory_that_is_missing_or_somebody_elses_counts_as_unset(tmp_path: Path) -> None:
    """That of the user whom `su` came from, or of the host of a container: the daemon and its clients agree."""
    runtime = tmp_path / "runtime"
    env = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(runtime)}
    inside = f"{tmp_path}/.local/state/mbx/run/mbxd.sock"
    assert (paths.resolve(env).socket, ground.find(env).socket) == (inside, inside)
    runtime.mkdir()
    assert (paths.resolve(env).socket, ground.find(env).socket) == (f"{runtime}/mbx/mbxd.sock",) * 2
    if os.geteuid() == 0:
        os.chown(runtime, 12345, -1)
    else:
        env["XDG_RUNTIME_DIR"] = "/"
    assert (paths.resolve(env).socket, ground.find(env).socket) == (inside, inside)


def test_config_path() -> None:
    assert places.config_path(HOME, "") == "/home/ann/.config/mbx/config.toml"
    assert places.config_path({**HOME, "XDG_CONFIG_HOME": "/c"}, "") == "/c/mbx/config.toml"
    assert places.config_path({**HOME, "XDG_CONFIG_HOME": "c"}, "") == "/home/ann/.config/mbx/config.toml"


def test_socket_path_is_counted_in_bytes() -> None:
    places.check_socket_path(b"x" * 107)
    with pytest.raises(ValueError, match="MBX_SOCKET"):
        places.check_socket_path("é".encode() * 54)
    with pytest.raises(ValueError, match="120 bytes"):
        paths.resolve({"MBX_SOCKET": "/" + "x" * 119, "HOME": "/h"})


def test_candidates_in_order_and_once(state: Path) -> None:
    where = paths.resolve({"MBX_STATE_DIR": str(state), "HOME": "/h"})
    default = str(state / "run" / "mbxd.sock")
    assert [c.path for c in paths.candidates(where)] == [default]
    (state / "daemon.json").write_text(json.dumps({"socket": "/elsewhere", "pid": 5, "ticks": 1, "version": "1"}))
    assert [c.path for c in paths.candidates(where)] == ["/elsewhere", default]
    explicit = paths.resolve({"MBX_STATE_DIR": str(state), "HOME": "/h", "MBX_SOCKET": "/mine"})
    assert [(c.path, c.explicit) for c in paths.candidates(explicit)] == [
        ("/mine", True),
        ("/elsewhere", False),
    ]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"socket": 5, "pid": 1}', '{"socket": "rel", "pid": 1}', "[" * 9999]
)
def test_bad_pointers_are_no_pointers(state: Path, text: str) -> None:
    (state / "daemon.json").write_text(text)
    assert paths.read_pointer(paths.resolve({"MBX_STATE_DIR": str(state)})) is None


def test_lock_decides_whose_daemon_it_is(state: Path) -> None:
    where = paths.resolve({"MBX_STATE_DIR": str(state)})
    candidate = paths.Candidate("/x", explicit=False)
    path = state / "mbxd.lock"
    assert paths.lock_matches(where, {"path": str(path), "device": 1, "inode": 1}, candidate)
    path.touch()
    found = path.stat()
    lock = {"path": "/mounted/elsewhere", "device": found.st_dev, "inode": found.st_ino}
    assert paths.lock_matches(where, lock, candidate)
    assert not paths.lock_matches(where, {**lock, "inode": found.st_ino + 1}, candidate)
    assert not paths.lock_matches(where, None, candidate)
    assert paths.lock_matches(where, None, paths.Candidate("/x", explicit=True))


def test_state_dir_is_private(tmp_path: Path) -> None:
    where = paths.resolve({"MBX_STATE_DIR": str(tmp_path / "a" / "b")})
    paths.ensure_state_dir(where)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "a" / "b").chmod(0o755)
    paths.ensure_state_dir(where)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    with pytest.raises(PermissionError, match="is a symbolic link: name the real directory"):
        paths.ensure_state_dir(paths.resolve({"MBX_STATE_DIR": str(tmp_path / "link")}))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's directory")
def test_root_makes_nothing_in_another_users_home(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to uid 12345"):
        paths.ensure_state_dir(paths.resolve({"MBX_STATE_DIR": str(tmp_path / "state")}))
    assert list(tmp_path.iterdir()) == []


def test_one_version() -> None:
    assert __version__ == daemon_version
