"""Processes around a measurement: daemons in directories of their own, and their end.

Owns starting and stopping them. Ends only what it started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mbx_wire
import mbxd
from bench import client

ROOTS = os.pathsep.join(dict.fromkeys(str(Path(str(package.__file__)).parents[1]) for package in (mbxd, mbx_wire)))


@dataclass(frozen=True, slots=True)
class Bench:
    """What every figure needs. quick: fewer samples. place: a directory on a disk, for state directories."""

    quick: bool
    place: str

    def rounds(self, full: int) -> int:
        """How many rounds of sampling: a quarter in a quick run."""
        return max(full // 4, 2) if self.quick else full

    def seconds(self, full: float) -> float:
        """How long a load lasts: a third in a quick run."""
        return full / 3 if self.quick else full


@dataclass(slots=True)
class Daemon:
    """A running daemon."""

    process: subprocess.Popen[bytes]
    state: str
    start_s: float

    @property
    def socket(self) -> str:
        return f"{self.state}/run/mbxd.sock"

    @property
    def pid(self) -> int:
        return self.process.pid

    def connect(self, project: str | None = "bench") -> client.Connection:
        return client.Connection(self.socket, project)

    def written(self) -> tuple[int, int]:
        """(bytes, batches) that its log took so far."""
        with self.connect() as conn:
            log = conn.ask(client.STATS)["parts"]["log"]
        return int(log["bytes"]), int(log["batches"])


def environment(state: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, without what would lead to another daemon."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("MBX")}
    env.pop("PYTHONPATH", None)
    return env | {"MBX_STATE_DIR": state, "XDG_CONFIG_HOME": f"{state}/none"} | dict(extra or {})


@contextlib.contextmanager
def directory(bench: Bench) -> Iterator[str]:
    """A short, private directory that is removed again."""
    path = tempfile.mkdtemp(prefix="mbxb", dir=bench.place)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keep us, and what is begun meanwhile, on one core.

    Where a scheduler puts the two ends of a socket is chance, and waking another core takes longer than a ping.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def daemon(
    bench: Bench, *, sync: str = "real", state: str | None = None, module: str = "bench.daemon"
) -> Iterator[Daemon]:
    """A daemon, ready; stopped at the end. `state`: a state directory that is there already."""
    with contextlib.ExitStack() as stack:
        where = state or stack.enter_context(directory(bench))
        running = start(where, sync, module)
        try:
            yield running
        finally:
            stop(running.process)


def start(state: str, sync: str = "real", module: str = "bench.daemon") -> Daemon:
    """Start one and wait until it says that it is ready, or closes the pipe."""
    reader, writer = os.pipe()
    env = environment(state, {"MBXD_READY_FD": str(writer), "MBXD_BENCH_SYNC": sync})
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), ROOTS])
    began = time.perf_counter()
    said = f"{state}/bench.log"
    with open(said, "ab") as log:
        process = subprocess.Popen([sys.executable, "-m", module], env=env, pass_fds=[writer], stderr=log)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        pipe.readline()
    took = time.perf_counter() - began
    if process.poll() is not None or not os.path.exists(f"{state}/run/mbxd.sock"):
        stop(process)
        raise RuntimeError(f"the daemon did not start: {Path(said).read_text(errors='replace')[-600:]}")
    return Daemon(process, state, took)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a child of ours."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def script(module: str) -> Sequence[str]:
    """The command of an installed script whose `main` is in this module.

    Our folders come last on the path, as an installation has them: every import looks through what comes before.
    """
    code = f"import sys; sys.path += {ROOTS.split(os.pathsep)!r}; from {module} import main; sys.exit(main())"
    return (sys.executable, "-c", code)
