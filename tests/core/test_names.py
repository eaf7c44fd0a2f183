"""Whatever name is shown to somebody means that mailbox when it is used by them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mbx_wire import identity as wire
from mbx_wire.admin import FreeParams, NameOnlyParams, RenameParams, ShowParams
from mbx_wire.agent import RegisterAgentParams, RetireAgentParams, WhoisParams
from mbx_wire.identity import ClaimParams, ListParams, RegisterParams, ReleaseParams
from mbxd.core import addressing, agentnames, machine, naming, view
from mbxd.core.context import PERSON, Caller
from mbxd.core.rejected import Rejected
from mbxd.core.state import NO_PROJECT, NOWHERE, Identity, State
from tests.core.model import Refusal, World, process, project

PLACES = [None, project("shop"), project("store"), project("a"), project("green")]
UNBORN = project("unborn")
NAMES = [
    *("greencastle", "store-greencastle", "shop-greencastle", "a--b", "a-b", "green-castle", "green-greencastle"),
    *("a-greencastle", "store-a-b", "shop-a", "store-a", "greencastle-2"),
]
AGENTS = ["GreenCastle", "greencastle", "Green_Castle", "Green.Castle", "A--B", "a-b", "Store-GreenCastle", "shop_a"]


def person(place: Any) -> Caller:
    return replace(PERSON, project=place)


def session(number: int, place: Any) -> Caller:
    host = 1000 + 10 * number
    return Caller("claude-code", process(host), "", (process(host + 1),), (f"claude-code:{host}",), project=place)


def mailbox(world: World, place: Any, name: str) -> None:
    world.run("identity.register", RegisterParams(name, "qa"), person(place))


def agent(world: World, place: Any, name: str) -> None:
    if place is not None:
        world.run("agent.register", RegisterAgentParams(place.key, "codex", "m-1", name=name), person(place))


def rename(world: World, place: Any, names: tuple[str, str]) -> None:
    world.run("admin.rename", RenameParams(*names), person(place))


STEPS: dict[str, Callable[[World, Any, Any], None]] = {"mailbox": mailbox, "agent": agent, "rename": rename}
places = st.sampled_from(PLACES)
histories = st.lists(
    st.one_of(
        st.tuples(st.just("mailbox"), places, st.sampled_from(NAMES)),
        st.tuples(st.just("agent"), places, st.sampled_from(AGENTS)),
        st.tuples(st.just("rename"), places, st.tuples(st.sampled_from(NAMES + AGENTS), st.sampled_from(NAMES))),
    ),
    min_size=1,
    max_size=14,
)
SHADOW: list[Any] = [
    ("mailbox", PLACES[1], "greencastle"),
    ("agent", PLACES[2], "GreenCastle"),
    ("mailbox", None, "a-b"),
    ("agent", PLACES[3], "A--B"),
]


def made(history: list[tuple[str, Any, Any]]) -> World:
    world = World()
    for what, place, name in history:
        STEPS[what](world, place, name)
    return world


def refusal_of(world: World, command: str, params: Any, who: Caller) -> Rejected:
    with pytest.raises(Rejected) as refusal:
        machine.decide(world.state, command, params, world.context(who))
    return refusal.value


def named(text: str) -> str:
    """The name in a call that a hint or `next` shows."""
    [call] = re.findall(r"\{.*\}", text)
    name = json.loads(call)["name"]
    assert isinstance(name, str)
    return name


def shows(world: World, name: str, who: Caller) -> int:
    number = world.run("identity.show", ShowParams(name), who)["identity"]["id"]
    assert isinstance(number, int)
    return number


@given(histories, st.randoms(use_true_random=False))
@example(SHADOW, Random(0))
def test_a_name_leads_back_to_what_it_was_shown_for(history: list[tuple[str, Any, Any]], chance: Any) -> None:
    world = made(history)
    state = world.state
    fits = re.compile(wire.KNOWN_PATTERN)
    for place in [*PLACES, UNBORN]:
        who = person(place)
        here = view.project_id(state, world.context(who))
        for identity in state.identities.values():
            assert shows(world, whole(state, identity), who) == identity.id
            for name in (state.called(identity, here), state.called(identity, None)):
                assert shows(world, name, who) == identity.id
                assert fits.fullmatch(name), "what agents are told to claim fits the schema"
            for name in (addressing.name_of(state, identity.id, here), addressing.name_of(state, identity.id, None)):
                assert [one.identity for one in addressing.resolve(state, [name], 0, world.context(who))] == [
                    identity.id
                ]
                assert addressing.mailbox(state, name, here) == identity.id
        for word in [*NAMES, *AGENTS, "greencastel", "shop/greencastel", f"{NOWHERE}/a-bb", "store/greencastel"]:
            for near in view.near(state, word, here):
                assert state.find(near, here) is not None
    follow_what_a_session_is_told(world, chance)


def whole(state: State, identity: Identity) -> str:
    return f"{state.slug(identity.project) or NOWHERE}/{identity.name.lower()}"


def follow_what_a_session_is_told(world: World, chance: Any) -> None:
    state = world.state
    who = session(1, chance.choice(PLACES))
    for params in (ListParams(), ListParams(all=True)):
        told = world.decide("identity.list", params, who)
        assert not isinstance(told, Refusal)
        free = next((row.id for row in told.result.identities if row.claimable), None)
        if free is not None:
            taken = world.decide("identity.claim", ClaimParams(named(told.result.next)), who)
            assert not isinstance(taken, Refusal)
            assert taken.result.identity.id == free
    for name in NAMES:  # a name that is taken
        known = state.find(name, view.project_id(state, world.context(who)))
        if known is not None:
            refusal = refusal_of(world, "identity.register", RegisterParams(name, "qa"), who)
            assert refusal.data is not None
            assert refusal.data["name"] == known.address
            if refusal.data["claimable"]:
                assert shows(world, named(refusal.hint), who) == known.id
    held = chance.choice([*state.identities.values(), None])
    if held is None:
        return
    got = world.run("identity.claim", ClaimParams(whole(state, held), "qa"), who)
    assert not isinstance(got, Refusal)
    assert got["identity"]["id"] == held.id
    speaks_for_it(world, held, who)
    told = world.run("identity.release", ReleaseParams(), who)
    assert shows(world, named(told["next"]), who) == held.id


def speaks_for_it(world: World, held: Identity, who: Caller) -> None:
    """Its session sends as the mailbox, wherever it works: to the names that mail shows it."""
    state, ctx = world.state, world.context(who)
    home = addressing.home(state, held.id, ctx)
    assert home == held.project
    for other in state.identities.values():
        name = addressing.name_of(state, other.id, home)
        [one] = addressing.resolve(state, [name], held.id, ctx)
        assert (one.identity, one.name) == (other.id, name)


@pytest.fixture
def world() -> World:
    """1 greencastle (mailbox of shop), 2 GreenCastle (agent of store), 3 a-b (no project), 4 A--B (agent of a)."""
    return made(SHADOW)


STORE = person(PLACES[2])


def test_a_foreign_address_that_means_ones_own_agent_is_told_with_its_project(world: World) -> None:
    state = world.state
    assert [state.identities[i].address for i in (1, 2, 3, 4)] == ["greencastle", "store-greencastle", "a-b", "a-a-b"]
    assert [state.called(state.identities[1], p) for p in (NO_PROJECT, 1, 2)] == ["greencastle"] * 2 + [
        "shop/greencastle"
    ]
    assert state.called(state.identities[1], None) == "shop/greencastle"
    assert state.called(state.identities[2], None) == "store-greencastle"
    assert addressing.name_of(state, 2, 2) == "GreenCastle"
    listed = world.run("identity.list", ListParams(all=True), session(1, PLACES[2]))
    by_id = {row["id"]: row for row in listed["identities"]}
    assert (by_id[1]["name"], by_id[1]["address"], by_id[1]["project"]) == ("greencastle", "greencastle", "shop")


def test_each_next_call_leads_to_what_it_was_told_for() -> None:
    world = made([*SHADOW[:2], ("mailbox", PLACES[1], "old")])
    who = session(1, PLACES[2])
    listed = world.run("identity.list", ListParams(all=True), who)
    assert named(listed["next"]) == "shop/greencastle"
    assert world.run("identity.claim", ClaimParams("shop/greencastle"), who)["identity"]["id"] == 1
    refusal = refusal_of(world, "identity.claim", ClaimParams("shop/greencastle", "other"), who)
    assert (refusal.code, named(refusal.hint)) == ("ROLE_MISMATCH", "shop/greencastle")
    told = world.run("identity.release", ReleaseParams(), who)
    assert (told["released"], named(told["next"])) == ("greencastle", "shop/greencastle")
    # What it held in another project is told by a name that means it here.
    came_back = replace(session(2, PLACES[2]), resume=who.resume)
    assert world.run("identity.claim", ClaimParams("shop/greencastle"), who)["resumed"]
    world.verdicts[process(1010)] = "dead"
    wish = world.run("identity.list", ListParams(), came_back)["pending"]
    assert (wish["name"], wish["claimable"]) == ("shop/greencastle", True)
    world.verdicts[process(1010)] = "alive"
    world.run("admin.free", FreeParams("shop/greencastle", "why not"), STORE)
    assert world.run("identity.list", ListParams(), who)["lost"]["name"] == "shop/greencastle"
    # An older name of it is taken too.
    world.run("admin.rename", RenameParams("shop/greencastle", "lead"), STORE)
    world.run("admin.rename", RenameParams("old", "greencastle-2"), STORE)
    agent(world, PLACES[2], "GreenCastle_2")
    agent(world, PLACES[2], "GreenCastle-2")
    refusal = refusal_of(world, "identity.register", RegisterParams("old", "qa"), session(3, PLACES[2]))
    assert "old (now called shop/greencastle-2) exists already" in refusal.message
    assert named(refusal.hint) == "shop/greencastle-2"


def test_a_qualified_name_is_taken_wherever_a_mailbox_is_named(world: World) -> None:
    for name, number in (
        *(("shop/greencastle", 1), ("store/greencastle", 2), ("store/GreenCastle", 2), ("store/store-greencastle", 2)),
        *((f"{NOWHERE}/a-b", 3), ("a/a--b", 4), ("a/a-a-b", 4)),
    ):
        assert shows(world, name, STORE) == number
        assert addressing.mailbox(world.state, name, 2) == number
        found = world.run("agent.whois", WhoisParams("store", name), STORE)
        assert found["id"] == number
    for name in ("shop/store-greencastle", "store/a-b", "nowhere/greencastle", "/greencastle", "shop/", "shop//a", "/"):
        assert refusal_of(world, "identity.show", ShowParams(name), STORE).code == "UNKNOWN_IDENTITY"
        assert refusal_of(world, "identity.claim", ClaimParams(name, "qa"), session(1, PLACES[2])).code == (
            "UNKNOWN_IDENTITY"
        )
    assert world.run("admin.free", FreeParams("shop/greencastle", "why not"), STORE)["identity"]["id"] == 1
    assert world.run("admin.rename", RenameParams("shop/greencastle", "lead"), STORE)["identity"]["id"] == 1
    assert shows(world, "shop/greencastle", STORE) == 1, "the old name leads to it"
    assert world.run("admin.retire", NameOnlyParams("shop/lead"), STORE)["identity"]["state"] == "retired"
    assert "mbxctl unretire lead." in refusal_of(world, "identity.claim", ClaimParams("lead"), session(1, None)).hint
    assert world.run("agent.retire", RetireAgentParams("a", "store/greencastle"), STORE)["address"].startswith("store-")


def test_a_session_started_with_a_qualified_wish_takes_that_one(world: World) -> None:
    who = replace(session(1, PLACES[2]), agent="shop/greencastle")
    assert world.run("identity.claim", ClaimParams(), who)["identity"]["id"] == 1


def test_near_names_are_those_of_the_project_that_was_named(world: World) -> None:
    refusal = refusal_of(world, "identity.show", ShowParams("shop/greencastel"), STORE)
    assert refusal.data == {"near": ["shop/greencastle"], "vacant": []}
    assert "shop/greencastle" in refusal.message
    mine = refusal_of(world, "identity.claim", ClaimParams("store/store-greencastel"), session(1, PLACES[1]))
    assert mine.data == {"near": ["store-greencastle"], "vacant": []}


def test_a_taken_name_is_called_what_it_is(world: World) -> None:
    refusal = refusal_of(world, "identity.register", RegisterParams("greencastle", "qa"), STORE)
    assert "now called" not in refusal.message
    world.run("admin.rename", RenameParams("a-b", "plan"), STORE)
    refusal = refusal_of(world, "identity.register", RegisterParams("a-b", "qa"), STORE)
    assert "a-b (now called plan) exists already" in refusal.message


@given(st.text(max_size=20), st.text(max_size=20))
def test_no_new_name_and_no_slug_has_a_slash(one: str, other: str) -> None:
    name = f"{one}/{other}"
    assert "/" not in naming.slug(name)
    assert naming.slug(one) != NOWHERE
    assert not naming.is_address(name)
    with pytest.raises(Rejected):
        agentnames.check_name(name, "p", "m", strict=False)
    world = World()
    for command, params in (
        ("identity.register", RegisterParams(name, "qa")),
        ("agent.register", RegisterAgentParams("/repos/shop", "p", "m", name=name)),
    ):
        assert isinstance(world.run(command, params, PERSON), Refusal)
