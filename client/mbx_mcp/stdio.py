"""Standard input and output as the protocol's own.

Owns the claim on descriptors 0 and 1 (a stray print can't reach the client afterwards) and writing without
ever blocking for long. Never interprets a byte. Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import select

_ATOMIC = 4096
"""PIPE_BUF of Linux and a page: after POLLOUT a pipe takes that much without blocking, pipe(7).

O_NONBLOCK would be simpler, but it belongs to the open file description: a terminal or a pipe shared with
other programs would become non-blocking for them too.
"""
READ_SIZE = 65536


class Claimed:
    """The protocol's private descriptors. `ok` is False when the client gave us no usable pair."""

    __slots__ = ("input", "ok", "output")

    def __init__(self) -> None:
        """Move descriptors 0 and 1 out of everyone's reach; 0 reads nothing and 1 goes where 2 goes."""
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        while null <= 2:  # a closed standard descriptor would be handed out to the next file that is opened
            os.set_inheritable(null, True)
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.input = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
            self.output = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
            os.dup2(null, 0)
            os.dup2(2, 1)
            self.ok = True
        except OSError:
            self.input = self.output = -1
            self.ok = False
        os.close(null)


class Output:
    """Lines on their way out of a descriptor that may be slow."""

    def __init__(self, fd: int) -> None:
        """`fd` stays the caller's."""
        self.fd = fd
        self._buffer = bytearray()
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return len(self._buffer)

    def put(self, line: bytes) -> None:
        """Queue one line; its newline is added."""
        self._buffer += line
        self._buffer += b"\n"

    def flush(self) -> None:
        """Write what the other side takes now. Raises BrokenPipeError when it is gone, however that shows."""
        while self._buffer and self._poll.poll(0):
            try:
                written = os.write(self.fd, self._buffer[:_ATOMIC])
            except OSError as bad:  # EPIPE; ECONNRESET of a socket; EIO of a terminal that hung up
                raise BrokenPipeError(bad.errno, bad.strerror) from bad
            del self._buffer[:written]
