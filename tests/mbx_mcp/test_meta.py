"""`_meta` of the daemon's results in every revision: unread goes through, and no key comes twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mbx_mcp import shapes

RESULTS = [
    b'{"content":[],"isError":false,"_meta":{"unread":3}}',
    b'{"content":[{"text":"\\"_meta\\":{\\"unread\\":9}}"}],"isError":false,"_meta":{"unread":0}}',
    b'{"content":[],"isError":true}',
    b'{"content":[],"_meta":{}}',
    b'{"_meta":{"unread":1},"content":[]}',
    b'{"content":[],"_meta":{"unread":1,"more":{"a":1}}}',
    b'{"content":[],"structuredContent":{"a":{"b":1,"_meta":{"c":1}}}}',
    b'{"content":[],"structuredContent":{"_meta":{"c":1}},"_meta":{"unread":1}}',
]


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(pairs) == len(dict(pairs)), pairs
    return dict(pairs)


@pytest.mark.parametrize("version", [*shapes.MODERN, *shapes.LEGACY])
@pytest.mark.parametrize("encoded", RESULTS)
def test_the_quick_way_says_the_same(version: str, encoded: bytes) -> None:
    careful = shapes.call_result(json.loads(encoded), version)
    quick = shapes.encoded_call_result(encoded, version)
    if quick is not None:
        assert json.loads(quick, object_pairs_hook=once) == careful
    meta = json.loads(encoded).get("_meta", {})
    assert meta.items() <= careful.get("_meta", {}).items()
    assert (shapes.SERVER_INFO in careful.get("_meta", {})) == (version in shapes.MODERN)


def test_what_the_daemon_sends_goes_the_quick_way() -> None:
    for version in ("2026-07-28", "2025-11-25", "2025-06-18"):
        assert shapes.encoded_call_result(RESULTS[0], version) is not None
