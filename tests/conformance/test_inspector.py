"""MCP Inspector's command line and the installed shim: schemas that every client can use, calls and a load of them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.conformance.node import Node
from tests.support.daemon import Place
from tests.support.shim_process import environment

pytestmark = [pytest.mark.external, pytest.mark.timeout(600)]

PROGRAM = "@modelcontextprotocol/inspector"
LIMIT = 90.0


def inspect(programs: Node, place: Place, shim: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = programs.package(PROGRAM) / "clients/launcher/build/index.js"
    # Like several agent CLIs it hands down next to nothing of its environment.
    arguments = ("--cli", shim, "-e", f"MBX_STATE_DIR={place.state}", *options, "-q", "--format", "json")
    return programs.run(script, *arguments, env=environment(place.state), limit=LIMIT)


def result(done: subprocess.CompletedProcess[str]) -> Any:
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)["result"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_schemas_are_portable(place: Place, shim: str, programs: Node, era: str) -> None:
    # Exit code 6 when a schema is not; words about lesser flaws on stderr.
    tools = result(inspect(programs, place, shim, "--method", "tools/list", "--strict", "--protocol-era", era))["tools"]
    assert [tool["name"] for tool in tools][:2] == ["mbx_identity", "create_agent_identity"]
    assert not place.state.exists()


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_calls_and_reads(place: Place, shim: str, programs: Node, era: str) -> None:
    place.start()
    common = ("--protocol-era", era)
    call = ("--method", "tools/call", "--tool-name", "mbx_identity", "--tool-arg", "action=list")
    assert result(inspect(programs, place, shim, *call, *common))["structuredContent"]["identities"] == []
    read = ("--method", "resources/read", "--uri", "mbx://identities")
    assert json.loads(result(inspect(programs, place, shim, *read, *common))["contents"][0]["text"])["you"] is None


def test_two_hundred_calls_twenty_at_once(place: Place, shim: str, programs: Node) -> None:
    place.start()
    call = ("--method", "tools/call", "--tool-name", "mbx_identity", "--tool-arg", "action=list")
    load = ("--load", "--load-requests", "200", "--load-concurrency", "20")
    done = inspect(programs, place, shim, *call, *load)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["result"]
    assert (figures["ok"], figures["toolErrors"], figures["errors"]) == (200, 0, 0), figures
