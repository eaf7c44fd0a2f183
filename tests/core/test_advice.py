"""Advice is followed to the letter: whatever a refusal tells its caller to call is taken."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from mbx_wire.admin import FreeParams, NameOnlyParams, RenameParams
from mbx_wire.agent import CreateAgentParams, RegisterAgentParams, RetireAgentParams, SweepParams
from mbx_wire.errors import Code
from mbx_wire.identity import ClaimParams, RegisterParams, ReleaseParams
from mbxd.core import machine, naming
from mbxd.core.context import PERSON, Caller
from mbxd.core.rejected import Rejected
from tests.core.model import Refusal, World, process, project

SHOP = project("shop")
ANNA = Caller("claude-code", process(100), "", (process(101),), ("claude-code:anna",), project=SHOP)
BERT = Caller("codex", process(200), "", (process(201),), ("codex:bert",), project=SHOP)
OWNER = replace(PERSON, project=SHOP)
PARAMS: dict[str, Any] = {"claim": ClaimParams, "register": RegisterParams, "release": ReleaseParams}
CALL = re.compile(r"mbx_identity (\{[^{}]*\})")


@pytest.fixture
def world() -> World:
    return World()


def make(world: World, name: str, role: str = "api") -> None:
    """A vacant mailbox."""
    assert world.run("identity.register", RegisterParams(name, role), OWNER)["created"]


def make_without_role(world: World, name: str) -> None:
    """A vacant one that an orchestrator's user made."""
    params = RegisterAgentParams(SHOP.key, "codex", "five", name=name)
    assert world.run("agent.register", params, OWNER)["bound"] is False


def refused(world: World, command: str, params: msgspec.Struct, caller: Caller = ANNA) -> Rejected:
    with pytest.raises(Rejected) as caught:
        machine.decide(world.state, command, params, world.context(caller))
    return caught.value


def follow(world: World, refusal: Rejected, caller: Caller = ANNA) -> Any:
    """Make the calls of the hint, in order; the last result. None may be refused."""
    result = None
    calls = CALL.findall(refusal.hint)
    assert calls, refusal.hint
    for call in calls:
        given = json.loads(call)
        action = given.pop("action")
        result = world.run(f"identity.{action}", PARAMS[action](**given), caller)
        assert not isinstance(result, Refusal), (call, result)
    return result


# -- claim without a name --------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [None, "qa", "a", "all"])
def test_where_nothing_is_vacant_a_claim_is_told_what_to_register(world: World, role: str | None) -> None:
    wanted = naming.conventional("shop", role or "backend")
    assert world.run("identity.register", RegisterParams(wanted, "other"), BERT)["created"]
    refusal = refused(world, "identity.claim", ClaimParams(role=role))
    assert (refusal.code, refusal.data) == (Code.NAME_REQUIRED, {"vacant": []})
    made = follow(world, refusal)
    assert (made["created"], made["identity"]["role"]) == (True, role or "backend")


def test_a_claim_is_told_first_of_what_needs_no_role(world: World) -> None:
    make_without_role(world, "alpha-1")
    make(world, "shop-qa", "qa")
    refusal = refused(world, "identity.claim", ClaimParams())
    assert refusal.data == {"vacant": ["shop-qa"]}
    assert follow(world, refusal)["identity"]["address"] == "shop-qa"


def test_a_claim_where_only_one_without_a_role_is_vacant_is_told_to_give_one(world: World) -> None:
    make_without_role(world, "alpha-1")
    refusal = refused(world, "identity.claim", ClaimParams())
    assert refusal.data == {"vacant": ["alpha-1"]}
    assert "without a role" in refusal.message
    assert follow(world, refusal)["identity"]["address"] == "alpha-1"


def test_a_claim_with_a_role_is_told_of_what_that_role_gives(world: World) -> None:
    make(world, "shop-api")
    refusal = refused(world, "identity.claim", ClaimParams(role="qa"))
    assert refusal.data == {"vacant": []}
    make_without_role(world, "zeta-1")
    refusal = refused(world, "identity.claim", ClaimParams(role="qa"))
    assert refusal.data == {"vacant": ["zeta-1"]}
    row = follow(world, refusal)["identity"]
    assert (row["address"], row["role"]) == ("zeta-1", "qa")


# -- register, and claim of what is not there ------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        RegisterParams(),
        RegisterParams("shop-api"),
        RegisterParams("taken"),
        RegisterParams("Not A Name"),
        RegisterParams(None, "taken"),
        RegisterParams("taken", "zebra"),
        ClaimParams("nobody"),
        ClaimParams("takem", "qa"),
    ],
)
@pytest.mark.parametrize("holds", [False, True])
def test_the_example_works_as_it_stands(world: World, params: msgspec.Struct, holds: bool) -> None:
    for name in ("taken", "shop-taken", "shop-backend"):
        make_without_role(world, name)
    if holds:
        assert world.run("identity.claim", ClaimParams("shop-anna", "zz"), ANNA)["created"]
    command = "identity.claim" if isinstance(params, ClaimParams) else "identity.register"
    refusal = refused(world, command, params)
    if refusal.code == Code.NAME_TAKEN and holds:
        assert follow(world, refusal)["released"] == "shop-anna"
        refusal = refused(world, command, params)
    result = follow(world, refusal)
    if isinstance(params, RegisterParams) and params.name == "shop-api":
        assert result["identity"]["address"] == "shop-api"


