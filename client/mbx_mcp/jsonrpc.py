"""JSON-RPC 2.0 at its edge: bytes to a checked JSON value and back, error numbers, what an id may be.

Owns the limits of parsing: UTF-8 only, no NaN, bounded depth and integers. Never interprets a method.
Standard library only.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, TypeGuard

PARSE = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
UNSUPPORTED_VERSION = -32022
"""MCP 2026-07-28: the envelope names a revision that this server does not speak."""

MAX_DEPTH = 100
"""Deepest nesting of arrays and objects. Far beyond any tool's arguments, far below every parser's own end."""


class Malformed(Exception):
    """The line is no JSON that we take; the text says why."""


class ProtocolError(Exception):
    """A JSON-RPC error to answer with. `request_id` is the id where the request could not be looked at further."""

    def __init__(self, code: int, message: str, data: Any = None, request_id: int | str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.request_id = request_id


def parse(line: bytes) -> Any:
    """A line as a JSON value, or Malformed."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as bad:
        raise Malformed(f"invalid UTF-8 at byte {bad.start}") from None
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise Malformed("nested too deeply") from None
    except ValueError as bad:  # JSONDecodeError, and integers of thousands of digits
        raise Malformed(f"invalid JSON: {bad}") from None
    # Counting is cheap and right for all but odd lines; only those are walked.
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise Malformed(f"nested deeper than {MAX_DEPTH} levels")
    return value


def encode(value: Any) -> bytes:
    """A JSON value as one compact line of UTF-8, without its newline."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate, echoed: only its escape can be written
        return json.dumps(value, separators=(",", ":")).encode()


def valid_text(text: str) -> str:
    """The text with `?` for every half of a surrogate pair, which JSON can carry and UTF-8, so the daemon, can't."""
    return text.encode(errors="replace").decode()


def valid_id(value: Any) -> TypeGuard[int | str]:
    """Whether a request may have this id: MCP allows strings and integers alone."""
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return False
        level = below
    return any(isinstance(item, (dict, list)) for item in level)
