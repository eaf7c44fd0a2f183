"""Where the daemon keeps its things, as pure rules that the daemon and every client share.

Owns the paths of the state directory, the socket and the configuration. Never looks at the machine: the
caller brings the environment, the uid and the facts. Standard library only (it imports nothing at all).
"""

from __future__ import annotations

TYPE_CHECKING = False  # the idiom without `import typing`: the shim imports this module while it starts
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Protocol

    class Stat(Protocol):
        """What is asked of an `os.stat_result`."""

        @property
        def st_mode(self) -> int:
            """Type and permissions."""
            ...

        @property
        def st_uid(self) -> int:
            """Owner."""
            ...

        @property
        def st_gid(self) -> int:
            """Group."""
            ...

        @property
        def st_nlink(self) -> int:
            """Names it has."""
            ...


SOCKET_PATH_MAX_LINUX = 107
"""Longest socket path in bytes on Linux: sun_path has 108 bytes with its closing NUL, unix(7)."""
SOCKET_PATH_MAX_OTHER = 103
"""The same on macOS and the BSDs, where sun_path has 104 bytes."""

LOCK_NAME = "mbxd.lock"
START_LOCK_NAME = "start.lock"
POINTER_NAME = "daemon.json"
LOG_NAME = "mbxd.log"
KEY_NAME = "key"
MAIL_NAME = "mail.db"
ARCHIVE_NAME = "archive"
STOPPED_NAME = "stopped"
START_FAILED_NAME = "start.failed"
"""Names of files in the state directory."""

_S_IFMT, _S_IFREG, _S_IFDIR, _S_IFLNK = 0o170000, 0o100000, 0o040000, 0o120000
_KINDS = {
    0o010000: "a named pipe",
    0o020000: "a device",
    _S_IFDIR: "a directory",
    0o060000: "a device",
    _S_IFLNK: "a symbolic link",
    0o140000: "a socket",
}
"""File types in st_mode, inode(7)."""
_WRITABLE_BY_OTHERS, _STICKY = 0o022, 0o1000
_ELSEWHERE = "choose a place in a directory of yours (MBX_STATE_DIR, MBX_SOCKET)"
_LINKS_MAX = 40
"""As the kernel has it, path_resolution(7)."""

RUNS_ALREADY = "another mbxd runs already"
"""How the word of a daemon begins that ends because another one has the lock: no failure, but a race."""


def state_dir(env: Mapping[str, str], account_home: str) -> str:
    """The state directory: `$MBX_STATE_DIR`, else `$HOME/.local/state/mbx`; without HOME the account's home.

    XDG_STATE_HOME is not consulted: several agent CLIs strip it, and two daemons would follow.
    Raises ValueError for a relative `$MBX_STATE_DIR` and when no home is known.
    """
    chosen = env.get("MBX_STATE_DIR", "")
    if chosen:
        return _absolute(chosen, "MBX_STATE_DIR")
    return _home(env, account_home) + "/.local/state/mbx"


def default_socket(
    env: Mapping[str, str], uid: int, state_dir: str, account_home: str, is_ours: Callable[[str], bool]
) -> str:
    """The socket's path when nothing else is known of the daemon.

    `$MBX_SOCKET`; else, for the account's ordinary state directory, `$XDG_RUNTIME_DIR/mbx/mbxd.sock`, else
    `/run/user/<uid>/mbx/mbxd.sock` when HOME is the account's home; else `<state>/run/mbxd.sock`. A state
    directory chosen by `$MBX_STATE_DIR` keeps its socket inside: two state directories must never meet at one
    socket. `is_ours`: whether a path is a directory of this user; a runtime directory that is none counts as
    unset (su and containers hand over that of somebody else).
    Raises ValueError for a relative `$MBX_SOCKET`.
    """
    chosen = env.get("MBX_SOCKET", "")
    if chosen:
        return _absolute(chosen, "MBX_SOCKET")
    if not env.get("MBX_STATE_DIR"):
        runtime = env.get("XDG_RUNTIME_DIR", "")
        if runtime.startswith("/") and is_ours(runtime):
            return _trim(runtime) + "/mbx/mbxd.sock"
        run_user = f"/run/user/{uid}"
        if account_home and _home(env, account_home) == _trim(account_home) and is_ours(run_user):
            return f"{run_user}/mbx/mbxd.sock"
    return state_dir + "/run/mbxd.sock"


def config_path(env: Mapping[str, str], account_home: str) -> str:
    """The configuration file: `$XDG_CONFIG_HOME/mbx/config.toml`, else `~/.config/mbx/config.toml`."""
    base = env.get("XDG_CONFIG_HOME", "")
    if not base.startswith("/"):  # the XDG base directory specification: relative paths are ignored
        base = _home(env, account_home) + "/.config"
    return _trim(base) + "/mbx/config.toml"


def check_socket_path(path: bytes, limit: int = SOCKET_PATH_MAX_LINUX) -> None:
    """Raise ValueError when the path (in file system bytes) does not fit into a socket address."""
    if len(path) > limit:
        raise ValueError(
            f"the socket path has {len(path)} bytes and the system allows {limit}: "
            f"set MBX_SOCKET to a shorter path ({path.decode('utf-8', 'replace')})"
        )


