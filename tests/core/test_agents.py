"""Agent identities: names, tokens, provisional bindings, profiles, retirement and sweeps."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbx_wire.agent import (
    CreateAgentParams,
    EnsureProjectParams,
    RegisterAgentParams,
    RetireAgentParams,
    SweepParams,
    TokenParams,
    WhoisParams,
)
from mbx_wire.envelope import ProjectRef
from mbx_wire.errors import Code
from mbx_wire.identity import ClaimParams, ListParams, RegisterParams, ReleaseParams
from mbxd.core import agentnames, machine, tokens
from mbxd.core import events as ev
from mbxd.core.binding import Bind
from mbxd.core.context import PERSON, Caller, Context
from mbxd.core.rejected import Rejected
from mbxd.core.state import State
from mbxd.core.words import ADJECTIVES, NOUNS
from tests.core.model import Refusal, World, dump, process, project

KEY = bytes(range(32))
SHOP = "/repos/shop"
BOSS = Caller("claude-code", process(100), "", (process(101),), ("claude-code:boss",), project=project("shop"))
WORKER = Caller("codex", process(200), "", (process(201),), ("codex:worker",), project=project("shop"))
OTHER = Caller("codex", process(300), "", (process(301),), ("codex:other",), project=project("shop"))


@dataclass
class AgentWorld(World):
    """The world with a key and a supply of entropy."""

    drawn: int = 0

    def context(self, caller: Caller) -> Context:
        self.drawn += 1
        entropy = hashlib.sha256(str(self.drawn).encode()).digest()[:16]
        return replace(super().context(caller), key=KEY, entropy=entropy)

    def _judge(self, event: ev.Event) -> None:
        if isinstance(event, ev.HolderEnded) and event.reason == "handed-over":
            hold = self.state.identities[event.identity].hold
            assert hold is not None
            assert hold.provisional or event.identity in {i for i, _ in self.loose_since}
            return
        super()._judge(event)

    def create(self, caller: Caller = BOSS, hint: str | None = None, key: str = SHOP) -> Any:
        return self.run("agent.create", CreateAgentParams(key, "claude-code", "opus-4", hint), caller)

    def register(self, caller: Caller, name: str | None = None, token: str | None = None, **more: Any) -> Any:
        params = {"project_key": SHOP, "program": "codex", "model": "five", **more}
        return self.run("agent.register", RegisterAgentParams(name=name, registration_token=token, **params), caller)

    def provisional(self, identity: int) -> bool:
        hold = self.state.identities[identity].hold
        assert hold is not None
        return hold.provisional

    def retired(self, identity: int) -> str | None:
        return self.state.identities[identity].retired

    def token(self, name: str) -> str:
        found = self.state.identities[self.state.by_address[name.lower()]]
        return tokens.mint(KEY, found.id, found.generation)


@pytest.fixture
def world() -> AgentWorld:
    return AgentWorld()


# -- names ---------------------------------------------------------------------------------------------------


def test_the_lists_are_long_enough_and_hold_the_documented_names() -> None:
    assert min(len(set(ADJECTIVES)), len(set(NOUNS))) >= 300
    for name in ("GreenCastle", "BlueLake", "RedStone", "PurpleBear", "GreenLake", "BlueDog"):
        assert agentnames.check_hint(name) == name
    assert all(word.isascii() and word.islower() and word.isalpha() and len(word) <= 10 for word in ADJECTIVES + NOUNS)


def test_a_created_name_is_two_words_and_its_address_follows(world: AgentWorld) -> None:
    made = world.create()
    assert agentnames.check_hint(made["name"]) == made["name"]
    assert made["address"] == made["name"].lower()
    assert (made["bound"], made["epoch"], made["project_id"]) == (True, 1, 1)
    assert "registration_token" not in made  # the server adds it where it leaves


def test_a_thousand_names_are_distinct_and_a_full_space_says_so() -> None:
    state = State()
    seen = set()
    for number in range(1000):
        name = agentnames.draw(state, 1, hashlib.sha256(str(number).encode()).digest()[:16])
        assert name.lower() not in seen
        seen.add(name.lower())
        state.by_agent_name[1, name.lower()] = number
    full = {(1, (a + n).lower()): 0 for a in ADJECTIVES for n in NOUNS}
    state.by_agent_name = full
    with pytest.raises(Rejected, match="taken") as refusal:
        agentnames.draw(state, 1, bytes(16))
    assert refusal.value.code == "NAMES_EXHAUSTED"
    del full[1, "greencastle"]
    for step in range(40):  # also a step that alone would not reach every name
        assert agentnames.draw(state, 1, bytes(8) + step.to_bytes(8, "big")) == "GreenCastle"


def test_a_hint_is_honoured_or_refused_never_replaced(world: AgentWorld) -> None:
    assert world.create(hint="greencastle")["name"] == "GreenCastle"
    assert world.create(OTHER, hint="GREEN-CASTLE") == Refusal("NAME_TAKEN")
    for bad in ("BackendHarmonizer", "Green", "Castle", "GreenCastleTwo", "green/castle", "me@x.org", "all", "Ünder"):
        assert world.create(OTHER, hint=bad) == Refusal("NAME_INVALID"), bad


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("claude-code", "program"),
        ("Codex", "program"),
        ("gpt-5", "model"),
        ("opus 4", "model"),
        ("me@example.org", "e-mail"),
        ("everyone", "everybody"),
        ("*", "everybody"),
        ("../../etc", "path"),
        ("a\\b", "path"),
        ("five", "model"),
        ("-dash", "must match"),
        ("x" * 129, "must match"),
        ("line\n", "must match"),
        ("Grün", "must match"),
    ],
)
def test_each_kind_of_wrong_name_has_its_own_words(name: str, words: str) -> None:
    with pytest.raises(Rejected, match=r".") as refusal:
        agentnames.check_name(name, "zed", "five", strict=False)
    assert refusal.value.code == "NAME_INVALID"
    assert words in refusal.value.message
    assert "GreenCastle" in refusal.value.hint


def test_a_token_is_no_name_and_is_not_repeated(world: AgentWorld) -> None:
    token = tokens.mint(KEY, 1, 0)
    for check in (agentnames.check_hint, lambda name: agentnames.check_name(name, "p", "m", strict=False)):
        with pytest.raises(Rejected, match="registration token") as refusal:
            check(token)
        assert token not in str(refusal.value.body())


@pytest.mark.parametrize("program", ["my-tool", "My-Tool", " MY-TOOL "])
def test_the_callers_own_program_is_no_name(program: str) -> None:
    for name in ("my-tool", "MY-TOOL"):
        with pytest.raises(Rejected, match="the name of a program"):
            agentnames.check_name(name, program, "m", strict=False)
    assert agentnames.check_name("my-tool-2", program, "m", strict=False) == "my-tool-2"


def test_a_long_name_gets_an_address_of_40_characters() -> None:
    assert agentnames.address_for(State(), "a" * 128, "shop") == "a" * 40
    assert agentnames.address_for(State(), "a" * 39 + "-b", "shop") == "a" * 39


def test_strict_naming_refuses_descriptions(world: AgentWorld) -> None:
    world.policy = world.policy._replace(strict_names=True)
    for description in ("BackendHarmonizer", "BlueHarmonizer", "BackendCastle", "CastleBlue", "Blue", "Castle"):
        assert world.register(BOSS, description) == Refusal("NAME_INVALID")
    for fine in ("worker7", "api.tests", "api_tests", "front-end", "BlueLake"):
        assert agentnames.check_name(fine, "p", "m", strict=True) == fine
    world.policy = world.policy._replace(strict_names=False)
    assert world.register(BOSS, "BackendHarmonizer")["name"] == "BackendHarmonizer"


def test_names_are_unique_in_a_project_without_case_and_addresses_on_the_host(world: AgentWorld) -> None:
    assert world.register(BOSS, "Api.Tests")["address"] == "api-tests"
    again = world.register(BOSS, "API.TESTS", model="other")
    assert (again["id"], again["name"], again["model"]) == (1, "Api.Tests", "other")
    elsewhere = world.register(PERSON, "Api.Tests", project_key="/repos/blog")
    assert (elsewhere["id"], elsewhere["name"], elsewhere["address"]) == (2, "Api.Tests", "blog-api-tests")
    third = world.register(PERSON, "api_tests", project_key="/other/blog")
    assert third["address"] == "blog-2-api-tests"
    assert world.register(PERSON, "Owner.")["address"] not in {"owner", ""}


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True), st.booleans())
def test_any_accepted_name_gets_a_valid_free_address(name: str, taken: bool) -> None:
    state = State()
    first = agentnames.address_for(state, name, "shop")
    if taken:
        state.by_address[first] = 1
    address = agentnames.address_for(state, name, "shop")
    assert address not in state.by_address
    assert 2 <= len(address) <= 40
    assert all(c in "abcdefghijklmnopqrstuvwxyz0123456789-" for c in address)
    assert address[0] != "-"


# -- tokens --------------------------------------------------------------------------------------------------


def test_a_token_is_found_and_hidden_in_any_text() -> None:
    token = tokens.mint(KEY, 1, 1)
    assert len(token) == len(tokens.PREFIX) + 43
    text = f"take {token}, and {tokens.mint(KEY, 2, 1)}!"
    assert tokens.inside(text)
    assert tokens.hidden(text) == "take mbx_..., and mbx_...!"
    for harmless in ("", "mbx_identity", "mbx_" + "a" * 42, "a" * 60):
        assert not tokens.inside(harmless)
        assert tokens.hidden(harmless) == harmless


def test_a_refusal_repeats_no_token_that_was_sent_in_place_of_something_else() -> None:
    token = tokens.mint(KEY, 1, 1)
    refusal = Rejected(
        Code.NAME_INVALID, f"{token} is no name.", f"Not {token}.", retryable=True, data={"name": token, "at": 7}
    )
    assert str(refusal) == "mbx_... is no name."
    assert refusal.body() == {
        "code": "NAME_INVALID",
        "message": "mbx_... is no name.",
        "hint": "Not mbx_....",
        "retryable": True,
        "data": {"name": "mbx_...", "at": 7},
    }
    assert Rejected(Code.NO_PROJECT, "No.").body() == {
        "code": "NO_PROJECT",
        "message": "No.",
        "hint": "",
        "retryable": False,
    }


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**40), st.integers(0, 2**20), st.text(max_size=60))
def test_only_the_present_token_matches(key: bytes, identity: int, generation: int, noise: str) -> None:
    token = tokens.mint(key, identity, generation)
    assert tokens.matches(key, identity, generation, token)
    assert token == tokens.mint(key, identity, generation)
    for wrong in (
        noise,
        "\ud800",
        token[:-1],
        token + " ",
        token + "=",
        token.upper(),
        tokens.mint(key, identity, generation + 1),
    ):
        assert wrong == token or not tokens.matches(key, identity, generation, wrong)
    assert not tokens.matches(key, identity + 1, generation, token)
    assert not tokens.matches(bytes(32) if key != bytes(32) else b"1" * 32, identity, generation, token)


def test_a_wrong_token_changes_nothing_whatever_the_state(world: AgentWorld) -> None:
    world.create(hint="GreenCastle")
    world.create(hint="BlueLake")
    before = dump(world.state)
    for name in ("GreenCastle", "BlueLake"):
        for token in (
            "",
            "nonsense",
            "mbx_" + "A" * 43,
            world.token("greencastle" if name == "BlueLake" else "bluelake"),
        ):
            if token:
                assert world.register(WORKER, name, token) == Refusal("TOKEN_MISMATCH")
    assert dump(world.state) == before


def test_rotating_makes_the_old_token_wrong(world: AgentWorld) -> None:
    world.create(hint="GreenCastle")
    old = world.token("greencastle")
    shown = world.run("admin.token", TokenParams("greencastle"), PERSON)
    assert shown["generation"] == 0
    assert world.run("admin.token", TokenParams("greencastle", rotate=True), PERSON)["generation"] == 1
    assert world.register(WORKER, "GreenCastle", old) == Refusal("TOKEN_MISMATCH")
    assert world.register(WORKER, "GreenCastle", world.token("greencastle"))["bound"] is True
    assert world.run("admin.token", TokenParams("greencastle"), replace(PERSON, beneath_agent=True)) == Refusal(
        "NOT_ALLOWED"
    )


# -- bindings ------------------------------------------------------------------------------------------------


def test_an_orchestrator_makes_three_and_every_worker_takes_its_own(world: AgentWorld) -> None:
    made = [world.create(hint=hint) for hint in ("GreenCastle", "BlueLake", "RedStone")]
    assert [m["bound"] for m in made] == [True, False, False]
    workers = [replace(WORKER, host=process(400 + i), shims=(process(500 + i),), resume=()) for i in range(3)]
    for worker, mine in zip(workers, made, strict=True):
        taken = world.register(worker, mine["name"], world.token(mine["address"]))
        assert (taken["id"], taken["bound"]) == (mine["id"], True)
    first = world.state.identities[1]
    assert first.epoch == 2
    listed = world.run("identity.list", ListParams(), BOSS)
    assert (listed["you"], listed["lost"]["how"], listed["pending"]) == (None, "handed-over", None)


def test_a_binding_is_provisional_only_until_its_session_acts(world: AgentWorld) -> None:
    world.create(hint="GreenCastle")
    token = world.token("greencastle")
    world.run("identity.list", ListParams(), BOSS)  # looking is no act
    assert world.provisional(1)
    assert world.run("identity.claim", ClaimParams(None), BOSS)["epoch"] == 1
    assert not world.provisional(1)
    assert world.register(WORKER, "GreenCastle", token) == Refusal("IDENTITY_IN_USE")


def test_updating_ones_own_profile_confirms_the_binding_without_a_token(world: AgentWorld) -> None:
    made = world.create(hint="GreenCastle")
    again = world.register(BOSS, "greencastle", model="new", task_description="ship it")
    assert (again["id"], again["epoch"], again["model"], again["bound"]) == (made["id"], 1, "new", True)
    assert not world.provisional(1)


def test_a_subagent_that_shares_the_session_is_told_so(world: AgentWorld) -> None:
    world.create(hint="GreenCastle")
    world.create(hint="BlueLake")
    before = dump(world.state)
    assert world.register(BOSS, "BlueLake", world.token("bluelake")) == Refusal("HOLDS_ANOTHER")
    assert dump(world.state) == before


def test_a_vacant_name_needs_no_token_and_a_live_one_gives_way_to_none(world: AgentWorld) -> None:
    world.register(BOSS, "GreenCastle")
    assert world.register(WORKER, "GreenCastle") == Refusal("IDENTITY_IN_USE")
    assert world.register(WORKER, "GreenCastle", world.token("greencastle")) == Refusal("IDENTITY_IN_USE")
    world.verdicts[process(100)] = "dead"
    taken = world.register(WORKER, "GreenCastle")
    assert (taken["bound"], taken["epoch"]) == (True, 2)


def test_a_detached_holder_gives_way_to_the_token_at_once_and_to_others_after_its_grace(world: AgentWorld) -> None:
    world.register(BOSS, "GreenCastle")
    world.verdicts[process(101)] = "dead"
    world.watch()
    assert world.register(WORKER, "GreenCastle") == Refusal("IDENTITY_IN_USE")
    assert world.register(WORKER, "GreenCastle", world.token("greencastle"))["epoch"] == 2
    world.verdicts[process(201)] = "dead"
    world.watch()
    world.awake += 61
    assert world.register(OTHER, "GreenCastle")["epoch"] == 3
    past = world.state.identities[1].past
    assert past is not None
    assert past.reason == "grace-over"


def test_a_session_that_holds_another_updates_but_takes_nothing(world: AgentWorld) -> None:
    world.run("identity.register", RegisterParams("shop-backend", "backend"), BOSS)
    world.register(PERSON, "GreenCastle")
    updated = world.register(BOSS, "GreenCastle", model="new")
    assert (updated["bound"], updated["model"], updated["epoch"]) == (False, "new", 0)
    assert updated["warnings"]


def test_the_two_worlds_are_one_registry(world: AgentWorld) -> None:
    world.create(hint="GreenCastle")
    world.run("identity.release", ReleaseParams(), BOSS)
    assert world.run("identity.claim", ClaimParams("greencastle"), WORKER) == Refusal("ROLE_REQUIRED")
    claimed = world.run("identity.claim", ClaimParams("GreenCastle", "backend"), WORKER)
    assert (claimed["identity"]["name"], claimed["identity"]["role"], claimed["epoch"]) == ("GreenCastle", "backend", 2)
    world.run("identity.register", RegisterParams("shop-web", "web"), BOSS)
    assert world.register(BOSS, "shop-web", model="m2")["bound"] is True
    rows = world.run("identity.list", ListParams(), OTHER)["identities"]
    assert {row["name"]: row["model"] for row in rows} == {"GreenCastle": "opus-4", "shop-web": "m2"}


def test_register_without_a_name_draws_one_and_a_token_for_a_new_name_is_ignored(world: AgentWorld) -> None:
    drawn = world.register(BOSS)
    assert agentnames.check_hint(drawn["name"])
    fresh = world.register(WORKER, "worker-7", "mbx_nonsense")
    assert fresh["bound"] is True
    assert "not used" in fresh["warnings"][0]


def test_what_a_session_holds_or_held_is_meant_by_itself_not_by_its_name(world: AgentWorld) -> None:
    """The same name in two projects: in the caller's own one the word means the other mailbox."""
    theirs = world.create(WORKER, hint="GreenCastle", key="/repos/docs")
    ours = world.create(BOSS, hint="GreenCastle")
    assert (theirs["address"], ours["address"]) == ("greencastle", "shop-greencastle")
    assert world.run("identity.claim", ClaimParams(None, "docs"), WORKER)["identity"]["id"] == theirs["id"]
    world.run("identity.release", ReleaseParams(), BOSS)
    world.verdicts[process(200)] = "dead"
    again = replace(WORKER, host=process(900), shims=(process(901),))
    assert world.run("internal.bind", Bind(acts=True), again)["identity"] == theirs["id"]


