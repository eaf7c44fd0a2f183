"""The shim's connection to the daemon: which socket, when to try again, when to start one.

Owns the socket, its buffers, backoff and a start under way. Never interprets a call and never waits: the
loop polls what `interests` names and hands the events back. Standard library only; what is needed only
after the first answer is imported only then.
"""

from __future__ import annotations

import os

from mbx_client import paths
from mbx_mcp.bridge import DOWN, Bridge, Trouble
from mbx_wire.framing import LineReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket as socket
    from collections.abc import Callable
    from typing import Any

    from mbx_client.launch import Launch

READ_SIZE = 65536
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
PAUSE_WITH_CALLS = 0.2
"""Seconds between tries: doubling from the first to the longest; while calls wait, never longer than this."""


class Link:
    """One shim's way to the daemon of its state directory; `bridge` holds the calls that go it."""

    def __init__(
        self,
        introduce: Callable[[list[str]], dict[str, Any]],
        projects: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> None:
        """`introduce` makes the params of hello from the handles spoken for so far; `projects` as in Bridge."""
        self.bridge = Bridge(introduce, self._accept, projects)
        self._places: paths.Places | None = None
        self._socket: socket.socket | None = None
        self._candidate: paths.Candidate | None = None
        self._reader = LineReader()
        self._out = bytearray()
        self._pause = FIRST_PAUSE
        self._retry_at: float | None = None
        self._launch: Launch | None = None
        self._foreign: set[str] = set()

    @property
    def backlog(self) -> int:
        """Bytes that the daemon has not taken yet."""
        return len(self._out)

    def interests(self) -> list[tuple[int, bool]]:
        """Descriptors to poll: (fd, also for writing)."""
        found: list[tuple[int, bool]] = []
        if self._socket is not None:
            found.append((self._socket.fileno(), bool(self._out)))
        if self._launch is not None:
            found.append((self._launch.fd, False))
        return found

    def next_deadline(self) -> float | None:
        """When `tick` has something to do at the latest."""
        return self._retry_at

    def want(self, now: float) -> None:
        """A connection is wanted from now on. Harmless when there is one."""
        if self._socket is None and (self._retry_at is None or self.bridge.waiting):
            self._dial(now)

    def tick(self, now: float) -> None:
        """Let time pass."""
        if self._socket is None and self._retry_at is not None and now >= self._retry_at:
            self._dial(now)

    def ready(self, fd: int, now: float) -> None:
        """A polled descriptor has something."""
        if self._launch is not None and fd == self._launch.fd:
            self._launched(now)
        elif self._socket is not None and fd == self._socket.fileno():
            self._receive(now)

    def flush(self, now: float) -> None:
        """Hand the bridge's lines to the daemon as far as it takes them."""
        if self._socket is None:
            return
        for line in self.bridge.outbox:
            self._out += line
        self.bridge.outbox.clear()
        while self._out:
            try:
                sent = self._socket.send(self._out[:READ_SIZE])
            except BlockingIOError:
                return
            except OSError:
                self._lose(now)
                return
            del self._out[:sent]

    def _receive(self, now: float) -> None:
        assert self._socket is not None  # noqa: S101 - `ready` has looked
        try:
            data = self._socket.recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose(now)
            return
        for line in self._reader.feed(data):
            self.bridge.receive(line, now)
            if self.bridge.phase == DOWN:  # it refused the introduction, or we did
                known = len(self._foreign)
                self._lose(now)
                if known:
                    self._dial(now)
                return

    def _accept(self, hello: dict[str, Any]) -> Trouble | None:
        """Check a fresh hello: a daemon of another state directory is not ours, however it was reached."""
        where, candidate = self._places, self._candidate
        if where is None or candidate is None or paths.lock_matches(where, hello.get("lock"), candidate):
            self._pause = FIRST_PAUSE
            self._foreign.clear()
            return None
        self._foreign.add(candidate.path)
        text = f"The daemon at {candidate.path} serves another state directory than {where.state}."
        return Trouble("DAEMON_DOWN", text, "Set MBX_STATE_DIR or MBX_SOCKET to match it.")

    def _dial(self, now: float) -> None:
        try:
            where = self._places = self._places or paths.resolve()
            paths.check(where)
        except ValueError as bad:
            self.bridge.unavailable(
                Trouble("DAEMON_DOWN", str(bad), "Correct the place or the environment.", final=True)
            )
            self._retry_at = None
            return
        from mbx_client import dial

        absent = True
        for candidate in paths.candidates(where):
            if candidate.path in self._foreign:
                absent = False
                continue
            try:
                self._socket = dial.connect(candidate.path, 0)
            except OSError as bad:
                reason = dial.reason(bad)
                if reason != dial.ABSENT:
                    absent = False
                    self.bridge.unavailable(_trouble(reason, bad, candidate.path, where))
                continue
            self._candidate = candidate
            self._retry_at = None
            self._reader = LineReader()
            self.bridge.connected(now)
            self.flush(now)
            return
        self._foreign.clear()
        self._later(now)
        if absent and self.bridge.starting:
            self._start(where)

    def _start(self, where: paths.Places) -> None:
        if self._launch is not None:
            return
        from mbx_client import launch

        if launch.is_stopped(where):
            text = "The daemon was stopped with mbxctl stop."
            self.bridge.unavailable(Trouble("DAEMON_DOWN", text, "Ask your user to run: mbxctl start", final=True))
            return
        failure = launch.recent_failure(where)
        if failure is not None:
            self.bridge.unavailable(_failed(failure))
            return
        try:
            self._launch = launch.begin(where)
        except OSError as bad:
            self.bridge.unavailable(_failed(str(bad)))

    def _launched(self, now: float) -> None:
        assert self._launch is not None  # noqa: S101 - `ready` has looked
        result = self._launch.result()
        if result is None:
            return
        self._launch = None
        if result:
            self.bridge.unavailable(_failed(result))
        elif self._socket is None:
            self._dial(now)

    def _lose(self, now: float) -> None:
        self._drop()
        self.bridge.lost(now)
        self._later(now)

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._out.clear()

    def _later(self, now: float) -> None:
        longest = PAUSE_WITH_CALLS if self.bridge.waiting else LONGEST_PAUSE
        pause = min(self._pause, longest)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        # Jitter of half to one pause: many shims lose their daemon at the same moment.
        self._retry_at = now + pause * (0.5 + os.urandom(1)[0] / 512)


def _trouble(reason: str, bad: OSError, path: str, where: paths.Places) -> Trouble:
    if reason == "forbidden":
        text = f"This sandbox forbids the daemon's socket {path} ({bad.strerror})."
        return Trouble("SANDBOXED", text, "Ask your user to allow that path (a Unix socket) for this agent.")
    if reason == "busy":
        pointer = paths.read_pointer(where)
        who = f" (pid {pointer['pid']})" if pointer else ""
        text = f"The daemon{who} is there but takes no connections."
        return Trouble("DAEMON_UNRESPONSIVE", text, "Try again; mbxctl doctor says more.")
    return Trouble("DAEMON_DOWN", f"Can't reach the daemon at {path}: {bad}", "Run: mbxctl doctor")


def _failed(why: str) -> Trouble:
    return Trouble("DAEMON_DOWN", f"The daemon does not start: {why}", "Run: mbxctl doctor", final=True)
