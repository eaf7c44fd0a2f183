"""Old records stay readable: the schema of events only grows.

`events.jsonl` holds one record of every kind of event, as some build wrote it, and what it meant. Lines are added,
never changed. To add the line of a new event, put a sample of it into SAMPLES and run this module as a program.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import astuple, fields

from mbxd.core import events as ev
from mbxd.ports import ProcessId

GOLDEN = Path(__file__).parents[1] / "golden" / "v1" / "events.jsonl"
HOST = ProcessId("6f1d3a3c-92f7-4f0e-8f6e-0d2f3c1b5a79", 4026531836, 4711, 123456789, 987654321)
SHIM = ProcessId("6f1d3a3c-92f7-4f0e-8f6e-0d2f3c1b5a79", 4026531836, 4712, 123456790, 0)
SESSION = ev.SessionRef(HOST, "thread-7", "claude-code", ("claude-code:0b1e", "claude-code:thread-7"))

SAMPLES: tuple[ev.Event, ...] = (
    ev.ProjectCreated(3, "/home/anna/shop", "shop", 1769860800.125),
    ev.IdentityRegistered(7, "GreenCastle", "greencastle", "qa", "Tests", 3, 1769860800.5, "codex", "m-1", "t", "auto"),
    ev.Granted(7, 12, SESSION, (SHIM, HOST), 1769860801.0),
    ev.ShimAttached(7, 12, SHIM, 1769860802.0),
    ev.Released(7, 12, 1769860803.0, 1769860802.5),
    ev.HolderEnded(7, 12, "grace-over", 1769860804.0, 1769860803.5, "codex"),
    ev.Freed(7, 13, "it hangs", 1769860805.0, 1769860804.5),
    ev.RoleSet(7, "backend", 1769860806.0),
    ev.Retired(7, "swept", 1769860807.0),
    ev.Unretired(7, 1769860808.0),
    ev.Renamed(7, "shop-api", "shop-api", 1769860809.0),
    ev.Replied("instance-1", "request-1", b"\x00\xff\x10", b'{"ok":true}'),
    ev.InstancesForgotten(("instance-1", "instance-2")),
    ev.ProfileUpdated(7, "codex", "m-2", None, "file", 1769860810.0),
    ev.TokenRotated(7, 2, 1769860811.0),
    ev.Confirmed(7, 13, 1769860812.0),
)


def plain(value: Any) -> Any:
    """JSON of an event by field names; a process by its values in order, as in the record."""
    if isinstance(value, ProcessId):
        return list(astuple(value))
    if isinstance(value, msgspec.Struct):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, bytes):
        return value.hex()
    return [plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def line(event: ev.Event) -> dict[str, Any]:
    return {"kind": type(event).__name__, "record": ev.encode(event).hex(), "fields": plain(event)}


def golden() -> list[dict[str, Any]]:
    return [json.loads(text) for text in GOLDEN.read_text().splitlines()]


@pytest.mark.parametrize("known", golden(), ids=lambda known: known["kind"])
def test_a_record_means_what_it_meant(known: dict[str, Any]) -> None:
    event = ev.decode(bytes.fromhex(known["record"]))
    assert type(event).__name__ == known["kind"]
    now = plain(event)
    assert grown_from(now, known["fields"])
    for field in fields(event):
        if field.name not in known["fields"]:
            assert getattr(event, field.name) == field.default, "a new field stands at its default in old records"


def grown_from(now: Any, then: Any) -> bool:
    """Whether everything that was there is there with the same value."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(name in now and grown_from(now[name], then[name]) for name in then)
    return bool(now == then)


def test_every_kind_of_event_is_in_the_golden_file() -> None:
    assert {known["kind"] for known in golden()} == {kind.__name__ for kind in get_args(ev.Event)}


def test_tags_are_never_reused() -> None:
    tags = {known["kind"]: msgspec.msgpack.decode(bytes.fromhex(known["record"]))[0] for known in golden()}
    assert tags == {kind.__name__: kind.__struct_config__.tag for kind in get_args(ev.Event)}


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_encoding_and_decoding_are_inverse(event: ev.Event) -> None:
    assert ev.decode(ev.encode(event)) == event


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_fields_that_a_newer_build_added_are_skipped(event: ev.Event) -> None:
    values = msgspec.msgpack.decode(ev.encode(event))
    assert ev.decode(msgspec.msgpack.encode([*values, "later", {"a": 1}])) == event


@pytest.mark.parametrize(
    "record",
    [b"", b"\xc1", msgspec.msgpack.encode([9999, 1, 2]), msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode([])]
    + [msgspec.msgpack.encode(msgspec.msgpack.decode(ev.encode(e))[:2]) for e in SAMPLES if len(fields(e)) > 1]
    + [ev.encode(SAMPLES[0]) + b"\x00", ev.encode(SAMPLES[0])[:-1]],
)
def test_what_is_no_event_of_this_build_is_an_error(record: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        ev.decode(record)


def test_fields_after_the_first_release_have_defaults() -> None:
    """A record of the first build has as many fields as its line: whatever came later must be optional."""
    for known in golden():
        kind = next(k for k in get_args(ev.Event) if k.__name__ == known["kind"])
        later = [f for f in fields(kind) if f.name not in known["fields"]]
        assert not any(f.required for f in later), known["kind"]
        assert [f.name for f in fields(kind)][: len(known["fields"])] == list(known["fields"]), "only at the end"


if __name__ == "__main__":
    have = {known["kind"] for known in golden()} if GOLDEN.exists() else set()
    with GOLDEN.open("a") as file:
        for sample in SAMPLES:
            if type(sample).__name__ not in have:
                file.write(json.dumps(line(sample)) + "\n")
