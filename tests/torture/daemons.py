"""The daemon of a world through its lives: started by the harness or by a shim, from one build or another, killed,
stopped, paused, on a disk that is full. An end that nobody asked for is a failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

from mbx_wire import places
from tests.support.daemon import PATIENCE, ROOT, Client, DaemonProcess, Place, leftovers

STEERED = (str(ROOT / "tests/torture/steered.py"),)
SEGMENT = "16384"
FILE_MAX = 64 * 1024
"""Bytes of a file on a "full disk": more than a segment of the log, less than the mail soon has."""
POINTS = ("before_append", "half_written", "after_write", "after_fsync", "before_reply")


class Broken(Exception):
    """What must never happen, happened."""


def make_builds(sources: Path, root: Path) -> tuple[Path, Path]:
    """Two installations of the same code side by side; the second calls itself another version."""
    builds = root / "one", root / "two"
    for build in builds:
        for folder in ("mbxd", "client"):
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(sources / folder, build / folder, ignore=ignore)
    version = builds[1] / "mbxd/__init__.py"
    version.write_text(version.read_text().replace('__version__ = "', '__version__ = "9.'))
    return builds


def python_path(build: Path) -> str:
    return os.pathsep.join([str(build / "client"), str(build), str(ROOT)])


class Started:
    """A daemon that a shim started: known by the file in which it says where it is."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def ended(self) -> bool:
        return bool(select.select([self._pidfd], [], [], 0)[0])

    def end(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)
        if not select.select([self._pidfd], [], [], PATIENCE)[0]:
            raise Broken("a daemon does not end")

    def close(self) -> None:
        os.close(self._pidfd)


