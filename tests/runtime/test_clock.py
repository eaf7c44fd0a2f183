"""Time that passes only while it is watched, reading by reading."""

from __future__ import annotations

import pytest

from mbxd.runtime.clock import LONGEST_STEP, TICK, AwakeTime


class Hand:
    """A clock that the test moves."""

    at = 1000.0

    def wall(self) -> float:
        raise AssertionError("graces never look at the wall clock")

    def awake(self) -> float:
        return self.at


def test_it_begins_at_nothing_and_adds_up_what_was_watched() -> None:
    hand = Hand()
    awake = AwakeTime(hand)
    assert awake.now() == 0.0
    for number in range(1, 5):
        hand.at += 0.25
        assert awake.now() == number * 0.25
        assert awake.tick() == awake.now() == number * 0.25


@pytest.mark.parametrize(("step", "counted"), [(LONGEST_STEP, LONGEST_STEP), (3600.0, LONGEST_STEP), (-3600.0, 0.0)])
def test_a_gap_counts_little_and_a_step_back_nothing(step: float, counted: float) -> None:
    hand = Hand()
    awake = AwakeTime(hand)
    hand.at += step
    assert awake.now() == counted
    assert awake.now() == counted, "looking moves nothing"
    assert awake.tick() == counted
    hand.at += 0.5
    assert awake.now() == counted + 0.5


def test_a_late_tick_is_no_gap() -> None:
    assert TICK * 2 <= LONGEST_STEP <= 5
