"""The bytes of a connection: what a session is told when it was closed beneath it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from mbxd.server.transport import Closed, SocketTransport


@pytest.fixture
def pair() -> Iterator[tuple[SocketTransport, socket.socket]]:
    ours, theirs = socket.socketpair()
    with theirs:
        transport = SocketTransport(ours)
        yield transport, theirs
        transport.close()


@pytest.mark.trio
async def test_closed_before_anybody_waits(pair: tuple[SocketTransport, socket.socket]) -> None:
    """A stopping daemon closes connections whose sessions do something else at that moment."""
    transport, _ = pair
    transport.close()
    transport.send(b"nobody hears it")
    with pytest.raises(Closed):
        await transport.receive()
    with pytest.raises(Closed):
        await transport.drained()


@pytest.mark.trio
async def test_closed_while_somebody_waits(pair: tuple[SocketTransport, socket.socket]) -> None:
    transport, _ = pair

    async def reads() -> None:
        with pytest.raises(Closed):
            await transport.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reads)
        await trio.testing.wait_all_tasks_blocked()
        transport.close()


@pytest.mark.trio
@pytest.mark.parametrize("waits", [False, True])
async def test_closed_with_bytes_left_over(pair: tuple[SocketTransport, socket.socket], *, waits: bool) -> None:
    transport, theirs = pair
    async with trio.open_nursery() as nursery:
        transport.send(b"x" * 4 * 1024 * 1024)
        assert transport.backlog
        nursery.start_soon(transport.flush)
        if waits:
            await trio.testing.wait_all_tasks_blocked()
        transport.close()
        await trio.testing.wait_all_tasks_blocked()
        assert transport.backlog == 0
        with pytest.raises(Closed):
            await transport.drained()
        nursery.cancel_scope.cancel()
    theirs.settimeout(1)
    assert theirs.recv(10)
