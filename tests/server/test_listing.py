"""A kept list is the list that the rules would make now, whatever happened since it was kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mbx_wire.agent import CreateAgentParams
from mbx_wire.identity import ClaimParams, ListParams, RegisterParams, ReleaseParams
from mbxd.core import lists as rules
from mbxd.core import machine
from mbxd.core.context import PERSON, Caller
from mbxd.core.internal import HolderDied
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
]
NAMES = ["shop-a", "shop-b", "cafe-a"]
steps = st.one_of(
    st.tuples(st.just("register"), st.sampled_from(CALLERS), st.sampled_from(NAMES)),
    st.tuples(st.just("claim"), st.sampled_from(CALLERS), st.sampled_from(NAMES)),
    st.tuples(st.just("create"), st.sampled_from(CALLERS), st.binary(min_size=16, max_size=16)),
    st.tuples(st.just("release"), st.sampled_from(CALLERS), st.none()),
    st.tuples(st.sampled_from(["alive", "dead", "unknown"]), st.sampled_from(CALLERS[:5]), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.none(), st.sampled_from([1.0, 61.0])),
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
            case "release":
                self.run("identity.release", ReleaseParams(), who)
            case "alive" | "dead" | "unknown":
                process = who.host if value else who.shims[0]
                if world.verdicts.get(process) != "dead":
                    world.verdicts[process] = what
            case "wait":
                world.awake += value
            case "mail":
                self.unread[who] = value
            case "act":
                self.active[who] = value
        world.watch()

    def check(self) -> None:
        for who in CALLERS:
            ctx = replace(self.world.context(who), unread=self.unread, active=self.active)
            for all_ in (None, True):
                kept, ids = self.rows.list(ListParams(all_), ctx)
                fresh = rules.list_(self.world.state, ListParams(all_), ctx).result
                assert msgspec.json.decode(msgspec.json.encode(kept)) == msgspec.json.decode(msgspec.json.encode(fresh))
                assert {row.id for row in fresh.identities} <= set(ids)


@given(st.lists(steps, max_size=25))
def test_a_kept_list_is_what_the_rules_would_make_now(history: list[tuple[str, Any, Any]]) -> None:
    desk = Desk()
    for step in history:
        desk.step(*step)
        desk.check()


def test_a_death_shows_before_and_after_it_is_in_the_log() -> None:
    desk = Desk()
    for step in (("register", CALLERS[0], "shop-a"), ("dead", CALLERS[0], 1)):
        desk.step(*step)
        desk.check()
    desk.run("internal.holder_died", HolderDied(1, 1, "holder-exited"), PERSON)
    desk.check()
