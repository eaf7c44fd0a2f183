"""A client that is never the bottleneck: a blocking socket, prebuilt lines, reading to the newline.

Owns the words of requests and one raw connection. Decodes replies only when asked to.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Self

NUMBER = "@@@@@@@@"
"""Stands in a line for a number that is new each time."""


def request(method: str, params: dict[str, Any] | None = None, *, session: str = "", request_id: str = "") -> bytes:
    """A request line."""
    meta = {key: value for key, value in (("session", session), ("request_id", request_id)) if value}
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": method}
    if params is not None:
        message["params"] = params
    if meta:
        message["meta"] = meta
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def hello(project: str | None = "bench", *, sessions: tuple[str, ...] = ()) -> bytes:
    """An introduction under a fresh instance."""
    place = None if project is None else {"key": f"/bench/{project}", "slug": project}
    return request(
        "hello",
        {
            "protocol": {"min": 1, "max": 1},
            "client": {"name": "bench", "version": "0", "instance": os.urandom(8).hex()},
            "project": place,
            "hints": {"sessions": list(sessions)},
        },
    )


PING = request("ping")
LIST = request("identity.list", {})
STATS = request("admin.stats")


class Connection:
    """One introduced connection with one request in flight."""

    def __init__(self, path: str, project: str | None = "bench", *, introduce: bool = True) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(30)
        self._socket.connect(path)
        self._socket.settimeout(None)
        self._rest = b""
        if introduce:
            self.ask(hello(project))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, line: bytes) -> bytes:
        """Send a line and read its reply, not decoded."""
        connection = self._socket
        connection.sendall(line)
        data = connection.recv(262_144)
        while data[-1:] != b"\n":
            more = connection.recv(262_144)
            if not more:
                raise ConnectionError("the daemon closed the connection")
            data += more
        return data

    def ask(self, line: bytes) -> dict[str, Any]:
        """The result; RuntimeError for a failure."""
        return decoded(self.call(line))

    def send(self, lines: bytes) -> None:
        """Send without waiting for replies: `next_line` has them."""
        self._socket.sendall(lines)

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def receive(self) -> bytes:
        """What has come; ConnectionError at the end."""
        data = self._socket.recv(262_144)
        if not data:
            raise ConnectionError("the daemon closed the connection")
        return data

    def next_line(self) -> bytes:
        """The next notification, after a subscription, or the next reply after `send`."""
        while b"\n" not in self._rest:
            more = self._socket.recv(262_144)
            if not more:
                raise ConnectionError("the daemon closed the connection")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def decoded(line: bytes) -> dict[str, Any]:
    """The result in a reply; RuntimeError for a failure."""
    reply = json.loads(line)
    if "error" in reply:
        raise RuntimeError(str(reply["error"]))
    found: dict[str, Any] = reply["result"]
    return found


class Changes:
    """The requests of one conversation, each with a request id of its own, as a shim sends them."""

    def __init__(self, session: str, prefix: str) -> None:
        self.session = session
        self._prefix = prefix

    def claim(self, name: str) -> bytes:
        return self._line("identity.claim", {"name": name}, "c")

    def release(self, mark: str = "r") -> bytes:
        return self._line("identity.release", {}, mark)

    def register(self, name: str) -> bytes:
        return self._line("identity.register", {"name": name, "role": "backend"}, "g")

    def _line(self, method: str, params: dict[str, Any], mark: str) -> bytes:
        return request(method, params, session=self.session, request_id=f"{self._prefix}-{mark}-{NUMBER}")


def numbered(line: bytes, number: int) -> bytes:
    """The line with its number put in."""
    return line.replace(NUMBER.encode(), b"%08d" % number)
