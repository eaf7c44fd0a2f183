"""Both lines of the TypeScript SDK talk to the installed shim, in both eras."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.node import Node
from tests.support.daemon import Place
from tests.support.shim_process import environment

pytestmark = [pytest.mark.external, pytest.mark.timeout(600)]

LIMIT = 90.0
SCRIPT = Path(__file__).parent / "client.mjs"


@pytest.mark.parametrize(
    ("sdk", "revision"),
    [("v1", "2025-11-25"), ("v2:legacy", "2025-11-25"), ("v2:auto", "2026-07-28"), ("v2:2026-07-28", "2026-07-28")],
)
def test_a_session(place: Place, shim: str, programs: Node, sdk: str, revision: str) -> None:
    place.start()
    done = programs.run(programs.module(SCRIPT), sdk, shim, env=environment(place.state), limit=LIMIT)
    assert (done.returncode, done.stderr) == (0, "")
    seen: dict[str, Any] = json.loads(done.stdout)
    assert seen["version"] == revision
    assert seen["errors"] == []
    assert seen["server"]["name"] == "mbx"
    assert set(seen["capabilities"]) == {"tools", "resources"}
    assert "mbx_identity" in seen["instructions"]
    assert seen["tools"][:3] == ["mbx_identity", "create_agent_identity", "register_agent"]
    assert seen["resources"] == ["mbx://inbox", "mbx://identities"]

    assert seen["registered"]["identity"]["name"] == "shop-backend"
    assert seen["refused"]["isError"] is True
    assert seen["refused"]["structuredContent"]["error"]["code"] == "UNKNOWN_IDENTITY"
    assert seen["unknown"]["code"] == -32602
    assert seen["read"]["messages"] == []
    # The newer line knows an unknown resource by either revision's code and says -32602.
    assert seen["missing"]["code"] == (-32002 if sdk == "v1" else -32602)

    assert [step["progress"] for step in seen["progress"]] == [5]
    assert seen["progress"][0]["total"] == 7
    assert seen["waited"]["messages"] == []
    assert "value" not in seen["cancelled"]
    assert seen["after"] == "shop-backend"

    assert set(seen["updates"]) == {"mbx://inbox"}
    assert seen["inbox"] == ["hello"]
    assert seen["lists"] == []
    if revision == "2026-07-28":
        assert seen["honoured"] == {
            "toolsListChanged": True,
            "resourcesListChanged": True,
            "resourceSubscriptions": ["mbx://inbox"],
        }
        assert seen["closed"] == "local"
    assert seen["left"] == "ESRCH"
