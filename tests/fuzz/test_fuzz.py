"""Every target (see `targets`): its corpus, a moment of hypothesis, and in the slow run a minute of changed seeds.

A failure names the input. Put it into `corpus/<target>/`, under a name that says what it is: it is replayed ever after.
"""

from __future__ import annotations

import itertools
import random
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.seeds import all_targets, mutated
from tests.fuzz.targets import Target

CORPUS = Path(__file__).with_name("corpus")
TARGETS = [pytest.param(target, id=target.name) for target in all_targets()]
LONG_S = 60.0


def run(target: Target, data: bytes) -> None:
    """One input; a failure shows it."""
    try:
        target.check(data)
    except BaseException as error:
        error.add_note(f"target {target.name}, input {data[:4000]!r}")
        raise


def inputs(target: Target) -> st.SearchStrategy[bytes]:
    """Anything, and changed seeds."""
    return st.binary(max_size=200) | st.integers(0, 2**48).map(partial(mutated, seeds=target.seeds))


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_and_corpus(target: Target) -> None:
    kept = sorted((CORPUS / target.name).glob("*"))
    assert kept, "every target has inputs that once mattered"
    for data in (*target.seeds, b"", *(path.read_bytes() for path in kept)):
        run(target, data)


def test_the_corpus_is_of_targets() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {target.name for target in all_targets()}


@pytest.mark.parametrize("target", TARGETS)
def test_for_a_moment(target: Target) -> None:
    until = time.monotonic() + 1.5

    @settings(
        max_examples=150,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large],
    )
    @given(inputs(target))
    def fuzz(data: bytes) -> None:
        if time.monotonic() < until:  # a slow machine tries fewer
            run(target, data)

    fuzz()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("target", TARGETS)
def test_for_a_minute(target: Target) -> None:
    start = random.SystemRandom().randrange(2**48)
    until = time.monotonic() + LONG_S
    tried = 0
    for number in itertools.count(start):
        data = mutated(number, target.seeds)
        if number % 10 == 0:
            data = random.Random(number).randbytes(number % 300)
        run(target, data)
        tried += 1
        if time.monotonic() > until:
            break
    print(f"{target.name}: {tried} inputs from {start}")
