"""Runs a plan, or parts of it, and looks for the shortest part that fails."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tests.torture import plan
from tests.torture.daemons import Broken
from tests.torture.plan import Step
from tests.torture.world import World


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run came to. failure: "" when all is well; steps: those that were taken; did: how much that was."""

    failure: str
    steps: tuple[Step, ...]
    did: str
    history: str


def run(seed: int, steps: Sequence[Step], builds: tuple[Path, Path], until: float = float("inf")) -> Outcome:
    """One world. It ends early, and in order, when `until` (monotonic seconds) has come."""
    taken: list[Step] = []
    failure = ""
    world = World(seed, builds)
    try:
        with world:
            for step in steps:
                if time.monotonic() > until:
                    break
                taken.append(step)
                world.take(step)
            world.finish()
    except (Broken, AssertionError, OSError) as error:
        failure = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}{_place(error)}"
    return Outcome(failure, tuple(taken), world.did(), world.history.text())


def _place(error: BaseException) -> str:
    """Where an error that is none of the model's came from."""
    return "\n" + "".join(traceback.format_tb(error.__traceback__)[-4:])


def part(seed: int, count: int, drop: Sequence[int] = ()) -> list[Step]:
    """The first steps of a seed's plan, without some."""
    return [step for step in islice(plan.steps(seed), count) if step.at not in set(drop)]


def shrink(steps: Sequence[Step], fails: Callable[[Sequence[Step]], bool], until: float) -> list[Step]:
    """A shorter part that fails too: the shortest prefix by bisection, then without whole kinds of steps and actors,
    then without pieces and single steps. Bounded by `until`, in monotonic seconds: it returns what it has by then.
    """
    found = list(steps)

    def still(some: list[Step]) -> bool:
        return bool(some) and time.monotonic() < until and fails(some)

    low, high = 0, len(found)
    while low + 1 < high and time.monotonic() < until:
        middle = (low + high) // 2
        if fails(found[:middle]):
            high = middle
        else:
            low = middle
    found = found[:high]
    groups: list[tuple[str, object]] = [("what", what) for what in dict.fromkeys(step.what for step in found)]
    groups += [("who", who) for who in range(plan.CAST)]
    for field, value in groups:
        without = [step for step in found if getattr(step, field) != value]
        if len(without) < len(found) and still(without):
            found = without
    size = max(len(found) // 2, 1)
    while time.monotonic() < until:
        at = 0
        while at < len(found) and time.monotonic() < until:
            without = found[:at] + found[at + size :]
            if still(without):
                found = without
            else:
                at += size
        if size == 1:
            break
        size //= 2
    return found
