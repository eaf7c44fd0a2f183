"""Taking times: one clock, medians, and subjects that take turns.

Owns how samples are taken. A baseline drifts on a shared machine, so that a subject and its floor are always
sampled in turns within the same seconds, and medians are compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

Sample = Callable[[], float]
"""Runs once and says how many seconds it took."""


def timed(act: Callable[[], object]) -> Sample:
    """A sample of a function."""

    def sample() -> float:
        began = time.perf_counter()
        act()
        return time.perf_counter() - began

    return sample


def in_turns(rounds: int, each: int, *subjects: Sample) -> list[list[float]]:
    """Samples of each subject in seconds: `rounds` times `each` of the first, of the second, and so on."""
    found: list[list[float]] = [[] for _ in subjects]
    for number in range(rounds):
        # Turn the order around each time: whoever runs after whom must not matter.
        order = range(len(subjects)) if number % 2 == 0 else range(len(subjects) - 1, -1, -1)
        for place in order:
            subject, samples = subjects[place], found[place]
            for _ in range(each):
                samples.append(subject())
    return found


def quantile(samples: Sequence[float], share: float) -> float:
    """The sample below which `share` of them are."""
    ordered = sorted(samples)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def p50(samples: Sequence[float]) -> float:
    """The median."""
    return quantile(samples, 0.5)
