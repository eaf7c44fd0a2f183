"""An agent CLI as a real process: an independent MCP client with a real shim beneath it, obeying orders on stdin.

Run as `agent_program.py {sdk|fastmcp} {mode}`. An order is a line `{"tool", "arguments"}`, its answer a line
`{"structured", "text", "is_error"}`. The client validates every result against the tool's output schema; a client
that refuses one answers `{"failed": ...}`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import mcp_types

SHIM = ["-m", "mbx_mcp.main"]
Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


def say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


async def obey(ask: Ask) -> None:
    say({"pid": os.getpid()})
    while line := await anyio.to_thread.run_sync(sys.stdin.readline):
        order = json.loads(line)
        try:
            say(await ask(order["tool"], order["arguments"]))
        except Exception as error:
            say({"failed": f"{type(error).__name__}: {error}"})


async def official(mode: str) -> None:
    from mcp import Client, StdioServerParameters, stdio_client

    server = StdioServerParameters(command=sys.executable, args=SHIM, env=dict(os.environ))
    async with Client(
        stdio_client(server), mode=mode, client_info=mcp_types.Implementation(name="codex", version="1")
    ) as client:

        async def ask(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            if tool == "tools/list":
                return {"tools": [t.model_dump(by_alias=True, mode="json") for t in (await client.list_tools()).tools]}
            return plain(await client.call_tool(tool, arguments))

        await obey(ask)


async def fast() -> None:
    import fastmcp
    from fastmcp.client.transports import StdioTransport

    transport = StdioTransport(sys.executable, SHIM, env=dict(os.environ), keep_alive=False)
    async with fastmcp.Client(transport) as client:

        async def ask(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            if tool == "tools/list":
                return {"tools": [t.model_dump(by_alias=True, mode="json") for t in await client.list_tools()]}
            return plain(await client.call_tool_mcp(tool, arguments))

        await obey(ask)


def plain(result: mcp_types.CallToolResult) -> dict[str, Any]:
    checked = mcp_types.CallToolResult.model_validate(result.model_dump(by_alias=True))
    (block,) = checked.content
    return {
        "structured": checked.structured_content,
        "text": getattr(block, "text", None),
        "is_error": bool(checked.is_error),
    }


if __name__ == "__main__":
    if sys.argv[1] == "fastmcp":
        anyio.run(fast)
    else:
        anyio.run(official, sys.argv[2])
