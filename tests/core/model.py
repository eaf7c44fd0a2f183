"""A registry in a box for tests: the core with a log, processes that live and die, clocks, and a tiny second model.

`World` plays the shell around the core: it gathers evidence, decides, encodes, applies and logs. `Ledger` is the
second model: who holds what, in a few lines, from the rules of the specification alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from mbx_wire.envelope import ProjectRef
from mbxd.core import events as ev
from mbxd.core import machine, snapshot
from mbxd.core.context import Caller, Context
from mbxd.core.liveness import Evidence, Policy, Status, is_loose
from mbxd.core.rejected import Rejected
from mbxd.core.state import Hold, SessionKey, State
from mbxd.ports import ProcessId

GRACE = Policy().detach_grace
BOOT = "6f1d3a3c-boot"


def process(pid: int, generation: int = 1, boot: str = BOOT) -> ProcessId:
    """A process that is told from others by pid and start ticks."""
    return ProcessId(boot, 4026531836, pid, generation, 0)


def project(slug: str) -> ProjectRef:
    """A project as a client names it."""
    return ProjectRef(f"/repos/{slug}", slug)


def dump(state: State) -> dict[str, Any]:
    """Everything a state knows, in a form that compares: memories in their order, sets and indexes without one."""
    return {
        "projects": state.projects,
        "identities": state.identities,
        "next": (state.next_project, state.next_identity),
        "project_by_key": state.project_by_key,
        "slugs": state.slugs,
        "by_address": state.by_address,
        "by_agent_name": state.by_agent_name,
        "rosters": {p: list(r.ordered()) for p, r in state.rosters.items()},
        "held": {p: ids for p, ids in state.held.items() if ids},
        "by_session": state.by_session,
        "by_host": state.by_host,
        "by_hint": list(state.by_hint.items()),
        "by_key": list(state.by_key.items()),
        "lost": list(state.lost.items()),
        "replies": {i: list(kept.items()) for i, kept in state.replies.items()},
    }


SLOTS_DUMPED = {
    *("projects", "identities", "next_project", "next_identity", "project_by_key", "slugs", "by_address"),
    *("by_agent_name", "rosters", "held", "by_session", "by_host", "by_hint", "by_key", "lost", "replies"),
}
"""Slots that `dump` covers; a test compares them with State, so that a new slot is not forgotten."""


def rebuilt(state: State) -> dict[str, Any]:
    """The indexes as the records alone would have them."""
    fresh = State()
    for each in state.projects.values():
        fresh.add_project(each)
    for identity in state.identities.values():
        fresh.add(identity)
    return {k: v for k, v in dump(fresh).items() if k not in {"by_hint", "by_key", "lost", "replies", "next"}}


def reloaded(state: State) -> State:
    """The state through a snapshot."""
    return snapshot.load(snapshot.encode(snapshot.freeze(state, {})))


class Refusal(NamedTuple):
    """A refused request, by its code."""

    code: str


@dataclass
class Line:
    """What the second model knows of one mailbox."""

    holder: SessionKey | None = None
    epoch: int = 0
    role: str | None = None
    retired: bool = False
    swept: bool = False
    provisional: bool = False
    generation: int = 0

    def revive(self) -> None:
        """Whoever takes it takes it out of its retirement."""
        self.retired = self.swept = False


class Ledger(dict[str, Line]):
    """Address -> who holds it under which epoch. The second model."""

    def copy(self) -> Ledger:
        """An independent copy."""
        return Ledger({name: Line(**vars(line)) for name, line in self.items()})

    def holds(self, session: SessionKey) -> str | None:
        """What the session holds."""
        return next((name for name, line in self.items() if line.holder == session), None)

    def claim(self, name: str, session: SessionKey, role: str | None, *, gives_way: bool) -> Refusal | int:
        """The epoch that a claim of a known mailbox gets, or its refusal. gives_way: its holder is gone or loose."""
        line = self[name]
        if line.holder != session:
            if line.retired and not line.swept:
                return Refusal("RETIRED")
            if line.holder is not None and not gives_way:
                return Refusal("IDENTITY_IN_USE")
            if self.holds(session) is not None:
                return Refusal("HOLDS_ANOTHER")
            if line.role is None and role is None:
                return Refusal("ROLE_REQUIRED")
        if role is not None and line.role is not None and role != line.role:
            return Refusal("ROLE_MISMATCH")
        line.role = line.role or role
        if line.holder != session:
            line.holder, line.epoch = session, line.epoch + 1
            line.revive()
        line.provisional = False
        return line.epoch


class Batch(NamedTuple):
    """One change as it went to the log, and the second model after it."""

    records: list[bytes]
    ledger: Ledger


@dataclass
class World:
    """The core with everything around it that is needed to run it."""

    state: State = field(default_factory=State)
    ledger: Ledger = field(default_factory=Ledger)
    batches: list[Batch] = field(default_factory=list)
    verdicts: dict[ProcessId, Status] = field(default_factory=dict)
    connected: set[SessionKey] = field(default_factory=set)
    wall: float = 1_800_000_000.0
    awake: float = 0.0
    policy: Policy = field(default_factory=Policy)
    durable: int = 0
    snapshots: list[tuple[int, list[bytes]]] = field(default_factory=list)
    loose_since: dict[tuple[int, int], float] = field(default_factory=dict)

    # -- evidence --------------------------------------------------------------------------------------------

    def _of(self, hold: Hold) -> tuple[Status, Status, bool]:
        host = self.verdicts.get(hold.session.host, "alive")
        shims = {self.verdicts.get(shim, "alive") for shim in hold.shims}
        spoke: Status = "alive" if "alive" in shims else ("unknown" if "unknown" in shims else "dead")
        return host, spoke, hold.key in self.connected

    def evidence(self, identity: int) -> Evidence | None:
        """What a watcher would know of the holder."""
        record = self.state.identities[identity]
        if record.hold is None:
            return None
        host, shims, connected = self._of(record.hold)
        since = self.loose_since.get((identity, record.epoch))
        return Evidence(host, "holder-exited", shims, connected, 0.0 if since is None else self.awake - since)

    def watch(self) -> None:
        """Start and stop the grace of every holder, as the evidence is now."""
        now: dict[tuple[int, int], float] = {}
        for identity, hold in self.state.holders():
            host, shims, connected = self._of(hold)
            if is_loose(host, shims, connected=connected):
                key = (identity.id, identity.epoch)
                now[key] = self.loose_since.get(key, self.awake)
        self.loose_since = now

    def gives_way(self, identity: int) -> bool:
        """By the words of the specification: the holder is proven gone, or its grace is over."""
        record = self.state.identities[identity]
        if record.hold is None:
            return True
        if self.verdicts.get(record.hold.session.host, "alive") == "dead":
            return True
        since = self.loose_since.get((identity, record.epoch))
        return since is not None and self.awake - since >= GRACE

    # -- requests --------------------------------------------------------------------------------------------

    def context(self, caller: Caller) -> Context:
        """Surroundings of a decision now."""
        return Context(caller, self.wall, self.policy, self.evidence)

    def decide(self, command: str, params: msgspec.Struct, caller: Caller) -> machine.Decision | Refusal:
        """Decide only; checks that deciding leaves no trace."""
        before = dump(reloaded(self.state))
        try:
            return machine.decide(self.state, command, params, self.context(caller))
        except Rejected as refusal:
            body = msgspec.json.decode(msgspec.json.encode(refusal.body()))
            return Refusal(body["code"])
        finally:
            assert dump(self.state) == before

    def run(self, command: str, params: msgspec.Struct, caller: Caller) -> Any:
        """Decide, apply and log. The result as a client would decode it, or a Refusal."""
        decision = self.decide(command, params, caller)
        if isinstance(decision, Refusal):
            return decision
        if decision.events:
            self.apply(decision.events)
        return None if decision.result is None else msgspec.json.decode(msgspec.json.encode(decision.result))

    def apply(self, events: Iterable[ev.Event]) -> None:
        """Check each event against the rules that never bend, apply it, and log them as one batch."""
        records = []
        for event in events:
            self._judge(event)
            records.append(ev.encode(event))
            machine.evolve(self.state, event)
        self.watch()
        self.batches.append(Batch(records, self.ledger))

    def settle(self) -> None:
        """Keep the second model as of the newest batch. Called after every step."""
        if self.batches:
            self.batches[-1] = Batch(self.batches[-1].records, self.ledger.copy())

    def _judge(self, event: ev.Event) -> None:
        match event:
            case ev.HolderEnded(identity=identity, to=to):
                record = self.state.identities[identity]
                assert record.hold is not None
                dead = self.verdicts.get(record.hold.session.host, "alive") == "dead"
                assert dead == (to is None), "unknown is not dead, and only the dead leave without a successor"
                assert self.gives_way(identity), "a live holder was displaced"
            case ev.Granted(identity=identity, epoch=epoch, session=session):
                record = self.state.identities[identity]
                assert record.hold is None
                assert epoch == record.epoch + 1
                assert (session.host, session.handle) not in self.state.by_session
            case ev.Freed(identity=identity, epoch=epoch):
                assert epoch == self.state.identities[identity].epoch + 1
            case _:
                pass

    # -- the log ---------------------------------------------------------------------------------------------

    def replayed(self, batches: list[Batch], start: State | None = None) -> State:
        """Fold encoded batches."""
        fresh = State() if start is None else start
        return machine.replay(fresh, (ev.decode(record) for batch in batches for record in batch.records))

    def take_snapshot(self) -> None:
        """Write one at this point of the log."""
        self.snapshots.append((len(self.batches), list(snapshot.encode(snapshot.freeze(self.state, {})))))

    def restart(self, keep: int, *, by_snapshot: bool) -> None:
        """A new daemon on the first `keep` batches of the log; the newest snapshot within them may serve."""
        del self.batches[keep:]
        self.snapshots = [s for s in self.snapshots if s[0] <= keep]
        self.durable = min(self.durable, keep)
        if by_snapshot and self.snapshots:
            place, chunks = self.snapshots[-1]
            self.state = self.replayed(self.batches[place:], snapshot.load(chunks))
        else:
            self.state = self.replayed(self.batches)
        self.ledger = self.batches[-1].ledger.copy() if self.batches else Ledger()
        self.loose_since = {}
        self.connected = set()
        self.watch()


def check(world: World) -> None:
    """What must hold after every step."""
    state = world.state
    live = dump(state)
    holders = [(identity, hold) for identity, hold in state.holders()]
    keys = [hold.key for _, hold in holders]
    assert len(set(keys)) == len(keys), "one session, one identity"
    assert state.by_session == {hold.key: identity.id for identity, hold in holders}
    assert state.held_count() == len(holders)
    for name, index in rebuilt(state).items():
        assert live[name] == index, name
    for roster in state.rosters.values():
        assert list(roster.ordered()) == sorted(roster.ordered())
    assert dump(reloaded(state)) == live, "a snapshot is the state"
    assert dump(world.replayed(world.batches)) == live, "the log is the state"
    seen = {
        i.address: Line(
            None if i.hold is None else i.hold.key,
            i.epoch,
            i.role,
            i.retired is not None,
            i.retired == "swept",
            i.hold is not None and i.hold.provisional,
            i.generation,
        )
        for i in state.identities.values()
    }
    for line in world.ledger.values():
        line.provisional = line.provisional and line.holder is not None
    assert seen == world.ledger
