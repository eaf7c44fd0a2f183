"""What a released client may send is still taken, and what it reads in results is still there.

A release's `wire.json` has every member of every method's params and result, and of every tool's arguments, with its
types. More may be taken and more may be given by a later build, never less.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden import readable

GOLDEN = Path(__file__).parent
RELEASES = sorted(GOLDEN.glob("*/wire.json"))
release = pytest.mark.parametrize("release", RELEASES, ids=[path.parent.name for path in RELEASES])
NOW = readable.wire()

Members = dict[str, str]


def fits(narrow: str, wide: str) -> bool:
    """Whether every type and word of one is among those of the other."""
    allowed = set(wide.rstrip("?").split("|"))
    return all(kind in allowed or _wider(kind) & allowed for kind in narrow.rstrip("?").split("|"))


def _wider(kind: str) -> set[str]:
    """What takes a kind beside itself."""
    if kind.startswith("["):
        return {f"[{one}]" for one in _wider(kind[1:-1])}
    return {"any", *(["string"] if kind.startswith("'") else []), *(["number"] if kind == "integer" else [])}


def lost_by_sender(then: Members, now: Members) -> list[str]:
    """Members that a client of the release sends, and which are refused now; and those that it leaves out."""
    found = [f"{path} is gone" for path in then if path not in now]
    found += [
        f"{path} was {then[path]}, is {now[path]}" for path in then if path in now and not fits(then[path], now[path])
    ]
    required = [path for path, kinds in now.items() if not kinds.endswith("?") and then.get(path, "?").endswith("?")]
    return found + [f"{path} must be there now" for path in required if _parent(path) in {"", *then}]


def lost_by_reader(then: Members, now: Members) -> list[str]:
    """Members that a client of the release reads, and which are missing or something else now; words may be new."""
    found = [f"{path} is gone" for path in then if path not in now]
    for path in then.keys() & now.keys():
        if not fits(now[path], then[path] + ("|string" if "'" in then[path] else "")):
            found.append(f"{path} was {then[path]}, is {now[path]}")
        if now[path].endswith("?") and not then[path].endswith("?"):
            found.append(f"{path} may be missing now")
    return sorted(found)


def _parent(path: str) -> str:
    return path.rpartition(".")[0].removesuffix("[]")


@release
@pytest.mark.parametrize("what", ["params", "results", "tools"])
def test_nothing_that_a_released_client_relies_on_is_gone(release: Path, what: str) -> None:
    then = json.loads(release.read_text())[what]
    lost = lost_by_reader if what == "results" else lost_by_sender
    assert then.keys() <= NOW[what].keys()
    assert {name: found for name in then if (found := lost(then[name], NOW[what][name]))} == {}


@pytest.mark.parametrize(
    ("then", "now", "sender", "reader"),
    [
        ({"a": "string"}, {"a": "string", "b": "string?"}, [], []),
        ({"a": "string"}, {"a": "string", "b": "string"}, ["b must be there now"], []),
        ({}, {"a": "object?", "a.b": "string"}, [], []),
        ({"a": "string"}, {"a": "string?"}, [], ["a may be missing now"]),
        ({"a": "string?"}, {}, ["a is gone"], ["a is gone"]),
        ({"a": "string"}, {"a": "integer"}, ["a was string, is integer"], ["a was string, is integer"]),
        ({"a": "number"}, {"a": "integer"}, ["a was number, is integer"], []),
        ({"a": "string"}, {"a": "null|string"}, [], ["a was string, is null|string"]),
        ({"a": "'x'|'y'"}, {"a": "'x'"}, ["a was 'x'|'y', is 'x'"], []),
        ({"a": "'x'"}, {"a": "'x'|'y'"}, [], []),
        ({"a": "[string]"}, {"a": "[any]"}, [], ["a was [string], is [any]"]),
        ({"a": "[object]", "a[].b": "string"}, {"a": "[object]"}, ["a[].b is gone"], ["a[].b is gone"]),
        ({"a": "[object]"}, {"a": "[object]", "a[].b": "string"}, ["a[].b must be there now"], []),
    ],
)
def test_what_counts_as_lost(then: Members, now: Members, sender: list[str], reader: list[str]) -> None:
    assert (lost_by_sender(then, now), lost_by_reader(then, now)) == (sender, reader)