@pytest.mark.parametrize("holds", [False, True])
def test_the_wrong_role_is_answered_with_what_can_be_had(world: World, holds: bool) -> None:
    """One advice or the other: after the first the second is of no use."""
    make(world, "shop-api")
    if holds:
        assert world.run("identity.claim", ClaimParams("shop-api"), ANNA)["epoch"] == 1
    refusal = refused(world, "identity.claim", ClaimParams("shop-api", "qa"))
    assert refusal.code == Code.ROLE_MISMATCH
    calls = CALL.findall(refusal.hint)
    assert len(calls) == (1 if holds else 2)
    if not holds:
        other = {**json.loads(calls[1])}
        assert other.pop("action") == "register"
        assert world.run("identity.register", RegisterParams(**other), BERT)["created"]
    assert follow(world, Rejected(refusal.code, "", f"mbx_identity {calls[0]}"))["identity"]["address"] == "shop-api"


def test_a_taken_name_of_a_live_one_is_not_told_to_be_claimed_after_a_release(world: World) -> None:
    assert world.run("identity.register", RegisterParams("shop-api", "api"), BERT)["created"]
    assert world.run("identity.register", RegisterParams("shop-anna", "zz"), ANNA)["created"]
    refusal = refused(world, "identity.register", RegisterParams("shop-api", "api"))
    assert "claim it" not in refusal.hint
    assert follow(world, refusal)["released"] == "shop-anna"
    assert refusal.data is not None
    assert world.run("identity.register", RegisterParams(refusal.data["suggested_name"], "api"), ANNA)["created"]


@pytest.mark.parametrize("role", ["api", None])
def test_a_person_is_told_who_may_claim_and_what_to_register_instead(world: World, role: str | None) -> None:
    if role is None:
        make_without_role(world, "shop-api")
    else:
        make(world, "shop-api", role)
    refusal = refused(world, "identity.register", RegisterParams("shop-api", "api"), OWNER)
    assert '"claim"' not in refusal.hint, "that would be told as a command, which refuses people"
    words = re.search(r"action=claim, name=([a-z-]+)(?:, role=([a-z]+))?\. ", refusal.hint)
    assert words is not None
    assert follow(world, refusal, OWNER)["identity"]["address"] == "shop-api-2"
    assert world.run("identity.claim", ClaimParams(words[1], words[2]), BERT)["epoch"] == 1
    refusal = refused(world, "identity.register", RegisterParams("shop-api", "api"), OWNER)
    assert "claim" not in refusal.hint, "it is held"
    assert follow(world, refusal, OWNER)["identity"]["address"] == "shop-api-3"


# -- agents ----------------------------------------------------------------------------------------------------


def test_another_agents_mailbox_is_retired_after_a_person_freed_it(world: World) -> None:
    assert world.run("identity.register", RegisterParams("shop-api", "api"), BERT)["created"]
    gone = RetireAgentParams("shop", "shop-api")
    refusal = refused(world, "agent.retire", gone)
    assert refusal.code == Code.IDENTITY_IN_USE
    assert "register" not in refusal.hint
    command = re.search(r'mbxctl free (\S+) --reason "(.+)"', refusal.hint)
    assert command is not None
    assert world.run("admin.free", FreeParams(command[1], command[2]), PERSON)["changed"]
    assert world.run("agent.retire", gone, ANNA)["retired"]


def test_a_hint_for_a_former_name_says_who_answers_to_it(world: World) -> None:
    make_without_role(world, "GreenCastle")
    assert world.run("admin.rename", RenameParams("greencastle", "castle"), PERSON)["changed"]
    hinted = CreateAgentParams("shop", "codex", "five", "GreenCastle")
    refusal = refused(world, "agent.create", hinted)
    assert refusal.message.startswith("GreenCastle exists already in shop: castle was called that before")
    assert refusal.data == {"name": "castle", "project": "shop"}
    assert "register_agent" in refusal.hint
    taken = world.run("agent.register", RegisterAgentParams("shop", "codex", "five", name="GreenCastle"), ANNA)
    assert (taken["name"], taken["bound"]) == ("castle", True)
    world.run("identity.release", ReleaseParams(), ANNA)
    assert world.run("admin.retire", NameOnlyParams("castle"), PERSON)["changed"]
    assert "register_agent" not in refused(world, "agent.create", hinted).hint, "a person alone brings it back"


def test_a_hint_for_a_name_in_use_needs_no_explanation(world: World) -> None:
    make(world, "greencastle")
    make_without_role(world, "BlueLake")
    for name in ("GreenCastle", "BlueLake"):
        refusal = refused(world, "agent.create", CreateAgentParams("shop", "codex", "five", name))
        assert refusal.message == f"{name} exists already in shop."


def test_a_swept_one_is_not_offered(world: World) -> None:
    make(world, "shop-qa", "qa")
    world.wall += 1_000
    assert world.run("admin.sweep", SweepParams(600), PERSON)["swept"] == ["shop-qa"]
    assert refused(world, "identity.claim", ClaimParams()).data == {"vacant": []}
