"""A connection's bytes, without a task per connection for writing.

Owns the socket and what the peer has not taken yet. `send` writes at once when the peer keeps up, which is
nearly always; only when the socket is full does a task wait for it. Never parses anything.
"""

from __future__ import annotations

import socket
from typing import Protocol

import trio

RECEIVE_SIZE = 64 * 1024


class Closed(Exception):
    """The peer is gone, or the connection was given up."""


class Transport(Protocol):
    """What a session needs of its connection."""

    @property
    def backlog(self) -> int:
        """Bytes that the peer has not taken yet."""
        ...

    @property
    def broken(self) -> bool:
        """Whether something could not be sent: the peer is gone, and what it still asks is asked by nobody."""
        ...

    async def receive(self) -> bytes:
        """Some bytes, b"" at the end of the stream. Raises Closed."""
        ...

    def send(self, data: bytes) -> None:
        """Send now what fits, keep the rest for `flush`. Never raises: `receive` sees a dead peer."""
        ...

    async def drained(self) -> None:
        """Wait until nothing is left over. Raises Closed."""
        ...

    async def flush(self) -> None:
        """Send what is left over as the peer takes it. For one task, whenever there is a backlog."""
        ...

    def close(self) -> None:
        """Close; `receive` ends."""
        ...


class SocketTransport:
    """A connected, non-blocking Unix stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        """Takes the socket over."""
        sock.setblocking(False)
        self._sock = sock
        self._rest = bytearray()
        self._empty = trio.Event()
        self._empty.set()
        self._closed = False
        self._broken = False

    @property
    def backlog(self) -> int:
        """Bytes that the peer has not taken yet."""
        return len(self._rest)

    @property
    def broken(self) -> bool:
        """Whether the peer is gone."""
        return self._broken

    async def receive(self) -> bytes:
        """Some bytes, b"" at the end."""
        while not self._closed:  # it may have been closed while its session did something else
            # Waiting first is also the checkpoint that keeps a chatty client from starving the others.
            try:
                await trio.lowlevel.wait_readable(self._sock)
                return self._sock.recv(RECEIVE_SIZE)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError) as error:
                raise Closed(str(error)) from error
        raise Closed("closed")

    def send(self, data: bytes) -> None:
        """Send now, or keep for later."""
        if self._closed:
            return
        if self._rest:
            self._rest += data
            return
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._broken = True
            return
        if sent < len(data):
            self._rest += memoryview(data)[sent:]
            self._empty = trio.Event()

    async def drained(self) -> None:
        """Wait until the peer took everything."""
        await self._empty.wait()
        if self._closed or self._broken:
            raise Closed("closed")

    async def flush(self) -> None:
        """Send the rest when the socket has room again."""
        while self._rest:
            try:
                await trio.lowlevel.wait_writable(self._sock)
                sent = self._sock.send(self._rest)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                self._rest.clear()
                self._broken = True
                break
            del self._rest[:sent]
        self._empty.set()

    def close(self) -> None:
        """Close; whoever waits is told."""
        if not self._closed:
            self._closed = True
            self._rest.clear()
            self._empty.set()
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
