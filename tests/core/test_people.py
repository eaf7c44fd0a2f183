"""People's levers: free, retire, unretire, rename, show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from mbx_wire.admin import FreeParams, NameOnlyParams, RenameParams, ShowParams
from mbx_wire.agent import RegisterAgentParams
from mbx_wire.errors import Code
from mbx_wire.identity import ClaimParams, ListParams, RegisterParams
from mbxd.core import events as ev
from mbxd.core import machine
from mbxd.core.context import PERSON, Caller
from mbxd.core.rejected import Rejected
from tests.core.model import Refusal, World, check, dump, process, project, reloaded

ANNA = Caller("claude-code", process(100), "", (process(101),), ("claude-code:anna",), project=project("shop"))
BERT = Caller("codex", process(200), "", (process(201),), ("codex:bert",), project=project("shop"))
BENEATH = replace(PERSON, beneath_agent=True)


@pytest.fixture
def world() -> World:
    world = World()
    world.run("identity.register", RegisterParams("shop-backend", "backend"), ANNA)
    return world


def free(world: World, reason: str = "it hangs", caller: Caller = PERSON) -> Any:
    return world.run("admin.free", FreeParams("shop-backend", reason), caller)


def on(world: World, command: str, name: str = "shop-backend") -> Any:
    return world.run(command, NameOnlyParams(name), PERSON)


def claim(world: World, caller: Caller, name: str | None = None) -> Any:
    return world.run("identity.claim", ClaimParams(name), caller)


def listed(world: World, caller: Caller) -> Any:
    result = world.run("identity.list", ListParams(), caller)
    return msgspec.json.decode(msgspec.json.encode(result))


def test_free_fences_the_holder_and_tells_it(world: World) -> None:
    result = free(world)
    assert (result["changed"], result["epoch"], result["identity"]["state"]) == (True, 2, "vacant")
    assert result["identity"]["reason"] == "freed"
    view = listed(world, ANNA)
    assert view["you"] is None
    assert (view["lost"]["name"], view["lost"]["to"], view["lost"]["how"]) == ("shop-backend", None, "freed")
    assert view["pending"] is None
    assert claim(world, BERT, "shop-backend")["epoch"] == 3


def test_a_freed_conversation_does_not_come_back_by_itself(world: World) -> None:
    free(world)
    claim(world, BERT, "shop-backend")
    world.verdicts[process(200)] = "dead"
    resumed = replace(ANNA, host=process(300))
    assert listed(world, resumed)["pending"] is None
    assert claim(world, resumed)["identity"]["address"] == "shop-backend"


def test_free_of_a_vacant_one_changes_nothing(world: World) -> None:
    free(world)
    again = free(world)
    assert (again["changed"], again["epoch"]) == (False, 2)
    assert again["warnings"] == ["Nothing was changed: nobody holds it."]


@pytest.mark.parametrize("reason", ["", "  ", "two\nlines", "\x1b[31m", "\ud800"])
def test_free_wants_a_reason_in_plain_words(world: World, reason: str) -> None:
    assert free(world, reason) == Refusal("PARAMETER_INVALID")


def test_a_long_reason_is_cut(world: World) -> None:
    assert free(world, "x" * 1000)["changed"]


@pytest.mark.parametrize(
    ("command", "params"),
    [
        ("admin.free", FreeParams("shop-backend", "r")),
        ("admin.retire", NameOnlyParams("shop-backend")),
        ("admin.unretire", NameOnlyParams("shop-backend")),
        ("admin.rename", RenameParams("shop-backend", "other")),
    ],
)
def test_levers_are_refused_to_agents_and_beneath_them(world: World, command: str, params: msgspec.Struct) -> None:
    assert world.run(command, params, BENEATH) == Refusal("NOT_ALLOWED")
    assert world.run(command, params, ANNA) == Refusal("NOT_ALLOWED")


@pytest.mark.parametrize("command", ["admin.retire", "admin.unretire", "identity.show"])
def test_an_unknown_name_comes_with_near_ones(world: World, command: str) -> None:
    params: msgspec.Struct = ShowParams("shop-bakend") if command == "identity.show" else NameOnlyParams("shop-bakend")
    ctx = world.context(replace(PERSON, project=project("shop")))
    with pytest.raises(Rejected) as caught:
        machine.decide(world.state, command, params, ctx)
    assert caught.value.code == Code.UNKNOWN_IDENTITY
    assert caught.value.data == {"near": ["shop-backend"], "vacant": []}


def test_a_held_mailbox_is_not_retired(world: World) -> None:
    assert on(world, "admin.retire") == Refusal("IDENTITY_IN_USE")
    world.verdicts[process(100)] = "dead"
    result = on(world, "admin.retire")
    assert (result["changed"], result["identity"]["state"]) == (True, "retired")
    assert result["identity"]["last_holder"]["reason"] == "holder-exited"


def test_retiring_writes_down_the_end_of_a_holder_that_is_gone(world: World) -> None:
    seen = world.state.identities[1].last_active_at
    world.wall += 100
    world.verdicts[process(100)] = "dead"
    assert on(world, "admin.retire")["changed"] is True
    identity = world.state.identities[1]
    assert (identity.hold, identity.retired, identity.epoch, identity.last_active_at) == (None, "retired", 1, seen)
    assert identity.past is not None
    assert (identity.past.reason, identity.past.ended) == ("holder-exited", world.wall)


def test_a_retired_mailbox_waits_for_a_person(world: World) -> None:
    free(world)
    on(world, "admin.retire")
    assert not on(world, "admin.retire")["changed"]
    assert claim(world, BERT, "shop-backend") == Refusal("RETIRED")
    row = listed(world, BERT)["identities"][0]
    assert (row["state"], row["reason"], row["claimable"], row["claim_error"]) == (
        "retired",
        "retired",
        False,
        "RETIRED",
    )
    assert on(world, "admin.unretire")["changed"]
    assert not on(world, "admin.unretire")["changed"]
    assert claim(world, BERT, "shop-backend")["epoch"] == 3


def test_a_swept_mailbox_is_revived_by_a_claim(world: World) -> None:
    free(world)
    world.apply([ev.Retired(1, "swept", world.wall)])
    row = listed(world, BERT)["identities"][0]
    assert (row["state"], row["reason"], row["claimable"]) == ("retired", "swept", True)
    taken = claim(world, BERT, "shop-backend")
    assert (taken["epoch"], taken["identity"]["state"]) == (3, "live")


def test_a_new_name_keeps_the_holder_and_the_old_name_leads_there(world: World) -> None:
    result = world.run("admin.rename", RenameParams("shop-backend", "shop-api"), PERSON)
    assert (result["epoch"], result["identity"]["address"]) == (1, "shop-api")
    assert listed(world, ANNA)["you"]["address"] == "shop-api"
    assert claim(world, ANNA, "shop-backend")["epoch"] == 1
    shown = world.run("identity.show", ShowParams("shop-backend"), PERSON)
    assert (shown["identity"]["address"], shown["aliases"]) == ("shop-api", ["shop-backend"])
    taken = world.run("identity.register", RegisterParams("shop-backend", "qa"), BERT)
    assert taken == Refusal("NAME_TAKEN")
    back = world.run("admin.rename", RenameParams("shop-api", "shop-backend"), PERSON)
    assert back["identity"]["address"] == "shop-backend"
    shown = world.run("identity.show", ShowParams("shop-api"), PERSON)
    assert shown["aliases"] == ["shop-api"]
    same = world.run("admin.rename", RenameParams("shop-api", "shop-backend"), PERSON)
    assert not same["changed"]


@pytest.mark.parametrize("to", ["owner", "mbxd", "X", "a", "shop-backend\n", "a" * 41])
def test_a_new_name_follows_the_rules(world: World, to: str) -> None:
    assert world.run("admin.rename", RenameParams("shop-backend", to), PERSON) == Refusal("NAME_INVALID")


def test_a_new_name_that_is_taken_changes_nothing(world: World) -> None:
    world.run("identity.register", RegisterParams("shop-web", "web"), BERT)
    world.run("admin.rename", RenameParams("shop-web", "shop-front"), PERSON)
    before = dump(world.state)
    for to in ("shop-front", "shop-web"):
        with pytest.raises(Rejected) as caught:
            machine.decide(world.state, "admin.rename", RenameParams("shop-backend", to), world.context(PERSON))
        assert caught.value.code == Code.NAME_TAKEN
        assert caught.value.data == {"name": "shop-front", "project": "shop", "state": "live"}
    assert "an older name of shop-front" in caught.value.message
    assert dump(world.state) == before


def test_a_new_name_is_no_agents_now_or_before(world: World) -> None:
    """The name of an agent may have the form of an address without being its address."""
    agent = RegisterAgentParams("/repos/shop", "codex", "five", "api--tests")
    assert world.run("agent.register", agent, BERT)["address"] == "api-tests"
    assert world.run("admin.rename", RenameParams("shop-backend", "api--tests"), PERSON) == Refusal("NAME_TAKEN")
    world.run("admin.rename", RenameParams("api-tests", "shop-qa"), PERSON)
    with pytest.raises(Rejected, match="an older name of shop-qa") as caught:
        machine.decide(world.state, "admin.rename", RenameParams("shop-backend", "api--tests"), world.context(PERSON))
    assert caught.value.code == Code.NAME_TAKEN
    back = world.run("admin.rename", RenameParams("shop-qa", "api--tests"), PERSON)
    assert back["identity"]["address"] == "api--tests", "its own name it may have again"


def test_a_rename_leaves_an_agent_of_the_same_spelling_alone(world: World) -> None:
    """A mailbox `greencastle` and an agent `GreenCastle` of one project: renaming one must not lose the other."""
    world.apply(
        [
            ev.IdentityRegistered(2, "greencastle", "greencastle", "qa", None, 1, world.wall),
            ev.IdentityRegistered(3, "GreenCastle", "shop-greencastle", "qa", None, 1, world.wall),
        ]
    )
    world.run("admin.rename", RenameParams("shop-greencastle", "shop-castle"), PERSON)
    world.apply([ev.IdentityRegistered(4, "BlueLake", "bluelake", "qa", None, 1, world.wall)])
    world.apply([ev.Renamed(2, "bluelakes", "bluelakes", world.wall)])
    world.apply([ev.IdentityRegistered(5, "bluelake-x", "bluelake-x", "qa", None, 1, world.wall)])
    assert dump(reloaded(world.state)) == dump(world.state)
    world.ledger.clear()
    with pytest.raises(AssertionError):
        check(world)  # the second model was bypassed: only that may differ
    world.state.drop_names(world.state.identities[2])
    assert world.state.by_agent_name == {(1, "greencastle"): 3, (1, "bluelake"): 4}
    found = world.state.find("greencastle", 1)
    assert found is not None
    assert found.id == 2, "an address in use goes before a name that somebody had"
