"""A daemon in memory, for tests of programs that use `mbx_client.aio`: no socket, no process, no files.

    async with testing.stub({"identity.list": lambda params: {"identities": []}}) as stub:
        await stub.client.hello()
        assert await stub.client.call("identity.list") == {"identities": []}
        assert stub.calls == [("identity.list", {})]

It answers `hello` and `ping` by itself, other methods from the given functions, and the rest with "method
not found". A function may raise ClientError to refuse.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.streams.stapled import StapledObjectStream

from mbx_client import __version__, aio
from mbx_client.blocking import ClientError
from mbx_wire.errors import RpcError
from mbx_wire.framing import LineReader, Oversized

Answer = Callable[[dict[str, Any]], Any]


class Stub:
    """The daemon's side. `calls` are the (method, params) so far, without hello; `client` is the other side."""

    def __init__(self, answers: Mapping[str, Answer], stream: StapledObjectStream[bytes], client: aio.Client) -> None:
        self.client = client
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._answers = answers
        self._stream = stream

    async def change(self, change: dict[str, Any]) -> None:
        """Send a change to a subscribed client."""
        await self._tell({"jsonrpc": "2.0", "method": "events.change", "params": change})

    async def hang_up(self) -> None:
        """Close the connection, as a daemon does that dies."""
        await self._stream.aclose()

    async def serve(self) -> None:
        """Answer until the client is gone."""
        reader = LineReader()
        try:
            async for data in self._stream:
                for line in reader.feed(data):
                    if not isinstance(line, Oversized):
                        await self._answer(json.loads(line))
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return

    async def _answer(self, request: dict[str, Any]) -> None:
        method, params = request["method"], request.get("params") or {}
        if method != "hello":
            self.calls.append((method, params))
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        answer = self._answers.get(method) or _BUILT_IN.get(method)
        if answer is None:
            reply["error"] = {"code": RpcError.METHOD_NOT_FOUND, "message": f"unknown method {method}"}
        else:
            try:
                reply["result"] = answer(params)
            except ClientError as refusal:
                reply["error"] = {"code": RpcError.REFUSED, "message": refusal.message, "data": refusal.body()}
        await self._tell(reply)

    async def _tell(self, message: dict[str, Any]) -> None:
        await self._stream.send(json.dumps(message).encode() + b"\n")


@asynccontextmanager
async def stub(answers: Mapping[str, Answer] | None = None) -> AsyncIterator[Stub]:
    """A stub daemon and a client that is connected to it."""
    to_daemon, from_client = anyio.create_memory_object_stream[bytes](16)
    to_client, from_daemon = anyio.create_memory_object_stream[bytes](16)
    ours = StapledObjectStream(to_client, from_client)
    async with aio.over(StapledObjectStream(to_daemon, from_daemon)) as client, ours:
        made = Stub(answers or {}, ours, client)
        async with anyio.create_task_group() as group:
            group.start_soon(made.serve)
            yield made
            group.cancel_scope.cancel()


def _hello(_params: dict[str, Any]) -> dict[str, Any]:
    return {
        "protocol": 1,
        "server": {"version": __version__, "pid": 1, "started_at": "2026-01-01T00:00:00.000Z"},
        "lock": {"path": "/nowhere/mbxd.lock", "device": 0, "inode": 0},
    }


def _pong(_params: dict[str, Any]) -> dict[str, Any]:
    return {"pong": True, "pid": 1, "version": __version__}


def _subscribed(_params: dict[str, Any]) -> dict[str, Any]:
    return {"subscribed": True, "seq": 0}


_BUILT_IN: dict[str, Answer] = {"hello": _hello, "ping": _pong, "events.subscribe": _subscribed}
