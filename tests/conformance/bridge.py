"""Streamable HTTP on one side, stdio MCP servers on the other: the official conformance suite speaks HTTP alone.

It carries messages and knows nothing of their meaning but where they belong: a legacy session has one server, a
stateless request has one of its own, which shows whether anything depends on a connection. It renames the suite's
fixtures to what the server really has (`aliases.toml`). What the transport itself owes, such as checks of origins
and headers, is left out: there is nothing of ours behind it. Whatever a stdio server must never do (a line that is no
JSON, staying after the end of its input) is told on stderr, as is all that the servers write there.

Usage: bridge.py ALIASES COMMAND...; prints its port.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tomllib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

PREFIX = "io.modelcontextprotocol/"
STATUS = {-32601: 404, -32602: 400, -32020: 400, -32021: 400, -32022: 400}
"""HTTP status of a stateless request's JSON-RPC error; others have 200."""
LEAVES_IN = 5.0
"""Seconds for a server to end after its input did."""
MAX_BODY = 4 * 1024 * 1024

Message = dict[str, Any]
Key = tuple[str, Any]


class Server:
    """One stdio server and who waits for what it says."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._sending = trio.Lock()
        self._answers: dict[Key, trio.MemorySendChannel[Message]] = {}
        self._told, self.unasked = trio.open_memory_channel[Message](100)

    async def send(self, message: Message) -> None:
        assert self._process.stdin is not None
        async with self._sending:
            await self._process.stdin.send_all(json.dumps(message).encode() + b"\n")

    @asynccontextmanager
    async def asked(self, message: Message) -> AsyncIterator[trio.MemoryReceiveChannel[Message]]:
        """Send a request; what arrives is its notifications, then its answer."""
        send, receive = trio.open_memory_channel[Message](100)
        meta = (message.get("params") or {}).get("_meta") or {}
        keys: list[Key] = [_key("id", message["id"])]
        if "progressToken" in meta:
            keys.append(_key("progress", meta["progressToken"]))
        self._answers.update(dict.fromkeys(keys, send))
        try:
            await self.send(message)
            yield receive
        finally:
            for key in keys:
                self._answers.pop(key, None)

    async def read(self) -> None:
        """Hand out all that the server says, until it ends; who still waits is told so."""
        assert self._process.stdout is not None
        rest = b""
        async for data in self._process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._hand_out(line)
        if rest:
            complain("unfinished line on stdout", rest)
        for channel in {id(channel): channel for channel in [*self._answers.values(), self._told]}.values():
            channel.close()

    def _hand_out(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            complain("not JSON on stdout", line)
            return
        params = message.get("params") or {}
        subscription = (params.get("_meta") or {}).get(PREFIX + "subscriptionId")
        if "method" not in message:
            key = _key("id", message.get("id"))
        elif subscription is not None:
            key = _key("id", subscription)
        else:
            key = _key("progress", params.get("progressToken"))
        try:
            self._answers.get(key, self._told).send_nowait(message)
        except trio.WouldBlock:
            complain("more notifications than anybody reads", line)


@asynccontextmanager
async def started(command: list[str]) -> AsyncIterator[Server]:
    """A server for the time of a block. At its end it must go by itself."""
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    async with trio.open_nursery() as nursery:
        server = Server(process)
        nursery.start_soon(server.read)
        try:
            yield server
        finally:
            assert process.stdin is not None
            with trio.CancelScope(shield=True):
                await process.stdin.aclose()
                with trio.move_on_after(LEAVES_IN):
                    await process.wait()
            if process.returncode is None:
                complain("still there after the end of its input", repr(command).encode())
                process.kill()
            elif process.returncode != 0:
                complain(f"ended with {process.returncode}", repr(command).encode())


class Bridge:
    """The HTTP side: sessions by their id, and one server more for each stateless request."""

    def __init__(self, command: list[str], aliases: dict[str, Any], nursery: trio.Nursery) -> None:
        self._command = command
        self._tools: dict[str, Message] = aliases["tools"]
        self._resources: dict[str, str] = aliases["resources"]
        self._nursery = nursery
        self._sessions: dict[str, tuple[Server, trio.Event]] = {}

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection: one request and its answer."""
        async with stream:
            try:
                method, headers, body = await _request(stream)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_until_gone, stream, nursery.cancel_scope)
                    await self._answer(stream, method, headers, body)
                    nursery.cancel_scope.cancel()
            except* (trio.BrokenResourceError, ConnectionError):
                pass  # the client has what it wanted

    async def _answer(self, stream: trio.SocketStream, method: str, headers: dict[str, str], body: bytes) -> None:
        name = headers.get("mcp-session-id")
        server, end = self._sessions.get(name or "", (None, None))
        if name is not None and server is None:
            await _whole(stream, 404, None)
        elif method == "GET" and server is not None:
            await _stream(stream, server.unasked)
        elif method == "DELETE" and end is not None and name is not None:
            del self._sessions[name]
            end.set()
            await _whole(stream, 200, None)
        elif method != "POST":
            await _whole(stream, 405, None)
        else:
            try:
                message = json.loads(body)
            except ValueError:
                await _whole(stream, 400, None)
                return
            await self._post(stream, server, message)

    async def _post(self, stream: trio.SocketStream, server: Server | None, message: Message) -> None:
        self._rename(message)
        meta = (message.get("params") or {}).get("_meta") or {}
        if "id" not in message or "method" not in message:
            if server is not None:
                await server.send(message)
            await _whole(stream, 202, None)
        elif server is not None:
            await _exchange(stream, server, message)
        elif message["method"] == "initialize" and PREFIX + "protocolVersion" not in meta:
            name = uuid.uuid4().hex
            server = await self._nursery.start(self._session, name)
            await _exchange(stream, server, message, name)
        else:
            async with started(self._command) as own:
                await _exchange(stream, own, message, stateless=True)

    async def _session(self, name: str, *, task_status: trio.TaskStatus[Server]) -> None:
        end = trio.Event()
        async with started(self._command) as server:
            self._sessions[name] = (server, end)
            task_status.started(server)
            await end.wait()

    def _rename(self, message: Message) -> None:
        params = message.get("params")
        if not isinstance(params, dict):
            return
        if message.get("method") == "tools/call" and params.get("name") in self._tools:
            params.update(self._tools[params["name"]])
        if params.get("uri") in self._resources:
            params["uri"] = self._resources[params["uri"]]


