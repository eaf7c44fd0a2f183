"""A daemon of few words for tests of its clients: real socket, scripted answers, a record of what was asked.

It keeps the promise that clients rely on: a request id that was executed is not executed again.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mbx_wire.framing import LineReader, Oversized

Message = dict[str, Any]
NOW = "2026-01-02T03:04:05.678Z"
"""When it started, and all else that has a time in its answers."""
LIMIT = 20.0
"""Seconds after which a wait of a test has failed."""


class HangUp(Exception):
    """Raised by a handler: close the connection instead of answering."""


class StubDaemon:
    """Serves `<state>/run/mbxd.sock` until it is stopped. `tool` answers tool.call, `handle` may take any method."""

    def __init__(self, state: Path, *, path: Path | None = None) -> None:
        self.state = state
        self.path = path or state / "run" / "mbxd.sock"
        self.requests: list[Message] = []
        self.executed: Counter[tuple[str, str]] = Counter()
        self.tool: Callable[[Message], Message] = answer_tool
        self.handle: Callable[[Message], Message | None] = lambda _request: None
        self.before_reply: Callable[[Message], None] = lambda _request: None
        """May raise HangUp: the request was executed and its reply is lost."""
        self.lock_of = state
        self.accepted = 0
        self._results: dict[tuple[str, str], Message] = {}
        self._changed = threading.Condition()
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.state / "mbxd.lock").touch()
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self.path.chmod(0o600)
        self._listener.listen(64)
        self._spawn(self._accept, self._listener)

    def stop(self) -> None:
        """Like a crash: everything is closed at once."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.hang_up()
        for thread in self._threads:
            thread.join(LIMIT)
            assert not thread.is_alive()
        self._threads.clear()

    def hang_up(self) -> None:
        """Close every connection."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def asked(self, method: str) -> list[Message]:
        return [request for request in self.requests if request.get("method") == method]

    def wait_for(self, condition: Callable[[], object], what: str = "the condition") -> None:
        with self._changed:
            assert self._changed.wait_for(condition, LIMIT), f"never came: {what}"

    def notify(self, message: Message) -> None:
        """Send one message to every connection."""
        for connection in list(self._connections):
            connection.sendall(json.dumps(message).encode() + b"\n")

    def hello_result(self) -> Message:
        lock = os.stat(self.lock_of / "mbxd.lock")
        return {
            "protocol": 1,
            "server": {"version": "0.1.0", "pid": os.getpid(), "started_at": NOW},
            "lock": {"path": str(self.lock_of / "mbxd.lock"), "device": lock.st_dev, "inode": lock.st_ino},
        }

    def _spawn(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._changed:
                self.accepted += 1
                self._connections.add(connection)
                self._changed.notify_all()
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        reader = LineReader()
        instance = ""
        with connection, contextlib.suppress(OSError, HangUp):
            while data := connection.recv(65536):
                for line in reader.feed(data):
                    assert not isinstance(line, Oversized)
                    request = json.loads(line)
                    if request["method"] == "hello":
                        instance = request["params"]["client"]["instance"]
                    with self._changed:
                        self.requests.append(request)
                        self._changed.notify_all()
                    reply = self._reply(request, instance)
                    if reply:
                        # Real characters; a lone surrogate becomes the escape that JSON has for it.
                        text = json.dumps(reply, ensure_ascii=False)
                        connection.sendall(text.encode(errors="backslashreplace") + b"\n")
                        self._replied(request, connection)
        self._connections.discard(connection)

    def _reply(self, request: Message, instance: str) -> Message | None:
        special = self.handle(request)
        if special is not None:
            return special
        method = request["method"]
        if method == "hello":
            return reply(request, self.hello_result())
        if method == "ping":
            return reply(request, {"pong": True, "pid": os.getpid(), "version": "0.1.0"})
        if method == "tool.call":
            key = (instance, request["meta"]["request_id"])
            if key not in self._results:
                self.executed[key] += 1
                self._results[key] = self.tool(request)
            self.before_reply(request)
            return reply(request, self._results[key])
        return failure(request, -32601, "Method not found")

    def _replied(self, request: Message, connection: socket.socket) -> None:
        """For others to say more."""


def reply(request: Message, result: Any) -> Message:
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


def failure(request: Message, code: int, message: str, data: Any = None) -> Message:
    error = {"code": code, "message": message}
    return {
        "jsonrpc": "2.0",
        "id": request["id"],
        "error": error if data is None else {**error, "data": data},
    }


def refused(request: Message, code: str, message: str = "refused") -> Message:
    return failure(request, -32000, message, {"code": code, "message": message, "hint": "", "retryable": False})


def answer_tool(request: Message) -> Message:
    """The tool's arguments, given back as its result."""
    content = {"action": "list", "echo": request["params"]["arguments"], "warnings": []}
    return tool_result(content)


def tool_result(content: Message) -> Message:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return {"content": [{"type": "text", "text": text}], "structuredContent": content, "isError": False}


def no_answer(_request: Message) -> Message:
    """Marks a request that stays without an answer: an empty reply is not sent."""
    return {}
