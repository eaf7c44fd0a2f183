"""Snapshot files: written aside in pieces, read back chunk by chunk.

Owns their layout on the disk (docs/wal-format.md section 7). Never decides which snapshot counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from mbxd.ports import Vfs, VfsFile
from mbxd.store.errors import Damaged
from mbxd.store.format import (
    CHUNK,
    END,
    END_PAYLOAD,
    FRAME,
    FRAME_OVERHEAD,
    HEADER_SIZE,
    SNAPSHOT_MAGIC,
    Header,
    decode_header,
    encode_frame,
    encode_header,
)
from mbxd.store.segment import publish, snapshot_name, write_all

MAX_CHUNK = 64 * 1024 * 1024
"""Longest chunk in bytes, so that a damaged length can't ask for more memory than that."""
_PIECE = 256 * 1024


def write_snapshot(vfs: Vfs, directory: str, seq: int, salt: int, chunks: Iterable[bytes]) -> int:
    """Write `<seq>.snap` durably; returns its size in bytes. An OSError leaves no partial file."""
    size = 0

    def fill(file: VfsFile) -> None:
        nonlocal size
        buffer = bytearray(encode_header(SNAPSHOT_MAGIC, Header(salt, seq)))
        count = total = 0
        for chunk in chunks:
            if len(chunk) > MAX_CHUNK:
                raise ValueError(f"a snapshot chunk has {len(chunk)} bytes; cut chunks at {MAX_CHUNK} at most")
            count, total = count + 1, total + len(chunk)
            buffer += encode_frame(salt, count, CHUNK, chunk)
            if len(buffer) >= _PIECE:
                write_all(file, bytes(buffer), size)
                size += len(buffer)
                buffer.clear()
        buffer += encode_frame(salt, 0, END, END_PAYLOAD.pack(count, total))
        write_all(file, bytes(buffer), size)
        size += len(buffer)

    publish(vfs, directory, snapshot_name(seq), fill).close()
    return size


def read_snapshot(vfs: Vfs, directory: str, seq: int, *, reading_only: bool = False) -> list[bytes]:
    """Its chunks as they were given; raises Damaged or NewerFormat."""
    path = f"{directory}/{snapshot_name(seq)}"
    file = vfs.open(path, read_only=True)
    try:
        header = decode_header(file.pread(HEADER_SIZE, 0), SNAPSHOT_MAGIC, path, reading_only=reading_only)
        if header.first != seq:
            raise Damaged(path, 0, 0, f"its header says that it folds up to record {header.first}")
        return _read_chunks(file, path, header.salt)
    finally:
        file.close()


def _read_chunks(file: VfsFile, path: str, salt: int) -> list[bytes]:
    chunks: list[bytes] = []
    at, size, total = HEADER_SIZE, file.size(), 0
    while True:
        kind, number, payload = _read_frame(file, path, salt, at, size)
        at += FRAME_OVERHEAD + len(payload)
        if kind == END:
            break
        if kind != CHUNK or number != len(chunks) + 1:
            raise Damaged(path, at, 0, f"chunk {len(chunks) + 1} of the snapshot is missing")
        chunks.append(payload)
        total += len(payload)
    if payload != END_PAYLOAD.pack(len(chunks), total) or at != size:
        raise Damaged(path, at, 0, "the snapshot does not end where its end mark says")
    return chunks


def _read_frame(file: VfsFile, path: str, salt: int, at: int, size: int) -> tuple[int, int, bytes]:
    head = file.pread(FRAME_OVERHEAD, at)
    if len(head) < FRAME_OVERHEAD:
        raise Damaged(path, at, 0, "the snapshot has no end mark")
    crc, length, number, kind = FRAME.unpack(head)
    body = length - (FRAME_OVERHEAD - 8)
    if body < 0 or body > MAX_CHUNK or at + FRAME_OVERHEAD + body > size:
        raise Damaged(path, at, 0, "a frame of the snapshot has an impossible length")
    payload = file.pread(body, at + FRAME_OVERHEAD)
    if crc32(payload, crc32(head[4:], salt)) != crc:
        raise Damaged(path, at, 0, "the checksum of a frame of the snapshot is wrong")
    return kind, number, payload
