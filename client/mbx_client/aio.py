"""The RPC client for programs, on anyio: the same code under asyncio and under trio.

Owns one connection: many calls at once, and the stream of changes. Never reconnects and never starts a
daemon: a program decides that for itself (`mbx_client.blocking.connect_or_start` does both). Errors are
`mbx_client.blocking.ClientError`.

    async with aio.connect(name="my-program") as client:
        await client.hello()
        print(await client.call("identity.list", {"all": True}))
        async with client.subscribe() as changes:
            async for change in changes:
                print(change["what"], change["name"])
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import ObjectReceiveStream, SocketAttribute
from anyio.streams.memory import MemoryObjectSendStream
from anyio.streams.stapled import StapledObjectStream

from mbx_client import __version__, dial, paths
from mbx_client.blocking import TIMEOUT, ClientError, after_loss, result_of
from mbx_wire.errors import Code
from mbx_wire.framing import MAX_LINE, LineReader, Oversized

QUEUE = 1024
"""Changes that may wait for a subscriber; a slower one loses the stream and is told so."""

Stream = anyio.abc.SocketStream | StapledObjectStream[bytes]
Change = dict[str, Any]


class _Waiter:
    """One call under way."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.message: dict[str, Any] | None = None


class Client:
    """An open connection; made by `connect`. Safe for many tasks of one event loop."""

    def __init__(self, stream: Stream, name: str, where: paths.Places | None) -> None:
        """`where`: the state directory that the daemon must serve, or None when that doesn't matter."""
        self._stream = stream
        self._name = name
        self._where = where
        self._instance = os.urandom(8).hex()
        self._numbers = 0
        self._waiters: dict[int, _Waiter] = {}
        self._subscriber: MemoryObjectSendStream[Change] | None = None
        self._too_slow = False
        self._closed = False
        self._sending = anyio.Lock()

    async def hello(self, *, cwd: str | None = None, project: dict[str, str] | None = None) -> dict[str, Any]:
        """Introduce the connection; its result. Raises ClientError, also for a daemon of another state directory."""
        params = {
            "protocol": {"min": 1, "max": 1},
            "client": {"name": self._name, "version": __version__, "instance": self._instance},
            "cwd": cwd,
            "project": project,
        }
        result: dict[str, Any] = await self.call("hello", params)
        candidate = paths.Candidate("", explicit=False)
        if self._where is not None and not paths.lock_matches(self._where, result.get("lock"), candidate):
            raise ClientError(
                Code.DAEMON_DOWN,
                f"the daemon serves another state directory than {self._where.state}",
                "set MBX_STATE_DIR or MBX_SOCKET to match it",
            )
        return result

    async def call(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        meta: dict[str, Any] | None = None,
        timeout: float = TIMEOUT,
    ) -> Any:
        """The result of a method. Raises ClientError; OUTCOME_UNKNOWN when the connection ends under the call."""
        self._numbers += 1
        number = self._numbers
        request = {
            "jsonrpc": "2.0",
            "id": number,
            "method": method,
            "params": params or {},
            "meta": {"request_id": f"a{number}", **(meta or {})},
        }
        waiter = self._waiters[number] = _Waiter()
        try:
            with anyio.fail_after(timeout):
                await self._send(request)
                await waiter.done.wait()
        except TimeoutError:
            text = f"the daemon did not answer {method} within {timeout:g} s{after_loss(method)}"
            raise ClientError(Code.DAEMON_UNRESPONSIVE, text, "run: mbxctl doctor", retryable=True) from None
        finally:
            del self._waiters[number]
        if waiter.message is None:
            text = f"the connection ended during {method}{after_loss(method)}"
            raise ClientError(Code.OUTCOME_UNKNOWN, text, "look with: mbxctl list")
        return result_of(waiter.message)

    @asynccontextmanager
    async def subscribe(self, project: str | None = None) -> AsyncIterator[AsyncIterator[Change]]:
        """Durable changes (`Change` of the protocol), of one project or the host, while the block lasts.

        One subscription at a time. The iterator raises ClientError when the stream ends before the block does.
        """
        if self._subscriber is not None:
            raise RuntimeError("this client is subscribed already: use a second connection")
        send, receive = anyio.create_memory_object_stream[Change](QUEUE)
        self._subscriber = send
        self._too_slow = False
        try:
            with send, receive:
                await self.call("events.subscribe", {"project": project})
                yield self._changes(receive)
        finally:
            self._subscriber = None

    async def _changes(self, receive: ObjectReceiveStream[Change]) -> AsyncIterator[Change]:
        async for change in receive:
            yield change
        if self._too_slow:
            raise ClientError(Code.BUSY, "changes came faster than they were read", "subscribe again", retryable=True)
        raise ClientError(Code.DAEMON_DOWN, "the daemon closed the connection", "connect again", retryable=True)

    async def _send(self, request: dict[str, Any]) -> None:
        try:
            line = json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        except UnicodeEncodeError:
            raise ClientError(Code.PARAMETER_INVALID, "a parameter is no valid text") from None
        if len(line) > MAX_LINE:
            raise ClientError(Code.PARAMETER_INVALID, f"the request is longer than {MAX_LINE} bytes")
        if self._closed:
            raise ClientError(Code.DAEMON_DOWN, "the connection is closed", "connect again", retryable=True)
        async with self._sending:
            try:
                await self._stream.send(line)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                raise ClientError(Code.DAEMON_DOWN, "the connection is closed", "connect again") from None

    async def _read(self) -> None:
        """Until the connection ends: hand responses to their callers and changes to the subscriber."""
        reader = LineReader()
        try:
            async for data in self._stream:
                for line in reader.feed(data):
                    self._take(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # an end like any other
        finally:
            self._closed = True
            for waiter in self._waiters.values():
                waiter.done.set()
            if self._subscriber is not None:
                self._subscriber.close()

    def _take(self, line: bytes | Oversized) -> None:
        try:
            message = None if isinstance(line, Oversized) else json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        if message.get("method") == "events.change":
            self._changed(message.get("params") or {})
        elif message.get("method") == "events.dropped":
            self._cut_off()
        number = message.get("id")
        waiter = self._waiters.get(number) if isinstance(number, int) else None
        if waiter is not None:
            waiter.message = message
            waiter.done.set()

    def _changed(self, change: Change) -> None:
        if self._subscriber is None:
            return
        try:
            self._subscriber.send_nowait(change)
        except anyio.WouldBlock:
            self._cut_off()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the subscriber has just left

    def _cut_off(self) -> None:
        self._too_slow = True
        if self._subscriber is not None:
            self._subscriber.close()


@asynccontextmanager
async def connect(where: paths.Places | None = None, *, name: str = "program") -> AsyncIterator[Client]:
    """A connection to the running daemon, not introduced yet. Raises ClientError, ValueError for a bad environment."""
    where = paths.resolve() if where is None else where
    stream, candidate = await _dial(where)
    async with over(stream, name=name, where=None if candidate.explicit else where) as client:
        yield client


@asynccontextmanager
async def over(stream: Stream, *, name: str = "program", where: paths.Places | None = None) -> AsyncIterator[Client]:
    """A client over a stream that is open already (`mbx_client.testing`). The stream is closed at the end."""
    client = Client(stream, name, where)
    async with stream, anyio.create_task_group() as group:
        group.start_soon(client._read)  # noqa: SLF001 - this function is the client's other half
        try:
            yield client
        finally:
            group.cancel_scope.cancel()


async def _dial(where: paths.Places) -> tuple[anyio.abc.SocketStream, paths.Candidate]:
    try:
        paths.check(where)
    except ValueError as bad:
        raise ClientError(Code.NOT_ALLOWED, str(bad), "run: mbxctl doctor") from None
    problem = ClientError(Code.DAEMON_DOWN, "no daemon is running", "run: mbxctl start", retryable=True)
    for candidate in paths.candidates(where):
        try:
            with anyio.fail_after(TIMEOUT):
                stream = await anyio.connect_unix(candidate.path)
            try:
                dial.check_peer(stream.extra(SocketAttribute.raw_socket))  # noqa: S610 - anyio's extra, not Django's
            except OSError:
                await stream.aclose()
                raise
            return stream, candidate
        except OSError as bad:
            reason = dial.reason(bad)
            if reason == dial.BUSY:
                problem = ClientError(Code.DAEMON_UNRESPONSIVE, "the daemon takes no connections", "run: mbxctl doctor")
            elif reason == dial.FORBIDDEN:
                problem = ClientError(
                    Code.SANDBOXED,
                    f"this sandbox forbids the daemon's socket {candidate.path} ({bad.strerror})",
                    "allow that path (a Unix socket)",
                )
    raise problem
