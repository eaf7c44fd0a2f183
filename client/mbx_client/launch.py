"""Starting a daemon that outlives its starter and takes nothing from it.

Owns start.lock, the stamp of a failed start, the mark that `mbxctl stop` leaves, and the daemon's fixed
environment. Never decides whether a daemon runs: the daemon's own lock does. Never signals anything.
Standard library only.

A start forks twice: the first child leaves the starter's session and process group and ends at once; the
second, the supervisor, holds start.lock, looks for a daemon, starts one and passes its word on readiness on.
The starter only reads a pipe, so an event loop can wait for it. Call it from a single-threaded process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import sys
import time

from mbx_client import paths
from mbx_wire import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

RETRY_AFTER = 10.0
"""Seconds after a failed start in which none is tried again."""
READY_TIMEOUT = 20.0
"""Seconds that a supervisor waits for its daemon; a slower one goes on starting without being watched."""
LOCK_TIMEOUT = 25.0
"""Seconds that a supervisor waits for another starter."""
LOG_MAX = 1024 * 1024
"""Bytes of mbxd.log beyond which a start sets it aside as mbxd.log.1."""
READY_FD_VARIABLE = "MBXD_READY_FD"
"""Names the descriptor on which the daemon writes one line: `ready`, or `error: <text>`."""

_SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/opt/homebrew/bin:/run/current-system/sw/bin"
_KEPT = ("HOME", "USER", "LOGNAME", "MBX_STATE_DIR", "MBX_SOCKET", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME")
"""Variables that say who the user is and where the daemon's places are; all else belongs to one session."""


class StartFailed(Exception):
    """No daemon was started; the text says why and what to do."""


