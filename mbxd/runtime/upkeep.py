"""What has to be done now and then: the next segment, snapshots, forgotten clients, the tick of awake time.

Owns those loops. None of them delays a reply: disk work runs in worker threads, and the state is copied by
reference, in steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import trio

from mbxd.core import snapshot
from mbxd.core.context import PERSON, Context
from mbxd.core.internal import ForgetInstances
from mbxd.core.rejected import Rejected
from mbxd.ports import Clock, RunSync
from mbxd.runtime.clock import TICK, AwakeTime
from mbxd.runtime.engine import Engine, NoRoom
from mbxd.runtime.instances import Instances

log = logging.getLogger("mbxd.upkeep")

RETRY_S = 2.0
"""Between two tries to make the next segment on a full disk."""
SNAPSHOT_AFTER = 16 * 1024 * 1024
"""Bytes of log after which a snapshot pays: replaying them takes a good part of a second."""
PAUSE_S = 0.00005
"""After each chunk of a snapshot: a tenth of a millisecond of encoding."""
LOOK_EVERY_S = 5.0
FORGET_EVERY_S = 60.0
SWEEP_NAMES_EVERY_S = 3600.0


class Spares:
    """Keeps the log's next segment ready, and lets changes wait for it."""

    def __init__(self, engine: Engine, run_sync: RunSync, degraded: dict[str, str]) -> None:
        """`degraded`: where the daemon collects what is wrong with it, in words, by part."""
        self._engine = engine
        self._run_sync = run_sync
        self._degraded = degraded
        self._made = trio.Event()
        self._refused: OSError | None = None

    async def keep(self) -> None:
        """Make a spare whenever one is wanted, for ever."""
        while True:
            await self._engine.spare_wanted.wait()
            self._engine.spare_wanted = trio.Event()
            await self.make()

    async def make(self) -> None:
        """Make one now; retried until it works, while changes that do not fit are refused."""
        while self._engine.log.needs_spare:
            try:
                await self._run_sync(self._engine.log.prepare_spare)
            except OSError as error:
                if self._refused is None:
                    log.error("no room for the log", extra={"why": str(error)})
                self._refused = error
                self._degraded["log"] = f"changes are refused: no room for the registry log ({error.strerror})"
                self._wake()
                await trio.sleep(RETRY_S)
            else:
                if self._refused is not None:
                    log.info("there is room for the log again")
                self._refused = None
                self._degraded.pop("log", None)
                self._wake()

    def _wake(self) -> None:
        self._made.set()
        self._made = trio.Event()

    async def wait(self, deadline: float) -> None:
        """Wait until there may be room. Raises the OSError that keeps the segment from being made, or TimeoutError."""
        if trio.current_time() >= deadline:
            raise TimeoutError
        engine = self._engine
        if self._refused is None:
            with trio.move_on_at(deadline):
                if engine.log.needs_spare:
                    await self._made.wait()
                elif engine.staged_seq > engine.durable_seq:
                    # There is a spare, but what is queued may fill it: the queue has to be written first.
                    await engine.wait_durable()
                else:
                    await trio.lowlevel.checkpoint()  # it was made before we could wait for it
        if self._refused is not None:
            raise self._refused


class Snapshots:
    """Writes a snapshot when enough log has gathered since the last."""

    def __init__(self, engine: Engine, run_sync: RunSync, degraded: dict[str, str]) -> None:
        """The count of bytes starts at this moment: what a start replays is bounded by the last snapshot."""
        self._engine = engine
        self._run_sync = run_sync
        self._degraded = degraded
        self._bytes_then = self._bytes()
        self.longest_copy_s = 0.0
        self.written = 0

    def _bytes(self) -> float:
        return float(self._engine.log.statistics()["bytes"])

    def due(self) -> bool:
        """Whether one pays now."""
        return self._bytes() - self._bytes_then >= SNAPSHOT_AFTER

    async def keep(self) -> None:
        """Look now and then, for ever."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            if self.due():
                await self.write()

    async def write(self) -> None:
        """Write one now. A failure is no harm: the log has everything."""
        engine = self._engine
        self._bytes_then = self._bytes()
        frozen, seq = await self._copy()
        await engine.wait_durable(seq)
        chunks = _gently(snapshot.encode(frozen))
        del frozen  # the worker is to have it alone, and frees it bit by bit: at once that would take milliseconds
        try:
            await self._run_sync(engine.log.write_snapshot, seq, chunks)
        except OSError as error:
            self._degraded["snapshot"] = f"no snapshot could be written ({error.strerror}); starts take longer"
            log.warning("snapshot failed", extra={"why": str(error)})
        else:
            self.written += 1
            self._degraded.pop("snapshot", None)

    async def _copy(self) -> tuple[snapshot.Frozen, int]:
        """The state as of one moment, and its seq."""
        engine = self._engine
        freezing = snapshot.Freezing(engine.state)
        engine.on_staged.append(freezing.on_staged)
        try:
            began = time.perf_counter()
            for _ in freezing.steps():
                self._note_copy(began)
                await trio.lowlevel.checkpoint()
                began = time.perf_counter()
            frozen = freezing.end(engine.active)
            self._note_copy(began)
            return frozen, engine.staged_seq
        finally:
            engine.on_staged.remove(freezing.on_staged)

    def _note_copy(self, began: float) -> None:
        self.longest_copy_s = max(self.longest_copy_s, time.perf_counter() - began)

    def statistics(self) -> dict[str, Any]:
        """Counters since the start."""
        return {"written": self.written, "longest_copy_ms": round(self.longest_copy_s * 1000, 3)}


def _gently(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """In a worker: sleep a little after each chunk.

    A thread that works all the time keeps the interpreter until it is made to let go of it, also while other processes
    have its processor, and the event loop waits as long. One that sleeps now and then gets a processor at once.
    """
    for chunk in chunks:
        yield chunk
        time.sleep(PAUSE_S)


async def tick(awake: AwakeTime) -> None:
    """Let awake time pass, for ever."""
    while True:
        await trio.sleep(TICK)
        awake.tick()


async def forget(
    engine: Engine, instances: Instances, clock: Clock, elsewhere: Callable[[tuple[str, ...]], Awaitable[None]]
) -> None:
    """Drop the kept results of clients that died long ago, for ever; `elsewhere` does the same for mail."""
    while True:
        await trio.sleep(FORGET_EVERY_S)
        overdue = instances.take_overdue()
        if not overdue:
            continue
        try:
            engine.stage("internal.forget_instances", ForgetInstances(overdue), Context(PERSON, clock.wall()))
        except (NoRoom, Rejected):
            continue  # the next start takes them up again
        await elsewhere(overdue)
