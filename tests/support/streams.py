"""The server's transport over any trio stream: memory streams, for a whole daemon on the autojump clock."""

from __future__ import annotations

from collections.abc import Callable

import trio

from mbxd.server.transport import RECEIVE_SIZE, Closed


class StreamTransport:
    """The same over any trio stream: memory streams in tests."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        """Takes the stream over."""
        self._stream = stream
        self._rest = bytearray()
        self._going = trio.Event()
        self._going.set()
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
        try:
            while data := await self._stream.receive_some(RECEIVE_SIZE):
                take(bytes(data))
                await self._going.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise Closed(str(error)) from error

    def pause(self) -> None:
        """Leave what arrives in the stream."""
        self._going = trio.Event()

    def resume(self) -> None:
        """Go on."""
        self._going.set()

    def send(self, data: bytes) -> None:
        """Keep for `flush`: a stream has no way to send without waiting."""
        if not self._closed:
            self._rest += data
            self._empty = trio.Event()

    async def drained(self) -> None:
        """Wait until the peer took everything."""
        await self._empty.wait()
        if self._closed or self._broken:
            raise Closed("closed")

    async def flush(self) -> None:
        """Send what was kept."""
        while self._rest:
            data = bytes(self._rest)
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._rest.clear()
                self._broken = True
                break
            del self._rest[: len(data)]
        self._empty.set()

    def close(self) -> None:
        """Close; whoever waits is told."""
        if not self._closed:
            self._closed = True
            self._empty.set()
            trio.lowlevel.spawn_system_task(trio.aclose_forcefully, self._stream)
