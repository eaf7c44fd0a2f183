"""Requests in, replies out: the JSON-RPC envelope, encoded and decoded once.

Owns the recovery of an id from a broken request. See https://www.jsonrpc.org/specification.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mbx_wire.envelope import Request
from mbx_wire.errors import RpcError

Id = int | str | None


class Reply(msgspec.Struct, frozen=True):
    """A success."""

    id: int | str | None
    result: Any
    jsonrpc: str = "2.0"


class ErrorObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """The error of a failure; `data` is the refusal's body where there is one."""

    code: int
    message: str
    data: dict[str, Any] | None = None


class Failure(msgspec.Struct, frozen=True):
    """A failure. `id` is null when it could not be read."""

    id: int | str | None
    error: ErrorObject
    jsonrpc: str = "2.0"


class Malformed(Exception):
    """A line that is no request."""

    def __init__(self, reply: bytes) -> None:
        """`reply`: the failure to send, with its newline."""
        super().__init__("malformed")
        self.reply = reply


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Request).decode


def success(number: Id, result: Any) -> bytes:
    """A reply line."""
    return _encode(Reply(number, result)) + b"\n"


def failure(number: Id, code: int, message: str, data: dict[str, Any] | None = None) -> bytes:
    """A failure line."""
    return _encode(Failure(number, ErrorObject(code, message, data))) + b"\n"


def parse(line: bytes) -> Request:
    """A request; raises Malformed with the reply that the standard asks for."""
    try:
        return _decode(line)
    except msgspec.ValidationError as error:
        raise Malformed(_invalid(line, str(error))) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(failure(None, RpcError.PARSE, f"Parse error: {str(error)[:200]}")) from None


def _invalid(line: bytes, why: str) -> bytes:
    number: Id = None
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return failure(None, RpcError.PARSE, "Parse error")
    if isinstance(value, dict):
        found = value.get("id")
        if isinstance(found, str) or (isinstance(found, int) and not isinstance(found, bool)):
            number = found
    return failure(number, RpcError.INVALID_REQUEST, f"Invalid request: {why[:200]}")
