"""Newline framing of JSON-RPC messages, sans-io: bytes in, complete lines out.

Owns the line limit. Never parses JSON and never reads or writes a descriptor. Standard library only.
Lines end with 0x0A alone (a trailing 0x0D is dropped, so that a client with CRLF line ends works).
"""

from __future__ import annotations

MAX_LINE = 4 * 1024 * 1024
"""Longest accepted line in bytes, without its newline."""

HEAD = 64
"""Bytes that are kept of a line that is too long, so that a reader may tell whose it was."""

_SMALL = 4096
_TOGETHER = 65536
"""Bytes of a piece that is kept as it is, and of several that are kept together."""


class Oversized:
    """Marks, in the order of arrival, that a line longer than the limit was discarded to its end."""

    __slots__ = ("head", "size")

    def __init__(self, size: int, head: bytes = b"") -> None:
        """`size`: how many bytes were seen when the line was given up. head: how it begins, HEAD bytes at the most."""
        self.size = size
        self.head = head


class LineReader:
    """Splits a byte stream into lines of at most `limit` bytes.

    An oversized line yields one `Oversized` at the moment the limit is passed; its bytes up to the next
    newline are dropped, and the stream goes on with the line after it.
    """

    __slots__ = ("_discarding", "_limit", "_parts", "_size")

    def __init__(self, limit: int = MAX_LINE) -> None:
        """`limit`: bytes a line may have without its newline."""
        self._limit = limit
        self._parts: list[bytes | bytearray] = []
        self._size = 0
        self._discarding = False

    @property
    def buffered(self) -> int:
        """Bytes held of a line that has not ended yet."""
        return self._size

    def feed(self, data: bytes) -> list[bytes | Oversized]:
        """Take bytes as they came and return every line that is now complete."""
        end = data.find(b"\n")
        if end < 0:
            return self._keep(data)
        if end == len(data) - 1 and not self._size and not self._discarding and end <= self._limit:
            return [data[:-2] if data.endswith(b"\r\n") else data[:-1]]  # nearly always: one line, whole
        out: list[bytes | Oversized] = []
        pieces = data.split(b"\n")
        tail = pieces.pop()
        for piece in pieces:
            self._end_line(piece, out)
        out.extend(self._keep(tail))
        return out

    def finish(self) -> bytes | None:
        """The last line of a stream that ended without a newline, or None when nothing is left over."""
        if self._discarding or not self._parts:
            return None
        line = b"".join(self._parts)
        self._reset()
        return line

    def give_up(self) -> int:
        """Drop the line that has begun, and the rest of it up to its newline; how many bytes were held of it."""
        size = self._size
        if size:
            self._reset()
            self._discarding = True
        return size

    def _end_line(self, piece: bytes, out: list[bytes | Oversized]) -> None:
        if self._discarding:
            self._discarding = False
            return
        size = self._size + len(piece)
        if size > self._limit:
            out.append(self._give_up(size, piece))
            return
        if self._parts:
            self._parts.append(piece)
            piece = b"".join(self._parts)
            self._reset()
        out.append(piece[:-1] if piece.endswith(b"\r") else piece)

    def _keep(self, piece: bytes) -> list[bytes | Oversized]:
        if self._discarding or not piece:
            return []
        self._size += len(piece)
        if self._size > self._limit:
            self._discarding = True
            return [self._give_up(self._size, piece)]
        # Small pieces are put together: a peer that sends byte by byte must not cost an object for each.
        if len(piece) >= _SMALL:
            self._parts.append(piece)
        elif self._parts and isinstance(last := self._parts[-1], bytearray) and len(last) < _TOGETHER:
            last += piece
        else:
            self._parts.append(bytearray(piece))
        return []

    def _give_up(self, size: int, last: bytes) -> Oversized:
        # Two are enough: a small part is followed by a large one, or is the last.
        head = b"".join(part[:HEAD] for part in [*self._parts, last][:2])[:HEAD]
        self._reset()
        return Oversized(size, head)

    def _reset(self) -> None:
        self._parts.clear()
        self._size = 0