class Daemons:
    """At most one runs. `births` counts those that were seen, `adopted` those of them that a shim had started."""

    def __init__(self, place: Place, builds: tuple[Path, Path]) -> None:
        self.births = 0
        self.adopted = 0
        self.paused = False
        self._place = place
        self._builds = builds
        self._build = 0
        self._clock = place.root / "clock"
        self._full = place.root / "full"
        self._now: DaemonProcess | Started | None = None
        self._asked_to_end = False

    @property
    def build(self) -> Path:
        """The installation that is the newest now."""
        return self._builds[self._build]

    @property
    def path(self) -> str:
        return str(self._place.state / "run/mbxd.sock")

    @property
    def pid(self) -> int:
        """0 when none is known to run."""
        return 0 if self._now is None or self._ended() else self._now.pid

    def up(self, fault: str = "") -> None:
        """See to it that one runs."""
        until = time.monotonic() + PATIENCE
        while not self.pid:
            self._bury()
            if time.monotonic() > until:
                raise Broken("no daemon can be started")
            self._start(fault)
            fault = ""

    def end(self, number: int = signal.SIGKILL) -> None:
        """End it, if it runs."""
        if not self.pid:
            return
        assert self._now is not None
        self._asked_to_end = True
        if isinstance(self._now, Started):
            self._now.end(number)
        else:
            self._now.process.send_signal(number)
            self._now.process.wait(PATIENCE)
        self._bury()

    def signal(self, number: int) -> bool:
        """Send a signal; whether one runs that got it."""
        pid = self.pid
        self.paused = bool(pid) and number == signal.SIGSTOP
        if pid:  # 0 would be the harness's own group
            os.kill(pid, number)
        return bool(pid)

    def replace(self, number: int) -> None:
        """End it and start the other build."""
        self.end(number)
        self._build = 1 - self._build
        self.up()

    def restart_with_fault(self, pick: int) -> None:
        """Start one that kills itself at a point between a request and its reply."""
        self.end(signal.SIGTERM)
        self.up(f"{POINTS[pick % len(POINTS)]}:{pick // 7 % 6 + 1}")

    def set_clock(self, ahead: float) -> None:
        """Step the wall clock of those that the harness started: seconds before or behind the true time."""
        fresh = self._clock.with_suffix(".new")
        fresh.write_text(str(ahead))
        fresh.replace(self._clock)

    def fill_disk(self, *, files: bool) -> None:
        """No room for the log's next segment; files: none for any larger file instead."""
        if not files:
            self._full.touch()
        else:
            # A segment that is there has its room. A daemon that a shim started makes larger ones than ours do.
            segments = (self._place.state / "registry").glob("*.wal")
            self._limit(max(FILE_MAX, *(one.stat().st_size for one in segments)))

    def make_room(self) -> None:
        self._full.unlink(missing_ok=True)
        self._limit(resource.RLIM_INFINITY)

    def connect(self) -> Client:
        """A connection of the harness itself: a person. Raises OSError."""
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        client = Client(sock)
        try:
            sock.connect(self.path)
            client.hello("mbxctl")
        except BaseException:  # it may end before it answers
            client.close()
            raise
        return client

    def close(self) -> None:
        """End whatever is left of the world."""
        if isinstance(self._now, Started):
            self._now.end(signal.SIGKILL)
            self._now.close()
        self._now = None
        for daemon in self._place.daemons:
            daemon.close()
        until = time.monotonic() + PATIENCE
        while (left := leftovers(self._place.root)) and time.monotonic() < until:
            for line in left:  # named by a directory that is this world's alone
                with contextlib.suppress(OSError):
                    os.kill(int(line.partition(":")[0]), signal.SIGKILL)
            select.select([], [], [], 0.02)

    def logs(self) -> str:
        """What the daemons wrote, the newest last."""
        texts = [daemon.log() for daemon in self._place.daemons]
        with contextlib.suppress(OSError):
            texts.append((self._place.state / places.LOG_NAME).read_text())
        return "\n".join(texts)

    def check_log(self) -> None:
        if "Traceback" in (text := self.logs()):
            raise Broken(f"a traceback in the daemon's log:\n{text[-6000:]}")

    def _limit(self, size: int) -> None:
        pid = self.pid
        with contextlib.suppress(ProcessLookupError):
            if pid:  # 0 would be the harness itself
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def _ended(self) -> bool:
        if isinstance(self._now, Started):
            return self._now.ended()
        return self._now is None or self._now.process.poll() is not None

    def _start(self, fault: str) -> None:
        env: dict[str, Any] = {
            "PYTHONPATH": python_path(self.build),
            "MBX_CLOCK": str(self._clock),
            "MBX_SEGMENT": SEGMENT,
            "MBX_FAULT": fault or "spare:1:ENOSPC",
            "MBX_FAULT_UNTIL": str(self._full),
        }
        daemon = self._place.start(STEERED, wait=False, **env)
        said = daemon.wait_ready(must=False)
        if said == "ready":
            self._now = daemon
            self.births += 1
        elif places.RUNS_ALREADY in said:
            self._place.forget(daemon)
            self._adopt()
        elif daemon.process.wait(PATIENCE) == -signal.SIGKILL and fault:
            self._place.forget(daemon)
        else:
            raise Broken(f"the daemon does not start: {said}\n{daemon.log()[-4000:]}")

    def _adopt(self) -> None:
        """A shim was quicker."""
        try:
            pid = json.loads((self._place.state / places.POINTER_NAME).read_text())["pid"]
            started = Started(pid)
        except (OSError, ValueError):
            return
        try:
            with self.connect() as client:
                answered = client.call("ping")["pid"]
        except OSError:
            answered = 0
        if answered == pid:
            self._now = started
            self.births += 1
            self.adopted += 1
        else:
            started.close()
            select.select([], [], [], 0.02)

    def _bury(self) -> None:
        gone, self._now = self._now, None
        asked, self._asked_to_end = self._asked_to_end, False
        if gone is None:
            return
        self.check_log()
        if isinstance(gone, Started):
            gone.close()
            return
        code = gone.process.wait(PATIENCE)
        # One that has a fault may reach it while it is asked to stop.
        if code not in {-signal.SIGKILL, 0 if asked else -signal.SIGKILL}:
            raise Broken(f"the daemon ended by itself with {code}:\n{gone.log()[-6000:]}")
        self._place.forget(gone)


def pause(seconds: float) -> None:
    """Let real time pass: what is waited for is time itself."""
    select.select([], [], [], seconds)
