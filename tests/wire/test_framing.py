"""Framing: however the bytes come, the lines are the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbx_wire.framing import HEAD, MAX_LINE, LineReader, Oversized

LIMIT = 8
STREAMS = st.lists(st.sampled_from((b"\n", b"\r", b"\r\n", b"a", b"{}", b"12345678", b"123456789", b"\x00\xff"))).map(
    b"".join
)


def expected(stream: bytes, limit: int) -> list[bytes | None]:
    """Complete lines; None for one that is too long."""
    return [None if len(line) > limit else line.removesuffix(b"\r") for line in stream.split(b"\n")[:-1]]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """The stream in pieces."""
    marks = [0, *sorted(p % (len(stream) + 1) for p in places), len(stream)]
    return [stream[a:b] for a, b in pairwise(marks)]


def read(reader: LineReader, pieces: list[bytes]) -> list[bytes | None]:
    out: list[bytes | None] = []
    for piece in pieces:
        out += [None if isinstance(line, Oversized) else line for line in reader.feed(piece)]
    return out


@given(STREAMS, st.lists(st.integers(0, 1 << 12), max_size=12))
def test_any_split_gives_the_same_lines(stream: bytes, places: list[int]) -> None:
    reader = LineReader(LIMIT)
    lines = read(reader, cut(stream + b"\n", places))
    assert lines == expected(stream + b"\n", LIMIT)
    assert reader.buffered == 0
    assert reader.finish() is None
    assert read(reader, [b"on\n"]) == [b"on"], "the stream goes on"


@given(STREAMS, st.lists(st.integers(0, 1 << 12), max_size=12))
def test_the_unended_rest_is_kept_within_the_limit(stream: bytes, places: list[int]) -> None:
    reader = LineReader(LIMIT)
    lines = read(reader, cut(stream, places))
    rest = stream.rsplit(b"\n", 1)[-1]
    too_long = len(rest) > LIMIT
    assert lines == expected(stream, LIMIT) + ([None] if too_long else [])
    assert reader.buffered == (0 if too_long else len(rest))
    assert reader.finish() == (None if too_long or not rest else rest)
    assert reader.finish() is None


@pytest.mark.parametrize(("size", "fits"), [(MAX_LINE, True), (MAX_LINE + 1, False)])
@pytest.mark.parametrize("piece", [65_536, 1 << 30])
def test_the_limit_is_four_mebibytes(size: int, fits: bool, piece: int) -> None:
    stream = b"x" * size + b"\n{}\n"
    reader = LineReader()
    lines = read(reader, [stream[i : i + piece] for i in range(0, len(stream), piece)])
    assert lines == [b"x" * size if fits else None, b"{}"]


def test_an_oversized_line_is_told_at_once_and_held_no_longer() -> None:
    reader = LineReader(LIMIT)
    (mark,) = reader.feed(b"123456789")
    assert isinstance(mark, Oversized)
    assert mark.size == 9
    assert reader.feed(b"x" * 1000) == []
    assert reader.buffered == 0
    assert reader.finish() is None
    assert reader.feed(b"tail\nnext\n") == [b"next"]


@pytest.mark.parametrize("pieces", [[1, 2, 5000], [5000], [40, 5000], [4096, 1000], [9, 1, 1]])
def test_an_oversized_line_keeps_how_it_began(pieces: list[int]) -> None:
    line = bytes(range(32, 127)) * 100
    for end in (b"\n", b""):
        reader = LineReader(8)
        found: list[bytes | Oversized] = []
        place = 0
        for size in pieces:
            found += reader.feed(line[place : place + size])
            place += size
        found += reader.feed(line[place:] + end)
        (given_up,) = found
        assert isinstance(given_up, Oversized)
        assert line.startswith(given_up.head)
        assert 8 < len(given_up.head) <= HEAD
    whole = LineReader(len(line) - 1).feed(line + b"\n")
    assert isinstance(whole[0], Oversized)
    assert whole[0].head == line[:HEAD]
