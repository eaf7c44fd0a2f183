"""`mbxctl tour`: the promise, shown in a few seconds with a real daemon, real shims and real SIGKILLs.

Owns the script and the stage: a temporary directory that holds state, socket and project. Never reads or
writes the user's own state, and leaves neither processes nor files, however it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from mbx_wire import places
from mbxctl import link
from mbxctl.failure import Failure
from mbxctl.listing import HEADER, cells
from mbxctl.render import Output, columns
from mbxctl.touring import WAIT_S, Agent, Handle, failed, wait_for_starter

_BACKEND = "shop-backend"
_FRONTEND = "shop-frontend"


class Timeline:
    """What happened when, told at once and kept for `--json`. Times are milliseconds since the start."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._start = time.monotonic()
        self.steps: list[dict[str, Any]] = []

    def elapsed_ms(self) -> float:
        """Milliseconds since the tour began."""
        return round((time.monotonic() - self._start) * 1000, 1)

    def tell(self, step: str, text: str, **facts: Any) -> None:
        """One step, now."""
        at = self.elapsed_ms()
        self.steps.append({"at_ms": at, "step": step, "text": text, **facts})
        self._out.data(f"{at:7.0f} ms  {text}")
        self._out.flush()

    def show(self, lines: list[str]) -> None:
        """Lines that belong to the step before."""
        for line in lines:
            self._out.data(f"            {line}")


