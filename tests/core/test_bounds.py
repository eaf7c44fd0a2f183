"""Memories have bounds, slugs and replies too; and a snapshot is the state, with the newest acts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbx_wire.envelope import ProjectRef
from mbx_wire.identity import ClaimParams, ListParams, RegisterParams, ReleaseParams
from mbxd.core import events as ev
from mbxd.core import evolve, machine, snapshot, state
from mbxd.core.context import PERSON, Caller
from mbxd.core.internal import ForgetInstances
from mbxd.core.state import Roster, State
from tests.core.model import Refusal, World, dump, process, project, reloaded

ANNA = Caller("claude-code", process(100), "", (process(101),), ("claude-code:anna",), project=project("shop"))


def granted(identity: int, epoch: int, session: int, hints: tuple[str, ...] = ()) -> ev.Granted:
    ref = ev.SessionRef(process(session), "", "codex", hints)
    return ev.Granted(identity, epoch, ref, (process(session + 1),), 1.0)


@pytest.fixture
def one() -> State:
    fresh = State()
    evolve.evolve(fresh, ev.IdentityRegistered(1, "a-b", "a-b", "qa", None, 0, 1.0))
    return fresh


def test_an_instance_keeps_its_last_256_results() -> None:
    world = World()
    asked = [replace(ANNA, instance="i", request_id=str(n)) for n in range(state.REPLIES_KEPT + 2)]
    world.run("identity.register", RegisterParams("a-b", "qa"), asked[0])
    first = world.run("identity.release", ReleaseParams(), asked[1])
    for n in range(2, len(asked)):
        if n % 2 == 0:
            world.run("identity.claim", ClaimParams("a-b"), asked[n])
        else:
            world.run("identity.release", ReleaseParams(), asked[n])
    assert list(world.state.replies["i"]) == [str(n) for n in range(2, state.REPLIES_KEPT + 2)]
    assert first["released"] == "a-b"
    assert world.run("identity.release", ReleaseParams(), asked[1])["released"] is None, "forgotten: decided anew"
    assert world.run("identity.release", ReleaseParams(), asked[4]) == Refusal("REQUEST_ID_REUSED")
    assert dump(reloaded(world.state)) == dump(world.state)
    world.run("internal.forget_instances", ForgetInstances(("i", "unknown")), PERSON)
    assert world.state.replies == {}
    batches = len(world.batches)
    world.run("internal.forget_instances", ForgetInstances(("i",)), PERSON)
    assert len(world.batches) == batches


def test_the_oldest_losses_go_first(one: State) -> None:
    for n in range(state.LOST_KEPT + 5):
        evolve.evolve(one, granted(1, n + 1, 100 + n))
        evolve.evolve(one, ev.HolderEnded(1, n + 1, "grace-over", 1.0, 1.0, "codex"))
    assert len(one.lost) == state.LOST_KEPT
    assert next(iter(one.lost)) == (process(105), "")
    assert dump(reloaded(one)) == dump(one)


def test_the_oldest_hints_and_sessions_go_first(one: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evolve, "HINTS_KEPT", 8)
    for n in range(20):
        evolve.evolve(one, granted(1, n + 1, 100 + n, ("codex:kept", f"codex:{n}")))
        evolve.evolve(one, ev.HolderEnded(1, n + 1, "holder-exited", 1.0, 1.0))
    assert list(one.by_hint) == [*(f"codex:{n}" for n in range(13, 19)), "codex:kept", "codex:19"]
    assert list(one.by_key) == [(process(100 + n), "") for n in range(12, 20)]


def test_the_first_shim_and_the_newest_are_kept(one: State) -> None:
    """The first is the session's own; sub-agents' come and go."""
    evolve.evolve(one, granted(1, 1, 100))
    for n in range(state.SHIMS_KEPT + 3):
        evolve.evolve(one, ev.ShimAttached(1, 1, process(500 + n), 2.0 + n))
    hold = one.identities[1].hold
    assert hold is not None
    newest = [process(500 + n) for n in range(4, state.SHIMS_KEPT + 3)]
    assert hold.shims == (granted(1, 1, 100).shims[0], *newest)
    assert one.identities[1].last_active_at == 2.0 + n, "a shim that speaks is an act"


def test_facts_about_another_epoch_change_nothing(one: State) -> None:
    evolve.evolve(one, granted(1, 5, 100))
    before = dump(reloaded(one))
    for late in (
        ev.Released(1, 4, 9.0, 9.0),
        ev.HolderEnded(1, 4, "holder-exited", 9.0, 9.0, "codex"),
        ev.ShimAttached(1, 4, process(7), 9.0),
    ):
        evolve.evolve(one, late)
        assert dump(one) == before


def test_freeing_the_vacant_still_fences(one: State) -> None:
    evolve.evolve(one, ev.Freed(1, 1, "why not", 2.0, 2.0))
    assert (one.identities[1].epoch, one.identities[1].past, one.lost) == (1, None, {})


def test_equal_slugs_get_numbers_and_stay_short() -> None:
    world = World()
    long = "a-very-long-name-of-a-project-indeed"
    for n in range(12):
        caller = replace(PERSON, project=ProjectRef(f"/r/{n}", long))
        world.run("identity.register", RegisterParams(f"box-{n}", "qa"), caller)
    slugs = list(world.state.slugs)
    assert slugs[:2] == ["a-very-long-name-of-a-pr", "a-very-long-name-of-a-2"]
    assert len(slugs) == 12
    assert all(len(slug) <= 24 for slug in slugs)
    hostile = replace(PERSON, project=ProjectRef("/r/x", "\x00../\u202e"))
    assert world.run("identity.register", RegisterParams("box-x", "qa"), hostile)["identity"]["project"] == "project"


def test_a_snapshot_carries_the_newest_acts() -> None:
    world = World()
    world.run("identity.register", RegisterParams("a-b", "qa"), ANNA)
    made = world.state.identities[1].last_active_at
    frozen = snapshot.freeze(world.state, {1: made + 50.0, 99: 1.0})
    world.run("identity.release", ReleaseParams(), ANNA)
    loaded = snapshot.load(snapshot.encode(frozen))
    assert loaded.identities[1].last_active_at == made + 50.0
    assert loaded.identities[1].hold is not None, "what came after the freeze is not in it"
    earlier = snapshot.load(snapshot.encode(snapshot.freeze(world.state, {1: made - 50.0})))
    assert earlier.identities[1].last_active_at == world.state.identities[1].last_active_at


def test_the_newest_act_shows_in_rows() -> None:
    world = World()
    world.run("identity.register", RegisterParams("a-b", "qa"), ANNA)
    ctx = replace(world.context(ANNA), active={1: 0.0})
    row = machine.decide(world.state, "identity.list", ListParams(), ctx).result.identities[0]
    assert row.last_active_at == "1970-01-01T00:00:00.000Z"


@pytest.mark.parametrize("count", [0, 1, snapshot.CHUNK - 1, snapshot.CHUNK, snapshot.CHUNK + 1, 3 * snapshot.CHUNK])
def test_a_snapshot_of_any_size(count: int) -> None:
    fresh = State()
    for n in range(1, count + 1):
        evolve.evolve(fresh, ev.ProjectCreated(n, f"/r/{n}", f"r-{n}", 1.0))
        evolve.evolve(fresh, ev.IdentityRegistered(n, f"a-{n}", f"a-{n}", "qa", None, n, 1.0))
        evolve.evolve(fresh, granted(n, 1, 2 * n, (f"codex:{n}",)))
    assert dump(reloaded(fresh)) == dump(fresh)


CHANGES = st.tuples(
    st.sampled_from(("project", "register", "grant", "release", "reply", "forget", "step")), st.integers(1, 9)
)


@given(st.lists(CHANGES, max_size=60), st.lists(CHANGES, max_size=60))
def test_a_snapshot_made_in_steps_is_the_state_at_its_end(
    before: list[tuple[str, int]], meanwhile: list[tuple[str, int]]
) -> None:
    fresh = State()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "CHUNK", 2)
        patch.setattr(snapshot, "PIECES_A_STEP", 1)
        for what, number in before:
            change(fresh, what, number)
        freezing = snapshot.Freezing(fresh)
        steps = freezing.steps()
        for what, number in meanwhile:
            if what == "step":
                next(steps, None)
            for event in change(fresh, what, number):
                if not isinstance(event, ev.Replied):  # which the engine tells nobody
                    freezing.on_staged(0, event)
        frozen = freezing.end({})
        expected = dump(reloaded(fresh))
        assert expected == dump(fresh)
        for what, number in before:  # what comes later is not in it
            change(fresh, what, number)
        assert dump(snapshot.load(snapshot.encode(frozen))) == expected


def change(fresh: State, what: str, number: int) -> list[ev.Event]:
    """Apply what the word means now, if it means anything; the events."""
    events: list[ev.Event] = []
    one = fresh.identities.get(number)
    match what:
        case "project":
            project = fresh.next_project
            events.append(ev.ProjectCreated(project, f"/r/{project}", f"r-{project}", 1.0))
        case "register":
            new = fresh.next_identity
            events.append(ev.IdentityRegistered(new, f"a-{new}", f"a-{new}", "qa", None, 0, 1.0))
        case "grant" if one is not None and one.hold is None:
            events.append(granted(number, one.epoch + 1, 2 * number, (f"codex:{number % 3}",)))
        case "release" if one is not None and one.hold is not None:
            events.append(ev.Released(number, one.epoch, 2.0, 2.0))
        case "reply":
            instance = f"i{number % 3}"
            request = f"r{len(fresh.replies.get(instance, ()))}-{number}-{fresh.next_identity}"
            if request not in fresh.replies.get(instance, ()):
                events.append(ev.Replied(instance, request, b"12345678", b"{}"))
        case "forget":
            events.append(ev.InstancesForgotten((f"i{number % 3}",)))
        case _:
            pass
    for event in events:
        evolve.evolve(fresh, event)
    return events


NAMES = st.from_regex(r"[a-c]{2,4}", fullmatch=True)


@given(st.lists(st.tuples(st.sampled_from(("add", "look", "drop")), NAMES), max_size=120))
def test_a_roster_is_a_sorted_set(steps: list[tuple[str, str]]) -> None:
    roster, plain = Roster(), set[str]()
    for step, name in steps:
        if step == "add" and name not in plain:
            roster.add(name)
            plain.add(name)
        elif step == "drop":
            roster.discard(name)
            plain.discard(name)
        elif step == "look":
            assert list(roster.ordered()) == sorted(plain)
    assert list(roster.ordered()) == sorted(plain)
