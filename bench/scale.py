"""Figures of size: memory, idle processor time, replay, snapshots, and the cost of a change in a large registry.

Owns how they are measured. Memory is measured in processes of their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import gc
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import count

import trio

from bench import archive, client, seed
from bench.daemon import BenchVfs, NoSync
from bench.fixture import ROOTS, Bench, Daemon, daemon, directory
from bench.holders import holders
from bench.measure import Sample, in_turns, p50, timed
from bench.table import Row
from mbx_wire.identity import RegisterParams
from mbxd.app import in_thread, recover
from mbxd.core import events as ev
from mbxd.core.context import PERSON, Context
from mbxd.core.evolve import replay
from mbxd.core.state import State
from mbxd.runtime.committer import ThreadCommitter
from mbxd.runtime.engine import Engine
from mbxd.runtime.poller import Poller
from mbxd.runtime.upkeep import Snapshots
from mbxd.store.log import Log

MANY = 100_000
HEARTBEAT_S = 0.0005


def resident(bench: Bench) -> Iterator[Row]:
    """Memory and idle processor time of a daemon with 1,000 identities and 100 sessions that hold one each."""
    lasts = 3.0 if bench.quick else 30.0
    with directory(bench) as state:
        seed.directory(state, 900)
        with daemon(bench, state=state) as running, holders(bench, running, 100):
            time.sleep(1.5)  # what the registrations left to do is done
            before = cpu_ns(running.pid)
            time.sleep(lasts)
            used = cpu_ns(running.pid) - before
            yield Row("daemon RSS, 1,000 identities, 100 sessions", rss_kib(running.pid) / 1024)
            yield Row("daemon idle CPU, 1,000 identities, 100 sessions", used / (lasts * 1e9) * 100)


def rss_kib(pid: int) -> int:
    """Resident memory, proc(5) status."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def cpu_ns(pid: int) -> int:
    """Time on a processor of all threads, also of those that have ended, from the process's own clock.

    Linux, clock_getcpuclockid(3): the number of a process's clock is made of its pid.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)


def memory(bench: Bench) -> Iterator[Row]:
    """Bytes an identity with its indexes, by the growth of a process's resident memory."""
    kinds = [("bytes an identity at 100,000", "new"), ("bytes an identity at 100,000, held once", "held")]
    for name, kind in kinds[: 1 if bench.quick else 2]:
        command = [sys.executable, "-m", "bench.scale", kind]
        env = {"PYTHONPATH": os.pathsep.join([os.path.dirname(os.path.dirname(__file__)), ROOTS])}
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
        yield Row(name, float(done.stdout))


def _grow(kind: str) -> float:
    """Runs in a process of its own: bytes an identity."""
    records = [ev.encode(event) for event in _history(kind)]
    before = _settled_rss()
    state = replay(State(), (ev.decode(record) for record in records))
    grown = _settled_rss() - before
    return grown / len(state.identities)


def _history(kind: str) -> Iterable[ev.Event]:
    yield from seed.registered(MANY)
    if kind == "held":
        # Kept results belong to client instances and go with them: they are not the identity's.
        yield from (event for event in seed.held(range(1, MANY + 1)) if not isinstance(event, ev.Replied))


def _settled_rss() -> int:
    gc.collect()
    name = ctypes.util.find_library("c")
    if name is not None and sys.platform == "linux":
        ctypes.CDLL(name).malloc_trim(0)
    return rss_kib(os.getpid()) * 1024


