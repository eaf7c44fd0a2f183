"""The engine: stage, commit, tell. One synchronous function changes the registry.

Owns the live state, the order of events and what is durable. `stage` runs decide and evolve without a
pause, so there is no lock and no half state. Nothing leaves before it is durable: callers attach their reply
to a seq. A failed commit leaves through `run` and ends the process; nothing here catches it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
import trio

from mbxd.core import events as ev
from mbxd.core import machine
from mbxd.core.context import Context
from mbxd.core.state import State
from mbxd.runtime.committer import Committer
from mbxd.store.format import frame_size
from mbxd.store.log import COMMIT_OVERHEAD, Log

BATCH_BYTES = 1024 * 1024
"""The most that one batch takes, in bytes; more waits for the next."""


class NoRoom(Exception):
    """The log can't take the change now: its next segment is being made, or the disk is full."""


class Outcome(NamedTuple):
    """A decided request: its result, and the seq that must be durable before anyone may know of it (0: none)."""

    result: Any
    seq: int


class Staged(NamedTuple):
    """An event that was applied and is not durable yet.

    need: bytes set aside for it in the log; last: it is the last of its change.
    """

    seq: int
    event: ev.Event
    record: bytes
    need: int
    last: bool


_CARRIES_ACTIVITY = frozenset(
    {ev.Granted, ev.ShimAttached, ev.Released, ev.HolderEnded, ev.Freed, ev.RoleSet, ev.ProfileUpdated}
)
"""Events that move `last_active_at`: what is noted in memory is in the log with them."""

Listener = Callable[[int, ev.Event], None]
"""Told of every event but `Replied`, which is every second one and concerns nobody else."""


