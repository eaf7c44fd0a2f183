"""The ground the daemon stands on: its directories, their owner and modes, its socket's place.

Owns every check of the file system before the daemon trusts it. Refuses with one clear line; never repairs
what belongs to somebody else. See unix(7), and the spec of the state directory in docs/architecture.md.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import socket
import stat
from collections.abc import Mapping
from typing import NamedTuple

from mbx_wire import places

NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "drvfs", "afs", "ceph", "fuse.sshfs"})


class Unfit(Exception):
    """The daemon can't stand here; the text is one line that says why and what to do."""


class Ground(NamedTuple):
    """Where this daemon lives. All paths are absolute."""

    state_dir: str
    socket: str
    config: str

    def file(self, name: str) -> str:
        """A file in the state directory."""
        return f"{self.state_dir}/{name}"


def find(env: Mapping[str, str]) -> Ground:
    """The places by the shared rules. Raises Unfit for an environment that names none."""
    uid = os.getuid()
    home = _account_home(uid)
    try:
        state = places.state_dir(env, home)
        sock = places.default_socket(env, uid, state, home, _is_ours)
        return Ground(state, sock, places.config_path(env, home))
    except ValueError as error:
        raise Unfit(str(error)) from None


def prepare_state(ground: Ground, env: Mapping[str, str]) -> None:
    """Make the state directory, or check the one that is there."""
    path = ground.state_dir
    _check_way(path, "the state directory")
    if not os.path.lexists(path):
        _refuse_foreign_home(env, path)
        _make(path)
    _check_private(path, "the state directory")
    kind = _file_system(path)
    if kind in NETWORK_FILE_SYSTEMS:
        raise Unfit(
            f"{path} is on a network file system ({kind}), where locks can't be trusted: "
            "set MBX_STATE_DIR to a local directory"
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise Unfit(f"{path} is not writable: check its owner and mode")


def inspect_state(ground: Ground) -> None:
    """Check the state directory, if there is one, and change nothing. Raises Unfit."""
    _check_way(ground.state_dir, "the state directory")
    if os.path.lexists(ground.state_dir):
        _check_private(ground.state_dir, "the state directory", close=False)


def bind(ground: Ground) -> socket.socket:
    """Bind and listen. A stale socket of ours is replaced: the caller holds the daemon's lock, so nobody serves it."""
    path = ground.socket
    try:
        places.check_socket_path(os.fsencode(path))
    except ValueError as error:
        raise Unfit(str(error)) from None
    directory = os.path.dirname(path)
    _check_way(directory, "the socket's directory")
    if not os.path.lexists(directory):
        _make(directory)
    _check_private(directory, "the socket's directory")
    _clear_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    before = os.umask(0o177)
    try:
        sock.bind(path)
        sock.listen(1024)
    except OSError as error:
        sock.close()
        raise Unfit(f"can't bind {path}: {error.strerror}; set MBX_SOCKET to a path on a local file system") from error
    finally:
        os.umask(before)
    return sock


def _clear_stale(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.getuid():
        raise Unfit(f"{path} is in the way and is no socket of yours: move it away")
    if _is_served(path):
        # Our lock is held, so whoever listens there serves another state directory: two would take turns for ever.
        raise Unfit(f"{path} is served by a daemon of another state directory: set MBX_SOCKET, or stop that one")
    os.unlink(path)


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError as error:
            return error.errno in {errno.EAGAIN, errno.ETIMEDOUT} or isinstance(error, TimeoutError)
        return True


def _make(path: str) -> None:
    try:
        parent = os.path.dirname(path)
        if not os.path.isdir(parent):
            os.makedirs(parent, mode=0o700)
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    except OSError as error:
        raise Unfit(f"can't make {path}: {error.strerror}") from error


def _check_way(path: str, what: str) -> None:
    """Refuse a place that somebody else could exchange for another one."""
    trusted = places.roots(_contents("/proc/self/uid_map"), _contents("/proc/sys/kernel/overflowuid"))
    groups = {0, os.getgid()}
    with contextlib.suppress(KeyError):
        groups.add(pwd.getpwuid(os.getuid()).pw_gid)  # after newgrp the process has another one
    problem = places.parent_problem(path, os.getuid(), groups, os.lstat, os.readlink, trusted)
    if problem is not None:
        raise Unfit(f"{what} {path} is not safe: {problem}")


def _check_private(path: str, what: str, *, close: bool = True) -> None:
    found = os.lstat(path)
    problem = places.directory_problem(path, found, os.getuid())
    if problem is not None:
        raise Unfit(f"{what} {problem}")
    if close and found.st_mode & 0o077:
        os.chmod(path, 0o700)  # ours, and only readable too widely


def _contents(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read(4096)
    except OSError:
        return ""


def _refuse_foreign_home(env: Mapping[str, str], path: str) -> None:
    home = env.get("HOME", "")
    if not path.startswith(f"{home}/") or not home.startswith("/"):
        return
    try:
        owner = os.stat(home).st_uid
    except OSError as error:
        raise Unfit(f"HOME is {home}: {error.strerror}") from error
    if owner != os.geteuid():
        raise Unfit(
            f"HOME ({home}) belongs to uid {owner}, but this runs as uid {os.geteuid()}: "
            "run it as that user, not through sudo"
        )


def _is_ours(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _account_home(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return ""


def _file_system(path: str) -> str:
    """The type of the file system of a path, from proc(5) mountinfo; "" where that can't be read."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split(" ") for line in file]
    except OSError:
        return ""
    real, best, kind = os.path.realpath(path), -1, ""
    for fields in mounts:
        point = fields[4].encode("latin-1", "replace").decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best and "-" in fields:
            best, kind = len(point), fields[fields.index("-") + 1]
    return kind