def replaying(bench: Bench) -> Iterator[Row]:
    """From the bytes of the log to the state: reading, checking, decoding, applying. The best of some runs:
    the target is absolute, and others may use the machine.
    """
    events = 100_000 if bench.quick else 400_000
    with directory(bench) as place:
        history = list(seed.registered(events // 5)) + list(seed.held(range(1, events // 5 + 1)))
        recovery = Log.open(BenchVfs(NoSync), f"{place}/registry", entropy=os.urandom)
        seed._append(recovery.log, history)
        recovery.log.close()
        records = [ev.encode(event) for event in history]
        rates, bare = [], []
        for _ in range(3):
            began = time.process_time()
            for record in records:
                ev.decode(record)
            bare.append(len(history) / (time.process_time() - began))
            began = time.process_time()
            again = Log.open(BenchVfs(NoSync), f"{place}/registry", entropy=os.urandom)
            state = recover(again)
            rates.append(len(history) / (time.process_time() - began))
            again.log.close()
            assert len(state.identities) == events // 5
    yield Row("replay, of processor time", max(rates), max(bare))


def snapshots(bench: Bench) -> Iterator[Row]:
    """The longest time between two turns of an event loop that wants one every half millisecond."""
    with directory(bench) as place:
        seed.directory(place, MANY)
        recovery = Log.open(BenchVfs(NoSync), f"{place}/registry", entropy=os.urandom)
        poller = Poller()
        engine = Engine(recover(recovery), recovery.log, ThreadCommitter(recovery.log, poller))
        try:
            value, floor = trio.run(_longest_holds, engine, poller, 3 if bench.quick else 9)
        finally:
            recovery.log.close()
    yield Row("snapshot of 100,000: longest hold of the loop", value * 1e3, floor * 1e3)


async def _longest_holds(engine: Engine, poller: Poller, times: int) -> tuple[float, float]:
    """Medians of the longest gap: during a snapshot, and during as long a time without one."""
    during: list[float] = []
    without: list[float] = []
    keeper = Snapshots(engine, in_thread, {})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.run)
        await nursery.start(engine.run)
        for number in count(1):
            _change(engine, number)
            await engine.wait_durable()
            began = trio.current_time()
            during.append(await _longest_gap(keeper.write))
            lasted = trio.current_time() - began
            without.append(await _longest_gap(partial(trio.sleep, lasted)))
            if number == times:
                break
        nursery.cancel_scope.cancel()
    assert keeper.written == times
    return p50(during), p50(without)


def _change(engine: Engine, number: int) -> None:
    """One more event: a snapshot that is no newer than the last is not written."""
    params = RegisterParams(name=f"snapshot-{number}", role="backend")
    engine.stage("identity.register", params, Context(PERSON, 0.0))


async def _longest_gap(work: Callable[[], Awaitable[None]]) -> float:
    longest = 0.0
    async with trio.open_nursery() as nursery:

        async def beat(*, task_status: trio.TaskStatus[None]) -> None:
            nonlocal longest
            last = time.perf_counter()
            task_status.started()  # before the work begins: its first turn counts like any other
            while True:
                await trio.sleep(HEARTBEAT_S)
                now = time.perf_counter()
                longest = max(longest, now - last - HEARTBEAT_S)
                last = now

        await nursery.start(beat)
        await work()
        nursery.cancel_scope.cancel()
    return longest


def growth(bench: Bench) -> Iterator[Row]:
    """One change by the socket in a small and in a large registry, without the disk."""
    with contextlib.ExitStack() as stack:
        samples = []
        for size in (100, MANY):
            state = stack.enter_context(directory(bench))
            seed.directory(state, size)
            running = stack.enter_context(daemon(bench, sync="none", state=state))
            with running.connect() as conn:
                archive.wait(conn, 600)  # what a change costs is asked, not what it costs meanwhile
            samples.append(_changer(stack, running))
        in_turns(1, 100, *samples)
        small, large = in_turns(bench.rounds(80), 50, *samples)
    yield Row("one change at 100,000 identities", p50(large) * 1e6, p50(small) * 1e6)


def _changer(stack: contextlib.ExitStack, running: Daemon) -> Sample:
    """Claim and release in turns, in a project of a hundred identities."""
    conn = stack.enter_context(running.connect())
    says = client.Changes("grow", "grow")
    conn.ask(client.numbered(says.register("grown"), 0))
    conn.ask(client.numbered(says.release("once"), 0))
    numbers = count(1)

    def change() -> None:
        number, claims = divmod(next(numbers), 2)
        conn.call(client.numbered(says.release() if claims else says.claim("grown"), number + claims))

    return timed(change)


if __name__ == "__main__":
    print(_grow(sys.argv[1]))