class Engine:
    """Decides requests against the live state and makes what they changed durable."""

    def __init__(self, state: State, log: Log, committer: Committer) -> None:
        """`state` is the log's contents up to its durable seq."""
        self.state = state
        self.log = log
        self.active: dict[int, float] = {}
        """Newest acts by identity, Unix seconds, that no event carries yet."""
        self.staged_seq = log.durable_seq
        self.durable_seq = log.durable_seq
        self.on_staged: list[Listener] = []
        """Told at once, in order, before anything is durable: for what only this process sees."""
        self.on_durable: list[Listener] = []
        """Told in order once it is on the disk: for everyone else."""
        self.spare_wanted = trio.Event()
        self._committer = committer
        self._pending: deque[Staged] = deque()
        self._in_flight: list[Staged] = []
        self._unwritten = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._touched: dict[int, int] = {}
        self._failure: BaseException | None = None
        self._failed = trio.Event()
        self._counts = {"decided": 0, "changed": 0, "events": 0, "batches": 0, "no_room": 0}

    # -- deciding --------------------------------------------------------------------------------------------

    def stage(self, command: str, params: msgspec.Struct, ctx: Context) -> Outcome:
        """Decide and, if it changes something, apply and queue it. Raises Rejected or NoRoom; then nothing changed."""
        decision = machine.decide(self.state, command, params, ctx)
        self._counts["decided"] += 1
        if not decision.events:
            # A repeated or idempotent request: what it shows may not be durable yet.
            return Outcome(decision.result, self.staged_seq if self.staged_seq > self.durable_seq else 0)
        records = [ev.encode(event) for event in decision.events]
        needs = self._admit(records)
        for event in decision.events:
            machine.evolve(self.state, event)
        seq = self.staged_seq
        end = self.staged_seq = seq + len(records)
        self._counts["changed"] += 1
        self._counts["events"] += len(records)
        for number, (event, record, need) in enumerate(zip(decision.events, records, needs, strict=True), seq + 1):
            self._pending.append(Staged(number, event, record, need, number == end))
        self._feed()  # before anybody is told, for the committer takes a moment to wake
        for number, event in enumerate(decision.events, seq + 1):
            if type(event) is not ev.Replied:
                self._note(number, event)
                for listener in self.on_staged:
                    listener(number, event)
        return Outcome(decision.result, end)

    def look(self, command: str, params: msgspec.Struct, ctx: Context) -> Any:
        """Decide a command that only reads."""
        self._counts["decided"] += 1
        return machine.decide(self.state, command, params, ctx).result

    def newest_undurable(self, identities: Iterable[int]) -> int:
        """The seq that must be durable before these identities may be shown; 0 when they are."""
        if self.staged_seq == self.durable_seq:
            return 0
        touched = self._touched
        return max((touched.get(i, 0) for i in identities), default=0)

    def _admit(self, records: list[bytes]) -> list[int]:
        """Bytes that each record takes in the log. Nothing is applied that would not fit."""
        needs = [frame_size(len(record)) for record in records]
        needs[-1] += COMMIT_OVERHEAD  # any change may end up in a batch of its own
        need = sum(needs)
        if need > self.log.room() - self._unwritten:
            self._counts["no_room"] += 1
            self.spare_wanted.set()
            raise NoRoom
        self._unwritten += need
        return needs

    def _note(self, seq: int, event: ev.Event) -> None:
        identity = getattr(event, "identity", None)
        if identity is None and isinstance(event, ev.IdentityRegistered):
            identity = event.id
        if identity is not None:
            self._touched[identity] = seq
            if type(event) in _CARRIES_ACTIVITY:
                self.active.pop(identity, None)

    # -- committing ------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Hand the next batch over, unless one is in flight: it gathers until then."""
        if self._in_flight or not self._pending:
            return
        size = 0
        pending = self._pending
        # A change is never cut: half of it alone on the disk would be a state that no rule allows.
        while pending and (size < BATCH_BYTES or not self._in_flight[-1].last):
            item = pending.popleft()
            self._in_flight.append(item)
            size += len(item.record)
        self._committer.submit([item.record for item in self._in_flight])

    def _committed(self, seq: int, failure: BaseException | None) -> None:
        if failure is not None:
            self._failure = failure
            self._failed.set()
            return
        done = self._in_flight
        self._in_flight = []
        self.durable_seq = seq
        self._counts["batches"] += 1
        for item in done:
            self._unwritten -= item.need
        if self._pending:
            self._feed()
        else:
            self._touched.clear()
        if self.log.needs_spare:
            self.spare_wanted.set()
        waiting = self._waiting
        while waiting and waiting[0][0] <= seq:
            waiting.popleft()[1]()
        for item in done:
            if type(item.event) is not ev.Replied:
                for listener in self.on_durable:
                    listener(item.seq, item.event)

    def when_durable(self, seq: int, tell: Callable[[], None]) -> None:
        """Call `tell` in the event loop once `seq` is durable; at once when it is. `tell` must not raise."""
        if seq <= self.durable_seq:
            tell()
        elif not self._waiting or self._waiting[-1][0] <= seq:
            self._waiting.append((seq, tell))
        else:
            # A read may wait for an older seq than the last change does: keep the order.
            place = len(self._waiting)
            while place and self._waiting[place - 1][0] > seq:
                place -= 1
            self._waiting.insert(place, (seq, tell))

    async def wait_durable(self, seq: int = 0) -> None:
        """Wait until `seq` (default: everything staged so far) is durable; no checkpoint when it is."""
        if (seq or self.staged_seq) <= self.durable_seq:
            return
        told = trio.Event()
        self.when_durable(seq or self.staged_seq, told.set)
        await told.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit until cancelled; raises what the log raised."""
        self._committer.start(self._committed)
        task_status.started()
        try:
            await self._failed.wait()
            if self._failure is not None:
                raise self._failure
        finally:
            self._committer.stop()

    def statistics(self) -> dict[str, Any]:
        """Counters since the start, and what is waiting."""
        return {
            **self._counts,
            "staged_seq": self.staged_seq,
            "durable_seq": self.durable_seq,
            "pending": len(self._pending),
            "in_flight": len(self._in_flight),
            "waiting": len(self._waiting),
            "room": self.log.room() - self._unwritten,
            "failed": self._failure is not None,
        }
