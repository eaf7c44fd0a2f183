"""What the agent CLIs send first, as observed, replayed against a real shim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mcp_types.methods import validate_server_result

from tests.support.shim_process import ShimProcess, environment
from tests.support.stub_daemon import StubDaemon

OPENINGS = sorted((Path(__file__).parent / "openings").glob("*.jsonl"))
UNKNOWN_TO_US = {"prompts/list"}


def revision(messages: list[dict[str, Any]]) -> str:
    first = messages[0]
    return str(first["params"]["protocolVersion"] if first["method"] == "initialize" else "2026-07-28")


@pytest.mark.parametrize("path", OPENINGS, ids=lambda path: path.stem)
def test_opening_of(path: Path, daemon: StubDaemon, state: Path) -> None:
    messages = [json.loads(line) for line in path.read_text().splitlines()]
    asked = {message["id"]: message["method"] for message in messages if "id" in message}
    with ShimProcess(environment(state)) as shim:
        shim.send(*messages)
        shim.close_input()
        received = shim.rest()
        assert shim.wait() == 0
        assert shim.errors() == ""
    answers = {message["id"]: message for message in received if "id" in message}
    assert set(answers) == set(asked)
    for request_id, method in asked.items():
        if method in UNKNOWN_TO_US:
            assert answers[request_id]["error"]["code"] == -32601
        else:
            validate_server_result(method, revision(messages), answers[request_id]["result"])
    (call,) = daemon.asked("tool.call")
    handles = {"codex-mcp-client": "0199-thread", "opencode": "ses_1"}
    assert call["meta"].get("session") == handles.get(path.stem)
    assert daemon.asked("hello")[-1]["params"]["client"]["label"] == path.stem
