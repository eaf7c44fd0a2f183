"""One-shot calls to the daemon over its socket, for commands: connect, hello, call, read notifications.

Owns deadlines, the single retry with the same request id after a lost connection, and the words for every
way in which a daemon can be unreachable. Never starts a daemon unless asked to. Standard library only.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque

from mbx_client import __version__, dial, paths
from mbx_wire.errors import Code, RpcError, error_body
from mbx_wire.framing import MAX_LINE, LineReader, Oversized

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket as socket
    from typing import Any, NoReturn, Self

TIMEOUT = 10.0
"""Seconds for one call unless the caller says otherwise."""
LOOKS = frozenset(
    "hello ping status identity.list identity.show identity.why agent.whois mail.whoami mail.inbox mail.read"  # noqa: SIM905 - one a line is long
    " mail.sent mail.thread mail.search mail.peek mail.check admin.log admin.stats archive.status archive.verify"
    " archive.log events.subscribe".split()
)
"""Methods that do nothing but look: when their answer is lost, nothing else is. A test compares the method table."""
_PAUSE = 0.05
_LOST = (BrokenPipeError, ConnectionError)
_DOWN_HINT = "Run: mbxctl start"


class ClientError(Exception):
    """A refusal, or a daemon that can't be reached: the contract's error object as an exception."""

    def __init__(
        self,
        code: str,
        message: str,
        hint: str = "",
        data: dict[str, Any] | None = None,
        *,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = str(code)
        self.message = message
        self.hint = hint
        self.data = data
        self.retryable = retryable

    def body(self) -> dict[str, Any]:
        """The error object {code, message, hint, retryable, data?}."""
        return error_body(self.code, self.message, self.hint, retryable=self.retryable, data=self.data)


class Client:
    """A connection to the daemon of some places. Use `connect`; close it, or use it in a `with`."""

    def __init__(self, where: paths.Places, name: str = "mbxctl") -> None:
        """`name`: who we say we are. Does not connect yet."""
        self.where = where
        self.server: dict[str, Any] = {}
        """Result of the last hello."""
        self._name = name
        self._instance = os.urandom(8).hex()
        self._socket: socket.socket | None = None
        self._candidate: paths.Candidate | None = None
        self._reader = LineReader()
        self._lines: deque[bytes | Oversized] = deque()
        self._notifications: deque[dict[str, Any]] = deque()
        self._numbers = 0
        self._hello: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close; closing twice is no error."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def open(self, timeout: float = TIMEOUT) -> None:
        """Connect to the first socket that answers. Raises ClientError."""
        self.close()
        self._connect(time.monotonic() + timeout, frozenset())

    def hello(
        self,
        *,
        cwd: str | None = None,
        project: dict[str, str] | None = None,
        hints: dict[str, Any] | None = None,
        label: str | None = None,
        timeout: float = TIMEOUT,
    ) -> dict[str, Any]:
        """Introduce the connection and check that the daemon serves this state directory; its result."""
        client = {"name": self._name, "version": __version__, "instance": self._instance, "label": label}
        self._hello = {
            "protocol": {"min": 1, "max": 1},
            "client": client,
            "cwd": cwd,
            "project": project,
            "hints": hints or {},
        }
        try:
            self._introduce(time.monotonic() + timeout)
        except _LOST as lost:
            raise ClientError(
                Code.DAEMON_DOWN, f"the daemon closed the connection: {lost}", _DOWN_HINT, retryable=True
            ) from None
        return self.server

    def call(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        meta: dict[str, Any] | None = None,
        timeout: float = TIMEOUT,
    ) -> Any:
        """The result of a method. `meta` members join the request id, which is made here.

        A lost connection is made anew and the call repeated once under the same request id, so that it can't
        act twice; a second loss is OUTCOME_UNKNOWN. Raises ClientError.
        """
        deadline = time.monotonic() + timeout
        self._numbers += 1
        request = {
            "jsonrpc": "2.0",
            "id": self._numbers,
            "method": method,
            "params": params or {},
            "meta": {"request_id": f"r{self._numbers}", **(meta or {})},
        }
        try:
            return self._exchange(request, deadline)
        except _LOST:
            pass
        try:
            self._reconnect(deadline)
            return self._exchange(request, deadline)
        except (*_LOST, ClientError) as bad:
            if isinstance(bad, ClientError) and bad.code not in {Code.DAEMON_DOWN, Code.DAEMON_UNRESPONSIVE}:
                raise
            raise ClientError(
                Code.OUTCOME_UNKNOWN,
                f"the connection was lost during {method} and the daemon did not come back{after_loss(method)}",
                "look with: mbxctl list",
            ) from None

    def next_notification(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The next notification {method, params}, or None after `timeout` seconds. Raises ClientError when cut off."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._notifications:
            try:
                message = self._receive(deadline)
            except TimeoutError:
                return None
            except _LOST:
                raise ClientError(
                    Code.DAEMON_DOWN, "the daemon closed the connection", _DOWN_HINT, retryable=True
                ) from None
            if "method" in message:
                self._notifications.append(message)
        return self._notifications.popleft()

    def _connect(self, deadline: float, foreign: frozenset[str]) -> None:
        try:
            paths.check(self.where)
        except ValueError as bad:
            raise ClientError(Code.NOT_ALLOWED, str(bad), "run: mbxctl doctor") from None
        problem: ClientError | None = None
        while True:
            for candidate in paths.candidates(self.where):
                if candidate.path in foreign:
                    continue
                try:
                    self._socket = dial.connect(candidate.path, _left(deadline))
                except OSError as bad:
                    problem = problem or self._unreachable(bad, candidate.path)
                    continue
                self._candidate = candidate
                self._reader = LineReader()
                self._lines.clear()
                return
            if problem is None or problem.code != Code.DAEMON_UNRESPONSIVE or time.monotonic() > deadline:
                raise problem or ClientError(
                    Code.DAEMON_DOWN, "no daemon runs for this state directory", _DOWN_HINT, retryable=True
                )
            problem = None  # its backlog is full: it is busy, not gone
            time.sleep(_PAUSE)

    def _introduce(self, deadline: float) -> None:
        foreign: frozenset[str] = frozenset()
        while True:
            self._numbers += 1
            request = {"jsonrpc": "2.0", "id": self._numbers, "method": "hello", "params": self._hello}
            self.server = self._exchange(request, deadline)
            candidate = self._candidate
            if candidate is None or paths.lock_matches(self.where, self.server.get("lock"), candidate):
                return
            foreign |= {candidate.path}
            self.close()
            try:
                self._connect(deadline, foreign)
            except ClientError as none_left:
                raise ClientError(
                    Code.DAEMON_DOWN,
                    f"the daemon at {candidate.path} serves another state directory than {self.where.state}",
                    "set MBX_STATE_DIR or MBX_SOCKET to match it",
                ) from none_left

    def _reconnect(self, deadline: float) -> None:
        """A daemon that is being restarted comes back within moments: try for a while."""
        until = min(deadline, time.monotonic() + 3)
        while True:
            self.close()
            try:
                self._connect(deadline, frozenset())
                if self._hello is not None:
                    self._introduce(deadline)
                return
            except (*_LOST, ClientError) as bad:
                gone = not isinstance(bad, ClientError) or bad.code in {Code.DAEMON_DOWN, Code.STOPPING}
                if not gone or time.monotonic() > until:
                    raise
            time.sleep(_PAUSE)

    def _exchange(self, request: dict[str, Any], deadline: float) -> Any:
        if self._socket is None:
            raise ConnectionError("not connected")
        try:
            line = json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        except UnicodeEncodeError:
            raise ClientError(
                Code.PARAMETER_INVALID, "a parameter is no valid text (half of a surrogate pair)"
            ) from None
        if len(line) > MAX_LINE:
            raise ClientError(Code.PARAMETER_INVALID, f"the request is longer than {MAX_LINE} bytes")
        try:
            self._socket.settimeout(_left(deadline))
            self._socket.sendall(line)
            while True:
                message = self._receive(deadline)
                if "method" in message:
                    self._notifications.append(message)
                elif message.get("id") in {request["id"], None}:  # null: it could not read our line
                    return result_of(message)
        except TimeoutError:
            self._silent(request["method"])

    def _receive(self, deadline: float | None) -> dict[str, Any]:
        while not self._lines:
            if self._socket is None:
                raise ConnectionError("not connected")
            self._socket.settimeout(None if deadline is None else _left(deadline))
            data = self._socket.recv(262144)
            if not data:
                raise ConnectionError("the daemon closed the connection")
            self._lines.extend(self._reader.feed(data))
        line = self._lines.popleft()
        try:
            message = None if isinstance(line, Oversized) else json.loads(line.decode())
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise ClientError(Code.DAEMON_UNRESPONSIVE, "the daemon's answer can't be read", "run: mbxctl doctor")
        return message

    def _silent(self, method: str) -> NoReturn:
        raise ClientError(
            Code.DAEMON_UNRESPONSIVE,
            f"the daemon{self._who()} did not answer {method} in time{after_loss(method)}",
            "run: mbxctl doctor",
            retryable=True,
        ) from None

    def _unreachable(self, bad: OSError, path: str) -> ClientError:
        reason = dial.reason(bad)
        if reason == dial.ABSENT:
            return ClientError(Code.DAEMON_DOWN, "no daemon is running", _DOWN_HINT, retryable=True)
        if reason == dial.FORBIDDEN:
            return ClientError(
                Code.SANDBOXED,
                f"this sandbox forbids the daemon's socket {path} ({bad.strerror})",
                "allow that path (a Unix socket), or run the command outside the sandbox",
            )
        if reason == dial.BUSY:
            text = f"the daemon{self._who()} is there but takes no connections"
            return ClientError(Code.DAEMON_UNRESPONSIVE, text, "run: mbxctl doctor", retryable=True)
        return ClientError(Code.DAEMON_DOWN, f"can't reach the daemon at {path}: {bad}", "run: mbxctl doctor")

    def _who(self) -> str:
        pointer = paths.read_pointer(self.where)
        return f" (pid {pointer['pid']})" if pointer else ""


def connect(where: paths.Places | None = None, *, name: str = "mbxctl", timeout: float = TIMEOUT) -> Client:
    """A connection to the running daemon, not introduced yet. Raises ClientError, ValueError for a bad environment."""
    client = Client(paths.resolve() if where is None else where, name)
    client.open(timeout)
    return client


def connect_or_start(where: paths.Places | None = None, *, name: str = "mbxctl", timeout: float = 25.0) -> Client:
    """The same, starting a daemon when none runs, unless `mbxctl stop` asked for none. Raises ClientError."""
    from mbx_client import launch

    where = paths.resolve() if where is None else where
    deadline = time.monotonic() + timeout
    try:
        return connect(where, name=name, timeout=_left(deadline))
    except ClientError as down:
        if down.code != Code.DAEMON_DOWN:
            raise
    if launch.is_stopped(where):
        raise ClientError(Code.DAEMON_DOWN, "the daemon was stopped with mbxctl stop", _DOWN_HINT)
    try:
        launch.start(where, _left(deadline))
    except launch.StartFailed as bad:
        raise ClientError(Code.DAEMON_DOWN, f"the daemon does not start: {bad}", "run: mbxctl doctor") from bad
    return connect(where, name=name, timeout=_left(deadline))


def after_loss(method: str) -> str:
    """What else to say when the answer to a method did not come."""
    return "" if method in LOOKS else "; it may have taken effect"


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def result_of(message: dict[str, Any]) -> Any:
    """The result in a JSON-RPC response; raises ClientError for the error in it."""
    error = message.get("error")
    if error is None:
        return message.get("result")
    if not isinstance(error, dict):
        error = {}
    text = str(error.get("message") or "internal error")
    data = error.get("data")
    if isinstance(data, dict) and isinstance(data.get("code"), str):
        inner = data.get("data")
        raise ClientError(
            data["code"],
            str(data.get("message") or text),
            str(data.get("hint") or ""),
            inner if isinstance(inner, dict) else None,
            retryable=data.get("retryable") is True,
        )
    number = error.get("code")
    code = {
        RpcError.INVALID_PARAMS: Code.PARAMETER_INVALID,
        RpcError.BUSY: Code.BUSY,
        RpcError.VERSION_SKEW: Code.VERSION_SKEW,
    }.get(number if isinstance(number, int) else 0, "INTERNAL")
    raise ClientError(code, text, "run: mbxctl doctor" if code == "INTERNAL" else "")
