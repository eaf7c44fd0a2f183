"""doctor's checks of the machine and of what lies on disk: platform, home, state directory, owners, space.

Each check returns findings and reads only. Paths come in as arguments; nothing here talks to a daemon.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mbx_client import paths
from mbx_wire import places

_WALK_LIMIT = 20_000
"""Entries looked at below the state directory: an archive can be large, and doctor should answer at once."""
_SHOWN = 5
_LOW_SPACE = 64 * 1024 * 1024
"""Bytes; the registry preallocates its next segment."""
_SOCKET_PATH_MAX = 103 if sys.platform == "darwin" else 107
"""unix(7): sun_path holds 108 bytes with its end on Linux, 104 on macOS."""


class Finding(NamedTuple):
    """One finding. level: ok, note (worth knowing), warn (weaker than it could be), fail (does not work)."""

    level: str
    check: str
    message: str
    fix: str | None = None


def platform() -> Finding:
    """Which evidence of a process's death this machine gives."""
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    if sys.platform == "darwin":
        words = "macOS has no pidfd: deaths are seen by a sweep every 2 s, and a reused pid by its start time alone"
        return Finding("warn", "platform", f"{python}; {words}")
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return Finding("warn", "platform", f"{python} has no os.pidfd_open: deaths are seen by a sweep every 2 s")
    try:
        descriptor = opener(os.getpid())
    except OSError as error:
        why = errno.errorcode.get(error.errno or 0, str(error))
        return Finding(
            "warn",
            "platform",
            f"{python}; pidfd_open fails ({why}): deaths are seen by a sweep every 2 s",
            "Linux 5.3 or newer, and a sandbox that allows pidfd_open",
        )
    os.close(descriptor)
    return Finding(
        "ok",
        "platform",
        f"{python}, Linux {os.uname().release}: deaths are seen at once by pidfd{_kernel_weakness()}",
    )


def _kernel_weakness() -> str:
    major, minor = (int("".join(filter(str.isdigit, part)) or 0) for part in os.uname().release.split(".")[:2])
    if (major, minor) < (6, 5):
        return "; before 6.5 a peer is found by its pid, checked twice"
    return "; before 6.9 a restart tells reused pids by start ticks alone" if (major, minor) < (6, 9) else ""


def home() -> Finding:
    """HOME decides the place of the state: another user's HOME (sudo) would make root-owned files in it."""
    path = os.environ.get("HOME", "")
    if not path or not Path(path).is_absolute():
        return Finding("fail", "home", "HOME is not set to an absolute path", "export HOME, or set MBX_STATE_DIR")
    try:
        owner = Path(path).stat().st_uid
    except OSError as error:
        return Finding("fail", "home", f"HOME is unreadable: {error}", "export the right HOME, or set MBX_STATE_DIR")
    if owner != os.geteuid():
        message = f"HOME ({path}) belongs to uid {owner}, you are uid {os.geteuid()}"
        return Finding("fail", "home", message, "run as yourself, without sudo")
    return Finding("ok", "home", path)


def state_dir(path: str) -> list[Finding]:
    """Existence, kind, owner and mode of the state directory, and owners of all below it."""
    try:
        place = Path(path).stat()
    except FileNotFoundError:
        return [Finding("note", "state", f"{path} does not exist yet; the first start makes it")]
    except OSError as error:
        return [Finding("fail", "state", f"{path} is unreadable: {error}", f"ls -ld {shlex.quote(path)}")]
    problem = paths.way_problem(path) or places.directory_problem(path, Path(path).lstat(), os.geteuid())
    if problem is not None:
        said, _, fix = problem.rpartition(": ")
        return [Finding("fail", "state", said, fix)]
    findings = [*_private("state", path, place), *_foreign(path), *_space(path)]
    return findings or [Finding("ok", "state", f"{path}, private and yours")]


def _private(check: str, path: str, place: os.stat_result) -> Iterator[Finding]:
    if place.st_uid == os.geteuid() and place.st_mode & 0o077:
        message = f"{path} can be entered by others (mode {stat.S_IMODE(place.st_mode):04o})"
        yield Finding("fail", check, message, f"chmod 700 {shlex.quote(path)}")


def _foreign(path: str) -> Iterator[Finding]:
    wrong = [entry for entry, uid in _owners(path) if uid != os.geteuid()]
    if wrong:
        shown = ", ".join(wrong[:_SHOWN]) + (f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else "")
        fix = f"sudo chown -R {os.geteuid()}:{os.getegid()} {shlex.quote(path)}"
        yield Finding("fail", "owners", f"not yours: {shown}", fix)


def _owners(path: str) -> Iterator[tuple[str, int]]:
    yield path, Path(path).stat().st_uid
    seen = 0
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            seen += 1
            if seen > _WALK_LIMIT:
                return
            entry = Path(folder, name)
            try:
                yield str(entry), entry.lstat().st_uid
            except OSError:
                continue  # removed while we looked


def _space(path: str) -> Iterator[Finding]:
    numbers = os.statvfs(path)
    free = numbers.f_bavail * numbers.f_frsize
    if free < _LOW_SPACE:
        message = f"only {free // 1024} KiB are free on the disk of {path}: changes will be refused as DISK_FULL"
        yield Finding("warn", "space", message, "free some space")


def socket_path(path: str) -> list[Finding]:
    """Length of the socket's path, its directory, and what lies there."""
    size = len(os.fsencode(path))
    if size > _SOCKET_PATH_MAX:
        message = f"{path} has {size} bytes, a socket's path at most {_SOCKET_PATH_MAX}"
        return [Finding("fail", "socket", message, "set MBX_SOCKET to a shorter path in a directory of yours")]
    findings: list[Finding] = []
    try:
        folder = Path(path).parent.stat()
    except OSError:
        return [Finding("note", "socket", f"{path} is not there; the daemon makes it")]
    if folder.st_uid != os.geteuid():
        message = f"the directory of {path} belongs to uid {folder.st_uid}"
        findings.append(Finding("fail", "socket", message, "set MBX_SOCKET to a path in a directory of yours"))
    findings += _private("socket", str(Path(path).parent), folder)
    try:
        place = Path(path).lstat()
    except OSError:
        return [*findings, Finding("note", "socket", f"{path} is not there; the daemon makes it")]
    if not stat.S_ISSOCK(place.st_mode):
        findings.append(Finding("fail", "socket", f"{path} is no socket", f"mv {shlex.quote(path)} elsewhere"))
    elif place.st_uid != os.geteuid():
        findings.append(Finding("fail", "socket", f"{path} belongs to uid {place.st_uid}", "set MBX_SOCKET elsewhere"))
    elif place.st_mode & 0o077:
        message = f"{path} is open to others (mode {stat.S_IMODE(place.st_mode):04o})"
        findings.append(Finding("fail", "socket", message, f"chmod 600 {shlex.quote(path)}"))
    return findings or [Finding("ok", "socket", path)]


def config(path: str) -> Finding:
    """Whether the configuration file can be read as TOML; its values are the daemon's to judge."""
    import tomllib

    try:
        with open(path, "rb", opener=paths.without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return Finding("fail", "config", f"{path} is not a file: defaults apply", f"move {path} away")
            tomllib.loads(file.read(1024 * 1024).decode())
    except FileNotFoundError:
        return Finding("ok", "config", f"{path} is not there: defaults apply")
    except (OSError, ValueError, RecursionError) as error:
        return Finding(
            "fail", "config", f"{path} can't be read, defaults or older values apply: {error}", f"mend {path}"
        )
    return Finding("ok", "config", path)