def test_an_update_changes_what_was_sent_and_keeps_the_rest(world: AgentWorld) -> None:
    sent = {"task_description": "ship it", "attachments_policy": "inline"}
    made = world.register(BOSS, "GreenCastle", program="claude-code", model="opus", **sent)
    assert (made["program"], made["model"], made["task_description"]) == ("claude-code", "opus", "ship it")
    world.wall += 60
    again = world.register(BOSS, "GreenCastle", program="codex", model="five")
    assert (again["program"], again["model"], again["task_description"]) == ("codex", "five", "ship it")
    assert again["last_active_ts"] > made["last_active_ts"] == again["inception_ts"]
    assert world.register(BOSS, "GreenCastle", task_description="")["task_description"] == ""
    assert world.state.identities[1].attachments_policy == "inline"
    assert world.register(WORKER, "BlueLake")["task_description"] == ""
    assert world.state.identities[2].attachments_policy == "auto"
    world.register(WORKER, "BlueLake", task_description="test it", attachments_policy="file")
    assert (world.state.identities[2].task_description, world.state.identities[2].attachments_policy) == (
        "test it",
        "file",
    )


def test_acting_confirms_the_binding_and_looking_does_not(world: AgentWorld) -> None:
    world.create(hint="GreenCastle")
    assert world.run("internal.bind", Bind(acts=False), BOSS) == {"identity": 1, "epoch": 1}
    assert world.provisional(1)
    assert world.run("internal.bind", Bind(acts=True), BOSS) == {"identity": 1, "epoch": 1}
    assert not world.provisional(1)
    assert world.register(WORKER, "GreenCastle", world.token("greencastle")) == Refusal("IDENTITY_IN_USE")


