"""The MCP tools, as data: title, description, annotations, and the method behind each.

Owns the words an agent reads. Schemas come from the params structs through `schema`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mbx_wire import identity, schema

TOOL_ERROR = {
    "type": "object",
    "description": "Present when the call was refused (isError is true).",
    "properties": {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "hint": {"type": "string"},
        "retryable": {"type": "boolean"},
        "data": {"type": "object"},
    },
    "required": ["code", "message", "hint", "retryable"],
}


class Tool(msgspec.Struct, frozen=True):
    """One tool. `results`: the structs a success may be; `read_only` and `idempotent` are MCP annotations."""

    name: str
    title: str
    description: str
    params: type[msgspec.Struct]
    results: tuple[type[msgspec.Struct], ...]
    read_only: bool
    idempotent: bool


_IDENTITY = (
    "The mailbox identity this session acts as. It outlives the session: name, role and mail stay when a "
    "session crashes, is resumed or compacted. Start with action=list: it shows you, what you may claim and who "
    "holds the rest. claim without name takes back what this session held; claim with name takes a vacant mailbox. "
    "register makes a new role mailbox, by convention <project>-<role>, and claims it. release lets go: only when "
    "told to end or to hand over. One session holds one identity. A live holder is never displaced: ask your user "
    "or register another name."
)

_ALL = (
    Tool(
        name="mbx_identity",
        title="Mailbox identity",
        description=_IDENTITY,
        params=identity.IdentityToolParams,
        results=(identity.ListResult, identity.ClaimResult, identity.ReleaseResult),
        read_only=False,
        idempotent=True,
    ),
)

TOOLS: dict[str, Tool] = {tool.name: tool for tool in _ALL}
"""Tool name -> tool, in the order in which lists show them."""

IDENTITY_USES: dict[str, frozenset[str]] = {
    "list": frozenset({"all"}),
    "claim": frozenset({"name", "role", "description"}),
    "register": frozenset({"name", "role", "description"}),
    "release": frozenset(),
}
"""Which parameters an action of mbx_identity uses; any other is PARAMETER_UNUSED."""


def definition(tool: Tool) -> dict[str, Any]:
    """The tool as `tools/list` shows it in the newest legacy revision (2025-11-25); eras take fields away."""
    return {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": schema.input_schema(tool.params),
        "outputSchema": schema.output_schema(tool.results, TOOL_ERROR),
        "annotations": {
            "title": tool.title,
            "readOnlyHint": tool.read_only,
            "destructiveHint": False,
            "idempotentHint": tool.idempotent,
            "openWorldHint": False,
        },
        "execution": {"taskSupport": "forbidden"},
    }


def definitions() -> list[dict[str, Any]]:
    """All tools, in their fixed order."""
    return [definition(tool) for tool in TOOLS.values()]
