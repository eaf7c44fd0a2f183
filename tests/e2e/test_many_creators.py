"""Many who create at once: every name is another's, and nobody is asked to try again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.daemon import PATIENCE, DaemonProcess, Refused
from tests.support.trees import Forest, Speaker

CREATORS = 32
PROFILE = {"project_key": "/repos/shop", "program": "codex", "model": "five"}


def at_once(speakers: list[Speaker], act: Callable[[int, Speaker], Any], limit: float = PATIENCE) -> list[Any]:
    """What each gets, all starting at the same instant."""
    barrier = threading.Barrier(len(speakers))
    results: list[Any] = [None] * len(speakers)

    def go(at: int) -> None:
        barrier.wait(PATIENCE)
        try:
            results[at] = act(at, speakers[at])
        except Refused as refusal:
            results[at] = refusal

    threads = [threading.Thread(target=go, args=(at,)) for at in range(len(speakers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit)
    return results


def create(daemon: DaemonProcess, forest: Forest, total: int) -> None:
    speakers = forest.sessions(daemon, CREATORS)
    each = -(-total // CREATORS)
    made = at_once(
        speakers,
        lambda _at, speaker: [speaker.client.call("agent.create", PROFILE) for _ in range(each)],
        limit=PATIENCE * 4,
    )
    assert not [result for result in made if not isinstance(result, list)], "no retry is asked of anybody"
    everything = [result for results in made for result in results]
    assert len(everything) >= total
    for key in ("id", "name", "address", "registration_token"):
        assert len({str(result[key]).lower() for result in everything}) == len(everything), key
    for results in made:
        assert [result["bound"] for result in results] == [True] + [False] * (each - 1)
    assert daemon.person().call("status")["identities"] == len(everything)


def test_everybody_gets_names_of_their_own(daemon: DaemonProcess, forest: Forest) -> None:
    create(daemon, forest, 160)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_names_for_thirty_two(daemon: DaemonProcess, forest: Forest) -> None:
    create(daemon, forest, 1000)


def case_variant(name: str, number: int) -> str:
    """The name in the case that the bits of `number` spell."""
    return "".join(c.upper() if number >> i & 1 else c.lower() for i, c in enumerate(name))


def races(daemon: DaemonProcess, forest: Forest, hints: list[str]) -> None:
    speakers = forest.sessions(daemon, CREATORS)
    for hint in hints:
        made = at_once(
            speakers,
            lambda at, speaker, hint=hint: speaker.client.call(  # type: ignore[misc]
                "agent.create", {**PROFILE, "name_hint": case_variant(hint, at * 37)}
            ),
        )
        winners = [result for result in made if not isinstance(result, Refused)]
        assert [result["name"] for result in winners] == [hint]
        assert {result.code for result in made if isinstance(result, Refused)} == {"NAME_TAKEN"}
    for name in (f"{hint}.7" for hint in hints):
        made = at_once(
            speakers,
            lambda at, speaker, name=name: speaker.client.call(  # type: ignore[misc]
                "agent.register", {**PROFILE, "name": case_variant(name, at * 37)}
            ),
        )
        assert len({result["id"] for result in made if not isinstance(result, Refused)}) == 1, "one is made"
        assert {result.code for result in made if isinstance(result, Refused)} <= {"IDENTITY_IN_USE"}


def test_case_variants_race_for_one_name(daemon: DaemonProcess, forest: Forest) -> None:
    races(daemon, forest, ["GreenCastle", "BlueLake"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_case_variants_race_for_many_names(daemon: DaemonProcess, forest: Forest) -> None:
    races(
        daemon, forest, [a + n for a in ("Green", "Blue", "Red", "Purple") for n in ("Castle", "Lake", "Stone", "Bear")]
    )
