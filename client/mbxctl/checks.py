"""doctor's checks of the daemon and its surroundings, and the list of all checks in their order.

Reads only. Asks a running daemon over the frozen mini-protocol, so that any version answers.
"""

from __future__ import annotations

import os
import shlex
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mbx_client import launch, paths
from mbx_wire import places
from mbx_wire.errors import Code
from mbx_wire.versions import order
from mbxctl import checks_place, link, lockfile, service
from mbxctl.checks_place import Finding
from mbxctl.failure import Failure

__all__ = ["Finding", "run_all"]


def run_all() -> list[Finding]:
    """Every finding, from the machine outwards to the daemon."""
    findings = [checks_place.platform(), checks_place.home()]
    try:
        where = paths.resolve()
    except ValueError as error:
        return [*findings, Finding("fail", "places", str(error), "correct the variable that it names")]
    findings += checks_place.state_dir(where.state)
    findings += checks_place.socket_path(where.socket)
    findings += _environment()
    findings += _daemon(where)
    findings += _stale(where)
    findings += _units()
    return findings


def _environment() -> Iterator[Finding]:
    for name in ("MBX_STATE_DIR", "MBX_SOCKET", "MBX_AGENT"):
        if os.environ.get(name):
            yield Finding("note", "environment", f"{name}={os.environ[name]}")


def _daemon(where: paths.Places) -> Iterator[Finding]:
    try:
        status = link.frozen("status")
    except Failure as failure:
        yield _no_daemon(where, failure)
        yield from _failed_start(where)
        yield checks_place.config(where.config)
        return
    version = status.get("version", "?")
    yield Finding("ok", "daemon", f"mbxd {version} answers, pid {status['pid']}, at {status.get('socket', '?')}")
    yield from _skew(str(version), status.get("executable"))
    yield from _other_state(where, status)
    yield _liveness(status)
    error = status.get("config_error")
    if error:
        fix = f"mend {status.get('config_path')}; it is read again by itself"
        yield Finding("fail", "config", f"the configuration is not applied: {error}", fix)
    else:
        yield checks_place.config(str(status.get("config_path") or where.config))
    for reason in status.get("degraded", []):
        if reason != error:
            yield Finding("warn", "degraded", reason)


def _no_daemon(where: paths.Places, failure: Failure) -> Finding:
    unresponsive = failure.code == Code.DAEMON_UNRESPONSIVE
    if failure.code != Code.DAEMON_DOWN and not unresponsive:
        hint = str(failure.body["hint"])
        return Finding("fail", "daemon", str(failure), None if "mbxctl doctor" in hint else hint)
    holder = lockfile.holder(where)
    look = f"see {where.file(places.LOG_NAME)}; then `mbxctl restart`"
    if holder is not None:
        holder.close()
        message = f"pid {holder.pid} holds the lock, yet no socket answers: it is starting, stuck, or elsewhere"
        if lockfile.is_stopped(holder.pid):
            message = f"{failure if unresponsive else message}; it was stopped by a signal (SIGSTOP, Ctrl-Z)"
            return Finding("fail", "daemon", message, f"kill -CONT {holder.pid}")
        return Finding("fail", "daemon", str(failure) if unresponsive else message, look)
    if unresponsive:
        return Finding("fail", "daemon", str(failure), look)
    if launch.is_stopped(where):
        return Finding("note", "daemon", "stopped with `mbxctl stop`; agents start none", "mbxctl start")
    return Finding("note", "daemon", "not running; an agent's first call starts it, and so does `mbxctl start`")


def _failed_start(where: paths.Places) -> Iterator[Finding]:
    why = launch.recent_failure(where)
    if why is not None:
        log = where.file(places.LOG_NAME)
        yield Finding(
            "fail",
            "start",
            f"the last start failed: {why}{_last_words(log)}",
            None if log in why else f"see {log}",
        )


def _last_words(log: str) -> str:
    """The last line of the daemon's log: a crash at the start ends with its reason."""
    try:
        with Path(log).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    words = [line for line in lines if line.strip()]
    return f"; its last words: {words[-1][:300]}" if words else ""


def _skew(running: str, python: object) -> Iterator[Finding]:
    installed = link.installed_version()
    if running == installed:
        return
    fix = "mbxctl restart"
    if order(running) > order(installed):  # a restart from here would start the older daemon
        newer = f" ({shlex.quote(python)} -m mbxctl)" if isinstance(python, str) and python else ""
        fix = f"use the newer mbxctl{newer}, or update this one"
    yield Finding("warn", "version", f"running {running}, installed {installed}", fix)


def _other_state(where: paths.Places, status: dict[str, Any]) -> Iterator[Finding]:
    theirs = status.get("state_dir")
    if isinstance(theirs, str) and os.path.realpath(theirs) != os.path.realpath(where.state):
        message = f"the daemon that answers keeps its state in {theirs}, this environment says {where.state}"
        yield Finding("warn", "state", message, "set MBX_STATE_DIR and MBX_SOCKET alike everywhere, or nowhere")


def _liveness(status: dict[str, Any]) -> Finding:
    mode = str(status.get("liveness", "?"))
    level = "ok" if mode.startswith("pidfd") else "warn"
    return Finding(level, "liveness", f"the daemon watches by {mode}")


def _stale(where: paths.Places) -> Iterator[Finding]:
    pointer = paths.read_pointer(where)
    if pointer is not None and lockfile.start_ticks(pointer["pid"]) != pointer.get("ticks"):
        message = f"daemon.json names pid {pointer['pid']}, which has gone; the next start replaces it"
        yield Finding("note", "stale", message)
    for name in _leftovers(where.state):
        yield Finding("note", "stale", f"{name} was left by an interrupted write", "remove it when nothing runs")


def _leftovers(state: str) -> list[str]:
    """Temporary files of ours (`stopped.1234`) that are older than any write takes."""
    found = []
    try:
        entries = sorted(Path(state).iterdir())
    except OSError:
        return []
    for path in entries:
        base, _, suffix = path.name.rpartition(".")
        if base in {places.STOPPED_NAME, places.START_FAILED_NAME, places.POINTER_NAME} and suffix.isdigit():
            place = path.lstat()
            if stat.S_ISREG(place.st_mode) and time.time() - place.st_mtime > 60:
                found.append(str(path))
    return found


def _units() -> Iterator[Finding]:
    target = service.unit_target()
    present = [name for name in service.UNITS if (target / name).exists()]
    if not present:
        return
    try:
        texts = service.unit_texts()
        differing = [
            name for name in present if (target / name).read_text(encoding="utf-8", errors="replace") != texts[name]
        ]
    except (Failure, OSError) as error:
        yield Finding("warn", "service", f"the installed units can't be compared: {error}")
        return
    if differing or len(present) < len(service.UNITS):
        message = f"the systemd units in {target} are not those of this installation"
        yield Finding("warn", "service", message, "mbxctl service install")
    else:
        yield Finding("ok", "service", f"systemd units in {target} are this installation's")
    failed = service.failed_units()
    if failed:
        message = f"systemd has given up on {' and '.join(failed)}; why: journalctl --user -u mbxd.service -n 30"
        yield Finding("warn", "service", message, "mbxctl start")
