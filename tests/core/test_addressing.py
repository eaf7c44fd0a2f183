"""Who a message goes to: names, roles, everybody, the owner; never a mailbox that is not there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbx_wire.admin import NameOnlyParams, RenameParams
from mbx_wire.agent import CreateAgentParams, EnsureProjectParams
from mbx_wire.errors import Code
from mbx_wire.identity import RegisterParams, ReleaseParams
from mbxd.core import addressing
from mbxd.core.addressing import OWNER, SYSTEM, Recipient
from mbxd.core.context import PERSON, Caller
from mbxd.core.rejected import Rejected
from mbxd.core.sessions import holding
from tests.core.model import World, process, project

SHOP = project("shop")
ANNA = Caller("claude-code", process(100), "", (process(101),), (), project=SHOP)
BERT = Caller("codex", process(200), "", (process(201),), (), project=SHOP)
CARL = Caller("codex", process(300), "", (process(301),), (), project=project("other"))


@pytest.fixture
def world() -> World:
    """1 shop-backend (anna), 2 shop-tester (bert), 3 other-tester (carl, in another project)."""
    world = World()
    world.run("identity.register", RegisterParams("shop-backend", "backend"), ANNA)
    world.run("identity.register", RegisterParams("shop-tester", "tester"), BERT)
    world.run("identity.register", RegisterParams("other-tester", "tester"), CARL)
    return world


def resolve(world: World, *to: str, caller: Caller = ANNA, sender: int | None = None) -> list[Recipient]:
    """sender: what the caller holds, unless it is said."""
    if sender is None:
        held = holding(world.state, caller)
        sender = OWNER if held is None else held.id
    return addressing.resolve(world.state, list(to), sender, world.context(caller))


def refused(world: World, *to: str, caller: Caller = ANNA, sender: int | None = None) -> Rejected:
    with pytest.raises(Rejected) as refusal:
        resolve(world, *to, caller=caller, sender=sender)
    return refusal.value


def test_each_mailbox_once_in_order(world: World) -> None:
    found = resolve(world, "shop-tester", "owner", " shop-tester ", "role:tester", "other-tester", "*")
    assert [one.identity for one in found] == [2, OWNER, 3]
    assert found[1][1:3] == ("owner", "owner")


def test_an_agent_name_means_this_project_and_an_address_any(world: World) -> None:
    made = {}
    for who, person in (("shop", SHOP), ("other", project("other"))):
        params = CreateAgentParams(who, "p", "m", name_hint="GreenCastle")
        made[who] = world.run("agent.create", params, replace(PERSON, project=person))
    assert made["shop"]["address"] != made["other"]["address"]
    for word in ("GreenCastle", "greencastle", "GREENCASTLE"):
        assert [one.identity for one in resolve(world, word)] == [made["shop"]["id"]]
        assert [one.identity for one in resolve(world, word, caller=CARL)] == [made["other"]["id"]]
    [across] = resolve(world, made["other"]["address"])
    assert (across.identity, across.name) == (made["other"]["id"], made["other"]["address"])
    assert resolve(world, "GreenCastle")[0].name == "GreenCastle"


def test_what_mail_shows_can_be_sent_to(world: World) -> None:
    world.run("agent.create", CreateAgentParams("other", "p", "m", name_hint="GreenCastle"), CARL)
    state = world.state
    for caller in (ANNA, CARL):
        where = state.project_by_key[caller.project.key if caller.project else ""]
        for number in (*state.identities, OWNER):
            name = addressing.name_of(state, number, where)
            assert [one.identity for one in resolve(world, name, caller=caller, sender=99)] == [number]
    assert addressing.name_of(state, SYSTEM, 1) == "mbxd"
    assert addressing.name_of(state, 77, 1) == "#77"


def test_states_say_who_reads(world: World) -> None:
    live = resolve(world, "shop-tester")[0]
    assert (live.state, live.detail) == ("live", None)
    assert live.since is not None
    world.verdicts[process(200)] = "dead"
    [gone] = resolve(world, "shop-tester")
    assert gone.state == "vacant"
    assert gone.detail is not None
    assert "nobody holds it" in gone.detail
    world.verdicts[process(200)] = "alive"
    world.run("identity.release", ReleaseParams(), BERT)
    vacant = resolve(world, "shop-tester")[0]
    assert (vacant.state, vacant.since is not None) == ("vacant", True)
    world.run("admin.retire", NameOnlyParams("shop-tester"), PERSON)
    assert resolve(world, "shop-tester")[0].state == "retired"


def test_a_role_means_its_live_holders_here_but_the_sender(world: World) -> None:
    assert [one.identity for one in resolve(world, "role:tester")] == [2], "another project's tester is none"
    [held] = resolve(world, "role:tester", caller=BERT, sender=2)
    assert (held.identity, held.state, held.held_role) == (-1, "held", "tester")
    world.verdicts[process(200)] = "dead"
    assert resolve(world, "role:tester")[0].state == "held"
    nobody = replace(PERSON, project=project("empty"))
    world.run("project.ensure", EnsureProjectParams("/repos/empty"), nobody)
    assert [one.held_role for one in resolve(world, "role:tester", caller=nobody)] == ["tester"]
    assert [one.held_role for one in resolve(world, "role:a", "role:b", "role:a")] == ["a", "b"]
    assert refused(world, "role:").code == Code.ROLE_INVALID
    assert refused(world, "role:x", caller=PERSON).code == Code.NO_PROJECT


def test_mail_means_the_project_of_the_mailbox_wherever_its_session_works(world: World) -> None:
    for place in (SHOP, project("other")):
        world.run("agent.create", CreateAgentParams(place.key, "p", "m", name_hint="GreenCastle"), PERSON)
    away = replace(ANNA, project=project("other"))
    assert [one.identity for one in resolve(world, "role:tester", "GreenCastle", "*", caller=away)] == [2, 4]
    assert [one.identity for one in resolve(world, "GreenCastle", "*", caller=replace(PERSON, project=SHOP))] == [
        4,
        1,
        2,
    ]
    world.run("identity.register", RegisterParams("lost", "any"), replace(CARL, host=process(400), project=None))
    placeless = replace(CARL, host=process(400), project=SHOP)
    assert refused(world, "*", caller=placeless).code == Code.NO_PROJECT
    assert [one.name for one in resolve(world, "greencastle", caller=placeless)] == ["greencastle"]


def test_everybody_means_who_is_live_here_but_the_sender(world: World) -> None:
    assert [one.identity for one in resolve(world, "*")] == [2]
    assert [one.identity for one in resolve(world, "*", caller=replace(PERSON, project=SHOP), sender=OWNER)] == [1, 2]
    world.verdicts[process(200)] = "dead"
    assert refused(world, "*").code == Code.UNKNOWN_IDENTITY


def test_everybody_is_bounded(world: World) -> None:
    for number in range(addressing.BROADCAST_MAX - 1):  # and Bert is live too
        caller = replace(ANNA, host=process(1000 + number), shims=(process(5000 + number),))
        world.run("identity.register", RegisterParams(f"crew-{number}", "crew"), caller)
    assert len(resolve(world, "*")) == addressing.BROADCAST_MAX
    caller = replace(ANNA, host=process(900), shims=(process(901),))
    world.run("identity.register", RegisterParams("crew-last", "crew"), caller)
    assert refused(world, "*").code == Code.PARAMETER_INVALID


def test_one_unknown_name_refuses_the_whole_and_shows_near_ones(world: World) -> None:
    for name in ("shop-tester2", "shop-testera"):
        world.run("identity.register", RegisterParams(name, "tester"), PERSON)
    world.run("identity.register", RegisterParams("shop-tester9", "tester"), replace(PERSON, project=SHOP))
    refusal = refused(world, "shop-backend", "Shop-Testre")
    assert refusal.code == Code.UNKNOWN_IDENTITY
    assert refusal.data is not None
    assert 1 <= len(refusal.data["near"]) <= 3
    assert set(refusal.data["near"]) <= {i.name for i in world.state.identities.values()}


def test_old_names_lead_to_the_same_mailbox(world: World) -> None:
    world.run("identity.release", ReleaseParams(), BERT)
    world.run("admin.rename", RenameParams("shop-tester", "shop-quality"), replace(PERSON, project=SHOP))
    assert [(one.identity, one.name) for one in resolve(world, "shop-tester", "shop-quality")] == [(2, "shop-quality")]


@given(st.text(max_size=60))
def test_any_word_is_answered_or_refused_and_makes_nothing(word: str) -> None:
    world = World()
    world.run("identity.register", RegisterParams("shop-backend", "backend"), ANNA)
    before = len(world.state.identities)
    try:
        found = resolve(world, word, sender=99)
    except Rejected as refusal:
        refusal.message.encode()  # whatever was asked for can be said
    else:
        assert all(one.identity in {OWNER, 1, -1} for one in found)
    assert len(world.state.identities) == before
