"""What the machine can do at best: one sync, one echo, one bare interpreter, one bare wait for a death.

Owns the floors. Each is as bare as it can be and uses the same bytes as its subject.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import trio

from bench.fixture import Bench, stop
from bench.measure import Sample

ZEROED = 4 * 1024 * 1024


@contextlib.contextmanager
def disk(bench: Bench, size: int) -> Iterator[Sample]:
    """pwrite + fdatasync of `size` bytes, one after another into a zeroed file."""
    data = os.urandom(size)
    with tempfile.TemporaryFile(dir=bench.place) as file:
        fd = file.fileno()
        os.pwrite(fd, bytes(ZEROED), 0)
        os.fsync(fd)
        place = 0

        def sample() -> float:
            nonlocal place
            began = time.perf_counter()
            os.pwrite(fd, data, place)
            os.fdatasync(fd)
            took = time.perf_counter() - began
            place = (place + size) % (ZEROED - size)
            return took

        yield sample


@contextlib.contextmanager
def echo(path: str, request: bytes, reply: bytes) -> Iterator[Sample]:
    """A round trip to a trio SocketStream server that answers `request` with `reply`."""
    server = subprocess.Popen([sys.executable, __file__, path, str(len(reply))], stdout=subprocess.PIPE, env=_roots())
    assert server.stdout is not None
    server.stdout.readline()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as conn:
            conn.connect(path)

            def sample() -> float:
                began = time.perf_counter()
                conn.sendall(request)
                data = conn.recv(262_144)
                while data[-1:] != b"\n":
                    data += conn.recv(262_144)
                return time.perf_counter() - began

            yield sample
    finally:
        stop(server)
        server.stdout.close()


def bare_python() -> float:
    """Seconds from exec to exit of an interpreter of this environment that does nothing."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - began


def bare_death(pid: int) -> float:
    """Seconds from SIGKILL to a readable pidfd, for a child of somebody who reaps it at once."""
    fd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        poll.poll(10_000)
        return time.perf_counter() - began
    finally:
        os.close(fd)


def _roots() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


async def _serve(path: str, size: int) -> None:
    reply = b"x" * (size - 1) + b"\n"
    listening = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await listening.bind(path)
    listening.listen(1)
    print("ready", flush=True)
    conn, _ = await listening.accept()
    stream = trio.SocketStream(conn)
    while await stream.receive_some(65_536):
        await stream.send_all(reply)


if __name__ == "__main__":
    trio.run(_serve, sys.argv[1], int(sys.argv[2]))