class Launch:
    """A start under way. `fd` becomes readable when there is an answer; then call `result`."""

    __slots__ = ("_text", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._text = b""

    def result(self) -> str | None:
        """None while it is under way, "" when a daemon is ready, else why there is none. Then `fd` is closed."""
        piece = os.read(self.fd, 4096)
        self._text += piece
        if piece and b"\n" not in self._text:
            return None
        self.close()
        line = self._text.partition(b"\n")[0].decode("utf-8", "replace").strip()
        if line == "ready":
            return ""
        return line.removeprefix("error:").strip() or "the daemon ended before it was ready"

    def close(self) -> None:
        """Stop waiting; the start goes on by itself."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def begin(where: paths.Places) -> Launch:
    """Begin to start a daemon, unless one answers by then. Never waits. Raises OSError when it can't fork."""
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        child = os.fork()
    except OSError:
        os.close(read_end)
        os.close(write_end)
        raise
    if child == 0:
        _leave_then_supervise(where, write_end)
    os.close(write_end)
    os.waitpid(child, 0)  # it ends as soon as it has forked
    return Launch(read_end)


def start(where: paths.Places, timeout: float) -> None:
    """Start a daemon and wait for it, at most `timeout` seconds. Raises StartFailed."""
    try:
        launch = begin(where)
    except OSError as bad:
        raise StartFailed(f"can't start a process: {bad}") from bad
    try:
        deadline = time.monotonic() + timeout
        poll = select.poll()
        poll.register(launch.fd, select.POLLIN)
        while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            result = launch.result()
            if result is not None:
                if result:
                    raise StartFailed(result)
                return
        raise StartFailed(f"not ready after {timeout:g} s; see {where.file(places.LOG_NAME)}")
    finally:
        launch.close()


def recent_failure(where: paths.Places) -> str | None:
    """Why the last start failed, when that was less than RETRY_AFTER ago, else None."""
    path = where.file(places.START_FAILED_NAME)
    try:
        age = time.time() - os.stat(path).st_mtime
        if not 0 <= age < RETRY_AFTER:  # a stamp from the future is a clock that was set back, not a failure now
            return None
        with open(paths.open_own(path, os.O_RDONLY), encoding="utf-8", errors="replace") as file:
            return file.read(2000).strip() or "the last start failed"
    except OSError:
        return None


def is_stopped(where: paths.Places) -> bool:
    """Whether `mbxctl stop` stopped the daemon for good since the last boot."""
    try:
        with open(
            paths.open_own(where.file(places.STOPPED_NAME), os.O_RDONLY), encoding="ascii", errors="replace"
        ) as file:
            return file.read(200).strip() == paths.boot_id()
    except OSError:
        return False


def wait_settled(where: paths.Places, timeout: float) -> bool:
    """Wait until no start is under way, at most `timeout` seconds; whether that is so. Creates nothing."""
    try:
        lock = paths.open_own(where.file(places.START_LOCK_NAME), os.O_RDWR)
    except OSError:
        return True  # nobody has ever started one here
    try:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                select.select([], [], [], 0.05)
            else:
                return True
        return False
    finally:
        os.close(lock)


def mark_stopped(where: paths.Places) -> None:
    """Leave the mark that shims obey: no daemon until `start`, `restart` or a reboot."""
    _write(where.file(places.STOPPED_NAME), paths.boot_id())


def clear_marks(where: paths.Places) -> None:
    """Take back the mark and the stamp of a failed start: the user asks for a daemon now."""
    for name in (places.STOPPED_NAME, places.START_FAILED_NAME):
        _remove(where.file(name))


def _leave_then_supervise(where: paths.Places, pipe: int) -> NoReturn:
    """In the first child. Ends without Python's clean-up, which belongs to the starter."""
    try:
        os.setsid()
        if os.fork() == 0:
            _supervise(where, pipe)
    finally:
        os._exit(0)


def _supervise(where: paths.Places, pipe: int) -> None:
    import signal

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    try:
        # Wherever our descriptors lead, somebody waits for their end: keep the pipe alone.
        pipe = _only(pipe)
        os.chdir("/")
        os.umask(0o077)
        paths.ensure_state_dir(where)
        answer = _start_locked(where)
    except BaseException as bad:  # whatever it was: the starter must hear of it
        answer = f"error: can't start the daemon: {bad}"
    line = " ".join(answer.split())[:2000] + "\n"
    with contextlib.suppress(OSError):  # the starter may be gone; the daemon is there all the same
        os.write(pipe, line.encode("utf-8", "replace"))


def _only(keep: int) -> int:
    """Close every descriptor but one, which becomes 3; 0, 1 and 2 lead nowhere."""
    if keep != 3:
        os.dup2(keep, 3, inheritable=False)
    os.closerange(4, _highest_fd() + 1)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    if null > 3:
        os.close(null)
    return 3


def _highest_fd() -> int:
    try:
        return max(int(name) for name in os.listdir("/dev/fd"))
    except (OSError, ValueError):
        return int(os.sysconf("SC_OPEN_MAX"))


def _start_locked(where: paths.Places) -> str:
    lock = paths.open_own(where.file(places.START_LOCK_NAME), os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                return "error: another start is under way and does not end"
            select.select([], [], [], 0.05)
    if is_stopped(where):  # `mbxctl stop` came while this start was waiting
        return "error: the daemon was stopped with mbxctl stop"
    if _somebody_listens(where):
        return "ready"
    failure = recent_failure(where)
    if failure is not None:
        return f"error: {failure}"
    answer = _run_or_join(where)
    if answer == "ready":
        _remove(where.file(places.START_FAILED_NAME))
    elif answer != _SLOW and not _lost_race(answer):
        _write(where.file(places.START_FAILED_NAME), answer.removeprefix("error:").strip())
    return answer


_SLOW = f"error: the daemon is not ready after {READY_TIMEOUT:g} s and goes on starting; try again"


def _run_or_join(where: paths.Places) -> str:
    """Run a daemon. One that a service manager is starting, or that is about to end, has the lock: wait for it."""
    deadline = time.monotonic() + READY_TIMEOUT
    pause = 0.2
    while True:
        answer = _run_daemon(where)
        if not _lost_race(answer):
            return answer
        again = time.monotonic() + pause
        while time.monotonic() < again:
            if _somebody_listens(where):
                return "ready"
            select.select([], [], [], 0.05)
        if time.monotonic() > deadline or is_stopped(where):
            return answer
        pause = min(pause * 2, 5.0)


def _lost_race(answer: str) -> bool:
    return answer.startswith(f"error: {places.RUNS_ALREADY}")


def _somebody_listens(where: paths.Places) -> bool:
    from mbx_client import dial

    for candidate in paths.candidates(where):
        try:
            dial.connect(candidate.path, 1).close()
        except OSError as bad:
            if dial.reason(bad) != dial.BUSY:  # busy is not gone
                continue
        return True
    return False


def _run_daemon(where: paths.Places) -> str:
    read_end, write_end = os.pipe()
    log = _open_log(where.file(places.LOG_NAME))
    child = os.fork()
    if child == 0:
        try:
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.set_inheritable(write_end, True)
            environment = daemon_environment(os.environ, write_end)
            os.execve(sys.executable, daemon_command(), environment)  # noqa: S606 - no shell is the point
        finally:
            os.write(2, b"mbxd: exec failed\n")
            os._exit(127)
    os.close(write_end)
    os.close(log)
    text = b""
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    deadline = time.monotonic() + READY_TIMEOUT
    while b"\n" not in text:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return _SLOW
        piece = os.read(read_end, 4096)
        if not piece:
            break
        text += piece
    line = text.partition(b"\n")[0].decode("utf-8", "replace").strip()
    return line or f"error: the daemon ended before it was ready; see {where.file(places.LOG_NAME)}"


def daemon_command() -> list[str]:
    """The running interpreter with the installed package; -P keeps the working directory out of its imports."""
    return [sys.executable, "-P", "-m", "mbxd"]


def daemon_environment(env: Mapping[str, str], ready_fd: int) -> dict[str, str]:
    """The fixed environment: who the user is and where things are, nothing of the session that starts it."""
    kept = {name: env[name] for name in _KEPT if env.get(name)}
    roots = [root for root in env.get("PYTHONPATH", "").split(os.pathsep) if _holds_us(root)]
    if roots:  # a checkout that is not installed
        kept["PYTHONPATH"] = os.pathsep.join(roots)
    return {**kept, "PATH": _SEARCH_PATH, "LANG": "C.UTF-8", READY_FD_VARIABLE: str(ready_fd)}


def _holds_us(root: str) -> bool:
    return os.path.isabs(root) and any(
        os.path.isfile(f"{root}/{package}/__init__.py") for package in ("mbxd", "mbx_wire")
    )


def _open_log(path: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_size > LOG_MAX:
            os.replace(path, path + ".1")
    return paths.open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _write(path: str, text: str) -> None:
    temporary = f"{path}.{os.getpid()}"
    fd = paths.open_own(temporary, os.O_WRONLY | os.O_CREAT)
    try:
        try:
            os.ftruncate(fd, 0)  # only now: what is not ours is left alone
            os.write(fd, text.encode("utf-8", "replace") + b"\n")
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError:
        _remove(temporary)
        raise


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