@pytest.mark.parametrize("caller", [PERSON, BOSS])
def test_a_swept_one_is_revived_by_an_update_of_whoever_takes_nothing(world: AgentWorld, caller: Caller) -> None:
    world.register(BOSS, "worker-1")
    world.register(PERSON, "GreenCastle")
    world.wall += 100
    world.run("admin.sweep", SweepParams(60), PERSON)
    assert world.retired(2) == "swept"
    updated = world.register(caller, "GreenCastle", model="new")
    assert (updated["bound"], updated["model"], world.retired(2)) == (False, "new", None)


# -- projects ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "   ", "a/b", "../x", "a\x00b", "/x\ny", "x" * 5000, "/" + "\ud800"])
def test_a_bad_project_key_is_refused(world: AgentWorld, key: str) -> None:
    assert world.create(key=key) == Refusal("PARAMETER_INVALID")


@pytest.mark.parametrize("path", ["/", "/home/me"])
def test_what_is_nobodys_project_is_told_in_true_words(world: AgentWorld, path: str) -> None:
    ctx = replace(world.context(BOSS), projects={path: None})
    with pytest.raises(Rejected) as caught:
        machine.decide(world.state, "project.ensure", EnsureProjectParams(path), ctx)
    assert caught.value.code == Code.NO_PROJECT
    assert caught.value.message == f'"{path}" is no project: home directories and the root directory are everybody\'s.'


