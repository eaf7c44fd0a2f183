"""What results look like in each MCP revision. Data and pure functions; standard library only.

Owns the versions, the server's own words, and what a revision adds to or lacks beside the newest legacy one.
Never decides which revision a request belongs to.
"""

from __future__ import annotations

from mbx_client import __version__
from mbx_mcp.jsonrpc import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MODERN = ("2026-07-28",)
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Revisions by age, newest first. LEGACY begins with `initialize`, MODERN carries an envelope."""
BATCHES_IN = "2025-03-26"
WITH_TITLES = frozenset(LEGACY[:2]) | frozenset(MODERN)
"""Revisions that know titles, output schemas and structured content."""

_PREFIX = "io.modelcontextprotocol/"
VERSION = _PREFIX + "protocolVersion"
CAPABILITIES = _PREFIX + "clientCapabilities"
CLIENT_INFO = _PREFIX + "clientInfo"
SERVER_INFO = _PREFIX + "serverInfo"
SUBSCRIPTION = _PREFIX + "subscriptionId"

INSTRUCTIONS = (
    "mbx gives this session a named mailbox identity that outlives it. Call mbx_identity with action=list "
    "before you claim a name; claim without a name takes back what this session held."
)
SERVER = {"name": "mbx", "version": __version__}
_SERVER_CAPABILITIES: dict[str, Any] = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
}
CACHE = {"ttlMs": 3_600_000, "cacheScope": "public"}
"""The lists are part of the program: the same for everybody until another version runs."""


_MODERN_HEAD = encode({"resultType": "complete", "_meta": {SERVER_INFO: SERVER}})[:-1] + b","
"""What a stateless result begins with when it has no `_meta` of its own."""
_COMPLETE = b'{"resultType":"complete",'
_META = b',"_meta":' + encode({SERVER_INFO: SERVER})[:-1] + b","


def initialize_result(version: str) -> dict[str, Any]:
    """InitializeResult of a legacy revision."""
    return {
        "protocolVersion": version,
        "capabilities": _SERVER_CAPABILITIES,
        "serverInfo": SERVER,
        "instructions": INSTRUCTIONS,
    }


def discover_result() -> dict[str, Any]:
    """DiscoverResult of the stateless revision."""
    return modern(
        {
            "supportedVersions": list(MODERN),
            "capabilities": _SERVER_CAPABILITIES,
            "instructions": INSTRUCTIONS,
            **CACHE,
        }
    )


def list_result(tools: list[dict[str, Any]], version: str) -> dict[str, Any]:
    """ListToolsResult: the definitions with what the revision knows of them."""
    result: dict[str, Any] = {"tools": [_tool(tool, version) for tool in tools]}
    return modern({**result, **CACHE}) if version in MODERN else result


def call_result(result: dict[str, Any], version: str) -> dict[str, Any]:
    """CallToolResult of a revision, from one of 2025-11-25."""
    if version in MODERN:
        return modern(result)
    if version not in WITH_TITLES:
        return {key: value for key, value in result.items() if key != "structuredContent"}
    return result


def encoded_call_result(encoded: bytes, version: str) -> bytes | None:
    """The same on an encoded result, without decoding it: a long list costs nothing here. None when it must be."""
    if version in {"2025-11-25", "2025-06-18"}:
        return encoded
    if version not in MODERN or not encoded.startswith(b'{"'):
        return None
    # In JSON a quote within a text is escaped: these bytes are a key, wherever they stand.
    own = encoded.count(b'"_meta":')
    if not own:
        return _MODERN_HEAD + encoded[1:]
    kept, mark, meta = encoded.rpartition(b',"_meta":{')
    if own == 1 and mark and meta.endswith(b"}}") and meta.count(b"}") == 2 and b"{" not in meta and meta != b"}}":
        # The daemon's `_meta` comes last and is flat: ours begins with our own word and goes on with its.
        return _COMPLETE + kept[1:] + _META + meta
    return None


def modern(result: dict[str, Any]) -> dict[str, Any]:
    """A complete result of the stateless revision: it says so, and who answers."""
    return {"resultType": "complete", **result, "_meta": {SERVER_INFO: SERVER, **(result.get("_meta") or {})}}


def progress(token: int | str, seconds: int, total: float) -> dict[str, Any]:
    """The notification that a call still waits, after so many of `total` seconds."""
    params = {"progressToken": token, "progress": seconds, "total": total, "message": "waiting for mail"}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


def refusal(error: dict[str, Any]) -> dict[str, Any]:
    """A CallToolResult for an error object {code, message, hint, retryable, data?}."""
    body = {"error": error}
    return {
        "content": [{"type": "text", "text": encode(body).decode()}],
        "structuredContent": body,
        "isError": True,
    }


def too_many_calls(limit: int) -> dict[str, Any]:
    """The refusal of a call when `limit` others are open."""
    from mbx_wire.errors import Code, error_body

    return refusal(
        error_body(
            Code.BUSY,
            f"{limit} calls of this session wait for their answer.",
            "Wait for one of them and call again.",
            retryable=True,
        )
    )


def _tool(tool: dict[str, Any], version: str) -> dict[str, Any]:
    lacks = {"execution"} if version != LEGACY[0] else set()
    if version not in WITH_TITLES:
        lacks |= {"title", "outputSchema"}
    if version == "2024-11-05":
        lacks.add("annotations")
    return {key: value for key, value in tool.items() if key not in lacks}
