"""What a mail call may ask for: every limit from both sides, and the parameter that a refusal names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mbx_wire import mail as wire
from mbxd.core.mailrules import check
from mbxd.core.rejected import Rejected

HALF = "\ud800"
"""Half of a surrogate pair, which JSON can carry and UTF-8 can't."""


def send(**fields: Any) -> wire.SendParams:
    return wire.SendParams(**{"to": ["shop-backend"], "subject": "Deploy is done", "body": "All green.", **fields})


GOOD: list[msgspec.Struct] = [
    wire.WhoamiParams(),
    *(wire.InboxParams(limit=limit, wait_s=wait) for limit in (None, 1, 200) for wait in (None, 0, 0.5, 45)),
    *(wire.PeekParams("shop-backend", limit=limit) for limit in (None, 1, 200)),
    *(wire.ReadParams(ids, offset) for ids in (["a"], ["a"] * 20) for offset in (None, 0, 10**9)),
    send(),
    send(to=["a"] * 20, subject="x" * 200, body="", refs=["r" * 64] * 20, idempotency_key="k" * 128),
    send(body="é" * (wire.BODY_MAX // 2), refs=[]),
    wire.ReplyParams("a", "x" * wire.BODY_MAX),
    *(wire.AckParams(ids, note) for ids in (["a"], ["a"] * 50) for note in (None, "", "x" * 10_000)),
    *(wire.SentParams(limit=limit) for limit in (None, 1, 200)),
    *(wire.ThreadParams("a", limit=limit) for limit in (None, 1, 200)),
    *(wire.SearchParams("x" * size, limit=limit) for size in (1, 500) for limit in (None, 1, 200)),
    wire.PruneParams(0),
    wire.PruneParams(wire.PRUNE_MAX_S),
]


@pytest.mark.parametrize("params", GOOD, ids=lambda params: type(params).__name__)
def test_what_is_within_the_limits_passes(params: msgspec.Struct) -> None:
    check(params)


INVALID: list[tuple[str, msgspec.Struct]] = [
    *(("limit", wire.InboxParams(limit=limit)) for limit in (0, -1, 201)),
    *(("limit", wire.PeekParams("shop-backend", limit=limit)) for limit in (0, 201)),
    *(("limit", wire.SentParams(limit=limit)) for limit in (0, 201)),
    *(("limit", wire.ThreadParams("a", limit=limit)) for limit in (0, 201)),
    *(("limit", wire.SearchParams("x", limit=limit)) for limit in (0, 201)),
    *(("wait_s", wire.InboxParams(wait_s=wait)) for wait in (-0.1, 45.1, float("nan"), float("inf"))),
    *(("ids", wire.ReadParams(ids)) for ids in ([], ["a"] * 21)),
    *(("offset", wire.ReadParams(["a"], offset)) for offset in (-1, -(10**9))),
    *(("ids", wire.AckParams(ids)) for ids in ([], ["a"] * 51)),
    *(("to", send(to=to)) for to in ([], ["a"] * 21, ["a", " "], [""])),
    *(
        ("subject", send(subject=text))
        for text in ("", " ", "x" * 201, "a\nb", "a\u2028b", "a\x00b", "a\x85b", "a\x7fb")
    ),
    *(("refs", send(refs=refs)) for refs in (["r"] * 21, ["r" * 65], ["a\nb"])),
    ("idempotency_key", send(idempotency_key="k" * 129)),
    *(("query", wire.SearchParams(text)) for text in ("", " \n", "x" * 501)),
    *(("older_than_s", wire.PruneParams(age)) for age in (-1, wire.PRUNE_MAX_S + 1, float("nan"))),
]


@pytest.mark.parametrize(("name", "params"), INVALID, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_beyond_them_is_refused_by_name_with_an_example(name: str, params: msgspec.Struct) -> None:
    with pytest.raises(Rejected) as caught:
        check(params)
    assert (caught.value.code, caught.value.data) == ("PARAMETER_INVALID", {"parameter": name})
    assert caught.value.message.startswith(f"`{name}` ")
    assert caught.value.hint.startswith("For example ")


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("subject", send(subject=HALF)),
        ("body", send(body=HALF)),
        ("body", wire.ReplyParams("a", HALF)),
        ("refs", send(refs=["a", HALF])),
        ("idempotency_key", send(idempotency_key=HALF)),
        ("note", wire.AckParams(["a"], HALF)),
        ("query", wire.SearchParams(HALF)),
    ],
)
def test_a_text_that_is_no_unicode_is_refused_by_name(name: str, params: msgspec.Struct) -> None:
    with pytest.raises(Rejected) as caught:
        check(params)
    assert (caught.value.code, caught.value.data) == ("TEXT_INVALID", {"parameter": name})
    assert caught.value.hint


@pytest.mark.parametrize("text", ["x" * (wire.BODY_MAX + 1), "é" * (wire.BODY_MAX // 2) + "x"])
def test_a_body_is_measured_in_bytes_of_utf8(text: str) -> None:
    for params in (send(body=text), wire.ReplyParams("a", text)):
        with pytest.raises(Rejected) as caught:
            check(params)
        assert caught.value.code == "BODY_TOO_LONG"
        assert caught.value.data == {"parameter": "body", "size": wire.BODY_MAX + 1, "limit": wire.BODY_MAX}
