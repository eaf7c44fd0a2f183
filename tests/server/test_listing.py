"""A kept list is the list that the rules would make now, whatever happened since it was kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbx_wire.agent import CreateAgentParams, RegisterAgentParams
from mbx_wire.identity import ClaimParams, ListParams, ListResult, RegisterParams, ReleaseParams
from mbxd.core import lists as rules
from mbxd.core import machine
from mbxd.core.context import PERSON, Caller
from mbxd.core.internal import HolderDied
from mbxd.core.liveness import Evidence
from mbxd.core.rejected import Rejected
from mbxd.server.listing import Rows
from tests.core.model import World, process, project

SHOP, CAFE = project("shop"), project("cafe")


def caller(number: int, where: Any, handle: str = "") -> Caller:
    host = process(100 * number)
    return Caller("claude-code", host, handle, (process(100 * number + 1),), (f"claude-code:{number}",), project=where)


CALLERS = [
    caller(1, SHOP),
    caller(2, SHOP),
    caller(3, SHOP, "a"),
    caller(3, CAFE, "b"),
    caller(4, None),
    replace(PERSON, project=SHOP),
    replace(PERSON, project=CAFE),
    caller(1, CAFE),  # may hold a mailbox of the other project
    replace(caller(5, SHOP), agent="shop-b"),
    Caller("claude-code", process(600), "", (process(601),), ("claude-code:1",), project=SHOP),  # brings another's hint
]
NAMES = ["shop-a", "shop-b", "cafe-a", "shop-backend"]
steps = st.one_of(
    st.tuples(st.just("register"), st.sampled_from(CALLERS), st.sampled_from(NAMES)),
    st.tuples(st.just("claim"), st.sampled_from(CALLERS), st.sampled_from(NAMES)),
    st.tuples(st.just("create"), st.sampled_from(CALLERS), st.binary(min_size=16, max_size=16)),
    st.tuples(st.just("agent"), st.sampled_from(CALLERS), st.sampled_from(["Shop-A", "Cafe-A", "Cafe_A"])),
    st.tuples(st.just("release"), st.sampled_from(CALLERS), st.none()),
    st.tuples(st.sampled_from(["alive", "dead", "unknown"]), st.sampled_from(CALLERS[:5]), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.none(), st.sampled_from([1.0, 61.0, 1801.0])),
    st.tuples(st.just("mates"), st.none(), st.sampled_from([None, 1.0])),
    st.tuples(st.just("mail"), st.integers(1, 4), st.integers(0, 2)),
    st.tuples(st.just("act"), st.integers(1, 4), st.floats(1e9, 2e9)),
)


class Desk:
    """The world, its lists, and what lives beside the registry."""

    def __init__(self) -> None:
        self.world = World()
        self.rows = Rows(self.world.state)
        self.unread: dict[int, int] = {}
        self.active: dict[int, float] = {}
        self.mates: float | None = None

    def evidence(self, identity: int) -> Evidence | None:
        """As the world has it; with mates, its ages are other ones at each look."""
        seen = self.world.evidence(identity)
        if seen is None or self.mates is None:
            return seen
        return seen._replace(idle_s=self.world.awake, sibling_s=self.mates)

    def run(self, command: str, params: msgspec.Struct, who: Caller, **more: Any) -> None:
        """Decide, apply, tell, as the engine does."""
        try:
            events = machine.decide(self.world.state, command, params, replace(self.world.context(who), **more)).events
        except Rejected:
            return
        for event in events:
            machine.evolve(self.world.state, event)
            self.rows.on_staged(0, event)

    def step(self, what: str, who: Any, value: Any) -> None:
        world = self.world
        match what:
            case "register":
                self.run("identity.register", RegisterParams(value, "qa"), who)
            case "claim":
                self.run("identity.claim", ClaimParams(value), who)
            case "create":  # without a role
                made = CreateAgentParams("/src/shop", "x", "y")
                self.run("agent.create", made, who, entropy=value, projects={"/src/shop": SHOP})
            case "agent":
                where = who.project or SHOP
                self.run("agent.register", RegisterAgentParams(where.key, "x", "y", name=value), who)
            case "release":
                self.run("identity.release", ReleaseParams(), who)
            case "alive" | "dead" | "unknown":
                process = who.host if value else who.shims[0]
                if world.verdicts.get(process) != "dead":
                    world.verdicts[process] = what
            case "wait":
                world.awake += value
                world.wall += value
            case "mates":
                self.mates = value
            case "mail":
                self.unread[who] = value
            case "act":
                self.active[who] = value
        world.watch()

    def check(self) -> None:
        for who in CALLERS:
            ctx = replace(self.world.context(who), unread=self.unread, active=self.active, evidence=self.evidence)
            for all_ in (None, True):
                kept, ids = self.rows.list(ListParams(all_), ctx)
                fresh = rules.list_(self.world.state, ListParams(all_), ctx).result
                assert msgspec.json.decode(msgspec.json.encode(kept)) == msgspec.json.decode(msgspec.json.encode(fresh))
                assert {row.id for row in fresh.identities} <= set(ids)


@given(st.lists(steps, max_size=25), st.sampled_from([2, 50]))
def test_a_kept_list_is_what_the_rules_would_make_now(history: list[tuple[str, Any, Any]], rows_max: int) -> None:
    desk = Desk()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "ROWS_MAX", rows_max)
        for step in history:
            desk.step(*step)
            desk.check()


def test_a_death_shows_before_and_after_it_is_in_the_log() -> None:
    desk = Desk()
    for step in (("register", CALLERS[0], "shop-a"), ("dead", CALLERS[0], 1), ("wait", None, 1.0)):
        desk.step(*step)
        desk.check()
    desk.run("internal.holder_died", HolderDied(1, 1, "holder-exited"), PERSON)
    desk.check()


def lists_of(desk: Desk, who: Caller) -> Any:
    ctx = replace(desk.world.context(who), unread=desk.unread, active=desk.active, evidence=desk.evidence)
    return desk.rows.list(ListParams(), ctx)[0]


def test_those_who_hold_nothing_are_told_the_very_same() -> None:
    desk = Desk()
    desk.run("identity.register", RegisterParams("shop-a", "qa"), CALLERS[0])
    told = lists_of(desk, CALLERS[1])
    assert isinstance(told, msgspec.Raw)
    assert lists_of(desk, caller(7, SHOP)) is told
    inside = replace(desk.world.context(CALLERS[1]), unread=desk.unread, active=desk.active, container="box")
    result = desk.rows.list(ListParams(), inside)[0]
    assert isinstance(result, ListResult)
    assert result.host.container == "box"
    desk.active[1] = 2e9
    assert lists_of(desk, CALLERS[1]) is not told


def test_a_suggested_name_is_free() -> None:
    desk = Desk()
    desk.run("identity.register", RegisterParams("cafe-a", "qa"), replace(PERSON, project=CAFE))
    desk.run("identity.register", RegisterParams("shop-a", "qa"), CALLERS[0])
    assert b"shop-backend" in bytes(lists_of(desk, CALLERS[1]))
    desk.run("identity.register", RegisterParams("shop-backend", "qa"), replace(PERSON, project=CAFE))
    assert b"shop-backend-2" in bytes(lists_of(desk, CALLERS[1]))


def test_conversations_of_one_process_do_not_make_a_page_anew() -> None:
    desk = Desk()
    desk.run("identity.register", RegisterParams("shop-a", "qa"), CALLERS[2])
    desk.mates = 1.0
    told = lists_of(desk, CALLERS[1])
    desk.world.awake += 100
    assert lists_of(desk, CALLERS[1]) is told
    desk.world.awake += 1800
    assert lists_of(desk, CALLERS[1]) is not told
