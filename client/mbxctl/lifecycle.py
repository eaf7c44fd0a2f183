"""`status`, `start`, `stop` and `restart`: the daemon as a process.

Owns the order of stopping (systemd's user manager, the frozen `stop`, SIGTERM by the lock file) and the mark
that a stop leaves. Names are never touched: they are in the registry's log, and a restart replays it.
"""

from __future__ import annotations

from typing import Any

from mbx_client import launch, paths
from mbx_wire import places
from mbx_wire.errors import Code
from mbx_wire.versions import order
from mbxctl import link, lockfile, service
from mbxctl.failure import Failure
from mbxctl.render import Output, ago, count, duration

_STOP_S = 15.0
"""The daemon drains for a few seconds at most; systemd's TimeoutStopSec is the same."""


def run_status(out: Output) -> int:
    """The daemon's version, place and figures, and what a restart would do. Exit 69 when none runs."""
    where = link.places()
    installed = link.installed_version()
    try:
        status = link.frozen("status")
    except Failure as failure:
        failure.extra = {
            "running": False,
            "pid": None,
            "installed_version": installed,
            "stopped": launch.is_stopped(where),
        }
        raise
    restart = _restart_would(status, installed)
    if out.json:
        out.document({**status, "running": True, "installed_version": installed, "restart": restart})
        return 0
    for key, value in _facts(status, installed):
        out.data(f"{key + ':':<11} {value}")
    out.data(f"{'restart:':<11} {restart['would']}")
    for reason in status.get("degraded", []):
        out.talk(f"warning: {reason}")
    return 0


_FIGURES = (
    ("identities", "identity", "identities"),
    ("held", "held", "held"),
    ("sessions", "session", "sessions"),
    ("connections", "connection", "connections"),
)


def _facts(status: dict[str, Any], installed: str) -> list[tuple[str, str]]:
    # An older daemon may know fewer figures: the frozen answer only grows.
    figures = [count(status[key], one, many) for key, one, many in _FIGURES if key in status]
    uptime = f", up {duration(status['uptime_s'])}" if "uptime_s" in status else ""
    started = f" since {status['started_at']} ({ago(status['started_at'])})" if "started_at" in status else ""
    config = status.get("config_error")
    facts = [
        ("running", f"mbxd {status.get('version', '?')}, pid {status['pid']}{started}{uptime}"),
        ("installed", f"mbxd {installed}"),
        (
            "socket",
            f"{status.get('socket', '?')}{', kept by systemd' if status.get('socket_activated') else ''}",
        ),
        ("state", status.get("state_dir", "?")),
        ("holds", ", ".join(figures)),
        ("liveness", status.get("liveness", "?")),
        ("config", f"{status.get('config_path', '?')}{f', not applied: {config}' if config else ''}"),
        ("python", status.get("executable", "?")),
    ]
    return [(key, value) for key, value in facts if value and value != "?"]


def _restart_would(status: dict[str, Any], installed: str) -> dict[str, Any]:
    running = status.get("version")
    held = status.get("held", 0)
    keeps = f"{count(held, 'name stays', 'names stay')} held"
    if running == installed:
        return {"needed": False, "would": f"not needed, the running daemon is the installed version; {keeps}"}
    back = "back " if isinstance(running, str) and order(running) > order(installed) else ""
    return {"needed": True, "would": f"`mbxctl restart` would go {back}from {running} to {installed}; {keeps}"}


def run_start(out: Output) -> int:
    """Start the daemon unless one answers; takes the mark of `stop` back."""
    where = link.places()
    launch.clear_marks(where)
    before = _status_or_none()
    if before is not None and "unresponsive" in before:
        before = link.frozen("status")  # once more, and with its own words
    started = before is None
    if before is None:
        _start(out, where)
    return _tell_running(
        out, before or link.frozen("status"), {"started": started}, "started" if started else "runs already:"
    )


def run_stop(out: Output) -> int:
    """Stop the daemon and leave the mark that shims obey. No daemon is no error: the mark is left all the same."""
    where = link.places()
    status = _status_or_none()
    warning = _mark(where, exists=status is not None)
    # A start that was under way has not seen the mark: look for its daemon when it is through.
    launch.wait_settled(where, _STOP_S)
    status = status or _status_or_none()
    pid = _end(where, status)
    if warning:
        out.talk(f"warning: {warning}")
    if out.json:
        out.document({"stopped": pid is not None, "pid": pid})
    elif pid is None:
        out.talk("no daemon was running")
    else:
        out.data(f"stopped mbxd, pid {pid}")
    if status and status.get("socket_activated") and service.socket_is_active():
        out.talk("warning: systemd still listens for it; end that with: systemctl --user stop mbxd.socket")
    out.talk("agents keep their names and start no daemon until `mbxctl start`, `mbxctl restart` or a reboot")
    return 0


