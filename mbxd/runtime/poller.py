"""What has something to read, asked for all at once: connections, and the committer's word.

Owns one set that stays as it is from request to request, and calls whoever has something. A task that waits for each
by itself costs a system call to wait, and a change of tasks, for every request. Never reads anything.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable

import trio


class Poller:
    """The set of one daemon: epoll(7), or kqueue(2)."""

    def __init__(self) -> None:
        """Empty. Nobody is told of anything before `run`."""
        self._selector = selectors.DefaultSelector()
        self._over = False

    def add(self, file: socket.socket | int, tell: Callable[[], None]) -> None:
        """Call `tell` in every turn of the event loop in which `file` has something to read or has ended.

        It must not raise. Once a file.
        """
        if not self._over:  # a connection may begin while the daemon ends
            self._selector.register(file, selectors.EVENT_READ, tell)

    def remove(self, file: socket.socket | int) -> None:
        """Stop that; before the file is closed. One that is not in it is left alone."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(file)

    async def run(self) -> None:
        """Tell, until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._selector.fileno())
                for key, _ in self._selector.select(0):
                    key.data()
        finally:
            self._over = True
            self._selector.close()
