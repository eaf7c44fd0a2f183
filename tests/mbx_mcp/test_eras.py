"""The rules of both eras, without a process: every result against the schema of its revision."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types.methods import validate_server_result

from mbx_mcp import shapes
from mbx_mcp.eras import MAX_OPEN, Eras, load_tools
from tests.mbx_mcp.spoken import MODERN, VERSIONS, one, opened, say, take
from tests.support.generate_tools import TARGET, content
from tests.support.shim_process import ENVELOPE, call, initialize, modern, request

RESULT = {
    "content": [{"type": "text", "text": '{"a":1}'}],
    "structuredContent": {"a": 1},
    "isError": False,
}


def asked(version: str, method: str, params: dict[str, Any] | None = None, request_id: int | str = 1) -> Any:
    return (modern if version == MODERN else request)(method, params, request_id)


def test_tool_file_is_current() -> None:
    assert TARGET.read_text(encoding="utf-8") == content(), "run: python tests/support/generate_tools.py"


def test_tools_are_sound() -> None:
    for tool in load_tools():
        assert len(tool["description"]) <= 700
        jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
        jsonschema.Draft202012Validator.check_schema(tool["outputSchema"])
        assert all(prop.get("description") for prop in tool["inputSchema"].get("properties", {}).values())


@pytest.mark.parametrize("version", VERSIONS)
def test_lists_and_calls_fit_their_revision(version: str) -> None:
    eras = opened(version)
    listed = one(eras, asked(version, "tools/list"))["result"]
    validate_server_result("tools/list", version, listed)
    assert say(eras, asked(version, "tools/call", {"name": "mbx_identity", "arguments": {}}, "c")) == []
    eras.answer(eras.calls[0].ticket, RESULT)
    (answer,) = take(eras)
    assert answer["id"] == "c"
    validate_server_result("tools/call", version, answer["result"])
    tool = listed["tools"][0]
    new = version in {"2025-11-25", "2025-06-18", MODERN}
    assert ("outputSchema" in tool) == ("title" in tool) == ("structuredContent" in answer["result"]) == new
    assert ("execution" in tool) == (version == "2025-11-25")
    assert ("annotations" in tool) == (version != "2024-11-05")
    assert ("resultType" in listed) == ("resultType" in answer["result"]) == (version == MODERN)


@pytest.mark.parametrize("version", shapes.LEGACY)
def test_initialize_and_ping_fit_their_revision(version: str) -> None:
    eras = Eras(load_tools)
    validate_server_result("initialize", version, one(eras, initialize(version))["result"])
    validate_server_result("ping", version, one(eras, request("ping"))["result"])


@pytest.mark.parametrize("wanted", ["2030-01-01", "2026-07-28", "1999-01-01", "", None, 5, [], {}])
def test_unknown_versions_get_the_newest_legacy_one(wanted: Any) -> None:
    eras = Eras(load_tools)
    answer = one(eras, request("initialize", {"protocolVersion": wanted}))
    assert answer["result"]["protocolVersion"] == "2025-11-25"
    assert one(eras, request("initialize"))["result"]["protocolVersion"] == "2025-11-25"


def test_discover_fits_its_revision() -> None:
    result = one(Eras(load_tools), modern("server/discover"))["result"]
    validate_server_result("server/discover", MODERN, result)
    assert result["supportedVersions"] == [MODERN]
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "mbx"


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        ({}, -32602),
        ({"io.modelcontextprotocol/protocolVersion": MODERN}, -32602),
        ({"io.modelcontextprotocol/clientCapabilities": {}}, -32602),
        ({**ENVELOPE, "io.modelcontextprotocol/protocolVersion": 7}, -32602),
        ({**ENVELOPE, "io.modelcontextprotocol/clientCapabilities": []}, -32602),
        ({**ENVELOPE, "io.modelcontextprotocol/protocolVersion": "2030-01-01"}, -32022),
        ({**ENVELOPE, "io.modelcontextprotocol/protocolVersion": "2025-11-25"}, -32022),
    ],
)
def test_envelope_is_checked(meta: dict[str, Any], code: int) -> None:
    error = one(Eras(load_tools), request("tools/list", {"_meta": meta}))["error"]
    assert error["code"] == code
    if code == -32022:
        requested = meta["io.modelcontextprotocol/protocolVersion"]
        assert error["data"] == {"supported": [MODERN], "requested": requested}


@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel", "resources/subscribe", "nonsense"])
def test_removed_and_unknown_methods(method: str) -> None:
    assert one(Eras(load_tools), modern(method))["error"]["code"] == -32601
    if method not in {"initialize", "ping", "resources/subscribe"}:
        assert one(opened("2025-06-18"), request(method))["error"]["code"] == -32601


def test_both_eras_on_one_process() -> None:
    eras = opened("2025-06-18")
    assert "resultType" not in one(eras, request("tools/list"))["result"]
    assert "resultType" in one(eras, modern("tools/list"))["result"]
    assert "resultType" not in one(eras, request("tools/list"))["result"]


@pytest.mark.parametrize("request_id", [0, -1, "", "0", 2**53 + 1, 10**100, "a", "ü", "\u2028", "\U0001f642"])
def test_ids_come_back_as_they_were(request_id: int | str) -> None:
    eras = opened("2025-11-25")
    line = json.dumps(request("ping", request_id=request_id), ensure_ascii=False).encode()
    eras.receive(line)
    assert eras.out == [
        b'{"jsonrpc":"2.0","id":' + json.dumps(request_id, ensure_ascii=False).encode() + b',"result":{}}'
    ]


@pytest.mark.parametrize("request_id", [None, True, False, 1.5, 1e3, [], {}])
def test_other_ids_are_refused(request_id: Any) -> None:
    answer = one(opened("2025-11-25"), {"jsonrpc": "2.0", "id": request_id, "method": "ping"})
    assert answer["error"]["code"] == -32600
    assert answer["id"] is None


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ([], -32602),
        ("x", -32602),
        (5, -32602),
        ({}, -32602),
        (None, -32602),
        ({"name": 5}, -32602),
        ({"name": "nonsense"}, -32602),
        ({"name": "mbx_identity", "arguments": []}, -32602),
        ({"name": "mbx_identity", "arguments": "x"}, -32602),
    ],
)
def test_misshapen_calls(params: Any, code: int) -> None:
    eras = opened("2025-11-25")
    answer = one(eras, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    assert answer["error"]["code"] == code
    assert eras.calls == []


def test_absent_arguments_are_empty_ones() -> None:
    eras = opened("2025-11-25")
    assert say(eras, request("tools/call", {"name": "mbx_identity", "arguments": None})) == []
    assert eras.calls[0].arguments == {}


def test_notifications_and_responses_are_never_answered() -> None:
    eras = opened("2025-11-25")
    silent = [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/nonsense", "params": 5},
        {"jsonrpc": "2.0", "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 5, "result": {}},
        {"jsonrpc": "2.0", "id": 5, "error": {"code": 1, "message": "x"}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": []}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled"},
    ]
    assert say(eras, *silent) == []


def test_cancel_tells_ids_of_both_types_apart() -> None:
    eras = opened("2025-11-25")
    say(eras, call(request_id=1), call(request_id="1"))
    say(eras, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "1"}})
    assert eras.cancelled == [eras.calls[1].ticket]
    for accepted in eras.calls:
        eras.answer(accepted.ticket, RESULT)
    assert [answer["id"] for answer in take(eras)] == [1]


def test_batches_exist_in_one_revision_only() -> None:
    pings = [request("ping", request_id=i) for i in range(3)]
    for version in VERSIONS:
        if version != shapes.BATCHES_IN:
            assert one(opened(version), pings)["error"]["code"] == -32600
    eras = opened(shapes.BATCHES_IN)
    mixed = [
        *pings,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        call(request_id="c"),
        5,
        initialize(request_id="i"),
    ]
    assert say(eras, mixed) == []
    eras.answer(eras.calls[0].ticket, RESULT)
    (answers,) = take(eras)
    assert [answer["id"] for answer in answers] == [0, 1, 2, None, "i", "c"]
    assert one(eras, [])["error"]["code"] == -32600
    assert say(eras, [{"jsonrpc": "2.0", "method": "notifications/initialized"}]) == []
    say(eras, [request("ping", request_id=1), call(request_id="gone")])
    (answers,) = say(eras, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "gone"}})
    assert [answer["id"] for answer in answers] == [1]


def test_open_calls_are_bounded() -> None:
    eras = opened("2025-11-25")
    assert say(eras, *[call(request_id=i) for i in range(MAX_OPEN)]) == []
    refused = one(eras, call(request_id="more"))["result"]
    assert refused["structuredContent"]["error"]["code"] == "BUSY"


def test_subscription_is_acknowledged_and_ends() -> None:
    eras = opened(MODERN)
    (ack,) = say(eras, modern("subscriptions/listen", {"notifications": {"resourcesListChanged": True}}, "s"))
    assert ack["method"] == "notifications/subscriptions/acknowledged"
    assert ack["params"] == {
        "_meta": {"io.modelcontextprotocol/subscriptionId": "s"},
        "notifications": {"resourcesListChanged": True},
    }
    assert one(eras, modern("subscriptions/listen"))["error"]["code"] == -32602
    say(eras, modern("subscriptions/listen", {"notifications": {}}, "t"))
    say(eras, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "t"}})
    eras.finish()
    (last,) = take(eras)
    assert last["id"] == "s"
    validate_server_result("subscriptions/listen", MODERN, last["result"])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
methods = st.sampled_from(
    [
        "initialize",
        "ping",
        "tools/list",
        "tools/call",
        "server/discover",
        "subscriptions/listen",
        "notifications/cancelled",
        "notifications/initialized",
    ]
)
params = st.fixed_dictionaries(
    {},
    optional={
        "_meta": st.just(ENVELOPE) | json_values,
        "name": st.just("mbx_identity") | json_values,
        "arguments": json_values,
        "protocolVersion": st.sampled_from(VERSIONS) | json_values,
        "clientInfo": json_values,
        "notifications": json_values,
        "requestId": st.integers(0, 5) | json_values,
        "cursor": json_values,
    },
)
messages = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0")},
    optional={
        "id": st.integers(0, 5) | st.text(max_size=3) | json_values,
        "method": methods | json_values,
        "params": params | json_values,
        "result": json_values,
    },
)
lines = (messages | st.lists(messages, max_size=4) | json_values).map(lambda v: json.dumps(v).encode()) | st.binary()


@settings(max_examples=60, deadline=None)
@given(st.lists(lines, max_size=12))
def test_nothing_a_client_sends_breaks_it(sent: list[bytes]) -> None:
    eras = Eras(load_tools)
    for line in sent:
        before = len(eras.out)
        eras.receive(line)
        assert len(eras.out) - before <= 1
        for accepted in eras.calls:
            eras.answer(accepted.ticket, RESULT)
        eras.calls.clear()
        eras.cancelled.clear()
    assert eras.open == 0
    eras.finish()
    for line in eras.out:
        assert b"\n" not in line
        json.loads(line)
    eras.out.clear()
    assert one(eras, modern("tools/list", request_id="alive"))["id"] == "alive"


results = st.fixed_dictionaries(
    {"content": st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=20)}), max_size=2)},
    optional={
        "structuredContent": st.dictionaries(st.text(max_size=6) | st.just("_meta"), json_values, max_size=3),
        "isError": st.booleans(),
        "_meta": st.dictionaries(st.text(max_size=6), st.integers(), max_size=2),
    },
)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(VERSIONS), results)
def test_encoded_results_become_what_decoded_ones_become(version: str, result: dict[str, Any]) -> None:
    eras = opened(version)
    encoded = json.dumps(result, separators=(",", ":"))
    result = json.loads(encoded)
    params = {"name": "mbx_identity", "arguments": {}}
    say(eras, asked(version, "tools/call", params, 1), asked(version, "tools/call", params, 1))
    first, second = eras.calls
    eras.answer(first.ticket, result)
    eras.answer_encoded(second.ticket, encoded.encode())
    one_way, other_way = take(eras)
    assert repr(one_way) == repr(other_way) or one_way == other_way
    assert eras.open == 0
