"""A connection's bytes, without a task per connection for writing.

Owns the socket and what the peer has not taken yet. `send` writes at once when the peer keeps up, which is
nearly always; only when the socket is full does a task wait for it. What arrives is handed over where it is seen,
without waking a task for it. Never parses anything.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

import trio

from mbxd.runtime.poller import Poller

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

    async def read(self, take: Callable[[bytes], None]) -> None:
        """Call `take` with what arrives, until the end of the stream. Raises Closed, and what `take` raises."""
        ...

    def pause(self) -> None:
        """Leave what arrives where it is."""
        ...

    def resume(self) -> None:
        """Go on after `pause`."""
        ...

    def send(self, data: bytes) -> None:
        """Send now what fits, keep the rest for `flush`. Never raises: `read` sees a dead peer."""
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

    def __init__(self, sock: socket.socket, poller: Poller) -> None:
        """Takes the socket over. `poller` must be running."""
        sock.setblocking(False)
        self._sock = sock
        self._poller = poller
        self._take: Callable[[bytes], None] = _nobody
        self._over = trio.Event()
        self._failure: Exception | None = None
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

    async def read(self, take: Callable[[bytes], None]) -> None:
        """Hand over what arrives."""
        self._take = take
        self.resume()
        await self._over.wait()
        if self._failure is not None:
            raise self._failure

    def pause(self) -> None:
        """Leave what arrives in the socket."""
        if not self._over.is_set():
            self._poller.remove(self._sock)

    def resume(self) -> None:
        """Go on."""
        if not self._over.is_set():
            self._poller.add(self._sock, self._receive)

    def _receive(self) -> None:
        """One piece a turn, so that a chatty peer keeps nobody waiting."""
        if self._over.is_set():
            return  # closed by somebody who was told before
        try:
            data = self._sock.recv(RECEIVE_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(Closed(str(error)))
            return
        if not data:
            self._end(None)
            return
        try:
            self._take(data)
        except Exception as error:  # whatever it is: it ends this connection, and not those that are told next
            self._end(error)

    def _end(self, failure: Exception | None) -> None:
        if not self._over.is_set():
            self._poller.remove(self._sock)
            self._failure = failure
            self._over.set()

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
            self._end(Closed("closed"))
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


def _nobody(_data: bytes) -> None:
    """Takes nothing: nothing is read before `read`."""
