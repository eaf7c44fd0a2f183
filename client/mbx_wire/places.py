"""Where the daemon keeps its things, as pure rules that the daemon and every client share.

Owns the paths of the state directory, the socket and the configuration. Never looks at the machine: the
caller brings the environment, the uid and the facts. Standard library only (it imports nothing at all).
"""

from __future__ import annotations

TYPE_CHECKING = False  # the idiom without `import typing`: the shim imports this module while it starts
if TYPE_CHECKING:
    from collections.abc import Mapping

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


def default_socket(env: Mapping[str, str], uid: int, state_dir: str, account_home: str, run_user_ok: bool) -> str:
    """The socket's path when nothing else is known of the daemon.

    `$MBX_SOCKET`; else, for the account's ordinary state directory, `$XDG_RUNTIME_DIR/mbx/mbxd.sock`, else
    `/run/user/<uid>/mbx/mbxd.sock` when `run_user_ok` (that directory exists and is ours) and HOME is the
    account's home; else `<state>/run/mbxd.sock`. A state directory chosen by `$MBX_STATE_DIR` keeps its
    socket inside: two state directories must never meet at one socket.
    Raises ValueError for a relative `$MBX_SOCKET`.
    """
    chosen = env.get("MBX_SOCKET", "")
    if chosen:
        return _absolute(chosen, "MBX_SOCKET")
    if not env.get("MBX_STATE_DIR"):
        runtime = env.get("XDG_RUNTIME_DIR", "")
        if runtime.startswith("/"):
            return _trim(runtime) + "/mbx/mbxd.sock"
        if run_user_ok and account_home and _home(env, account_home) == _trim(account_home):
            return f"/run/user/{uid}/mbx/mbxd.sock"
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