def run_restart(out: Output) -> int:
    """Stop and start; sessions reconnect by themselves and keep name and epoch. Starts one when none runs."""
    where = link.places()
    before = _status_or_none()
    if before and before.get("socket_activated") and service.restart_quietly():
        old: int | None = int(before["pid"])  # systemd keeps the socket meanwhile: nobody is turned away
        launch.clear_marks(where)
    else:
        old = _end(where, before)
        launch.clear_marks(where)
        _start(out, where)
    status = link.frozen("status")
    return _tell_running(out, status, {"restarted": True, "old_pid": old}, "restarted" if old else "started")


def _tell_running(out: Output, status: dict[str, Any], facts: dict[str, Any], words: str) -> int:
    if out.json:
        out.document({**facts, "pid": status["pid"], "version": status.get("version"), "socket": status.get("socket")})
        return 0
    out.data(f"{words} mbxd {status.get('version')}, pid {status['pid']}")
    out.talk(f"socket: {status.get('socket')}")
    return 0


def _status_or_none() -> dict[str, Any] | None:
    try:
        return link.frozen("status")
    except Failure as failure:
        if failure.code == Code.DAEMON_DOWN:
            return None
        if failure.code == Code.DAEMON_UNRESPONSIVE:
            return {"unresponsive": True}
        raise


def _mark(where: paths.Places, *, exists: bool) -> str | None:
    """Before the daemon goes: a shim that notices at once must find the mark. A warning when it can't be left."""
    try:
        if not exists:
            paths.ensure_state_dir(where)
        launch.mark_stopped(where)
    except OSError as error:
        if exists:  # a full disk, say: what was asked for is that the daemon ends
            return f"the mark of a stop could not be left ({error}): the next tool call may start a daemon"
        raise Failure("IO_ERROR", f"the mark of a stop can't be left: {error}", "Run `mbxctl doctor`.") from None
    return None


def _start(out: Output, where: paths.Places) -> None:
    manager = False
    if service.installed_for_default_place():
        if service.start_quietly():
            return
        # While systemd listens, a start by hand would take its socket for a daemon, and nobody would answer there.
        manager = service.stop_quietly()
    link.start(where)
    if manager:
        out.talk("warning: systemd could not start mbxd.service, so this daemon runs without it")
        out.talk("see: systemctl --user status mbxd.service; journalctl --user -u mbxd.service -n 30")


def _end(where: paths.Places, status: dict[str, Any] | None) -> int | None:
    """End the daemon and wait until its process has gone; its pid, or None when there was none."""
    lock_holder = lockfile.holder(where)
    try:
        if status is None and lock_holder is None:
            return None
        asked = _ask_to_stop(status)
        if lock_holder is None:
            return _ended_unseen(where, status, asked=asked)
        if not (asked and lock_holder.wait_gone(_STOP_S)):
            lock_holder.terminate()
            if not lock_holder.wait_gone(_STOP_S):
                raise _will_not_go(where, lock_holder.pid)
        return lock_holder.pid
    finally:
        if lock_holder is not None:
            lock_holder.close()


def _ask_to_stop(status: dict[str, Any] | None) -> bool:
    if status is None or "unresponsive" in status:
        return False
    if status.get("socket_activated") and service.stop_quietly():
        return True
    try:
        link.frozen("stop", {"reason": "mbxctl"})
    except Failure as failure:
        # It may go before its answer is read; whether it went is looked at, not believed.
        return failure.code in {Code.OUTCOME_UNKNOWN, Code.STOPPING, Code.DAEMON_DOWN}
    return True


def _ended_unseen(where: paths.Places, status: dict[str, Any] | None, *, asked: bool) -> int | None:
    """A daemon whose process this one can't see (a container, an explicit socket): its socket tells."""
    import time

    deadline = time.monotonic() + _STOP_S
    while asked and time.monotonic() < deadline:
        if _status_or_none() is None:
            return int(status["pid"]) if status and "pid" in status else None
        time.sleep(0.05)
    raise _will_not_go(where, (status or {}).get("pid"))


def _will_not_go(where: paths.Places, pid: int | None) -> Failure:
    # Without a pid there is no process that this one can see: no signal is named, least of all to pid 0.
    if pid is None:
        ways = "end it where it runs"
    elif lockfile.is_stopped(pid):
        ways = f"a signal has stopped it, and it ends once it goes on: kill -CONT {pid}"
    else:
        ways = f"as a last resort: kill -9 {pid}"
    return Failure(
        Code.DAEMON_UNRESPONSIVE,
        f"mbxd{'' if pid is None else f' (pid {pid})'} did not end within {_STOP_S:.0f} s.",
        f"Its log is {where.file(places.LOG_NAME)}; {ways}. No acknowledged change is lost.",
        retryable=True,
        data={"pid": pid},
    )