def directory_problem(path: str, found: Stat, uid: int) -> str | None:
    """Why a directory of ours can't be used, with what to do about it; None when it is a private one.

    `found`: its lstat. That others may read it is no problem here: its owner closes it.
    """
    kind = found.st_mode & _S_IFMT
    if kind == _S_IFLNK:
        return f"{path} is a symbolic link: name the real directory instead"
    if kind != _S_IFDIR:
        return f"{path} is not a directory: move it away"
    if found.st_uid != uid:
        return f"{path} belongs to uid {found.st_uid}, not to you ({uid}): fix its owner with chown, or choose another"
    if found.st_mode & _WRITABLE_BY_OTHERS:
        mode = found.st_mode & 0o7777
        return f"{path} can be written by others (mode {mode:04o}): chmod 700 it after a look inside"
    return None


def file_problem(path: str, found: Stat, uid: int) -> str | None:
    """Why a file in a directory of ours can't be used, with what to do about it; None when it is a plain one of ours.

    `found`: fstat of the opened file. A second hard link means that somebody else's name leads to it, or that it is
    somebody else's file: whatever is written would be written there.
    """
    kind = found.st_mode & _S_IFMT
    if kind != _S_IFREG:
        return f"{path} is {_KINDS.get(kind, 'something else')}, not a plain file: move it away"
    if found.st_uid != uid:
        return f"{path} belongs to uid {found.st_uid}, not to you ({uid}): fix its owner with chown, or move it away"
    if found.st_nlink > 1:
        return (
            f"{path} has another name too (hard link): look whose file it is "
            f"(find / -xdev -samefile {path}), then replace it by a copy of its own"
        )
    return None


def parent_problem(
    path: str,
    uid: int,
    groups: Collection[int],
    lstat: Callable[[str], Stat],
    readlink: Callable[[str], str],
    trusted: Collection[int],
) -> str | None:
    """Why the way to an absolute path can't be trusted, with what to do about it; None when it can.

    Whoever may rename a directory on the way puts another in its place. So each must belong to `uid` or to one of
    `trusted` (root, and whoever stands for it in a user namespace), and be writable by nobody else: but for a sticky
    one such as /tmp, where only owners rename, and for one of the caller's own groups (`groups`: those that hold
    nobody else by custom). The last part of the path is not looked at; the way ends where nothing exists.
    """
    waiting = [part for part in path.split("/") if part][::-1]
    here, links = "", 0
    owners = {uid, *trusted}
    while waiting:
        at = here or "/"
        try:
            found = lstat(at)
        except OSError:
            return None
        if found.st_uid not in owners:
            whose = f"{at} belongs to uid {found.st_uid}, who can replace what is in it"
            return f"{whose}: run this as that user, or {_ELSEWHERE}"
        loose = found.st_mode & (_WRITABLE_BY_OTHERS if found.st_gid not in groups else 0o002)
        if loose and not found.st_mode & _STICKY:
            mode = found.st_mode & 0o7777
            return (
                f"{at} can be written by others (mode {mode:04o}), who can replace what is in it: "
                f"chmod go-w it, or {_ELSEWHERE}"
            )
        part = waiting.pop()
        if part == ".":
            continue
        if part == "..":
            here = here.rpartition("/")[0]
            continue
        step = f"{here}/{part}"
        if not waiting:
            return None
        try:
            found = lstat(step)
        except OSError:
            return None
        if found.st_mode & _S_IFMT != _S_IFLNK:
            here = step
            continue
        links += 1
        if found.st_uid not in owners:
            return f"{step} is a symbolic link of uid {found.st_uid}: {_ELSEWHERE}"
        if links > _LINKS_MAX:
            return f"{step} leads through too many symbolic links"
        target = readlink(step)
        if target.startswith("/"):
            here = ""
        waiting += [part for part in target.split("/") if part][::-1]
    return None


def roots(uid_map: str, overflow: str) -> frozenset[int]:
    """The uids that stand for root here: 0, and in a user namespace the one that all unmapped users show as.

    Contents of /proc/self/uid_map and /proc/sys/kernel/overflowuid, user_namespaces(7); "" where there are none.
    """
    everybody = uid_map.split() == ["0", "0", "4294967295"]
    if everybody or not uid_map:
        return frozenset({0})
    number = overflow.strip()
    return frozenset({0, int(number) if number.isascii() and number.isdigit() and len(number) < 11 else 65534})


def _home(env: Mapping[str, str], account_home: str) -> str:
    home = env.get("HOME", "")
    if not home.startswith("/"):  # unset, empty or relative: no home that two processes would agree on
        home = account_home
    if not home.startswith("/"):
        raise ValueError("no home directory is known: set HOME or MBX_STATE_DIR")
    return _trim(home) if _trim(home) != "/" else ""


def _absolute(path: str, variable: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"{variable} must be an absolute path, not {path!r}")
    return _trim(path)


def _trim(path: str) -> str:
    return path.rstrip("/") or "/"
