"""One connection: lines in, replies out, from `hello` to the end.

Owns what belongs to a connection: its introduction, its requests in flight, its subscription. A broken
connection ends only itself, and changes nothing about who holds what.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import msgspec
import trio
from msgspec.structs import replace

from mbx_wire.admin import SubscribeParams, SubscribeResult
from mbx_wire.envelope import PROTOCOL_MAX, PROTOCOL_MIN, HelloParams, HelloResult, Request
from mbx_wire.errors import Code, RpcError
from mbx_wire.framing import LineReader, Oversized
from mbxd.core.rejected import Rejected
from mbxd.runtime.fanout import Notification
from mbxd.runtime.peer import HostFinding, Peer, host_of
from mbxd.server import skew, wire
from mbxd.server.callers import COMMAND_LINE, Introduced, check_hello, introduce, update
from mbxd.server.dispatch import Dispatcher, Later, Line, Now, failed
from mbxd.server.limits import BACKLOG_PAUSE, DRAIN_S, EVENTS_BACKLOG_MAX, HELLO_TEXT_MAX, IN_FLIGHT_MAX, LINES_A_TURN
from mbxd.server.params import ParamsDecoder
from mbxd.server.services import Services
from mbxd.server.transport import Closed, Transport

log = logging.getLogger("mbxd.session")

Obstacle: TypeAlias = Callable[[], Awaitable[None]]
"""What has to be waited for before the next line."""

_hello = ParamsDecoder(HelloParams)
_subscribe = ParamsDecoder(SubscribeParams)
_encode = msgspec.json.Encoder().encode


class Session:
    """Serves one connection until it ends."""

    def __init__(self, services: Services, dispatcher: Dispatcher, transport: Transport, peer: Peer) -> None:
        """`peer`: as the kernel named it when the connection was accepted."""
        self._services = services
        self._dispatcher = dispatcher
        self._transport = transport
        self._peer: Peer | None = peer
        self._who: Introduced | None = None
        self._in_flight = 0
        self._reader = LineReader()
        self._half = False  # whether the beginning of a line is counted among all unfinished ones
        self._lines: deque[bytes | Oversized] = deque()
        self._nursery: trio.Nursery | None = None
        self._flushing = False
        self._idle = trio.Event()
        self._idle.set()

    async def run(self) -> None:
        """Serve. Returns when the peer is gone; never raises for what a peer does."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    with contextlib.suppress(Closed):
                        await self._transport.read(self._take)
                        # The peer will ask no more, but may still read: what it asked is answered.
                        if self._in_flight or self._transport.backlog:
                            with trio.move_on_after(DRAIN_S):
                                await self.drain()
                finally:
                    self._nursery = None  # it closes before this ends: a reply that is ready now begins nothing
                nursery.cancel_scope.cancel()
        finally:
            self._leave()

    async def drain(self) -> None:
        """Wait until everything accepted is answered and taken."""
        await self._idle.wait()
        try:
            await self._transport.drained()
        except Closed:
            return

    def close(self) -> None:
        """End the connection from our side."""
        self._transport.close()

    @property
    def unfinished(self) -> int:
        """Bytes of a line that has not ended yet."""
        return self._reader.buffered

    @property
    def untaken(self) -> int:
        """Bytes that the peer has not taken yet."""
        return self._transport.backlog

    def drop_line(self) -> None:
        """Give the unfinished line up, and say so."""
        self._reader.give_up()
        text = "The daemon holds too many unfinished lines and discarded this one: send it again, whole."
        self._send(wire.failure(None, RpcError.BUSY, text))

    def cut_off(self) -> None:
        """End the connection of a peer that does not read."""
        log.warning("a peer that reads nothing is cut off", extra={"untaken": self.untaken})
        self.close()

    def make_way(self) -> None:
        """End the connection for somebody else's."""
        text = "The daemon has all the connections that it takes, and this process has most of them."
        self._send(wire.failure(None, RpcError.BUSY, text))
        self.close()

    # -- reading ---------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        """Serve what arrived, as far as that goes without waiting."""
        reader = self._reader
        self._lines += reader.feed(data)
        if self._half or reader.buffered:
            self._half = reader.buffered > 0
            self._services.lines.note(self)
        obstacle = self._work()
        if obstacle is not None and self._nursery is not None:
            self._transport.pause()
            self._nursery.start_soon(self._catch_up, obstacle)

    async def _catch_up(self, obstacle: Obstacle | None) -> None:
        """Serve the rest in order; nothing more is read before that."""
        while obstacle is not None:
            try:
                await obstacle()
            except Closed:
                self.close()
                return
            obstacle = self._work()
        self._transport.resume()

    def _work(self) -> Obstacle | None:
        """Serve lines until there are none, or one has to be waited for."""
        lines, transport = self._lines, self._transport
        for _ in range(LINES_A_TURN):
            if not lines:
                return None
            line = lines.popleft()
            if isinstance(line, Oversized):
                self._send(wire.failure(None, RpcError.INVALID_REQUEST, "The line is longer than 4 MiB."))
            elif line:
                obstacle = self._line(line)
                if obstacle is not None:
                    return obstacle
            if transport.broken:
                lines.clear()  # asked by nobody any more
                self.close()
                return None
            if transport.backlog > BACKLOG_PAUSE:
                # A peer that does not read its replies gets no more of them.
                return transport.drained
        return trio.lowlevel.checkpoint if lines else None  # others are served in between

    def _line(self, line: bytes) -> Obstacle | None:
        try:
            request = wire.parse(line)
        except wire.Malformed as malformed:
            self._send(malformed.reply)
            return None
        if request.id is msgspec.UNSET:
            return None  # no method of ours is a notification
        if request.method == "hello":
            return partial(self._say_hello, request)
        if request.method == "events.subscribe" and self._who is not None:
            self._start_events(request)
        else:
            self._serve(request)
        return None

    def _serve(self, request: Request) -> None:
        if self._in_flight >= IN_FLIGHT_MAX:
            self._send(wire.failure(_id(request), RpcError.BUSY, f"More than {IN_FLIGHT_MAX} requests are in flight."))
            return
        answer = self._dispatcher.answer(request, self._who)
        if isinstance(answer, Later):
            self._enter()
            if self._nursery is not None:
                # Without its params, which keep the whole line: it may be long, and the answer a while in coming.
                self._nursery.start_soon(self._finish, replace(request, params=msgspec.Raw(b"")), answer)
        else:
            line = answer.line if isinstance(answer, Line) else wire.success(_id(request), answer.result)
            if not answer.seq:
                self._send(line)
                return
            self._enter()
            self._services.engine.when_durable(answer.seq, partial(self._deliver, line))

    async def _finish(self, request: Request, later: Later) -> None:
        try:
            answer: Now = await later.wait()
            if answer.seq:
                await self._services.engine.wait_durable(answer.seq)
            line = wire.success(_id(request), answer.result)
        except Exception as error:  # the boundary's other half: see dispatch
            line = failed(request, error)
            if isinstance(error, Rejected):
                await self._services.engine.wait_durable()  # a refusal may tell of a change
        self._deliver(line)

    # -- writing ---------------------------------------------------------------------------------------------

    def _send(self, line: bytes) -> None:
        self._transport.send(line)
        if self._transport.backlog:
            self._services.replies.note(self)
            if not self._flushing and self._nursery is not None:
                self._flushing = True
                self._nursery.start_soon(self._flush)

    async def _flush(self) -> None:
        await self._transport.flush()
        self._flushing = False

    def _deliver(self, line: bytes) -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()
        self._send(line)

    def _enter(self) -> None:
        if self._in_flight == 0:
            self._idle = trio.Event()
        self._in_flight += 1

    # -- hello -----------------------------------------------------------------------------------------------

    async def _say_hello(self, request: Request) -> None:
        try:
            hello = _hello(bytes(request.params))
            if not isinstance(hello, HelloParams):
                raise TypeError("hello")
            line = await self._introduce(request, hello)
        except Exception as error:  # as in dispatch
            line = failed(request, error)
        self._send(line)

    async def _introduce(self, request: Request, hello: HelloParams) -> bytes:
        version = min(hello.protocol.max, PROTOCOL_MAX)
        if version < max(hello.protocol.min, PROTOCOL_MIN):
            return wire.failure(_id(request), RpcError.VERSION_SKEW, *_skew(self._services, hello))
        check_hello(hello)
        if self._who is None:
            finding = await self._find()
            if finding is None:
                raise Rejected(
                    Code.STATUS_UNKNOWN,
                    "The connecting process had ended before it could be looked at.",
                    "Connect from a process that lives.",
                    retryable=True,
                )
            self._enter_world(introduce(hello, finding, self._services), hello)
        else:
            update(self._who, hello)
        services = self._services
        return wire.success(_id(request), HelloResult(version, services.server, services.lock))

    async def _find(self) -> HostFinding | None:
        peer, self._peer = self._peer, None
        if peer is None:
            return None
        # Reading /proc may take milliseconds: not on the event loop.
        return await self._services.run_sync(host_of, self._services.processes, peer)

    def _enter_world(self, who: Introduced, hello: HelloParams) -> None:
        services = self._services
        self._who = who
        services.instances.opened(who.instance)
        if who.command_line or who.host is None:
            return
        services.holders.connected(who.shim)
        shims = services.shims_of.setdefault(who.host, {})
        shims[who.shim] = shims.get(who.shim, 0) + 1
        for handle in hello.hints.sessions[:64]:
            # It spoke for these before the connection broke: the session is attached by it again.
            held = services.engine.state.by_session.get((who.host, handle))
            if held is not None:
                services.holders.spoke(held, who.shim)

    def _leave(self) -> None:
        """Undo what this connection added. Nobody loses an identity by it."""
        services, who = self._services, self._who
        services.fanout.unsubscribe(self._push)
        services.lines.forget(self)
        services.replies.forget(self)
        self._transport.close()
        if self._peer is not None and self._peer.pidfd is not None:
            services.processes.close(services.processes.adopt(self._peer.pidfd)[1])
            self._peer = None
        if who is None:
            return
        self._who = None
        services.instances.closed(who.instance)
        if not who.command_line and who.host is not None:
            services.holders.disconnected(who.shim)
            shims = services.shims_of[who.host]
            shims[who.shim] -= 1
            if shims[who.shim] == 0:
                del shims[who.shim]
            if not shims:
                del services.shims_of[who.host]
                services.handles_of.pop(who.host, None)
        for watched in who.watched:
            services.holders.drop(watched)

    # -- events ----------------------------------------------------------------------------------------------

    def _start_events(self, request: Request) -> None:
        try:
            params = _subscribe(bytes(request.params))
            if isinstance(params, SubscribeParams) and len(params.project or "") > HELLO_TEXT_MAX:
                raise Rejected(
                    Code.PARAMETER_INVALID,
                    f"`project` is longer than {HELLO_TEXT_MAX} characters.",
                    "Name a project by its slug, or leave it out for all.",
                )
        except Rejected as refusal:
            self._send(failed(request, refusal))
            return
        project = params.project if isinstance(params, SubscribeParams) else None
        self._send(wire.success(_id(request), SubscribeResult(True, self._services.engine.durable_seq)))
        self._services.fanout.subscribe(self._push, project)

    def _push(self, line: bytes) -> bool:
        if self._transport.backlog > EVENTS_BACKLOG_MAX:
            dropped = Notification("events.dropped", {"queued": self._transport.backlog})
            self._send(_encode(dropped) + b"\n")
            return False
        self._send(line)
        return True


def _id(request: Request) -> int | str | None:
    return request.id if request.id is not msgspec.UNSET else None


def _skew(services: Services, hello: HelloParams) -> tuple[str, dict[str, object]]:
    ours = f"{PROTOCOL_MIN} to {PROTOCOL_MAX}"
    client = hello.client.version[:40]
    theirs = f"{hello.protocol.min} to {hello.protocol.max}"
    command_line = hello.client.name == COMMAND_LINE
    hint = (
        skew.DAEMON_IS_OLDER
        if hello.protocol.min > PROTOCOL_MAX
        else skew.client_is_older(services.server.version, command_line=command_line)
    )
    refusal = Rejected(
        Code.VERSION_SKEW,
        f"The daemon ({services.server.version}) speaks protocol {ours}, this client ({client}) {theirs}.",
        hint,
        data={"daemon": services.server.version, "client": client},
    )
    return refusal.message, refusal.body()
