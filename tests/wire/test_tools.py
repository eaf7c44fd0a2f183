"""Tool definitions: what clients and models are shown, checked by other implementations and against the rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import mcp_types
import msgspec
import pytest

from mbx_wire import tools as wire_tools
from mbx_wire.errors import Code
from mbx_wire.tools import IDENTITY_USES, TOOLS, definition, definitions
from mbxd.core import machine, mailrules
from mbxd.core.context import Caller, Context
from mbxd.core.rejected import Rejected
from mbxd.core.state import State
from mbxd.server import tools as server_tools
from tests.core.model import World, process, project

DEFINITIONS = definitions()
ANNA = Caller("claude-code", process(100), "", (process(101),), ("claude-code:anna",), project=project("shop"))

BASE: dict[str, dict[str, Any]] = {
    "mbx_identity": {"action": "register", "name": "shop-backend", "role": "backend"},
    "create_agent_identity": {"project_key": "/repos/shop", "program": "codex", "model": "m-1"},
    "register_agent": {"project_key": "/repos/shop", "program": "codex", "model": "m-1"},
    "ensure_project": {"human_key": "/repos/shop"},
    "whois": {"project_key": "/repos/shop", "agent_name": "GreenCastle"},
    "retire_agent": {"project_key": "/repos/shop", "agent_name": "GreenCastle"},
    "mbx_whoami": {},
    "mbx_inbox": {},
    "mbx_read": {"ids": ["01JAAAAAAA"]},
    "mbx_send": {"to": ["shop-backend"], "subject": "Deploy", "body": "done"},
    "mbx_reply": {"id": "01JAAAAAAA", "body": "yes"},
    "mbx_ack": {"ids": ["01JAAAAAAA"]},
    "mbx_sent": {},
    "mbx_thread": {"id": "01JAAAAAAA"},
    "mbx_search": {"query": "deploy"},
}
"""A good call of every tool."""

BY_PATTERN: dict[str, tuple[list[str], list[str]]] = {
    # With a slash it means a mailbox that is there, which the daemon alone can say.
    "^([a-z0-9_-]+/)?[a-z0-9][a-z0-9-]{1,39}$": (
        ["ab", "0-", "a" * 40],
        ["a", "Ab", "-a", "a_b", "a" * 41, "\u0430b", "/ab", "a/", "a/b/cd", "A/cd"],
    ),
    "^[a-z0-9][a-z0-9 _-]{0,39}$": (["a", "a b_c-d", "a" * 40], ["A", " a", "_a", "a.b", "a" * 41, "\u0661"]),
    "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$": (["Worker.7", "a-b_c.1", "Z9" * 64], [".a", "a b", "a/b", "Z9" * 64 + "9"]),
}
"""Values that each pattern takes and refuses."""

CHARACTERS_A_TOKEN = 4
TOKENS_MAX = 4000

REFUSALS = {
    Code.NAME_INVALID,
    Code.ROLE_INVALID,
    Code.PARAMETER_INVALID,
    Code.PARAMETER_MISSING,
    Code.PARAMETER_UNKNOWN,
}
"""How a value that the schema refuses is refused by the daemon."""


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every object of a schema document."""
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from nodes(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from nodes(value)


def call(tool: str, arguments: dict[str, Any], world: World | None = None) -> Any:
    """The structured result of a tool call as the daemon would decide it, or the Rejected."""
    world = World() if world is None else world
    try:
        asked = server_tools.call(tool, arguments)
        if asked.method.startswith("mail."):
            mailrules.check(asked.params)  # the store has no part in whether params fit
            return {}
        decision = machine.decide(world.state, asked.method, asked.params, Context(ANNA, world.wall))
    except Rejected as refusal:
        return refusal
    if decision.events:
        world.apply(decision.events)
    return msgspec.json.decode(msgspec.json.encode(decision.result))


@pytest.mark.parametrize("shown", DEFINITIONS, ids=lambda shown: shown["name"])
def test_a_definition_is_complete(shown: dict[str, Any]) -> None:
    assert shown["title"]
    assert 0 < len(shown["description"]) <= 700
    hints = shown["annotations"]
    assert hints["title"] == shown["title"]
    assert {k: type(v) for k, v in hints.items() if k.endswith("Hint")} == dict.fromkeys(
        ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"), bool
    )
    assert not hints["destructiveHint"]
    assert not hints["openWorldHint"]
    assert shown["execution"] == {"taskSupport": "forbidden"}


@pytest.mark.parametrize("shown", DEFINITIONS, ids=lambda shown: shown["name"])
@pytest.mark.parametrize("which", ["inputSchema", "outputSchema"])
def test_a_schema_is_one_plain_object(shown: dict[str, Any], which: str) -> None:
    schema = shown[which]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft7Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert not any(
        {"$ref", "$defs", "definitions", "title"} & set(node) - _property_names(schema) for node in nodes(schema)
    )


def _property_names(schema: dict[str, Any]) -> set[str]:
    return {name for node in nodes(schema) for name in node.get("properties", {}) if isinstance(name, str)}


@pytest.mark.parametrize("shown", DEFINITIONS, ids=lambda shown: shown["name"])
def test_every_parameter_is_described_with_one_plain_type(shown: dict[str, Any]) -> None:
    schema = shown["inputSchema"]
    assert schema["additionalProperties"] is False
    properties = schema.get("properties", {})
    assert set(schema.get("required", ())) <= set(properties)
    for name, prop in properties.items():
        assert prop.get("description"), name
        assert isinstance(prop.get("type"), str), "several model APIs refuse arrays of types and anyOf"
        assert not {"anyOf", "oneOf", "allOf", "default"} & set(prop)


@pytest.mark.parametrize("shown", DEFINITIONS, ids=lambda shown: shown["name"])
def test_the_official_types_take_it_whole(shown: dict[str, Any]) -> None:
    parsed = mcp_types.Tool.model_validate(shown)
    back = parsed.model_dump(by_alias=True, exclude_none=True, mode="json")
    assert back == shown


def test_names_order_and_size() -> None:
    names = [shown["name"] for shown in DEFINITIONS]
    assert names == list(TOOLS)
    assert names[:3] == ["mbx_identity", "create_agent_identity", "register_agent"]
    assert all(name.isascii() and name.replace("_", "").isalnum() and len(name) <= 64 for name in names)
    assert set(BASE) == set(TOOLS), "a new tool needs a good call here"


def test_the_whole_list_fits_its_budget() -> None:
    texts = [json.dumps([d["name"], d["description"], d["inputSchema"]], separators=(",", ":")) for d in DEFINITIONS]
    assert sum(map(len, texts)) / CHARACTERS_A_TOKEN <= TOKENS_MAX


def test_each_of_the_three_points_at_the_others() -> None:
    text = {name: TOOLS[name].description for name in ("mbx_identity", "create_agent_identity", "register_agent")}
    for name, description in text.items():
        for other in set(text) - {name}:
            if (name, other) != ("mbx_identity", "create_agent_identity"):
                assert other in description, f"{name} should point at {other}"


def test_read_only_tools_read_and_the_shown_file_is_generated() -> None:
    looking = ["whois", "mbx_whoami", "mbx_inbox", "mbx_read", "mbx_sent", "mbx_thread", "mbx_search"]
    assert [t.name for t in TOOLS.values() if t.read_only] == looking
    assert definition(TOOLS["whois"])["annotations"]["readOnlyHint"]
    assert wire_tools.TOOL_ERROR["required"] == ["code", "message", "hint", "retryable"]


# -- schema and rules agree ------------------------------------------------------------------------------


def trials() -> Iterator[Any]:
    """(tool, parameter, value, good by the schema)."""
    for shown in DEFINITIONS:
        for name, prop in shown["inputSchema"].get("properties", {}).items():
            prefix = "/" if name in {"project_key", "human_key"} else ""
            good: list[Any] = []
            numeric = prop["type"] in {"boolean", "integer", "number"}
            bad: list[Any] = [{}, "text" if numeric else 7]
            if prop["type"] == "array":
                good += [["x"] * max(1, prop.get("minItems", 0)), ["x"] * prop["maxItems"]]
                bad += [["x"] * (prop["maxItems"] + 1), [7], "x"]
            if prop["type"] != "array" or prop.get("minItems"):
                bad += [[]]
            if "pattern" in prop:
                good += BY_PATTERN[prop["pattern"]][0]
                bad += BY_PATTERN[prop["pattern"]][1]
            if "maxLength" in prop:
                good += [prefix + "x" * (prop["maxLength"] - len(prefix))]
                bad += [prefix + "x" * (prop["maxLength"] + 1)]
            if prop.get("minLength"):
                bad += [""]
            if "enum" in prop:
                good += prop["enum"]
                bad += [prop["enum"][0].upper(), prop["enum"][0] + " "]
            if prop["type"] == "boolean":
                good += [True, False]
            if "minimum" in prop:
                good += [prop["minimum"], prop.get("maximum", 1 << 40)]
                bad += [prop["minimum"] - 1, *([prop["maximum"] + 1] if "maximum" in prop else [])]
                (good if prop["type"] == "number" else bad).append(1.5)
            if name == "name_hint":
                good = ["GreenCastle"]  # words of the lists, which no schema can say
            for value, fits in [*((v, True) for v in good), *((v, False) for v in bad)]:
                yield pytest.param(
                    shown["name"], name, value, fits, id=f"{shown['name']}-{name}-{str(value)[:12]}-{fits}"
                )


@pytest.mark.parametrize(("tool", "name", "value", "fits"), list(trials()))
def test_the_schema_and_the_daemon_judge_alike(tool: str, name: str, value: Any, fits: bool) -> None:
    arguments = {**BASE[tool], name: value}
    if tool == "mbx_identity" and name in {"action", "all"}:
        arguments = {name: value} if name == "action" else {"action": "list", name: value}
        if value in {"claim", "register"} if isinstance(value, str) else False:
            arguments |= {"name": "shop-backend", "role": "backend"}
    validator = jsonschema.Draft202012Validator(definition(TOOLS[tool])["inputSchema"])
    assert validator.is_valid(arguments) == fits
    result = call(tool, arguments)
    refused = isinstance(result, Rejected) and result.code in REFUSALS
    if value == "" and name in {"program", "model"}:
        assert isinstance(result, Rejected)
        return
    if value in ([], {}) and value is not False:
        assert isinstance(result, Rejected)
    assert refused == (not fits), result if not isinstance(result, Rejected) else result.message


@pytest.mark.parametrize("tool", list(TOOLS))
def test_null_empty_and_false_count_as_absent(tool: str) -> None:
    schema = definition(TOOLS[tool])["inputSchema"]
    optional = [n for n in schema.get("properties", {}) if n not in schema.get("required", ())]
    plain = call(tool, {k: v for k, v in BASE[tool].items() if k not in optional})
    for empty in (None, ""):
        nothing = call(
            tool, {**dict.fromkeys(optional, empty), **{k: BASE[tool][k] for k in schema.get("required", ())}}
        )
        assert _comparable(nothing) == _comparable(plain)


def _comparable(result: Any) -> Any:
    return (result.code, result.message) if isinstance(result, Rejected) else result


@pytest.mark.parametrize("tool", list(TOOLS))
def test_an_unknown_parameter_is_named(tool: str) -> None:
    result = call(tool, {**BASE[tool], "nmae": "x"})
    assert isinstance(result, Rejected)
    assert result.code == Code.PARAMETER_UNKNOWN
    assert "nmae" in result.message


@pytest.mark.parametrize("tool", list(TOOLS))
def test_a_missing_parameter_is_named(tool: str) -> None:
    for name in definition(TOOLS[tool])["inputSchema"].get("required", ()):
        result = call(tool, {k: v for k, v in BASE[tool].items() if k != name})
        assert isinstance(result, Rejected)
        assert result.code == Code.PARAMETER_MISSING
        assert name in result.message


@pytest.mark.parametrize("action", list(IDENTITY_USES))
def test_a_parameter_that_the_action_does_not_use_is_refused(action: str) -> None:
    values = {"name": "shop-backend", "role": "backend", "description": "d", "all": True}
    for name in set(values) - IDENTITY_USES[action]:
        result = call("mbx_identity", {"action": action, name: values[name]})
        assert isinstance(result, Rejected)
        assert (result.code, result.data) == (Code.PARAMETER_UNUSED, {"unused": [name]})


def test_results_fit_their_schema() -> None:
    world = World()
    story: list[tuple[str, dict[str, Any]]] = [
        ("mbx_identity", {"action": "list"}),
        ("mbx_identity", BASE["mbx_identity"]),
        ("mbx_identity", {"action": "claim"}),
        ("mbx_identity", {"action": "list", "all": True}),
        ("mbx_identity", {"action": "register", "name": "other", "role": "qa"}),
        ("mbx_identity", {"action": "release"}),
        ("mbx_identity", {"action": "release"}),
        ("create_agent_identity", {**BASE["create_agent_identity"], "name_hint": "GreenCastle"}),
        ("register_agent", {**BASE["register_agent"], "name": "GreenCastle"}),
        ("ensure_project", BASE["ensure_project"]),
        ("whois", BASE["whois"]),
        ("retire_agent", BASE["retire_agent"]),
        ("whois", BASE["whois"]),
    ]
    for tool, arguments in story:
        result = call(tool, arguments, world)
        structured = {"error": result.body()} if isinstance(result, Rejected) else result
        jsonschema.validate(structured, definition(TOOLS[tool])["outputSchema"])
        assert json.loads(json.dumps(structured)) == structured


def test_an_unknown_tool_is_no_refusal() -> None:
    with pytest.raises(server_tools.UnknownTool):
        server_tools.call("mbx_identities", {})
    assert State().identities == {}