def test_projects_by_path_slug_and_what_the_client_found(world: AgentWorld) -> None:
    first = world.run("project.ensure", EnsureProjectParams("/repos/shop/"), BOSS)
    assert (first["id"], first["slug"], first["human_key"]) == (1, "shop", "/repos/shop")
    assert world.run("project.ensure", EnsureProjectParams("shop"), BOSS)["id"] == 1
    assert world.run("project.ensure", EnsureProjectParams("nowhere"), BOSS) == Refusal("NO_PROJECT")
    assert world.run("project.ensure", EnsureProjectParams("/"), BOSS) == Refusal("NO_PROJECT")
    assert world.run("project.ensure", EnsureProjectParams("/repos/shop"), OTHER)["slug"] == "shop"
    named = replace(BOSS, project=ProjectRef("shop.team", "shop"))  # out of a .mbx.toml
    assert world.run("project.ensure", EnsureProjectParams("shop.team"), named)["slug"] == "shop-2"
    assert world.run("project.ensure", EnsureProjectParams("shop.team"), BOSS)["id"] == 2
    assert world.run("project.ensure", EnsureProjectParams("x" * 4097), BOSS) == Refusal("PARAMETER_INVALID")
    assert world.run("project.ensure", EnsureProjectParams("/" + "x" * 4095), BOSS)["id"] == 3
    own = replace(BOSS, project=project("fresh"))
    assert world.run("project.ensure", EnsureProjectParams("fresh"), own)["human_key"] == "/repos/fresh"


