"""Who is alive: the evidence about every holder, gathered as the kernel gives it.

Owns the handles on processes and what was last seen of each. Never edits the registry: a death becomes the
proposal `HolderDied`, bound to the epoch it was seen under. Ages are in awake time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

import trio

from mbxd.core import events as ev
from mbxd.core.liveness import Evidence, Status, is_loose
from mbxd.core.state import SHIMS_KEPT, State
from mbxd.ports import Processes, ProcessId, Verdict
from mbxd.runtime.clock import AwakeTime

SWEEP_S = 30.0
SWEEP_WITHOUT_PIDFD_S = 2.0
"""How often a process is looked at whose death nobody tells of: every one where there are no pidfds, else those for
which none could be had.
"""
SHIMS_WATCHED = 256
"""Living shims of one session that are watched, each by a descriptor; more is no honest session."""
ALIVE = Verdict("alive", "running")

Propose = Callable[[int, int, str], None]
"""(identity, epoch, reason): this holder is proven gone."""


@dataclass(slots=True, eq=False)
class Watched:
    """A process that somebody cares about. `uses` counts them; at 0 the handle is given back."""

    identity: ProcessId
    handle: int | None
    verdict: Verdict
    seen_at: float
    uses: int = 0


@dataclass(slots=True, eq=False)
class Seat:
    """One holder: its host, the shims that spoke for it, and when it was last seen attached or heard."""

    identity: int
    epoch: int
    host: Watched
    shims: dict[ProcessId, Watched] = field(default_factory=dict)
    loose_since: float | None = None
    last_call: float = 0.0
    mates: set[int] = field(default_factory=set)
    """Identities around the host process, this one among them: the very set of the index."""
    settled: Evidence | None = None
    """The evidence without its ages, made anew whenever it changes: the same object means the same evidence."""


@dataclass(slots=True, eq=False)
class Calls:
    """Which of a host's conversations called last, and when."""

    identity: int
    at: float


