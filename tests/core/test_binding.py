"""The identity that a call acts as: taken back by a hint or a wish, never grabbed, fenced by its epoch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mbx_wire.admin import FreeParams, RenameParams
from mbx_wire.agent import RegisterAgentParams, RetireAgentParams
from mbx_wire.identity import ClaimParams, ListParams, RegisterParams, ReleaseParams
from mbxd.core import machine
from mbxd.core.binding import Bind
from mbxd.core.context import PERSON, Caller
from mbxd.core.rejected import Rejected
from tests.core.model import Refusal, World, dump, process, project, rebuilt, reloaded

ANNA = Caller("claude-code", process(100), "", (process(101),), ("claude-code:anna",), project=project("shop"))
BERT = Caller("codex", process(200), "", (process(201),), ("codex:bert",), project=project("shop"))
ANNA_RESUMED = replace(ANNA, host=process(110), shims=(process(111),))


@pytest.fixture
def world() -> World:
    world = World()
    world.run("identity.register", RegisterParams("shop-backend", "backend"), ANNA)
    return world


def bind(world: World, caller: Caller, *, acts: bool = True) -> Any:
    return world.run("internal.bind", Bind(acts=acts), caller)


def test_the_holder_is_bound_without_an_event(world: World) -> None:
    before = dump(world.state)
    assert bind(world, ANNA) == {"identity": 1, "epoch": 1}
    assert dump(world.state) == before


def test_nobody_is_not_bound_and_a_person_is_no_agent(world: World) -> None:
    assert bind(world, BERT) == Refusal("NOT_BOUND")
    assert bind(world, PERSON) == Refusal("NOT_AN_AGENT")


def test_a_resumed_session_takes_its_name_back_once_the_old_one_is_gone(world: World) -> None:
    with pytest.raises(Rejected, match="waits for shop-backend") as refusal:
        machine.decide(world.state, "internal.bind", Bind(), world.context(ANNA_RESUMED))
    assert refusal.value.data == {"pending": "shop-backend", "why": "IDENTITY_IN_USE"}
    world.verdicts[process(100)] = "dead"
    assert bind(world, ANNA_RESUMED) == {"identity": 1, "epoch": 2}


def test_another_conversation_of_the_same_program_is_not_the_one_that_was(world: World) -> None:
    world.verdicts[process(100)] = "dead"
    world.watch()
    for hints in ((), ("claude-code:carl",)):
        carl = replace(ANNA_RESUMED, resume=hints)
        assert world.run("identity.list", ListParams(), carl)["pending"] is None
        assert bind(world, carl) == Refusal("NOT_BOUND")
    assert bind(world, ANNA_RESUMED) == {"identity": 1, "epoch": 2}


def test_a_wish_is_taken_when_it_is_free_and_never_substituted(world: World) -> None:
    wishing = replace(BERT, agent="shop-backend")
    assert bind(world, wishing) == Refusal("NOT_BOUND")
    assert bind(world, replace(BERT, agent="nobody-here")) == Refusal("NOT_BOUND")
    world.run("identity.release", ReleaseParams(), ANNA)
    assert bind(world, wishing) == {"identity": 1, "epoch": 2}


def test_what_was_let_go_or_lost_is_not_taken_back(world: World) -> None:
    world.run("identity.release", ReleaseParams(), ANNA)
    assert bind(world, ANNA) == Refusal("NOT_BOUND")
    assert bind(world, ANNA_RESUMED) == Refusal("NOT_BOUND")
    world.run("identity.claim", ClaimParams("shop-backend"), ANNA)
    world.run("admin.free", FreeParams("shop-backend", "it hangs"), PERSON)
    assert bind(world, ANNA) == Refusal("LEASE_LOST")
    world.run("identity.claim", ClaimParams("shop-backend"), BERT)
    assert bind(world, ANNA) == Refusal("LEASE_LOST")


def test_an_act_under_an_older_epoch_is_refused(world: World) -> None:
    assert bind(world, replace(ANNA, epoch=1)) == {"identity": 1, "epoch": 1}
    assert bind(world, replace(ANNA, epoch=0)) == Refusal("LEASE_LOST")
    with pytest.raises(Rejected) as caught:
        machine.decide(world.state, "internal.bind", Bind(), world.context(replace(ANNA, epoch=2)))
    assert caught.value.data is not None
    assert (caught.value.data["name"], caught.value.data["how"]) == ("shop-backend", "epoch")


def test_the_loser_is_told_of_what_to_whom_and_how(world: World) -> None:
    world.verdicts[process(101)] = "dead"
    world.watch()
    world.awake += 61
    world.run("identity.claim", ClaimParams("shop-backend"), BERT)
    with pytest.raises(Rejected) as caught:
        machine.decide(world.state, "internal.bind", Bind(), world.context(replace(ANNA, shims=(process(102),))))
    assert caught.value.code == "LEASE_LOST"
    assert caught.value.data is not None
    told = {key: value for key, value in caught.value.data.items() if key != "at"}
    assert told == {"name": "shop-backend", "to": "codex", "how": "grace-over", "project": "shop"}
    assert "codex holds it now" in caught.value.message


def test_a_session_takes_its_own_mailbox_back_without_a_role(world: World) -> None:
    agent = RegisterAgentParams("/repos/shop", "codex", "five", "worker-7")
    assert world.run("agent.register", agent, BERT)["bound"] is True
    world.verdicts[process(200)] = "dead"
    assert world.run("identity.claim", ClaimParams("worker-7"), ANNA) == Refusal("HOLDS_ANOTHER")
    stranger = Caller("gemini", process(400), "", (process(401),), (), project=project("shop"))
    assert world.run("identity.claim", ClaimParams("worker-7"), stranger) == Refusal("ROLE_REQUIRED")
    resumed = replace(BERT, host=process(210), shims=(process(211),))
    rows = {row["address"]: row for row in world.run("identity.list", ListParams(), resumed)["identities"]}
    assert (rows["worker-7"]["claimable"], rows["worker-7"]["claim_error"]) == (True, None)
    assert bind(world, resumed) == {"identity": 2, "epoch": 2}


def test_an_agent_that_was_renamed_is_found_by_the_name_it_was_started_with(world: World) -> None:
    agent = RegisterAgentParams("/repos/shop", "codex", "five", "GreenCastle")
    assert world.run("agent.register", agent, BERT)["id"] == 2
    world.run("admin.rename", RenameParams("greencastle", "shop-castle"), PERSON)
    world.verdicts[process(200)] = "dead"
    again = world.run("agent.register", agent, replace(BERT, host=process(220), shims=(process(221),)))
    assert (again["id"], again["name"], again["address"], again["bound"]) == (2, "shop-castle", "shop-castle", True)
    check_indexes(world)


def check_indexes(world: World) -> None:
    live = dump(world.state)
    assert all(live[name] == index for name, index in rebuilt(world.state).items())
    assert dump(reloaded(world.state)) == live


def test_a_former_name_leads_to_its_agent_until_an_address_has_it(world: World) -> None:
    agent = RegisterAgentParams("/repos/shop", "codex", "five", "Api.Tests")
    world.run("agent.register", agent, BERT)
    world.run("admin.rename", RenameParams("api-tests", "shop-qa"), PERSON)
    for name in ("Api.Tests", "api.tests", "api-tests", "shop-qa"):
        found = world.state.find(name, 1)
        assert found is not None
        assert found.id == 2
    assert world.state.find("Api.Tests", 2) is None


def test_a_command_line_acts_for_the_only_conversation_of_its_agent(world: World) -> None:
    beneath = Caller("codex", process(500), "", (), project=project("shop"), beneath_agent=True, conversations=("t1",))
    made = world.run("identity.register", RegisterParams("shop-web", "web"), beneath)
    assert made["identity"]["holder"]["session"] == "t1"
    thread = replace(beneath, handle="t1", shims=(process(501),), beneath_agent=False, conversations=())
    assert bind(world, thread) == {"identity": 2, "epoch": 1}
    several = replace(beneath, host=process(510), conversations=("t1", "t2"))
    assert world.run("identity.register", RegisterParams("shop-db", "db"), several) == Refusal("AMBIGUOUS_SESSION")
    assert world.run("identity.list", ListParams(), several)["you"] is None


def test_every_act_on_ones_own_mailbox_is_fenced(world: World) -> None:
    late = replace(ANNA, epoch=0)
    profile = RegisterAgentParams("/repos/shop", "codex", "five", "shop-backend")
    assert world.run("agent.register", profile, late) == Refusal("LEASE_LOST")
    assert world.run("agent.retire", RetireAgentParams("shop", "shop-backend"), late) == Refusal("LEASE_LOST")
    assert world.run("identity.release", ReleaseParams(), late)["released"] is None