# -- whois, retire, sweep ------------------------------------------------------------------------------------


def test_whois_shows_profile_state_and_holder(world: AgentWorld) -> None:
    world.create(hint="GreenCastle")
    shown = world.run("agent.whois", WhoisParams("shop", "greencastle"), OTHER)
    assert (shown["name"], shown["state"], shown["holder"]["pid"]) == ("GreenCastle", "live", 100)
    assert world.run("agent.whois", WhoisParams("shop", "GreenCastel"), OTHER) == Refusal("UNKNOWN_IDENTITY")
    assert world.run("agent.whois", WhoisParams("nowhere", "x"), OTHER) == Refusal("NO_PROJECT")
    assert world.run("agent.whois", WhoisParams("/repos/new", "x"), OTHER) == Refusal("NO_PROJECT")
    for limit in (0, 51):
        bad = WhoisParams("shop", "greencastle", commit_limit=limit)
        assert world.run("agent.whois", bad, OTHER) == Refusal("PARAMETER_INVALID")


def test_retire_takes_ones_own_or_a_vacant_one_and_no_other(world: AgentWorld) -> None:
    world.create(hint="GreenCastle")
    gone = RetireAgentParams("shop", "GreenCastle")
    assert world.run("agent.retire", gone, OTHER) == Refusal("IDENTITY_IN_USE")
    assert world.run("agent.retire", gone, BOSS)["retired"] is True
    assert world.run("agent.retire", gone, BOSS)["warnings"]
    assert world.register(WORKER, "GreenCastle", world.token("greencastle")) == Refusal("RETIRED")
    assert world.register(BOSS, "worker-1")["bound"] is True


