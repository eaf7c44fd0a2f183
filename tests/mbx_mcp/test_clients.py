"""Independent MCP clients against a real shim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters, stdio_client

from tests.support.shim_process import COMMAND, environment
from tests.support.stub_daemon import StubDaemon

LIMIT = 30


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28", "auto"])
def test_official_sdk(daemon: StubDaemon, state: Path, mode: str) -> None:
    async def session() -> tuple[list[str], Any]:
        server = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=environment(state))
        with anyio.fail_after(LIMIT):
            async with Client(stdio_client(server), mode=mode) as client:
                tools = await client.list_tools()
                result = await client.call_tool("mbx_identity", {"action": "list"})
                return [tool.name for tool in tools.tools], result

    names, result = anyio.run(session)
    assert "mbx_identity" in names
    assert not result.is_error
    assert result.structured_content["echo"] == {"action": "list"}
    assert len(daemon.asked("tool.call")) == 1


@pytest.mark.slow
def test_fastmcp(daemon: StubDaemon, state: Path) -> None:
    import fastmcp
    from fastmcp.client.transports import StdioTransport

    async def session() -> Any:
        transport = StdioTransport(COMMAND[0], COMMAND[1:], env=environment(state), keep_alive=False)
        with anyio.fail_after(LIMIT):
            async with fastmcp.Client(transport) as client:
                assert "mbx_identity" in [tool.name for tool in await client.list_tools()]
                return await client.call_tool("mbx_identity", {"action": "list"})

    result = anyio.run(session)
    assert result.structured_content["echo"] == {"action": "list"}
