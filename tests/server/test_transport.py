"""The bytes of a connection: handed over as they come, and what a session is told when it was closed beneath it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mbxd.runtime.poller import Poller
from mbxd.server.transport import RECEIVE_SIZE, Closed, SocketTransport

pytestmark = pytest.mark.trio

settled = trio.testing.wait_all_tasks_blocked


class Ends:
    """Connections of one running poller."""

    def __init__(self, nursery: trio.Nursery, poller: Poller) -> None:
        self.nursery = nursery
        self._poller = poller
        self.peers: list[socket.socket] = []
        self.transports: list[SocketTransport] = []
        self.outcomes: dict[SocketTransport, str] = {}

    def open(self) -> tuple[SocketTransport, socket.socket]:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        transport = SocketTransport(ours, self._poller)
        self.peers.append(theirs)
        self.transports.append(transport)
        return transport, theirs

    def reading(self, take: Callable[[SocketTransport, bytes], None]) -> tuple[SocketTransport, socket.socket]:
        transport, theirs = self.open()
        self.nursery.start_soon(self._read, transport, take)
        return transport, theirs

    async def _read(self, transport: SocketTransport, take: Callable[[SocketTransport, bytes], None]) -> None:
        try:
            await transport.read(lambda data: take(transport, data))
            self.outcomes[transport] = "ended"
        except Exception as error:
            self.outcomes[transport] = type(error).__name__


@asynccontextmanager
async def ends() -> AsyncIterator[Ends]:
    poller = Poller()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.run)
        some = Ends(nursery, poller)
        try:
            yield some
        finally:
            for transport in some.transports:
                transport.close()
            for theirs in some.peers:
                theirs.close()
            nursery.cancel_scope.cancel()


async def arrived(condition: Callable[[], object]) -> None:
    """Real sockets: a task that waits for one counts as blocked."""
    with trio.fail_after(30):
        while not condition():
            await trio.lowlevel.checkpoint()


async def test_what_arrives_is_handed_over_in_order_until_the_end() -> None:
    got = bytearray()
    async with ends() as some:
        transport, theirs = some.reading(lambda _, data: got.extend(data))
        sent = bytes(range(256)) * (2 * RECEIVE_SIZE // 256)
        some.nursery.start_soon(trio.SocketStream(trio.socket.from_stdlib_socket(theirs)).send_all, sent)
        await arrived(lambda: len(got) == len(sent))
        assert got == sent
        theirs.shutdown(socket.SHUT_WR)
        await arrived(lambda: transport in some.outcomes)
        assert some.outcomes[transport] == "ended"
        transport.send(b"still heard")
        assert theirs.recv(20) == b"still heard"


async def test_paused_nothing_is_taken_and_resumed_nothing_is_lost() -> None:
    got: list[bytes] = []

    def take(transport: SocketTransport, data: bytes) -> None:
        got.append(data)
        transport.pause()

    async with ends() as some:
        transport, theirs = some.reading(take)
        theirs.send(b"one")
        await arrived(lambda: got)
        theirs.send(b"two")
        theirs.close()
        await settled()
        assert got == [b"one"]
        transport.resume()
        await arrived(lambda: len(got) == 2)
        await settled()
        assert not some.outcomes, "the end, too, is seen later"
        transport.resume()
        await arrived(lambda: some.outcomes)
        assert (got, some.outcomes[transport]) == ([b"one", b"two"], "ended")
        transport.resume()


async def test_a_taker_that_fails_ends_its_own_connection_alone() -> None:
    got: list[bytes] = []

    def fail(_: SocketTransport, data: bytes) -> None:
        raise ZeroDivisionError(data)

    async with ends() as some:
        bad, to_bad = some.reading(fail)
        good, to_good = some.reading(lambda _, data: got.append(data))
        await settled()
        to_bad.send(b"x")
        to_good.send(b"y")
        await arrived(lambda: got and some.outcomes)
        assert some.outcomes == {bad: "ZeroDivisionError"}
        to_good.send(b"z")
        await arrived(lambda: len(got) == 2)
        assert good not in some.outcomes


async def test_one_closed_by_another_in_the_same_turn_takes_nothing_more() -> None:
    got: list[SocketTransport] = []

    def close_all(transport: SocketTransport, _: bytes) -> None:
        got.append(transport)
        for one in some.transports:
            one.close()

    async with ends() as some:
        peers = [some.reading(close_all)[1] for _ in range(3)]
        await settled()
        for theirs in peers:
            theirs.send(b"x")
        await arrived(lambda: len(some.outcomes) == 3)
        assert len(got) == 1
        assert set(some.outcomes.values()) == {"Closed"}


async def test_closed_before_anybody_reads() -> None:
    """A stopping daemon closes connections whose sessions do something else at that moment."""
    async with ends() as some:
        transport, _ = some.open()
        transport.close()
        transport.close()
        transport.send(b"nobody hears it")
        with pytest.raises(Closed):
            await transport.read(lambda _: None)
        with pytest.raises(Closed):
            await transport.drained()


async def test_one_that_begins_while_the_daemon_ends_is_read_no_more() -> None:
    async with ends() as some:
        some.nursery.cancel_scope.cancel()
        with pytest.raises(trio.Cancelled):
            await trio.sleep_forever()
    transport, theirs = some.open()
    with theirs, trio.move_on_after(0):
        await transport.read(lambda _: None)
    transport.close()


async def test_closed_while_somebody_reads() -> None:
    async with ends() as some:
        transport, _ = some.reading(lambda _, __: None)
        await settled()
        transport.close()
        await arrived(lambda: some.outcomes)
        assert some.outcomes[transport] == "Closed"


@pytest.mark.parametrize("waits", [False, True])
async def test_closed_with_bytes_left_over(*, waits: bool) -> None:
    async with ends() as some:
        transport, theirs = some.open()
        transport.send(b"x" * 4 * 1024 * 1024)
        assert transport.backlog
        some.nursery.start_soon(transport.flush)
        if waits:
            await settled()
        transport.close()
        await settled()
        assert transport.backlog == 0
        with pytest.raises(Closed):
            await transport.drained()
        assert theirs.recv(10)