async def _exchange(
    stream: trio.SocketStream, server: Server, message: Message, session: str = "", *, stateless: bool = False
) -> None:
    """Carry one request over and its answer back: as one document, or as a stream when notifications come first."""
    async with server.asked(message) as said:
        try:
            first = await said.receive()
        except trio.EndOfChannel:
            await _whole(stream, 502, None)
            return
        if "method" in first:
            await _stream(stream, said, first)
        else:
            code = first.get("error", {}).get("code")
            await _whole(stream, STATUS.get(code, 200) if stateless else 200, first, session)


async def _request(stream: trio.SocketStream) -> tuple[str, dict[str, str], bytes]:
    """Method, headers (names in lower case) and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await _more(stream)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    while len(body) < min(int(headers.get("content-length", "0")), MAX_BODY):
        body += await _more(stream)
    return first.split(" ")[0], headers, body


async def _more(stream: trio.SocketStream) -> bytes:
    data = await stream.receive_some()
    if not data:
        raise ConnectionError("the client went away")
    return bytes(data)


async def _until_gone(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    while await stream.receive_some():
        pass
    scope.cancel()


async def _whole(stream: trio.SocketStream, status: int, message: Message | None, session: str = "") -> None:
    body = b"" if message is None else json.dumps(message).encode()
    named = f"Mcp-Session-Id: {session}\r\n" if session else ""
    await stream.send_all(
        f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"{named}Connection: close\r\n\r\n".encode()
        + body
    )


async def _stream(
    stream: trio.SocketStream, said: trio.MemoryReceiveChannel[Message], first: Message | None = None
) -> None:
    """Server-sent events up to an answer or the end."""
    await stream.send_all(b"HTTP/1.1 200 x\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    if first is not None:
        await stream.send_all(_event(first))
    async for message in said:
        await stream.send_all(_event(message))
        if "method" not in message:
            return


def _event(message: Message) -> bytes:
    return b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n"


def _key(kind: str, value: Any) -> Key:
    """1 and "1" are two ids."""
    return kind, (type(value).__name__, value)


def complain(what: str, line: bytes) -> None:
    sys.stderr.write(f"bridge: {what}: {line[:500]!r}\n")
    sys.stderr.flush()


async def main(aliases: dict[str, Any], command: list[str]) -> None:
    """Serve until the end of stdin."""
    async with trio.open_nursery() as nursery:
        bridge = Bridge(command, aliases, nursery)
        listeners = await nursery.start(functools.partial(trio.serve_tcp, bridge.serve, 0, host="127.0.0.1"))
        print(listeners[0].socket.getsockname()[1], flush=True)
        async with trio.lowlevel.FdStream(0) as stdin:
            async for _ in stdin:
                pass
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, tomllib.loads(Path(sys.argv[1]).read_text()), sys.argv[2:])
