"""The second table of docs/liveness.md, row by row."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbxd.core.events import SessionRef
from mbxd.core.liveness import Evidence, Policy, Standing, Status, assess, is_loose
from mbxd.core.state import Hold, Identity, PastHold
from tests.core.model import process

POLICY = Policy()
SESSION = SessionRef(process(1), "", "claude-code")
FREE = Identity(1, "a-b", "a-b", "qa", None, 0, 0.0, 0.0)
HELD = Identity(1, "a-b", "a-b", "qa", None, 0, 0.0, 0.0, epoch=1, hold=Hold(SESSION, 0.0, (process(2),)))
STATUSES: tuple[Status, ...] = ("alive", "dead", "unknown")


def judged(host: Status, shims: Status, connected: bool, loose: float = 0.0, reason: str = "holder-exited") -> Standing:
    return assess(HELD, Evidence(host, reason, shims, connected, loose), POLICY)


@pytest.mark.parametrize("reason", ["holder-exited", "pid-reused", "rebooted"])
@pytest.mark.parametrize("shims", STATUSES)
@pytest.mark.parametrize("connected", [False, True])
def test_row_1_a_dead_host(reason: str, shims: Status, connected: bool) -> None:
    assert judged("dead", shims, connected, reason=reason) == ("vacant", reason, 0.0)


@pytest.mark.parametrize("connected", [False, True])
def test_row_2_attached(connected: bool) -> None:
    assert judged("alive", "alive", connected, loose=1e9) == ("live", "held", None)


@pytest.mark.parametrize(
    ("idle", "sibling", "expected"),
    [
        (1799.9, 0.0, ("live", "held", None)),
        (1800.0, 0.0, ("detached", "conversation-idle", 60.0)),
        (1830.0, 1799.0, ("detached", "conversation-idle", 30.0)),
        (1860.0, 0.0, ("detached", "grace-over", 0.0)),
        (1e6, None, ("live", "held", None)),
        (1e6, 1800.0, ("live", "held", None)),
    ],
)
def test_row_3_a_silent_conversation_among_talking_siblings(
    idle: float, sibling: float | None, expected: tuple[str, str, float | None]
) -> None:
    seen = Evidence("alive", "", "alive", connected=True, idle_s=idle, sibling_s=sibling)
    assert assess(HELD, seen, POLICY) == expected


@pytest.mark.parametrize("connected", [False, True])
def test_row_4_detached_though_a_child_may_have_the_connection(connected: bool) -> None:
    assert judged("alive", "dead", connected, 20.0) == ("detached", "detached", 40.0)


UNREADABLE = [pair for pair in itertools.product(STATUSES, STATUSES) if "unknown" in pair and pair[0] != "dead"]


@pytest.mark.parametrize(("host", "shims"), UNREADABLE)
def test_rows_5_and_6_unreadable(host: Status, shims: Status) -> None:
    assert judged(host, shims, True, 1e9) == ("live", "held", None)
    assert judged(host, shims, False, 59.5) == ("unknown", "unverifiable", 0.5)


@pytest.mark.parametrize(
    ("host", "shims", "state"), [("alive", "dead", "detached"), *((h, s, "unknown") for h, s in UNREADABLE)]
)
@pytest.mark.parametrize("loose", [60.0, 60.1, 1e9])
def test_row_7_after_the_grace(host: Status, shims: Status, state: str, loose: float) -> None:
    assert judged(host, shims, False, loose) == (state, "grace-over", 0.0)


def test_before_any_evidence_nothing_is_known_and_no_time_has_passed() -> None:
    assert assess(HELD, None, POLICY) == ("unknown", "unverifiable", 60.0)


@pytest.mark.parametrize(
    ("past", "shown"),
    [
        *((r, r) for r in ("released", "freed", "holder-exited", "pid-reused", "rebooted", "grace-over")),
        *((r, "grace-over") for r in ("detached", "conversation-idle", "unverifiable")),
        ("a-reason-of-a-newer-build", "holder-exited"),
    ],
)
def test_how_a_vacant_one_came_to_be(past: str, shown: str) -> None:
    identity = Identity(1, "a-b", "a-b", "qa", None, 0, 0.0, 0.0, epoch=3, past=PastHold(SESSION, 0.0, past))
    assert assess(identity, None, POLICY) == ("vacant", shown, 0.0)


def test_never_held_and_freed_while_vacant() -> None:
    assert assess(FREE, None, POLICY) == ("vacant", "never-held", 0.0)
    freed = Identity(1, "a-b", "a-b", "qa", None, 0, 0.0, 0.0, epoch=1)
    assert assess(freed, None, POLICY) == ("vacant", "freed", 0.0)


@pytest.mark.parametrize(("how", "reason"), [("swept", "swept"), ("retired", "retired")])
def test_put_away(how: str, reason: str) -> None:
    identity = Identity(1, "a-b", "a-b", "qa", None, 0, 0.0, 0.0, retired=how)
    assert assess(identity, None, POLICY) == ("retired", reason, None)


EVIDENCE = st.builds(
    Evidence,
    st.sampled_from(STATUSES),
    st.just("holder-exited"),
    st.sampled_from(STATUSES),
    st.booleans(),
    st.floats(0, 1e9),
    st.floats(0, 1e9),
    st.one_of(st.none(), st.floats(0, 1e9)),
)


@given(EVIDENCE)
def test_the_table_as_a_whole(seen: Evidence) -> None:
    state, reason, wait = assess(HELD, seen, POLICY)
    assert (state == "vacant") == (seen.host == "dead"), "only proof of death makes vacant"
    assert (wait is None) == (state == "live")
    loose = is_loose(seen.host, seen.shims, connected=seen.connected)
    assert loose <= (state in {"detached", "unknown"})
    if seen.sibling_s is None:
        assert loose == (state in {"detached", "unknown"}), "the grace runs while it is needed, and then alone"
    if reason == "grace-over":
        assert wait == 0.0
        assert max(seen.loose_s, seen.idle_s - POLICY.idle_after) >= POLICY.detach_grace
