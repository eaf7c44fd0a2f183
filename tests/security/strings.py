"""Every string parameter of every method and tool, from their schemas; and the strings that have hurt others."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from mbx_wire import schema
from mbx_wire.methods import METHODS
from mbx_wire.tools import TOOLS, definition

LONG = 1_000_000

NASTY: dict[str, str] = {
    "path upwards": "../../../../tmp/mbx-escaped",
    "absolute path": "/tmp/mbx-escaped/x",
    "path in a name": "a/../../b",
    "backslashes": "..\\..\\mbx-escaped",
    "dot": ".",
    "dots": "..",
    "git": ".git/config",
    "option": "--upload-pack=touch /tmp/mbx-escaped",
    "shell": "$(touch /tmp/mbx-escaped)`touch /tmp/mbx-escaped`",
    "clear screen": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;b3duZWQ=\x1b\\",
    "c1 control": "\x9b31m\x85\x90",
    "bell and backspaces": "admin\x08\x08\x08\x08\x08owner\x07",
    "line ends": "one\ntwo\rthree\u2028four\u2029five\x0b\x0c",
    "forged log line": 'x\ntime=2026-01-01T00:00:00Z level=info msg="all is well"',
    "right to left": "\u202egnp.exe\u202c",
    "isolates": "\u2066a\u2067b\u2068c\u2069",
    "invisible": "a\u200bb\u200c\u200d\u2060\ufeffc\u00ad",
    "tag characters": "a\U000e0041\U000e0042",
    "nul": "shop\x00a",
    "only nul": "\x00",
    "accents": "e" + "\u0301" * 5_000,
    "looks the same": "\u0430dmin",
    "wide": "\U0001f469\u200d\U0001f469\u200d\U0001f467" * 300,
    "noncharacters": "\ufffe\uffff\U0010ffff",
    "long": "x" * LONG,
    "long with blanks": " " * LONG + "x",
    "quotes": "'\"; DROP TABLE messages; --",
    "fts": '"unbalanced AND (OR NOT NEAR(a b, 99999)* ^^ col:x -',
    "format": "%s%n{0.__class__}${jndi:x}{{7*7}}",
    "number": "9" * 5_000,
    "json": '{"a":[[[[',
    "trailer": "x\n\nMbx-Seq: 99999999\nSigned-off-by: x",
}
SURROGATES = [b'"\\ud800"', b'"a\\udfff\\ud800b"', b'"\xed\xa0\x80"', b'"\xc0\xae\xc0\xae/"', b'"\xff"']
"""As JSON, which no encoder of ours would write."""


class Slot(NamedTuple):
    """A place for a string: the keys that lead to it (0: in a list)."""

    method: str
    path: tuple[str | int, ...]


def slots(node: dict[str, Any]) -> Iterator[tuple[str | int, ...]]:
    """Paths of all strings of a schema."""
    for option in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from slots(option)
    kind = node.get("type")
    if kind == "string" or (isinstance(kind, list) and "string" in kind) or "enum" in node:
        yield ()
    for name, inner in node.get("properties", {}).items():
        for path in slots(inner):
            yield (name, *path)
    if isinstance(node.get("items"), dict):
        for path in slots(node["items"]):
            yield (0, *path)


def sample(node: dict[str, Any]) -> Any:
    """The plainest value of a schema: what is required, and no more."""
    if "enum" in node:
        return node["enum"][0]
    if "anyOf" in node:
        return sample(node["anyOf"][0])
    match node.get("type"):
        case "object":
            properties = node.get("properties", {})
            return {name: sample(properties[name]) for name in node.get("required", ())}
        case "array":
            return [sample(node.get("items", {"type": "string"}))]
        case "integer" | "number":
            return max(int(node.get("minimum", 1)), 1)
        case "boolean":
            return False
        case _:
            return "shop-a"


def put(value: Any, path: tuple[str | int, ...], what: Any) -> Any:
    """The value with something at a path."""
    if not path:
        return what
    if path[0] == 0:
        return [put(value[0] if isinstance(value, list) and value else None, path[1:], what)]
    inner = dict(value) if isinstance(value, dict) else {}
    inner[str(path[0])] = put(inner.get(str(path[0])), path[1:], what)
    return inner


@functools.cache
def schema_of(method: str) -> dict[str, Any]:
    """Of a method's params, or of a tool's arguments (`tool:NAME`)."""
    if method.startswith("tool:"):
        found: dict[str, Any] = definition(TOOLS[method.removeprefix("tool:")])["inputSchema"]
        return found
    return schema.input_schema(METHODS[method].params)


@functools.cache
def all_slots() -> tuple[Slot, ...]:
    """Every string parameter; not of `stop`, which ends the daemon, nor of `mail.backup`, which writes anywhere."""
    names = [*METHODS, *(f"tool:{name}" for name in TOOLS)]
    leave_out = {"stop", "mail.backup"}
    return tuple(Slot(name, path) for name in names if name not in leave_out for path in slots(schema_of(name)))