class Holders:
    """The evidence behind every grant in force, and behind every open connection."""

    def __init__(self, processes: Processes, awake: AwakeTime, propose: Propose) -> None:
        """`propose` is called in the event loop, once a death."""
        self._processes = processes
        self._awake = awake
        self._propose = propose
        self._watched: dict[ProcessId, Watched] = {}
        self._by_handle: dict[int, Watched] = {}
        self._seats: dict[int, Seat] = {}
        self._by_process: dict[ProcessId, set[int]] = {}
        self._calls: dict[ProcessId, Calls] = {}
        """By host, worked out when asked for; dropped when a conversation comes or goes."""
        self._unheld = trio.Event()
        """Set while some process may have no handle, though it could have one."""
        self._connections: Counter[ProcessId] = Counter()
        self._counts = {"deaths": 0, "sweeps": 0, "opened": 0}

    # -- processes -------------------------------------------------------------------------------------------

    def hold(self, identity: ProcessId, handle: int | None = None) -> Watched:
        """Begin to care about a process; `handle` passes one that was opened already. Pair with `drop`."""
        watched = self._watched.get(identity)
        if watched is None:
            if handle is None:
                handle = self._processes.open(identity)
            verdict = self._processes.probe(identity, handle)
            watched = self._watched[identity] = Watched(identity, handle, verdict, self._awake.now())
            self._counts["opened"] += 1
            if handle is not None:
                self._by_handle[handle] = watched
            elif _is_unheld(watched):
                self._unheld.set()
        elif handle is not None and watched.handle is None and watched.verdict.status != "dead":
            watched.handle = handle
            self._by_handle[handle] = watched
        elif handle is not None and handle != watched.handle:
            self._processes.close(handle)
        watched.uses += 1
        return watched

    def drop(self, watched: Watched) -> None:
        """Stop caring."""
        watched.uses -= 1
        if watched.uses == 0:
            del self._watched[watched.identity]
            self._give_back(watched)

    def _give_back(self, watched: Watched) -> None:
        if watched.handle is not None:
            self._by_handle.pop(watched.handle, None)
            self._processes.close(watched.handle)
            watched.handle = None

    def is_host(self, process: ProcessId) -> bool:
        """Whether this process is the host of a holder."""
        return any(self._seats[i].host.identity == process for i in self._by_process.get(process, ()))

    def host_of_shim(self, shim: ProcessId) -> ProcessId | None:
        """The host of a holder that this process spoke for, if it did."""
        for identity in self._by_process.get(shim, ()):
            seat = self._seats[identity]
            if shim in seat.shims:
                return seat.host.identity
        return None

    # -- connections -----------------------------------------------------------------------------------------

    def connected(self, shim: ProcessId) -> None:
        """A connection of this process opened."""
        self._connections[shim] += 1
        self._settle(shim)

    def disconnected(self, shim: ProcessId) -> None:
        """It closed. That alone is no evidence of death, but where nothing else is readable it counts."""
        self._connections[shim] -= 1
        if self._connections[shim] <= 0:
            del self._connections[shim]
        self._settle(shim)

    def spoke(self, identity: int, shim: ProcessId) -> bool:
        """A process spoke for the holder of this identity; whether it is new to it. Nothing is logged here."""
        seat = self._seats.get(identity)
        if seat is None:
            return False
        self._called(seat)
        if shim in seat.shims:
            return False
        self._add_shim(seat, shim)
        self._settle_seat(seat)
        return True

    # -- the registry's events -------------------------------------------------------------------------------

    def adopt(self, state: State) -> None:
        """Take up every grant of a state that was read from disk: each gets a fresh grace."""
        for identity, hold in state.holders():
            self._sit(identity.id, identity.epoch, hold.session.host, hold.shims)

    def on_event(self, _seq: int, event: ev.Event) -> None:
        """Follow grants and their ends. A shim is known before it is logged: see `spoke`."""
        match event:
            case ev.Granted():
                self._sit(event.identity, event.epoch, event.session.host, event.shims)
                self._propose_if_gone(self._seats[event.identity])
            case ev.Released() | ev.HolderEnded() | ev.Freed():
                self._leave(event.identity)
            case _:
                pass

    def _sit(self, identity: int, epoch: int, host: ProcessId, shims: Iterable[ProcessId]) -> None:
        self._leave(identity)
        seat = Seat(identity, epoch, self.hold(host), last_call=self._awake.now())
        self._seats[identity] = seat
        seat.mates = self._by_process.setdefault(host, set())
        seat.mates.add(identity)
        self._calls.pop(host, None)
        for shim in shims:
            self._add_shim(seat, shim)
        self._settle_seat(seat)

    def _propose_if_gone(self, seat: Seat) -> None:
        """End a grant to a process whose death is known: nothing will tell of it again. Not yet in this turn of the
        loop, in which others have still to hear of the grant.
        """
        if seat.host.verdict.status == "dead":
            trio.lowlevel.current_trio_token().run_sync_soon(self.propose_gone, seat.host)

    def _add_shim(self, seat: Seat, shim: ProcessId) -> None:
        if len(seat.shims) >= SHIMS_KEPT:
            # Sub-agents come and go by the hundred, and the dead are forgotten. Never one that may live: the session
            # is attached by it.
            for gone in [one for one in seat.shims.values() if one.verdict.status == "dead"]:
                self._remove_shim(seat, gone)
        if len(seat.shims) >= SHIMS_WATCHED:
            self._remove_shim(seat, next(islice(seat.shims.values(), 1, None)))  # not the first, which is its own
        seat.shims[shim] = self.hold(shim)
        self._by_process.setdefault(shim, set()).add(seat.identity)

    def _remove_shim(self, seat: Seat, watched: Watched) -> None:
        del seat.shims[watched.identity]
        if watched is not seat.host:
            self._unlist(watched.identity, seat.identity)
        self.drop(watched)

    def _unlist(self, process: ProcessId, identity: int) -> None:
        users = self._by_process.get(process)
        if users is not None:
            users.discard(identity)
            if not users:
                del self._by_process[process]

    def _leave(self, identity: int) -> None:
        seat = self._seats.pop(identity, None)
        if seat is None:
            return
        self._calls.pop(seat.host.identity, None)
        for watched in (seat.host, *seat.shims.values()):
            self._unlist(watched.identity, identity)
            self.drop(watched)

    # -- evidence --------------------------------------------------------------------------------------------

    def seat(self, identity: int) -> Seat | None:
        """What is known of a holder, for `why`."""
        return self._seats.get(identity)

    def connections_of(self, seat: Seat) -> int:
        """Open connections of the processes that spoke for it."""
        return sum(self._connections[shim] for shim in seat.shims)

    def evidence(self, identity: int) -> Evidence | None:
        """The evidence about a holder now; None when nobody sits there."""
        seat = self._seats.get(identity)
        if seat is None:
            return None
        settled = seat.settled
        siblings = len(seat.mates) > 1
        if seat.loose_since is None and not siblings:
            return settled
        now = self._awake.now()
        return cast("Evidence", settled)._replace(
            loose_s=0.0 if seat.loose_since is None else now - seat.loose_since,
            idle_s=now - seat.last_call,
            sibling_s=self._since_sibling(seat, now) if siblings else None,
        )

    def _called(self, seat: Seat) -> None:
        now = seat.last_call = self._awake.now()
        calls = self._calls.get(seat.host.identity)
        if calls is None:
            return
        calls.identity, calls.at = seat.identity, now

    def _since_sibling(self, seat: Seat, now: float) -> float | None:
        """Seconds since another conversation of the same host called; None unless that was after this one did."""
        host = seat.host.identity
        calls = self._calls.get(host)
        if calls is None:
            # A seat is also found by its shims: only those whose host this is are conversations of it.
            seats = (self._seats[identity] for identity in self._by_process[host])
            at, last = max((s.last_call, s.identity) for s in seats if s.host.identity == host)
            calls = self._calls[host] = Calls(last, at)
        return None if calls.identity == seat.identity else now - calls.at

    def _settle(self, process: ProcessId) -> None:
        for identity in self._by_process.get(process, ()):
            self._settle_seat(self._seats[identity])

    def _settle_seat(self, seat: Seat) -> None:
        verdict, shims = seat.host.verdict, shims_status(seat)
        connected = not self._connections.keys().isdisjoint(seat.shims)
        settled = Evidence(verdict.status, verdict.reason, shims, connected)
        if settled != seat.settled:
            seat.settled = settled
        if is_loose(verdict.status, shims, connected=connected):
            if seat.loose_since is None:
                seat.loose_since = self._awake.now()
        else:
            seat.loose_since = None

    # -- watching --------------------------------------------------------------------------------------------

    async def watch_deaths(self) -> None:
        """Follow the kernel's notices for ever."""
        while True:
            for handle in await self._processes.wait_deaths():
                watched = self._by_handle.get(handle)
                if watched is not None:
                    self.probe(watched)

    async def sweep_for_ever(self) -> None:
        """Probe everything now and then: the portable way, and a second pair of eyes where pidfds are."""
        async with trio.open_nursery() as nursery:
            if self._processes.has_pidfd():
                nursery.start_soon(self._sweep_unheld)
            while True:
                await trio.sleep(SWEEP_S if self._processes.has_pidfd() else SWEEP_WITHOUT_PIDFD_S)
                await self.sweep()

    async def _sweep_unheld(self) -> None:
        """Probe what has no handle. A probe gets one when it can, so this rests when all have theirs."""
        while True:
            await self._unheld.wait()
            await trio.sleep(SWEEP_WITHOUT_PIDFD_S)
            unheld = [watched for watched in self._watched.values() if _is_unheld(watched)]
            if not unheld:
                self._unheld = trio.Event()
            await self._probe(unheld)

    async def sweep(self) -> None:
        """Probe every process once, a few at a time."""
        self._counts["sweeps"] += 1
        await self._probe(list(self._watched.values()))

    async def _probe(self, some: list[Watched]) -> None:
        for n, watched in enumerate(some):
            if watched.uses:
                self.probe(watched)
                self.propose_gone(watched)  # again: the log may have had no room for it the first time
            if n % 50 == 49:
                await trio.lowlevel.checkpoint()

    def probe(self, watched: Watched) -> None:
        """Look at one process and act on what is seen. Only proof of death is final."""
        if watched.verdict.status == "dead":
            return
        if watched.handle is None:
            watched.handle = self._processes.open(watched.identity)
            if watched.handle is not None:
                self._by_handle[watched.handle] = watched
        verdict = self._processes.probe(watched.identity, watched.handle)
        watched.seen_at = self._awake.now()
        if verdict == watched.verdict:
            return  # nearly always; a process may have very many conversations
        watched.verdict = verdict
        if verdict.status == "dead":
            self._counts["deaths"] += 1
            self._give_back(watched)  # nothing more will be heard of it
        self._settle(watched.identity)
        self.propose_gone(watched)

    def propose_gone(self, watched: Watched) -> None:
        """Propose the end of every grant whose host this process was, if it is proven dead."""
        if watched.verdict.status != "dead":
            return
        for identity in list(self._by_process.get(watched.identity, ())):
            seat = self._seats.get(identity)
            if seat is not None and seat.host is watched:
                self._propose(identity, seat.epoch, watched.verdict.reason)

    def propose_all_gone(self) -> None:
        """The same for everyone: after a start, before the socket opens."""
        for seat in list(self._seats.values()):
            self.propose_gone(seat.host)

    def statistics(self) -> dict[str, Any]:
        """Counters, and what is watched."""
        return {
            **self._counts,
            "watched": len(self._watched),
            "with_handle": len(self._by_handle),
            "seats": len(self._seats),
            "connections": sum(self._connections.values()),
        }


def _is_unheld(watched: Watched) -> bool:
    """Whether nobody will tell of its death. Without a pid nothing but the handle it came with ever could."""
    return watched.handle is None and watched.verdict.status != "dead" and watched.identity.pid > 0


def shims_status(seat: Seat) -> Status:
    """Alive when one lives, dead when all are proven gone, else unknown."""
    status: Status = "dead"
    for watched in seat.shims.values():
        if watched.verdict.status == "alive":
            return "alive"
        if watched.verdict.status == "unknown":
            status = "unknown"
    return status
