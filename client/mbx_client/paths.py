"""Where this user's daemon is, seen from a client.

Owns the facts that `mbx_wire.places` needs, the reading of `daemon.json`, the order in which sockets are
tried, and the check that a daemon belongs to this state directory. Creates nothing but, on request, the
state directory. Standard library only.
"""

from __future__ import annotations

import os
import stat
import sys

from mbx_wire import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any


class Places:
    """Resolved places of one environment.

    state: the state directory. socket: the socket's rule-given path. explicit: it came from $MBX_SOCKET.
    config: the configuration file. Nothing of it needs to exist.
    """

    __slots__ = ("config", "explicit", "socket", "state")

    def __init__(self, state: str, socket: str, config: str, *, explicit: bool = False) -> None:
        self.state = state
        self.socket = socket
        self.config = config
        self.explicit = explicit

    def file(self, name: str) -> str:
        """Path of a file of the state directory, by its name in `mbx_wire.places`."""
        return f"{self.state}/{name}"


class Candidate:
    """A socket to try. explicit: the user named it, so it need not belong to the state directory."""

    __slots__ = ("explicit", "path")

    def __init__(self, path: str, *, explicit: bool) -> None:
        self.path = path
        self.explicit = explicit


def resolve(env: Mapping[str, str] | None = None) -> Places:
    """The places of an environment (default: this process's). Raises ValueError with words for the user."""
    env = os.environ if env is None else env
    uid = os.getuid()
    home = account_home(uid)
    state = places.state_dir(env, home)
    socket = places.default_socket(env, uid, state, home, _is_ours)
    limit = places.SOCKET_PATH_MAX_LINUX if sys.platform == "linux" else places.SOCKET_PATH_MAX_OTHER
    places.check_socket_path(os.fsencode(socket), limit)
    return Places(state, socket, places.config_path(env, home), explicit=bool(env.get("MBX_SOCKET")))


def account_home(uid: int) -> str:
    """The home directory of the account, or "" for an account without an entry (containers)."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return ""


def candidates(where: Places) -> list[Candidate]:
    """Sockets in the order in which they are tried: $MBX_SOCKET, daemon.json, the rule; each once."""
    found: dict[str, Candidate] = {}
    if where.explicit:
        found[where.socket] = Candidate(where.socket, explicit=True)
    pointer = read_pointer(where)
    if pointer is not None:
        found.setdefault(pointer["socket"], Candidate(pointer["socket"], explicit=False))
    found.setdefault(where.socket, Candidate(where.socket, explicit=where.explicit))
    return list(found.values())


def read_pointer(where: Places) -> dict[str, Any] | None:
    """`daemon.json` {socket, pid, ticks, version}, or None when it is missing or no such object."""
    import json

    try:
        with open(open_own(where.file(places.POINTER_NAME), os.O_RDONLY), "rb") as file:
            value = json.loads(file.read(65536))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("socket"), str):
        return None
    if not value["socket"].startswith("/") or not isinstance(value.get("pid"), int):
        return None
    return value


def lock_matches(where: Places, lock: Any, candidate: Candidate) -> bool:
    """Whether the daemon behind a socket owns this state directory, by the lock file that `hello` names.

    A socket that the user named need not: it may come from outside a container. Without a lock file here
    (a state directory that was removed) the path alone decides.
    """
    if candidate.explicit:
        return True
    if not isinstance(lock, dict):
        return False
    ours = where.file(places.LOCK_NAME)
    try:
        found = os.stat(ours)
    except OSError:
        return bool(lock.get("path") == ours)
    return lock.get("device") == found.st_dev and lock.get("inode") == found.st_ino


def boot_id() -> str:
    """This boot's id, or "" where the system has none. Linux: random(4); macOS: the time of the boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def check(where: Places) -> None:
    """Refuse a state directory that another user could have made, filled or exchanged. Raises ValueError with words
    for the user. One that is not there is fine; nothing is changed.
    """
    problem = way_problem(where.state)
    if problem is None:
        try:
            problem = places.directory_problem(where.state, os.lstat(where.state), os.geteuid())
        except OSError:
            return
    if problem is not None:
        raise ValueError(f"the state directory is not safe to use: {problem}")


def way_problem(path: str) -> str | None:
    """`places.parent_problem` of this process."""
    groups = (0, os.getgid())
    problem = _parent_problem(path, groups, (0,))
    if problem is not None:
        # Who is root in a user namespace, and the account's group under another (newgrp), are worth a look only now.
        roots = places.roots(_contents("/proc/self/uid_map"), _contents("/proc/sys/kernel/overflowuid"))
        problem = _parent_problem(path, (*groups, *_account_group(os.getuid())), roots)
    return problem


def _parent_problem(path: str, groups: Collection[int], trusted: Collection[int]) -> str | None:
    return places.parent_problem(path, os.geteuid(), groups, os.lstat, os.readlink, trusted)


def _account_group(uid: int) -> tuple[int, ...]:
    import pwd

    try:
        return (pwd.getpwuid(uid).pw_gid,)
    except KeyError:
        return ()


def open_own(path: str, flags: int) -> int:
    """Open a file of the state directory: a plain one of ours, else PermissionError with words for the user.

    Links are not followed and pipes not waited for. Raises the OSError of open(2) too.
    """
    fd = None
    try:
        # O_NONBLOCK means nothing to a plain file.
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0o600)
        found = os.fstat(fd)
    except FileNotFoundError:
        raise
    except OSError:  # what can't be opened at all may be a link, a socket, a directory
        found = os.lstat(path)
        if places.file_problem(path, found, os.geteuid()) is None:
            raise
    problem = places.file_problem(path, found, os.geteuid())
    if problem is None and fd is not None:
        return fd
    if fd is not None:
        os.close(fd)
    raise PermissionError(problem)


def without_waiting(path: str, flags: int) -> int:
    """An opener for open(): does not wait for a pipe's other end. It means nothing to a plain file."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _contents(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read(4096)
    except OSError:
        return ""


def ensure_state_dir(where: Places) -> None:
    """Make the state directory (0700) or check the one that is there. Raises OSError with words for the user.

    Root does not make one inside another user's home: later runs of that user would fail on it.
    """
    problem = way_problem(where.state)
    if problem is not None:
        raise PermissionError(problem)
    ancestor = where.state
    while not os.path.lexists(ancestor):
        ancestor = os.path.dirname(ancestor)
    owner = os.stat(ancestor).st_uid
    me = os.geteuid()
    if me == 0 and owner != 0:
        raise PermissionError(
            f"{ancestor} belongs to uid {owner}: run this as that user, or set MBX_STATE_DIR to a directory of root's"
        )
    os.makedirs(where.state, mode=0o700, exist_ok=True)
    found = os.lstat(where.state)
    problem = places.directory_problem(where.state, found, me)
    if problem is not None:
        raise PermissionError(problem)
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(where.state, 0o700)


def _is_ours(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
