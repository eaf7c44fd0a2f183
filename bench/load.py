"""Many clients at once, from one process beside ours: `load.c`, or the same in Python where there is no compiler.

Owns the building of it and of its scripts. The Python one costs about 10 us a request and is then the
bottleneck of the rates: the table says which one ran.
"""

from __future__ import annotations

import json
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from bench import client
from bench.fixture import ROOTS

_numbers = count(1)


class Kind(NamedTuple):
    """Latencies of one line of the cycle, in microseconds."""

    n: int
    p50: float
    p99: float
    max: float


class Outcome(NamedTuple):
    """What a load did in its timed part."""

    rate: float
    kinds: list[Kind]


class Script(NamedTuple):
    """One connection: its introduction, lines sent once, and its cycle."""

    hello: bytes
    once: Sequence[bytes]
    cycle: Sequence[bytes]


def changing(number: int, project: str, prefix: str, *, registers: bool = False) -> Script:
    """A client that claims and releases a mailbox of its own, and with `registers` makes new ones too."""
    says = client.Changes(f"{prefix}-{number}", f"{prefix}{number}")
    own = f"{prefix}-{number:03d}"
    once = [says.register(own), says.release("once")]
    cycle = [says.claim(own), says.release()]
    if registers:
        cycle += [says.register(f"{prefix}{number:03d}-{client.NUMBER}"), says.release("s")]
    return Script(client.hello(project), once, cycle)


class Running:
    """A load under way; `ready` once its clients are introduced and warm."""

    def __init__(self, socket: str, scripts: Sequence[Script], seconds: float) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="mbxb", suffix=".load")  # noqa: SIM115 - closed in `result`
        for script in scripts:
            self._file.write(script.hello)
            self._file.writelines(b"!" + client.numbered(line, 0) for line in script.once)
            self._file.writelines(script.cycle)
            self._file.write(b"\n")
        self._file.flush()
        first = next(_numbers) * 1_000_000
        arguments = [socket, self._file.name, f"{seconds:.3f}", str(first)]
        self._process = subprocess.Popen(
            [*program(), *arguments],
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": f"{Path(__file__).parents[1]}:{ROOTS}"},
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout
        if self._out.readline() != b"ready\n":
            raise RuntimeError("the load did not start")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def result(self) -> Outcome:
        """Wait for its end."""
        said = self._out.readline()
        code = self._process.wait()
        self._out.close()
        self._file.close()
        if code:
            raise RuntimeError(f"the load failed with {code}")
        found: dict[str, Any] = json.loads(said)
        return Outcome(found["ops"] / found["seconds"], [Kind(**kind) for kind in found["kinds"]])


def run(socket: str, scripts: Sequence[Script], seconds: float) -> Outcome:
    """A load from start to end."""
    return Running(socket, scripts, seconds).result()


@cache
def program() -> tuple[str, ...]:
    """The command of the load client."""
    source = Path(__file__).with_name("load.c")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is not None:
        folder = Path(tempfile.gettempdir()) / f"mbxbench-{source.stat().st_mtime_ns}"
        folder.mkdir(mode=0o700, exist_ok=True)
        target = folder / "load"
        if (
            target.exists()
            or subprocess.run([compiler, "-O2", "-o", str(target), str(source)], check=False).returncode == 0
        ):
            return (str(target),)
    return (sys.executable, "-m", "bench.load")


def _python_load(socket: str, path: str, seconds: float, first: int) -> None:
    """`load.c` in Python."""
    numbers = count(first)
    poller = selectors.DefaultSelector()
    clients = [
        _Client(socket, block.splitlines(keepends=True)) for block in Path(path).read_bytes().split(b"\n\n") if block
    ]
    for one in clients:
        one.walk_once(numbers)
        poller.register(one.connection._socket, selectors.EVENT_READ, one)
    print("ready", flush=True)
    samples: list[list[float]] = [[] for _ in clients[0].cycle]
    until = time.perf_counter() + seconds
    for one in clients:
        one.issue(numbers)
    busy = len(clients)
    while busy:
        for key, _ in poller.select():
            one = key.data
            if not one.receive():
                continue
            now = time.perf_counter()
            if now < until:
                samples[one.at].append((now - one.sent) * 1e6)
            one.at = (one.at + 1) % len(one.cycle)
            if now < until or one.at:
                one.issue(numbers)
            else:
                busy -= 1
    ordered = [sorted(kind) for kind in samples]
    kinds = [{"n": len(k), "p50": k[len(k) // 2], "p99": k[len(k) * 99 // 100], "max": k[-1]} for k in ordered if k]
    print(json.dumps({"ops": sum(map(len, samples)), "seconds": seconds, "kinds": kinds}))


class _Client:
    def __init__(self, socket: str, lines: list[bytes]) -> None:
        self.connection = client.Connection(socket, introduce=False)
        self.connection.ask(lines[0])
        for line in lines:
            if line.startswith(b"!"):
                self.connection.ask(line[1:])
        self.cycle = [line if line.endswith(b"\n") else line + b"\n" for line in lines[1:] if not line.startswith(b"!")]
        self.at = 0
        self.serial = 0
        self.sent = 0.0
        self._got = b""

    def walk_once(self, numbers: count[int]) -> None:
        serial = next(numbers)
        for line in self.cycle:
            self.connection.ask(client.numbered(line, serial % 100_000_000))

    def issue(self, numbers: count[int]) -> None:
        if self.at == 0:
            self.serial = next(numbers) % 100_000_000
        self._got = b""
        self.sent = time.perf_counter()
        self.connection._socket.sendall(client.numbered(self.cycle[self.at], self.serial))

    def receive(self) -> bool:
        self._got += self.connection._socket.recv(262_144)
        if self._got[-1:] != b"\n":
            return False
        if b'"error":{' in self._got:
            raise RuntimeError(self._got.decode())
        return True


if __name__ == "__main__":
    _python_load(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
