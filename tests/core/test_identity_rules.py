"""Every rule and error code of the registry's requests, one small story each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from mbx_wire.agent import CreateAgentParams
from mbx_wire.errors import Code
from mbx_wire.identity import ClaimParams, ListParams, RegisterParams, ReleaseParams
from mbxctl.calls import as_commands
from mbxd.core import events as ev
from mbxd.core import machine
from mbxd.core.context import PERSON, Caller
from mbxd.core.rejected import Rejected
from tests.core.model import GRACE, Refusal, World, dump, process, project, reloaded

ANNA = Caller("claude-code", process(100), "", (process(101),), ("claude-code:anna",), project=project("shop"))
BERT = Caller("codex", process(200), "", (process(201),), ("codex:bert",), project=project("shop"))


def register(world: World, caller: Caller, name: str = "shop-backend", role: str | None = "backend") -> Any:
    return world.run("identity.register", RegisterParams(name, role), caller)


def claim(world: World, caller: Caller, name: str | None = None, role: str | None = None) -> Any:
    return world.run("identity.claim", ClaimParams(name, role), caller)


def release(world: World, caller: Caller) -> Any:
    return world.run("identity.release", ReleaseParams(), caller)


def listed(world: World, caller: Caller, *, everything: bool = False, **surroundings: Any) -> Any:
    ctx = replace(world.context(caller), **surroundings)
    params = ListParams(all=everything or None)
    result = machine.decide(world.state, "identity.list", params, ctx).result
    return msgspec.json.decode(msgspec.json.encode(result))


def row(world: World, caller: Caller, name: str) -> Any:
    return next(r for r in listed(world, caller, everything=True)["identities"] if r["address"] == name)


def refused(world: World, command: str, params: msgspec.Struct, caller: Caller) -> Rejected:
    with pytest.raises(Rejected) as caught:
        machine.decide(world.state, command, params, world.context(caller))
    return caught.value


def die(world: World, caller: Caller) -> None:
    assert caller.host is not None
    world.verdicts[caller.host] = "dead"
    world.watch()


def detach(world: World, caller: Caller) -> None:
    world.verdicts.update(dict.fromkeys(caller.shims, "dead"))
    world.watch()


@pytest.fixture
def world() -> World:
    return World()


# -- list ------------------------------------------------------------------------------------------------


def test_an_empty_registry_says_what_to_do_next(world: World) -> None:
    result = listed(world, ANNA)
    assert result["project"] == {"id": None, "key": "/repos/shop", "slug": "shop"}
    assert (result["you"], result["pending"], result["lost"], result["identities"]) == (None, None, None, [])
    assert result["next"] == 'mbx_identity {"action":"register","name":"shop-backend","role":"backend"}'


def test_rows_come_yours_then_mail_then_live_then_by_name(world: World) -> None:
    for name in ("d-vacant", "a-vacant", "c-mail", "b-mail"):
        register(world, replace(PERSON, project=project("shop")), name)
    register(world, BERT, "e-live")
    register(world, ANNA, "z-yours")
    unread = {world.state.by_address[n]: 2 for n in ("c-mail", "b-mail", "e-live")}
    rows = listed(world, ANNA, unread=unread)["identities"]
    assert [r["address"] for r in rows] == ["z-yours", "b-mail", "c-mail", "e-live", "a-vacant", "d-vacant"]
    assert [r["unread"] for r in rows] == [0, 2, 2, 2, 0, 0]
    assert rows[0]["reason"] == "yours"
    assert rows[0]["claimable"]


def test_a_mailbox_whose_holder_just_died_counts_as_vacant_with_mail(world: World) -> None:
    register(world, BERT, "z-dead")
    register(world, replace(PERSON, project=project("shop")), "a-vacant")
    die(world, BERT)
    rows = listed(world, ANNA, unread={world.state.by_address["z-dead"]: 1})["identities"]
    assert [r["address"] for r in rows] == ["z-dead", "a-vacant"]
    assert rows[0]["holder"] is None
    assert rows[0]["last_holder"]["reason"] == "holder-exited"


@pytest.mark.parametrize(("count", "truncated"), [(49, False), (50, False), (51, True)])
@pytest.mark.parametrize("everything", [False, True])
def test_a_list_stops_at_fifty(world: World, count: int, truncated: bool, everything: bool) -> None:
    for number in range(count):
        register(world, replace(PERSON, project=project("shop")), f"n-{number:03}")
    result = listed(world, ANNA, everything=everything)
    assert result["truncated"] is truncated
    assert [r["address"] for r in result["identities"]] == [f"n-{n:03}" for n in range(min(count, 50))]


def test_a_list_is_of_the_project_and_all_is_the_host(world: World) -> None:
    register(world, ANNA)
    register(world, replace(PERSON, project=project("docs")), "docs-writer")
    register(world, PERSON, "homeless")
    elsewhere = replace(ANNA, project=project("docs"))
    assert [r["address"] for r in listed(world, BERT)["identities"]] == ["shop-backend"]
    assert [r["address"] for r in listed(world, elsewhere)["identities"]] == ["docs-writer"]
    assert [r["address"] for r in listed(world, replace(BERT, project=None))["identities"]] == ["homeless"]
    assert listed(world, replace(BERT, project=project("new")))["identities"] == []
    everything = [r["address"] for r in listed(world, elsewhere, everything=True)["identities"]]
    assert everything == ["shop-backend", "docs-writer", "homeless"]
    assert listed(world, elsewhere)["you"]["address"] == "shop-backend"


def test_a_person_sees_rows_as_a_fresh_session_would(world: World) -> None:
    register(world, ANNA)
    result = listed(world, replace(PERSON, project=project("shop")))
    assert result["you"] is None
    assert result["next"] is None
    assert result["identities"][0]["claim_error"] == "IDENTITY_IN_USE"


def test_looking_without_a_conversation_is_a_warning(world: World) -> None:
    register(world, replace(ANNA, handle="a"), "first")
    register(world, replace(ANNA, handle="b"), "second")
    assert listed(world, ANNA)["warnings"][0].startswith("AMBIGUOUS_SESSION: ")


def test_time_to_wait_is_shown_only_where_time_helps(world: World) -> None:
    register(world, ANNA)
    register(world, replace(PERSON, project=project("shop")), "vacant")
    assert row(world, BERT, "vacant")["claimable_in_s"] is None
    assert row(world, BERT, "shop-backend")["claimable_in_s"] is None
    detach(world, ANNA)
    world.awake += 0.04
    assert row(world, BERT, "shop-backend")["claimable_in_s"] == GRACE
    assert row(world, ANNA, "shop-backend")["claimable_in_s"] is None
    world.awake += GRACE - 0.05
    almost = row(world, BERT, "shop-backend")
    assert (almost["claimable"], almost["claimable_in_s"]) == (False, 0.1)
    world.awake += almost["claimable_in_s"]
    assert row(world, BERT, "shop-backend")["reason"] == "grace-over"
    assert claim(world, BERT, "shop-backend")["epoch"] == 2


# -- claim -----------------------------------------------------------------------------------------------


def test_claiming_what_you_hold_gives_the_same_grant(world: World) -> None:
    first = register(world, ANNA)
    before = len(world.batches)
    again = claim(world, ANNA, "shop-backend")
    assert (again["epoch"], again["resumed"], again["created"]) == (first["epoch"], True, False)
    assert claim(world, ANNA)["epoch"] == first["epoch"]
    assert len(world.batches) == before


def test_a_result_says_what_was_done(world: World) -> None:
    assert register(world, ANNA)["action"] == "register"
    assert claim(world, ANNA)["action"] == "claim"
    assert release(world, ANNA)["action"] == "release"
    assert claim(world, BERT, "shop-backend")["action"] == "claim"


def test_a_live_holder_is_named_and_not_displaced(world: World) -> None:
    register(world, ANNA)
    refusal = refused(world, "identity.claim", ClaimParams("shop-backend"), BERT)
    assert (refusal.code, refusal.retryable) == (Code.IDENTITY_IN_USE, False)
    assert refusal.data is not None
    assert refusal.data["holder"] == {
        "client": "claude-code",
        "session": None,
        "pid": 100,
        "since": refusal.data["since"],
    }
    assert (refusal.data["state"], refusal.data["claimable_in_s"]) == ("live", None)
    assert refusal.data["name"] == "shop-backend"
    assert "ask your user" in refusal.hint
    assert refusal.body() == {
        "code": "IDENTITY_IN_USE",
        "message": refusal.message,
        "hint": refusal.hint,
        "retryable": False,
        "data": refusal.data,
    }
    you = listed(world, ANNA)["you"]
    assert (you["address"], you["epoch"], you["unread"]) == ("shop-backend", 1, 0)
    assert listed(world, PERSON)["warnings"] == []


def test_a_detached_holder_gives_way_after_its_grace_and_is_told(world: World) -> None:
    register(world, ANNA)
    detach(world, ANNA)
    refusal = refused(world, "identity.claim", ClaimParams("shop-backend"), BERT)
    assert (refusal.code, refusal.retryable) == (Code.IDENTITY_IN_USE, True)
    assert refusal.data is not None
    assert refusal.data["claimable_in_s"] == GRACE
    world.awake += GRACE
    taken = claim(world, BERT, "shop-backend")
    assert taken["epoch"] == 2
    assert taken["predecessor"]["reason"] == "grace-over"
    lost = listed(world, ANNA)["lost"]
    assert (lost["name"], lost["to"], lost["how"]) == ("shop-backend", "codex", "grace-over")
    release(world, BERT)
    assert listed(world, ANNA)["pending"] is None, "a displaced session never grabs a name back"
    assert claim(world, ANNA)["epoch"] == 3, "but it may ask for it"
    assert listed(world, ANNA)["lost"] is None


def test_its_own_session_takes_a_detached_name_at_once(world: World) -> None:
    register(world, ANNA)
    detach(world, ANNA)
    assert claim(world, replace(ANNA, shims=(process(102),)), "shop-backend")["epoch"] == 1


def test_the_dead_leave_at_once(world: World) -> None:
    register(world, ANNA)
    die(world, ANNA)
    taken = claim(world, BERT, "shop-backend")
    assert (taken["epoch"], taken["resumed"]) == (2, False)
    assert taken["predecessor"] == {
        "client": "claude-code",
        "ended": taken["predecessor"]["ended"],
        "reason": "holder-exited",
        "task_description": None,
        "last_act_at": taken["predecessor"]["last_act_at"],
    }


def test_a_resumed_conversation_knows_its_name(world: World) -> None:
    register(world, ANNA)
    die(world, ANNA)
    resumed = replace(ANNA, host=process(300), shims=(process(301),))
    assert listed(world, resumed)["pending"] == {"name": "shop-backend", "why": "resume", "claimable": True}
    assert listed(world, resumed)["next"] == 'mbx_identity {"action":"claim"}'
    result = claim(world, resumed)
    assert (result["epoch"], result["resumed"]) == (2, True)


def test_a_handle_is_a_resume_hint(world: World) -> None:
    register(world, replace(ANNA, handle="thread-7"))
    die(world, ANNA)
    other = replace(ANNA, host=process(300), handle="thread-7", resume=())
    assert claim(world, other)["resumed"]
    assert listed(world, replace(other, handle="thread-8"))["pending"] is None


def test_a_wish_comes_before_what_was_held_and_is_never_replaced(world: World) -> None:
    register(world, ANNA)
    die(world, ANNA)
    register(world, BERT, "shop-qa")
    wishing = replace(ANNA, host=process(300), agent="shop-qa")
    assert listed(world, wishing)["pending"] == {"name": "shop-qa", "why": "wish", "claimable": False}
    assert claim(world, wishing) == Refusal("IDENTITY_IN_USE")
    assert claim(world, replace(wishing, agent="Not A Name")) == Refusal("NAME_INVALID")
    assert claim(world, replace(wishing, agent="plainly-new")) == Refusal("UNKNOWN_IDENTITY")


def test_claim_without_anything_lists_what_is_vacant(world: World) -> None:
    assert claim(world, BERT) == Refusal("NAME_REQUIRED")
    register(world, replace(PERSON, project=project("shop")), "shop-qa")
    register(world, ANNA)
    refusal = refused(world, "identity.claim", ClaimParams(), BERT)
    assert (refusal.code, refusal.data) == (Code.NAME_REQUIRED, {"vacant": ["shop-qa"]})
    assert '"name":"shop-qa"' in refusal.hint


def test_an_unknown_name_without_a_role_is_not_made(world: World) -> None:
    register(world, ANNA)
    refusal = refused(world, "identity.claim", ClaimParams("shop-bakend"), BERT)
    assert refusal.code == Code.UNKNOWN_IDENTITY
    assert refusal.data == {"near": ["shop-backend"], "vacant": []}


def test_an_unknown_name_with_a_role_is_made_unless_something_like_it_is_there(world: World) -> None:
    assert claim(world, ANNA, "shop-backend", "backend")["created"]
    assert claim(world, BERT, "shop-bakend", "qa") == Refusal("UNKNOWN_IDENTITY")
    register(world, replace(PERSON, project=project("shop")), "tester", "qa")
    refusal = refused(world, "identity.claim", ClaimParams("shop-zebra", "qa"), BERT)
    assert refusal.data == {"near": [], "vacant": ["tester"]}
    assert register(world, BERT, "shop-bakend", "qa")["created"], "register creates all the same"


def test_one_session_holds_one_identity(world: World) -> None:
    register(world, replace(PERSON, project=project("shop")), "shop-qa", "qa")
    register(world, ANNA)
    refusal = refused(world, "identity.claim", ClaimParams("shop-qa"), ANNA)
    assert (refusal.code, refusal.data) == (Code.HOLDS_ANOTHER, {"holds": "shop-backend", "epoch": 1})
    assert register(world, ANNA, "zebra", "stripes") == Refusal("HOLDS_ANOTHER")
    assert claim(world, ANNA, "zebra", "stripes") == Refusal("HOLDS_ANOTHER")
    assert row(world, ANNA, "shop-qa")["claim_error"] == "HOLDS_ANOTHER"
    release(world, ANNA)
    assert claim(world, ANNA, "shop-qa")["epoch"] == 1


def test_a_mailbox_without_a_role_needs_one(world: World) -> None:
    world.apply([ev.IdentityRegistered(1, "GreenCastle", "greencastle", None, None, 0, world.wall)])
    assert row(world, ANNA, "greencastle")["claim_error"] == "ROLE_REQUIRED"
    assert claim(world, ANNA, "greencastle") == Refusal("ROLE_REQUIRED")
    assert claim(world, ANNA, "greencastle", "QA!") == Refusal("ROLE_INVALID")
    taken = claim(world, ANNA, "greencastle", "qa")
    assert taken["identity"]["role"] == "qa"
    assert taken["warnings"] == ["greencastle belongs to another project (no project)."]
    assert claim(world, ANNA, "greencastle", "qa")["epoch"] == 1
    assert claim(world, ANNA, "greencastle", "backend") == Refusal("ROLE_MISMATCH")


def test_a_bare_name_is_the_projects_agent_first(world: World) -> None:
    here, there = "shop", "docs"
    register(world, replace(PERSON, project=project(here)), "first")
    register(world, replace(PERSON, project=project(there)), "greencastle")
    world.apply([ev.IdentityRegistered(3, "GreenCastle", "shop-greencastle", "qa", None, 1, world.wall)])
    assert claim(world, ANNA, "greencastle")["identity"]["address"] == "shop-greencastle"
    assert claim(world, replace(BERT, project=project(there)), "greencastle")["identity"]["name"] == "greencastle"


def test_another_projects_mailbox_is_a_warning(world: World) -> None:
    register(world, replace(PERSON, project=project("docs")), "docs-writer", "writer")
    result = claim(world, ANNA, "docs-writer")
    assert result["warnings"] == ["docs-writer belongs to another project (docs)."]


def test_a_description_of_a_known_mailbox_is_not_used(world: World) -> None:
    register(world, replace(PERSON, project=project("shop")))
    result = world.run("identity.claim", ClaimParams("shop-backend", None, "New words"), ANNA)
    assert result["identity"]["description"] is None
    assert "not used" in result["warnings"][0]


def test_a_claim_without_a_shim_says_that_it_will_not_last(world: World) -> None:
    result = register(world, replace(ANNA, shims=()))
    assert (result["identity"]["state"], result["identity"]["reason"]) == ("detached", "detached")
    assert "detach grace" in result["warnings"][-1]


def test_a_failed_claim_leaves_no_wish(world: World) -> None:
    register(world, ANNA)
    assert claim(world, BERT, "shop-backend") == Refusal("IDENTITY_IN_USE")
    assert listed(world, BERT)["pending"] is None


# -- register --------------------------------------------------------------------------------------------


def test_register_wants_a_name_and_a_role(world: World) -> None:
    missing = refused(world, "identity.register", RegisterParams(None, "backend"), ANNA)
    assert missing.code == Code.NAME_REQUIRED
    assert '"name":"shop-backend"' in missing.hint
    assert refused(world, "identity.register", RegisterParams("x-y"), ANNA).code == Code.ROLE_REQUIRED


def test_register_makes_and_claims(world: World) -> None:
    result = register(world, ANNA)
    assert (result["action"], result["created"], result["resumed"], result["epoch"]) == ("register", True, False, 1)
    assert (result["identity"]["project"], result["identity"]["state"], result["warnings"]) == ("shop", "live", [])
    assert result["predecessor"] is None
    assert register(world, BERT, "tester", "qa")["warnings"] == ["By convention a role mailbox is called shop-qa."]


def test_registering_your_own_gives_the_same_grant(world: World) -> None:
    register(world, ANNA)
    again = register(world, ANNA)
    assert (again["created"], again["epoch"]) == (False, 1)
    assert register(world, ANNA, "shop-backend", "qa") == Refusal("ROLE_MISMATCH")


def test_a_taken_name_comes_with_a_free_one(world: World) -> None:
    register(world, ANNA)
    refusal = refused(world, "identity.register", RegisterParams("shop-backend", "backend"), BERT)
    assert refusal.code == Code.NAME_TAKEN
    assert refusal.data == {
        "name": "shop-backend",
        "project": "shop",
        "state": "live",
        "claimable": False,
        "suggested_name": "shop-backend-2",
    }
    die(world, ANNA)
    refusal = refused(world, "identity.register", RegisterParams("shop-backend", "backend"), BERT)
    assert refusal.data is not None
    assert refusal.data["claimable"]
    assert refusal.hint == 'Claim it: mbx_identity {"action":"claim","name":"shop-backend"}.'


def test_calls_in_hints_are_whole_and_have_their_command(world: World) -> None:
    """An agent is told which tool to call; mbxctl makes a command of it for whoever types."""
    hints = {refused(world, "identity.claim", ClaimParams(), BERT).hint}
    register(world, replace(PERSON, project=project("shop")))
    world.run("agent.create", CreateAgentParams("shop", "codex", "m", name_hint="GreenCastle"), PERSON)
    for command, params in (
        ("identity.claim", ClaimParams()),
        ("identity.claim", ClaimParams("plainly-new")),
        ("identity.claim", ClaimParams("greencastle")),
        ("identity.register", RegisterParams("a-b")),
        ("identity.register", RegisterParams(None, "backend")),
        ("identity.register", RegisterParams("shop-backend", "backend")),
    ):
        hints.add(refused(world, command, params, BERT).hint)
    claim(world, ANNA, "shop-backend")
    hints.add(refused(world, "identity.register", RegisterParams("a-b", "qa"), ANNA).hint)
    assert len(hints) == 8
    for hint in hints:
        assert "{" in hint
        told = as_commands(hint)
        assert ("mbxctl " in told, "{" in told) == (True, False), told


@pytest.mark.parametrize("role", ["a", "all", "none", "0123456789abcdef", "qa"])
def test_suggested_names_are_valid(world: World, role: str) -> None:
    nowhere = replace(BERT, project=None)
    register(world, replace(PERSON), "taken", "backend")
    refusal = refused(world, "identity.register", RegisterParams("taken", role), nowhere)
    assert refusal.data is not None
    suggested = refusal.data["suggested_name"]
    made = register(world, nowhere, suggested, role)
    assert made["created"]
    assert made["warnings"] == []


def test_a_person_makes_a_vacant_mailbox_and_holds_nothing(world: World) -> None:
    result = register(world, PERSON)
    assert (result["created"], result["epoch"], result["identity"]["state"]) == (True, 0, "vacant")
    assert register(world, PERSON) == Refusal("NAME_TAKEN")
    assert claim(world, PERSON, "shop-backend") == Refusal("NOT_AN_AGENT")
    assert release(world, PERSON) == Refusal("NOT_AN_AGENT")


# -- release ---------------------------------------------------------------------------------------------


def test_releasing_nothing_is_no_error(world: World) -> None:
    assert release(world, ANNA)["released"] is None
    assert world.batches == []


def test_a_late_release_of_an_older_epoch_changes_nothing(world: World) -> None:
    register(world, ANNA)
    release(world, ANNA)
    claim(world, ANNA, "shop-backend")
    late = release(world, replace(ANNA, epoch=1))
    assert late["released"] is None
    assert "epoch 1" in late["warnings"][0]
    assert release(world, replace(ANNA, epoch=2))["released"] == "shop-backend"


def test_a_released_session_does_not_take_the_name_back(world: World) -> None:
    register(world, ANNA)
    release(world, ANNA)
    assert listed(world, ANNA)["pending"] is None
    claim(world, BERT, "shop-backend")
    die(world, BERT)
    assert listed(world, ANNA)["pending"] is None, "not even after somebody else held it"
    resumed = replace(ANNA, host=process(300))
    assert listed(world, resumed)["pending"] is None, "nor after a resume: it is the same conversation"
    assert claim(world, ANNA)["resumed"] is False, "but claim without a name means it"


def test_a_released_session_does_not_take_its_wish_back_but_a_new_one_does(world: World) -> None:
    wishing = replace(ANNA, agent="shop-backend")
    register(world, wishing)
    release(world, wishing)
    assert listed(world, wishing)["pending"] is None
    again = replace(wishing, host=process(300))
    assert listed(world, again)["pending"] == {"name": "shop-backend", "why": "wish", "claimable": True}


# -- sessions --------------------------------------------------------------------------------------------


def test_a_call_without_a_handle_acts_as_the_only_holder(world: World) -> None:
    register(world, replace(ANNA, handle="a"))
    assert claim(world, ANNA)["epoch"] == 1
    assert claim(world, replace(ANNA, handle="b"), "shop-backend") == Refusal("IDENTITY_IN_USE")
    register(world, replace(ANNA, handle="b"), "shop-qa", "qa")
    refusal = refused(world, "identity.claim", ClaimParams(), ANNA)
    assert (refusal.code, refusal.data) == (Code.AMBIGUOUS_SESSION, {"names": ["shop-backend", "shop-qa"]})
    assert "_meta" in refusal.hint
    typed = refused(world, "identity.claim", ClaimParams(), replace(ANNA, beneath_agent=True))
    assert (typed.code, typed.data) == (refusal.code, refusal.data)
    assert ("shop-backend, shop-qa" in typed.message, "command line" in typed.message) == (True, True)
    assert ("_meta" in typed.hint, "mbx_whoami" in typed.hint) == (False, True)
    assert release(world, ANNA) == Refusal("AMBIGUOUS_SESSION")
    assert register(world, ANNA, "zebra", "stripes") == Refusal("AMBIGUOUS_SESSION")
    assert release(world, replace(ANNA, handle="b"))["released"] == "shop-qa"
    assert release(world, ANNA)["released"] == "shop-backend"


def test_hints_of_a_process_do_not_name_its_conversations(world: World) -> None:
    register(world, ANNA)
    die(world, ANNA)
    child = replace(ANNA, host=process(300), handle="child")
    assert listed(world, child)["pending"] is None


def test_a_child_that_inherits_a_hint_takes_nothing_of_its_parent_by_it(world: World) -> None:
    """The variable of a session is in the environment of everything that it starts."""
    register(world, ANNA)
    child = replace(ANNA, host=process(300), shims=(process(301),))
    register(world, child, "shop-child")
    for ended in (release, die):
        ended(world, child)
        again = replace(ANNA, host=process(400), shims=(process(401),))
        assert listed(world, again)["pending"]["name"] == "shop-backend"
        claim(world, child, "shop-child")
    die(world, ANNA)
    resumed = replace(ANNA, host=process(500), shims=(process(501),))
    assert claim(world, resumed)["identity"]["name"] == "shop-backend"
    die(world, resumed)
    assert dump(reloaded(world.state)) == dump(world.state)


def test_a_handle_is_no_hint_in_another_project(world: World) -> None:
    """It may be a plain word."""
    main = replace(ANNA, handle="main", resume=())
    register(world, main)
    die(world, main)
    elsewhere = replace(main, host=process(300), shims=(process(301),), project=project("store"))
    register(world, BERT, "store-qa", "qa")
    assert listed(world, elsewhere)["pending"] is None
    assert claim(world, elsewhere) == Refusal("NAME_REQUIRED")
    here = replace(elsewhere, project=ANNA.project)
    assert listed(world, here)["pending"]["name"] == "shop-backend"
    assert claim(world, replace(main, project=project("store")))["identity"]["name"] == "shop-backend", "it is the same"


# -- repeats ---------------------------------------------------------------------------------------------


def test_a_repeat_gets_the_first_result_though_the_world_moved_on(world: World) -> None:
    asking = replace(ANNA, instance="i", request_id="1")
    first = register(world, asking)
    release(world, ANNA)
    claim(world, BERT, "shop-backend")
    before = len(world.batches)
    assert register(world, asking) == first
    assert len(world.batches) == before
    assert register(world, asking, "shop-qa") == Refusal("REQUEST_ID_REUSED")
    assert register(world, replace(asking, handle="h")) == Refusal("REQUEST_ID_REUSED")
    assert register(world, replace(asking, instance="j")) == Refusal("NAME_TAKEN")


def test_a_repeat_of_what_changed_nothing_does_not_do_it_later(world: World) -> None:
    one, two = (replace(ANNA, instance="i", request_id=str(n)) for n in (1, 2))
    nothing = release(world, one)
    assert nothing["released"] is None
    register(world, ANNA)
    assert release(world, one) == nothing
    own = claim(world, two)
    release(world, ANNA)
    assert claim(world, two) == own
    assert row(world, BERT, "shop-backend")["state"] == "vacant"


def test_a_refusal_is_decided_anew(world: World) -> None:
    asking = replace(BERT, instance="i", request_id="1")
    register(world, ANNA)
    assert claim(world, asking, "shop-backend") == Refusal("IDENTITY_IN_USE")
    release(world, ANNA)
    assert claim(world, asking, "shop-backend")["epoch"] == 2
