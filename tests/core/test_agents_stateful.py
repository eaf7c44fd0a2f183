"""Agent tools and `mbx_*` tools mixed, over any history, against the second model; and tokens that are wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from mbx_wire.agent import (
    CreateAgentParams,
    EnsureProjectParams,
    RegisterAgentParams,
    RetireAgentParams,
    SweepParams,
    TokenParams,
    WhoisParams,
)
from mbxd.core import agentnames, tokens
from mbxd.core import events as ev
from mbxd.core.binding import Bind
from mbxd.core.context import PERSON, Caller
from mbxd.core.state import SessionKey
from tests.core.model import Line, Refusal, dump
from tests.core.test_agents import KEY, AgentWorld
from tests.core.test_machine_stateful import NAMES, Registry, handles, hosts

AGENTS = (*NAMES[:2], "GreenCastle", "greencastle", "BlueLake", "worker-7", "Api.Tests")
HINTS = (None, "GreenCastle", "blue-lake")
PROJECTS = ("shop", "docs")
TOKENS = ("none", "right", "stale", "foreign", "garbage")

agents = st.sampled_from(AGENTS)
places = st.sampled_from(PROJECTS)
kinds = st.sampled_from(TOKENS)
people = st.booleans()


class Mixed(Registry):
    """The registry's machine with the agent tools as well."""

    world: AgentWorld

    def __init__(self) -> None:
        super().__init__()
        self.world = AgentWorld()

    def change(self, command: str, params: msgspec.Struct, caller: Caller) -> Any:
        """People's requests have no id here: they are not repeated."""
        return self.world.run(command, params, caller) if caller is PERSON else super().change(command, params, caller)

    # -- the second model ------------------------------------------------------------------------------------

    def settle_grant(self, key: SessionKey) -> None:
        """A grant that was asked for by name is no provisional one."""
        held = self.world.ledger.holds(key)
        if held is not None:
            self.world.ledger[held].provisional = False
            self.world.ledger[held].revive()
        super().settle_grant(key)

    def found(self, place: str, name: str) -> int | None:
        project = self.world.state.project_by_key.get(f"/repos/{place}")
        return None if project is None else agentnames.taken(self.world.state, project, name)

    def line(self, identity: int) -> Line:
        return self.world.ledger[self.world.state.identities[identity].address]

    def who(self, host: int, handle: str, person: bool) -> tuple[Caller, SessionKey | Refusal | None]:
        if person:
            return PERSON, None
        caller = self.caller(host, handle)
        return caller, self.session(caller)

    def made(self, result: Any, key: SessionKey | None, *, provisional: bool) -> None:
        """A new identity: bound to a session that holds nothing."""
        free = key is not None and self.world.ledger.holds(key) is None
        assert (result["bound"], result["epoch"]) == (free, int(free))
        assert result["address"] not in self.world.ledger
        assert "registration_token" not in result
        self.asked.add(result["address"])
        self.world.ledger[result["address"]] = Line(key if free else None, int(free), provisional=free and provisional)
        if free and key is not None:
            super().settle_grant(key)

    def token(self, kind: str, identity: int | None) -> str | None:
        generation = 0 if identity is None else self.line(identity).generation
        match kind:
            case "none":
                return None
            case "right":
                return tokens.mint(KEY, identity or 1, generation)
            case "stale":
                return tokens.mint(KEY, identity or 1, generation - 1 if generation else 1)
            case "foreign":
                return tokens.mint(KEY, (identity or 1) + 1, generation)
            case _:
                return "mbx_" + "A" * 43

    # -- agent tools -----------------------------------------------------------------------------------------

    @rule(host=hosts, handle=handles, person=people, place=places, hint=st.sampled_from(HINTS))
    def create(self, host: int, handle: str, person: bool, place: str, hint: str | None) -> None:
        caller, key = self.who(host, handle, person)
        taken = hint is not None and self.found(place, agentnames.check_hint(hint)) is not None
        result = self.change("agent.create", CreateAgentParams(f"/repos/{place}", "codex", "five", hint), caller)
        if isinstance(key, Refusal):
            assert result == key
        elif taken:
            assert result == Refusal("NAME_TAKEN")
        else:
            assert result["name"] == agentnames.check_hint(hint or result["name"])
            self.made(result, key, provisional=True)

    @rule(
        host=hosts,
        handle=handles,
        person=people,
        place=places,
        name=st.none() | agents,
        kind=kinds,
        model=st.just("m2"),
    )
    def register_agent(
        self, host: int, handle: str, person: bool, place: str, name: str | None, kind: str, model: str
    ) -> None:
        world = self.world
        caller, key = self.who(host, handle, person)
        known = None if name is None else self.found(place, name)
        token = self.token(kind, known)
        before = dump(world.state)
        gives_way = known is not None and world.gives_way(known)
        loose = known is not None and (known, world.state.identities[known].epoch) in world.loose_since
        params = RegisterAgentParams(f"/repos/{place}", "codex", model, name, registration_token=token)
        result = self.change("agent.register", params, caller)
        if isinstance(key, Refusal):
            assert result == key
        elif known is None:
            assert not isinstance(result, Refusal)
            assert name is None or result["name"] == name
            self.made(result, key, provisional=False)
        else:
            expected = self.expect_update(known, key, kind, gives_way=gives_way, loose=loose)
            if isinstance(expected, Refusal):
                assert result == expected
                assert dump(world.state) == before, "a refusal changes nothing"
                return
            assert (result["id"], result["bound"], result["epoch"]) == (known, expected, self.line(known).epoch)
            assert (world.state.identities[known].program, world.state.identities[known].model) == ("codex", model)
            if expected and key is not None:
                super().settle_grant(key)
            world.watch()

    def expect_update(
        self, known: int, key: SessionKey | None, kind: str, *, gives_way: bool, loose: bool
    ) -> Refusal | bool:
        """What registering a known name does by the specification: a refusal, or whether the session is bound.

        gives_way: the holder is gone or its grace is over; loose: it is detached or unknown.
        """
        line = self.line(known)
        if kind not in {"none", "right"}:
            return Refusal("TOKEN_MISMATCH")
        if key is not None and line.holder == key:
            line.provisional = False
            return True
        if line.retired and not line.swept:
            return Refusal("RETIRED")
        if line.holder is not None and not gives_way and not (kind == "right" and (line.provisional or loose)):
            return Refusal("IDENTITY_IN_USE")
        holds = None if key is None else self.world.ledger.holds(key)
        if holds is not None and kind == "right":
            return Refusal("HOLDS_ANOTHER")
        line.revive()
        if key is None or holds is not None:
            return False
        line.holder, line.epoch, line.provisional = key, line.epoch + 1, False
        return True

    @rule(host=hosts, handle=handles, person=people, place=places, name=agents)
    def retire_agent(self, host: int, handle: str, person: bool, place: str, name: str) -> None:
        """One's own or a vacant one."""
        caller, key = self.who(host, handle, person)
        known = self.found(place, name)
        dead = known is not None and self.holder_is_dead(known)
        result = self.change("agent.retire", RetireAgentParams(f"/repos/{place}", name), caller)
        if known is None:
            assert isinstance(result, Refusal)
            assert result.code in {"UNKNOWN_IDENTITY", "NO_PROJECT"}
            return
        line = self.line(known)
        if isinstance(key, Refusal):
            assert result == key
        elif line.retired and not line.swept:
            assert result["warnings"]
        elif line.holder is not None and line.holder != key and not dead:
            assert result == Refusal("IDENTITY_IN_USE")
        else:
            assert result["retired"]
            line.holder, line.retired, line.swept = None, True, False
            self.world.watch()

    @rule(host=hosts, handle=handles, acts=st.booleans())
    def another_call(self, host: int, handle: str, acts: bool) -> None:
        """A call that needs an identity: it may bind by a hint; acting confirms a provisional grant."""
        caller = self.caller(host, handle)
        key = self.session(caller)
        held = None if isinstance(key, Refusal) else self.world.ledger.holds(key)
        result = self.world.run("internal.bind", Bind(acts), caller)
        if isinstance(key, Refusal):
            assert result == key
        elif held is not None:
            line = self.world.ledger[held]
            assert result["epoch"] == line.epoch
            line.provisional = line.provisional and not acts
        elif isinstance(result, Refusal):
            assert result.code in {"NOT_BOUND", "LEASE_LOST"}
        else:
            line = self.line(result["identity"])
            assert key not in self.let_go
            line.holder, line.epoch = key, line.epoch + 1
            self.settle_grant(key)
            assert result["epoch"] == line.epoch

    @rule(host=hosts, handle=handles, place=places, name=agents)
    def look(self, host: int, handle: str, place: str, name: str) -> None:
        """whois and ensure_project of a known project change nothing."""
        caller = self.caller(host, handle)
        known = self.found(place, name)
        shown = self.world.decide("agent.whois", WhoisParams(f"/repos/{place}", name), caller)
        assert isinstance(shown, Refusal) == (known is None)
        if not isinstance(shown, Refusal) and known is not None:
            assert shown.events == []
            assert shown.result.id == known
            assert (shown.result.holder is None) == (self.line(known).holder is None or self.holder_is_dead(known))
        if f"/repos/{place}" in self.world.state.project_by_key:
            ensured = self.world.decide("project.ensure", EnsureProjectParams(f"/repos/{place}"), caller)
            assert not isinstance(ensured, Refusal)
            assert all(isinstance(event, ev.Replied) for event in ensured.events), "only its result is kept"

    # -- people ----------------------------------------------------------------------------------------------

    @rule(place=places, name=agents, rotate=st.booleans(), beneath=st.booleans())
    def show_token(self, place: str, name: str, rotate: bool, beneath: bool) -> None:
        known = self.found(place, name)
        if known is None:
            return
        line = self.line(known)
        address = self.world.state.identities[known].address
        caller = replace(PERSON, beneath_agent=beneath)
        result = self.world.run("admin.token", TokenParams(address, rotate), caller)
        if beneath:
            assert result == Refusal("NOT_ALLOWED")
        else:
            line.generation += int(rotate)
            assert (result["generation"], result["id"]) == (line.generation, known)
            assert "registration_token" not in result

    @rule(place=st.none() | places, hours=st.sampled_from((1, 48)), dry=st.booleans())
    def sweep(self, place: str | None, hours: int, dry: bool) -> None:
        """Vacant, idle, not retired; a held one is never swept, however long it was silent."""
        world = self.world
        project = None if place is None else world.state.project_by_key.get(f"/repos/{place}")
        expected = {
            i.address
            for i in world.state.identities.values()
            if world.ledger[i.address].holder is None
            and not world.ledger[i.address].retired
            and i.last_active_at < world.wall - hours * 3600
            and (place is None or i.project == project)
        }
        key = None if place is None else f"/repos/{place}"
        result = world.run("admin.sweep", SweepParams(hours * 3600.0, key, dry), PERSON)
        if place is not None and project is None:
            assert result == Refusal("NO_PROJECT")
            return
        assert set(result["swept"]) == expected
        if not dry:
            for address in expected:
                world.ledger[address].retired = world.ledger[address].swept = True


def test_any_mixed_history() -> None:
    run_state_machine_as_test(Mixed, settings=settings(max_examples=40, stateful_step_count=40))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_any_long_mixed_history() -> None:
    run_state_machine_as_test(Mixed, settings=settings(max_examples=1000, stateful_step_count=60))
