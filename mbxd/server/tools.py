"""From an MCP tool call to a method, and from a result to a CallToolResult.

Owns the mapping of `mbx_identity`'s actions and the form of tool results (the 2025-11-25 revision; the shim
adapts it to others).
"""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from typing import Any, NamedTuple

import msgspec

from mbx_wire import identity as wire
from mbx_wire.errors import Code
from mbx_wire.methods import METHODS
from mbx_wire.tools import IDENTITY_USES, TOOLS
from mbxd.core.rejected import Rejected
from mbxd.server.params import ParamsDecoder


def warm() -> None:
    """Import what was left out at the start, for a worker thread of a daemon that serves already.

    A package that is replaced under the running daemon then has nothing left to break.
    """
    if _TOON:
        with contextlib.suppress(ImportError, OSError):  # no descriptor left, say: it is imported when it is used
            import toon_format  # noqa: F401


class UnknownTool(Exception):
    """No tool of this name: a protocol error, not a refusal."""


class Call(NamedTuple):
    """The method behind a tool call, with its params; toon: the text block is to be written in TOON."""

    method: str
    params: msgspec.Struct
    toon: bool = False


class Text(msgspec.Struct, frozen=True):
    """A text block."""

    text: str
    type: str = "text"


class CallToolResult(msgspec.Struct, frozen=True):
    """Result of tools/call: the same JSON as an object and as text."""

    content: list[Text]
    structuredContent: msgspec.Raw  # noqa: N815 - the protocol's spelling
    isError: bool  # noqa: N815 - the protocol's spelling
    meta: dict[str, int] | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="_meta")


_TOON = find_spec("toon_format") is not None
"""Whether the optional extra is installed. `warm` imports it, so that the start does not wait for it."""

_DECODERS = {name: ParamsDecoder(tool.params) for name, tool in TOOLS.items()}
_encode = msgspec.json.Encoder().encode


def call(name: str, arguments: dict[str, Any] | None) -> Call:
    """The method call that a tool call stands for. Raises Rejected, or UnknownTool."""
    decoder = _DECODERS.get(name)
    if decoder is None:
        raise UnknownTool(name)
    params = decoder.convert(arguments or {})
    if isinstance(params, wire.IdentityToolParams):
        return _identity(params)
    method = TOOLS[name].method
    if method is None:
        raise UnknownTool(name)
    toon = getattr(params, "format", None) == "toon"
    if toon and not _TOON:
        raise Rejected(
            Code.PARAMETER_INVALID,
            "`format` is toon, but the daemon was installed without it.",
            'Use format "json"; or install mbxd[toon] and restart the daemon.',
            data={"parameter": "format"},
        )
    return Call(method, params, toon)


def _identity(params: wire.IdentityToolParams) -> Call:
    uses = IDENTITY_USES[params.action]
    given = {
        name: value for name in ("name", "role", "description", "all") if (value := getattr(params, name)) is not None
    }
    unused = [name for name in given if name not in uses]
    if unused:
        takes = f"it takes {', '.join(sorted(uses))}" if uses else "it takes no other parameter"
        raise Rejected(
            Code.PARAMETER_UNUSED,
            f"`{unused[0]}` is not used by {params.action}: {takes}.",
            f'Leave it out: mbx_identity {{"action":"{params.action}"}}.',
            data={"unused": unused},
        )
    method = METHODS[f"identity.{params.action}"]
    return Call(method.name, method.params(**given))


def result(structured: bytes, unread: int, *, toon: bool = False) -> CallToolResult:
    """A success from its encoded result. The object is the same whatever the text is written in.

    unread: messages that wait for the caller; it goes with every result, so that an agent hears of its mail.
    """
    text = _as_toon(structured) if toon else structured.decode()
    return CallToolResult([Text(text)], msgspec.Raw(structured), isError=False, meta={"unread": unread})


def _as_toon(structured: bytes) -> str:
    from toon_format import encode

    return str(encode(msgspec.json.decode(structured)))


def refusal(rejected: Rejected, unread: int = 0) -> CallToolResult:
    """A refusal as the agent sees it; unread as in `result`."""
    structured = _encode({"error": rejected.body()})
    return CallToolResult([Text(structured.decode())], msgspec.Raw(structured), isError=True, meta={"unread": unread})
