"""The core against a second model, over any order of requests, deaths, waits, clock steps, restarts and kills."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, get_args

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from mbx_wire.admin import FreeParams, NameOnlyParams, RenameParams
from mbx_wire.identity import ClaimParams, ListParams, RegisterParams, ReleaseParams
from mbxd.core import events as ev
from mbxd.core import evolve
from mbxd.core.context import PERSON, Caller
from mbxd.core.internal import AttachShim, ForgetInstances, HolderDied
from mbxd.core.state import Identity, SessionKey, State
from tests.core.model import GRACE, SLOTS_DUMPED, Line, Refusal, World, check, process, project

NAMES = ("shop-backend", "shop-frontend", "reviewer", "qa", "zebra-stripes")
ROLES = (None, "backend", "frontend")
PROJECTS = ("shop", "docs", None)
HOSTS = range(3)
HANDLES = ("", "a", "b")

names = st.sampled_from(NAMES)
roles = st.sampled_from(ROLES)
hosts = st.sampled_from(HOSTS)
handles = st.sampled_from(HANDLES)
projects = st.sampled_from(PROJECTS)
picks = st.integers(0, 1 << 16)


class Sent(NamedTuple):
    """A change that was answered: for repeats."""

    command: str
    params: msgspec.Struct
    caller: Caller
    result: Any
    batch: int


class Registry(RuleBasedStateMachine):
    """Sessions on three hosts, people, and everything that can happen to a machine."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.generation = dict.fromkeys(HOSTS, 1)
        self.instance = dict.fromkeys(HOSTS, 1)
        self.requests = 0
        self.sent: list[Sent] = []
        self.asked: set[str] = set()
        self.let_go: dict[SessionKey, str] = {}

    # -- callers ---------------------------------------------------------------------------------------------

    def caller(self, host: int, handle: str = "", where: str | None = "shop", wish: str | None = None) -> Caller:
        generation = self.generation[host]
        self.requests += 1
        return Caller(
            client="claude-code",
            host=process(100 + host, generation),
            handle=handle and f"{handle}{host}",
            shims=(process(1000 + host, generation * 100 + self.instance[host]),),
            resume=(f"claude-code:conversation-{host}",),
            agent=wish,
            project=None if where is None else project(where),
            instance=f"instance-{host}-{generation}-{self.instance[host]}",
            request_id=f"r{self.requests}",
        )

    def session(self, caller: Caller) -> SessionKey | Refusal:
        """Who the caller is, by the specification: without a handle the host's only holder."""
        assert caller.host is not None
        if caller.handle:
            return (caller.host, caller.handle)
        held = [line.holder for line in self.world.ledger.values() if line.holder and line.holder[0] == caller.host]
        if len(held) > 1:
            return Refusal("AMBIGUOUS_SESSION")
        return held[0] if held else (caller.host, "")

    def meant(self, name: str, where: str | None) -> Identity | None:
        """What a bare name means in a project: an agent of it first, else the address."""
        here = None if where is None else self.world.state.project_by_key.get(f"/repos/{where}")
        return self.world.state.find(name, here or 0)

    def change(self, command: str, params: msgspec.Struct, caller: Caller) -> Any:
        before = len(self.world.batches)
        result = self.world.run(command, params, caller)
        if len(self.world.batches) > before:
            self.sent.append(Sent(command, params, caller, result, len(self.world.batches)))
        return result

    def settle_grant(self, key: SessionKey) -> None:
        self.world.connected.add(key)
        self.let_go.pop(key, None)
        self.world.watch()

    # -- sessions --------------------------------------------------------------------------------------------

    @rule(host=hosts, handle=handles, name=names, role=roles, where=projects)
    def claim(self, host: int, handle: str, name: str, role: str | None, where: str | None) -> None:
        world, caller = self.world, self.caller(host, handle, where)
        key = self.session(caller)
        known = self.meant(name, where)
        expected: Any = key
        if not isinstance(key, Refusal):
            if known is None:
                expected = None  # created, or listed as unknown: judged by the result
            else:
                expected = world.ledger.claim(known.address, key, role, gives_way=world.gives_way(known.id))
        self.asked.add(name)
        result = self.change("identity.claim", ClaimParams(name, role), caller)
        if isinstance(expected, Refusal):
            assert result == expected
        elif expected is not None:
            assert result["epoch"] == expected
            assert result["identity"]["reason"] == "yours" or result["identity"]["state"] != "live"
            assert result["identity"]["claimable"]
            assert not isinstance(key, Refusal)
            self.settle_grant(key)
        elif isinstance(result, Refusal):
            assert result.code in {"UNKNOWN_IDENTITY", "HOLDS_ANOTHER"}
            assert role is not None or result.code == "UNKNOWN_IDENTITY"
        else:
            assert not isinstance(key, Refusal)
            assert role is not None
            assert result["created"]
            assert world.ledger.holds(key) is None
            world.ledger[name] = Line(key, 1, role)
            self.settle_grant(key)

    @rule(host=hosts, handle=handles, name=names, role=roles, where=projects)
    def register(self, host: int, handle: str, name: str, role: str | None, where: str | None) -> None:
        world, caller = self.world, self.caller(host, handle, where)
        key = self.session(caller)
        known = self.meant(name, where)
        result = self.change("identity.register", RegisterParams(name, role), caller)
        self.asked.add(name)
        if isinstance(key, Refusal):
            assert result == key
        elif role is None:
            assert result == Refusal("ROLE_REQUIRED")
        elif known is not None:
            line = world.ledger[known.address]
            if line.holder != key:
                assert result == Refusal("NAME_TAKEN")
            elif line.role not in {None, role}:
                assert result == Refusal("ROLE_MISMATCH")
            else:
                line.role, line.provisional = role, False
                assert (result["created"], result["epoch"]) == (False, line.epoch)
        elif world.ledger.holds(key):
            assert result == Refusal("HOLDS_ANOTHER")
        else:
            assert (result["created"], result["epoch"]) == (True, 1)
            world.ledger[name] = Line(key, 1, role)
            self.settle_grant(key)

    @rule(host=hosts, handle=handles, wish=st.sampled_from((None, *NAMES)))
    def claim_without_name(self, host: int, handle: str, wish: str | None) -> None:
        """Only ever gives what the session holds, wished for or held last."""
        world, caller = self.world, self.caller(host, handle, wish=wish)
        key = self.session(caller)
        result = self.change("identity.claim", ClaimParams(), caller)
        if isinstance(key, Refusal):
            assert result == key
            return
        if isinstance(result, Refusal):
            assert world.ledger.holds(key) is None
            return
        address = result["identity"]["address"]
        held = world.ledger.holds(key)
        assert held in {None, address}
        assert held or result["resumed"] or wish or world.state.by_key.get(key)
        line = world.ledger[address]
        line.epoch += 0 if held else 1
        line.holder, line.provisional = key, False
        line.revive()
        assert result["epoch"] == line.epoch
        self.settle_grant(key)

    @rule(host=hosts, handle=handles, late=st.booleans())
    def release(self, host: int, handle: str, late: bool) -> None:
        world, caller = self.world, self.caller(host, handle)
        key = self.session(caller)
        held = None if isinstance(key, Refusal) else world.ledger.holds(key)
        epoch = world.ledger[held].epoch - int(late) if held else 0
        result = self.change("identity.release", ReleaseParams(), replace(caller, epoch=epoch))
        if isinstance(key, Refusal):
            assert result == key
            return
        assert result["released"] == (None if late else held)
        if held and not late:
            world.ledger[held].holder = None
            world.watch()
            assert not isinstance(key, Refusal)
            # The session that let go; a call without a handle is another one again, now that nobody is held.
            listed = world.decide("identity.list", ListParams(), self.caller(host, key[1]))
            assert not isinstance(listed, Refusal)
            assert listed.result.pending is None or listed.result.pending.name != held
            self.let_go[key] = held

    @rule(pick=picks)
    def attach(self, pick: int) -> None:
        holders = sorted((i.id, i.epoch) for i, _ in self.world.state.holders())
        if holders:
            identity, epoch = holders[pick % len(holders)]
            hold = self.world.state.identities[identity].hold
            assert hold is not None
            shim = process(2000 + pick % 7, hold.session.host.ticks)
            self.world.run("internal.attach_shim", AttachShim(identity, epoch, shim), PERSON)
            stale = self.world.run("internal.attach_shim", AttachShim(identity, epoch - 1, process(3)), PERSON)
            assert stale is None
            self.world.watch()

    # -- people ----------------------------------------------------------------------------------------------

    @rule(name=names, role=st.sampled_from(("backend", "frontend")), where=projects)
    def person_registers(self, name: str, role: str, where: str | None) -> None:
        caller = replace(PERSON, project=None if where is None else project(where))
        known = name in self.world.state.by_address
        result = self.world.run("identity.register", RegisterParams(name, role), caller)
        self.asked.add(name)
        if known:
            assert result == Refusal("NAME_TAKEN")
        else:
            assert result["identity"]["state"] == "vacant"
            self.world.ledger[name] = Line(None, 0, role)

    @rule(name=names)
    def free(self, name: str) -> None:
        world = self.world
        known = world.state.by_address.get(name)
        result = world.run("admin.free", FreeParams(name, "it hangs"), PERSON)
        if known is None:
            assert result == Refusal("UNKNOWN_IDENTITY")
            return
        line = world.ledger[world.state.identities[known].address]
        assert result["changed"] == (line.holder is not None)
        if line.holder is not None:
            line.holder, line.epoch = None, line.epoch + 1
        assert result["epoch"] == line.epoch
        world.watch()

    @rule(name=names, back=st.booleans())
    def retire(self, name: str, back: bool) -> None:
        world = self.world
        known = world.state.by_address.get(name)
        dead = known is not None and self.holder_is_dead(known)
        result = world.run("admin.unretire" if back else "admin.retire", NameOnlyParams(name), PERSON)
        if known is None:
            assert result == Refusal("UNKNOWN_IDENTITY")
            return
        line = world.ledger[world.state.identities[known].address]
        if not back and line.holder is not None and not dead:
            assert result == Refusal("IDENTITY_IN_USE")
            return
        assert result["changed"] == (line.retired == back or (line.swept and not back))
        line.retired, line.swept = not back, False
        if not back:
            line.holder = None

    @rule(name=names, to=names)
    def rename(self, name: str, to: str) -> None:
        world = self.world
        known, taken = world.state.by_address.get(name), world.state.by_address.get(to)
        old = None if known is None else world.state.identities[known].address
        result = world.run("admin.rename", RenameParams(name, to), PERSON)
        if old is None:
            assert result == Refusal("UNKNOWN_IDENTITY")
        elif taken not in {None, known}:
            assert result == Refusal("NAME_TAKEN")
        else:
            self.asked.add(to)
            assert result["changed"] == (old != to)
            world.ledger[to] = world.ledger.pop(old)
            self.let_go = {key: to if name == old else name for key, name in self.let_go.items()}
            assert world.state.by_address[old] == known, "the old address still leads there"

    # -- the machine -----------------------------------------------------------------------------------------

    def holder_is_dead(self, identity: int) -> bool:
        hold = self.world.state.identities[identity].hold
        return hold is not None and self.world.verdicts.get(hold.session.host) == "dead"

    @rule(host=hosts)
    def host_dies(self, host: int) -> None:
        """The agent CLI ends; the next call of this slot comes from a new process."""
        dead = process(100 + host, self.generation[host])
        self.world.verdicts[dead] = "dead"
        self.world.connected = {key for key in self.world.connected if key[0] != dead}
        self.generation[host] += 1
        self.world.watch()

    @rule(host=hosts)
    def shim_restarts(self, host: int) -> None:
        """The shim dies and with it its connection; the host's next call comes through another."""
        alive = process(100 + host, self.generation[host])
        for _, hold in self.world.state.holders():
            if hold.session.host == alive:
                self.world.verdicts.update(dict.fromkeys(hold.shims, "dead"))
        self.world.connected = {key for key in self.world.connected if key[0] != alive}
        self.instance[host] += 1
        self.world.watch()

    @rule(host=hosts, readable=st.booleans(), connected=st.booleans())
    def evidence_changes(self, host: int, readable: bool, connected: bool) -> None:
        """Permissions or a namespace hide the process, or show it again; its connection breaks or comes back."""
        alive = process(100 + host, self.generation[host])
        self.world.verdicts[alive] = "alive" if readable else "unknown"
        keys = {hold.key for _, hold in self.world.state.holders() if hold.session.host == alive}
        self.world.connected = (self.world.connected | keys) if connected else (self.world.connected - keys)
        self.world.watch()

    @rule(late=st.booleans())
    def reap(self, late: bool) -> None:
        """The watcher proposes; a proposal for an older epoch changes nothing."""
        world = self.world
        for identity, hold in list(world.state.holders()):
            if world.verdicts.get(hold.session.host) == "dead":
                epoch = identity.epoch - int(late)
                world.run("internal.holder_died", HolderDied(identity.id, epoch, "holder-exited"), PERSON)
                if not late:
                    world.ledger[identity.address].holder = None
                    world.settle()  # one batch each
        world.watch()

    @rule(seconds=st.sampled_from((1.0, GRACE / 2, GRACE, 86_400.0)))
    def time_passes(self, seconds: float) -> None:
        self.world.awake += seconds
        self.world.wall += seconds

    @rule(step=st.floats(-4e9, 4e9))
    def clock_steps(self, step: float) -> None:
        """Suspend, an operator, a bad battery: no rule may care."""
        self.world.wall += step

    @rule()
    def flush(self) -> None:
        self.world.durable = len(self.world.batches)

    @rule()
    def take_snapshot(self) -> None:
        self.world.take_snapshot()

    @rule(by_snapshot=st.booleans())
    def restart(self, by_snapshot: bool) -> None:
        self.world.restart(len(self.world.batches), by_snapshot=by_snapshot)

    @rule(by_snapshot=st.booleans(), lost=picks)
    def kill(self, by_snapshot: bool, lost: int) -> None:
        """What was not on the disk is gone, whole batches from the end."""
        undurable = len(self.world.batches) - self.world.durable
        self.world.restart(len(self.world.batches) - lost % (undurable + 1), by_snapshot=by_snapshot)
        self.sent = [s for s in self.sent if s.batch <= len(self.world.batches)]
        self.let_go.clear()

    # -- repeats ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.sent)
    @rule(pick=picks)
    def repeat(self, pick: int) -> None:
        sent = self.sent[pick % len(self.sent)]
        before = len(self.world.batches)
        assert self.world.run(sent.command, sent.params, sent.caller) == sent.result
        assert len(self.world.batches) == before

    @precondition(lambda self: self.sent)
    @rule(pick=picks)
    def reuse(self, pick: int) -> None:
        sent = self.sent[pick % len(self.sent)]
        other = ClaimParams("another-name", "backend")
        assert self.world.run("identity.claim", other, sent.caller) == Refusal("REQUEST_ID_REUSED")

    @rule(host=hosts)
    def forget(self, host: int) -> None:
        """The client died ten minutes ago."""
        gone = self.caller(host).instance
        self.instance[host] += 1
        self.world.run("internal.forget_instances", ForgetInstances((gone,)), PERSON)
        self.sent = [s for s in self.sent if s.caller.instance != gone]

    # -- what always holds -----------------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        self.world.settle()
        check(self.world)
        assert set(self.world.state.by_address) <= self.asked, "names are never invented"
        for key, name in self.let_go.items():
            caller = Caller("claude-code", key[0], key[1], project=project("shop"))
            listed = self.world.decide("identity.list", ListParams(), caller)
            if not isinstance(listed, Refusal) and listed.result.pending is not None:
                assert listed.result.pending.name != name, "a released session does not take the name back by itself"

    @rule(host=hosts, handle=handles, where=projects)
    def rows_tell_the_truth(self, host: int, handle: str, where: str | None) -> None:
        """`claimable` and `claim_error` are what a claim with nothing but the name would do now."""
        caller = self.caller(host, handle, where)
        if isinstance(self.session(caller), Refusal):
            return
        listed = self.world.decide("identity.list", ListParams(all=True), caller)
        assert not isinstance(listed, Refusal)
        for row in listed.result.identities:
            meant = self.meant(row.address, where)
            assert meant is not None
            if meant.id != row.id:
                continue  # in this project the word is an agent's name first
            outcome = self.world.decide("identity.claim", ClaimParams(row.address), caller)
            assert row.claimable == (not isinstance(outcome, Refusal))
            assert row.claim_error == (outcome.code if isinstance(outcome, Refusal) else None)
            if row.claimable_in_s is not None:
                assert not row.claimable
                self.world.awake += row.claimable_in_s
                later = self.world.decide("identity.claim", ClaimParams(row.address), caller)
                self.world.awake -= row.claimable_in_s
                assert later != outcome or row.claim_error != "IDENTITY_IN_USE"
        pending = listed.result.pending
        if pending is not None and pending.claimable:
            outcome = self.world.decide("identity.claim", ClaimParams(), caller)
            assert not isinstance(outcome, Refusal)
            taken = msgspec.json.decode(msgspec.json.encode(outcome.result))["identity"]
            assert pending.name in {taken["name"], taken["address"]}


def test_any_history() -> None:
    run_state_machine_as_test(Registry, settings=settings(max_examples=120, stateful_step_count=40))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_any_long_history() -> None:
    run_state_machine_as_test(Registry, settings=settings(max_examples=1200, stateful_step_count=60))


def test_dump_covers_every_slot() -> None:
    assert set(State.__slots__) == SLOTS_DUMPED


def test_every_event_has_a_rule() -> None:
    assert set(evolve._EVOLVE) == set(get_args(ev.Event))