class Stage:
    """The temporary place and all that was started in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.project = root / "shop"
        self.project.mkdir()
        # Whatever lies above the temporary directory, this is a project of its own.
        (self.project / ".mbx.toml").write_text('project = "shop"\n', encoding="utf-8")
        self.agents: list[Agent] = []
        self.daemons: list[Handle] = []

    def agent(self, label: str) -> Agent:
        """Start one more agent CLI with its shim."""
        agent = Agent(label, self.project)
        self.agents.append(agent)
        agent.introduce()
        return agent

    def watch_daemon(self, pid: int) -> None:
        """Remember a daemon of this stage, to end it."""
        if all(handle.pid != pid for handle in self.daemons):
            self.daemons.append(Handle(pid))

    def clear(self) -> list[str]:
        """End everything; what could not be ended, in words."""
        left = [f"{agent.label}'s shim" for agent in self.agents if not agent.end()]
        self._stop_daemons()
        for handle in self.daemons:
            if not handle.wait_gone(2.0):
                handle.kill()
                if not handle.wait_gone(1.0):
                    left.append(f"daemon {handle.pid}")
            handle.close()
        return left

    def _stop_daemons(self) -> None:
        # A shim that was interrupted may have begun a start: its daemon is only there when start.lock is free again.
        deadline = time.monotonic() + 2 * WAIT_S
        while time.monotonic() < deadline:
            try:
                self.watch_daemon(int(_mbxctl("status")["pid"]))
                _mbxctl("stop")
            except Failure:
                if not wait_for_starter(self.root / "state" / places.START_LOCK_NAME):
                    return


def run_tour(out: Output) -> int:
    """Play the tour. Raises `Failure("TOUR_FAILED")` at the first step that does not hold."""
    timeline = Timeline(out)
    try:
        with _stage() as stage:
            place = str(stage.root)
            detection_ms = _play(stage, timeline)
    except Failure as failure:
        failure.extra = {"ok": False, "steps": timeline.steps}
        raise
    timeline.tell("cleanup", "all of it is gone again: processes, socket and state")
    if out.json:
        total = timeline.elapsed_ms()
        facts = {"ok": True, "detection_ms": detection_ms, "total_ms": total, "place": place}
        out.document({**facts, "steps": timeline.steps})
    return 0


def _play(stage: Stage, timeline: Timeline) -> float:
    daemon = _mbxctl("start")
    stage.watch_daemon(int(daemon["pid"]))
    timeline.tell("start", f"a daemon of its own runs, pid {daemon['pid']}", pid=daemon["pid"])
    first, second = stage.agent("agent-1"), stage.agent("agent-2")
    granted = first.call("register", name=_BACKEND, role="backend", description="the shop's API")
    kept = second.call("register", name=_FRONTEND, role="frontend")
    timeline.tell(
        "register",
        f"agent-1 registered {_BACKEND}, agent-2 registered {_FRONTEND}, each through its own shim",
    )
    timeline.show(_list_lines())
    detection_ms = _crash(first, timeline)
    _succeed(stage, granted, timeline)
    _crash_daemon(stage, second, kept, timeline)
    return detection_ms


def _crash(agent: Agent, timeline: Timeline) -> float:
    with link.connect() as watcher:
        changes = watcher.changes(everything=True, timeout=WAIT_S)
        next(changes)
        start = time.monotonic()
        agent.kill_host()
        for change in changes:
            if change["name"] == _BACKEND and change["state"] == "vacant":
                break
        else:
            raise failed(f"{_BACKEND} was not vacant within {WAIT_S:.0f} s of its holder's death")
    took = round((time.monotonic() - start) * 1000, 2)
    why = f"{change['what']}, {change['reason']}"
    timeline.tell(
        "crash",
        f"kill -9 {agent.pid} (agent-1): {_BACKEND} is vacant after {took} ms ({why})",
        detection_ms=took,
    )
    return took


def _succeed(stage: Stage, before: dict[str, Any], timeline: Timeline) -> None:
    heir = stage.agent("agent-3")
    after = heir.call("claim", name=_BACKEND)
    same = all(after["identity"][key] == before["identity"][key] for key in ("id", "role", "description", "created_at"))
    if not same or after["epoch"] <= before["epoch"]:
        raise failed(f"{_BACKEND} came back changed: {after['identity']}, epoch {after['epoch']}")
    timeline.tell(
        "claim",
        f"agent-3 claimed {_BACKEND}: same mailbox, role {after['identity']['role']},"
        f" epoch {before['epoch']} -> {after['epoch']}",
        epoch=after["epoch"],
    )
    history = _mbxctl("log", _BACKEND)["entries"]
    if len(history) < 3:
        raise failed(f"the history of {_BACKEND} is too short: {history}")
    timeline.show([f"{entry['what']}{' by ' + entry['who'] if entry['who'] else ''}" for entry in reversed(history)])


def _crash_daemon(stage: Stage, agent: Agent, before: dict[str, Any], timeline: Timeline) -> None:
    old = stage.daemons[0]
    old.kill()
    if not old.wait_gone(WAIT_S):
        raise failed(f"the daemon {old.pid} survived SIGKILL")
    start = time.monotonic()
    you = agent.call("list")["you"]
    took = round((time.monotonic() - start) * 1000, 1)
    new_pid = int(_mbxctl("status")["pid"])
    stage.watch_daemon(new_pid)
    if you is None or you["name"] != _FRONTEND or you["epoch"] != before["epoch"] or new_pid == old.pid:
        raise failed(f"agent-2 did not keep {_FRONTEND}, epoch {before['epoch']}, over the daemon's crash: {you}")
    timeline.tell(
        "restart",
        f"kill -9 {old.pid} (daemon): agent-2's next call took {took} ms;"
        f" it is still {_FRONTEND}, epoch {you['epoch']} (daemon {new_pid})",
        pid=new_pid,
        call_ms=took,
    )


def _list_lines() -> list[str]:
    with link.connect() as daemon:
        rows = daemon.call("identity.list", {})["identities"]
    if {row["name"] for row in rows} != {_BACKEND, _FRONTEND}:
        raise failed(f"the list should show {_BACKEND} and {_FRONTEND}, it shows {[row['name'] for row in rows]}")
    return columns(HEADER[:-1], [cells(row)[:-1] for row in rows])


def _mbxctl(*args: str) -> dict[str, Any]:
    """This very command line, as a script would use it."""
    command = [sys.executable, "-m", "mbxctl", "--json", *args]
    try:
        done = subprocess.run(command, capture_output=True, timeout=2 * WAIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise failed(f"mbxctl {' '.join(args)} did not end within {2 * WAIT_S:.0f} s") from None
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise failed(f"mbxctl {' '.join(args)} printed no JSON: {done.stderr.decode(errors='replace')}") from None
    if "error" in document:
        raise failed(f"mbxctl {' '.join(args)}: {document['error']['message']}")
    return document


@contextlib.contextmanager
def _stage() -> Iterator[Stage]:
    """Set up and always clear: on success, failure, Ctrl-C, SIGTERM and SIGHUP."""
    with (
        tempfile.TemporaryDirectory(prefix="mbx-tour-", dir=_short_place(), ignore_cleanup_errors=True) as root,
        _elsewhere(Path(root)),
    ):
        stage = Stage(Path(root))
        os.chdir(stage.project)
        try:
            yield stage
        finally:
            # Cleaning up is not to be interrupted: it is bounded, and what it leaves would stay for good.
            _ignore_signals()
            left = stage.clear()
            os.chdir("/")
        if left:
            raise failed(f"could not end {', '.join(left)}")


def _short_place() -> str | None:
    # A socket's path has at most 107 bytes; macOS's own temporary directory alone takes half of it.
    return "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else None  # noqa: S108 - a private directory is made in it


@contextlib.contextmanager
def _elsewhere(root: Path) -> Iterator[None]:
    """Point this process and its children at the stage, and take every wish for a name away."""
    saved_env, saved_cwd = dict(os.environ), _cwd()
    saved_handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    for key in [key for key in os.environ if key.startswith("MBX_") or key.endswith("_SESSION_ID")]:
        del os.environ[key]
    os.environ.update(MBX_STATE_DIR=str(root / "state"), MBX_SOCKET=str(root / "mbxd.sock"))
    os.environ["XDG_CONFIG_HOME"] = str(root / "config")
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved_env)
        os.chdir(saved_cwd)
        for number, handler in saved_handlers.items():
            signal.signal(number, handler)


def _cwd() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _ignore_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