def test_a_sweep_takes_only_the_vacant_and_idle_and_a_claim_revives(world: AgentWorld) -> None:
    world.create(hint="GreenCastle")  # held
    world.register(PERSON, "old-1")
    world.wall += 100_000
    world.register(PERSON, "young-1")
    dry = world.run("admin.sweep", SweepParams(3600, dry_run=True), PERSON)
    assert dry["swept"] == ["old-1"]
    assert world.retired(2) is None
    assert world.run("admin.sweep", SweepParams(3600, "shop"), PERSON)["swept"] == ["old-1"]
    assert world.retired(2) == "swept"
    for seconds in (1, 59.9, float("nan")):
        assert world.run("admin.sweep", SweepParams(seconds), PERSON) == Refusal("PARAMETER_INVALID")
    assert world.run("admin.sweep", SweepParams(60, "nowhere"), PERSON) == Refusal("NO_PROJECT")
    assert world.register(WORKER, "old-1")["bound"] is True
    assert world.retired(2) is None


def test_a_sweep_of_one_project_leaves_the_others_alone(world: AgentWorld) -> None:
    world.register(PERSON, "old-1")
    world.register(PERSON, "old-2", project_key="/repos/docs")
    world.wall += 61
    assert world.run("admin.sweep", SweepParams(60, "docs"), PERSON)["swept"] == ["old-2"]
    assert (world.retired(1), world.retired(2)) == (None, "swept")
    assert world.run("admin.sweep", SweepParams(60), PERSON)["swept"] == ["old-1"]
