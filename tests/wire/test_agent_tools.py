"""What the tools of the registry cost a context window, and how their results are written."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from mbx_wire.errors import Code
from mbx_wire.tools import TOOLS, definition
from mbxd.core.rejected import Rejected
from mbxd.server import tools as server_tools
from tests.support.daemon import SOURCES

REGISTRY = ("mbx_identity", "create_agent_identity", "register_agent", "ensure_project", "whois", "retire_agent")
CHARACTERS_A_TOKEN = 4
TOKENS_MAX = 1800
GOOD = {"project_key": "/repos/shop", "program": "codex", "model": "m-1"}


def test_the_six_tools_fit_their_budget() -> None:
    shown = [definition(TOOLS[name]) for name in REGISTRY]
    texts = [json.dumps([d["name"], d["description"], d["inputSchema"]], separators=(",", ":")) for d in shown]
    assert sum(map(len, texts)) / CHARACTERS_A_TOKEN <= TOKENS_MAX


def test_every_output_schema_allows_a_refusal_and_names_what_a_success_has() -> None:
    for name in REGISTRY:
        schema = definition(TOOLS[name])["outputSchema"]
        fields = {field.encode_name for result in TOOLS[name].results for field in msgspec.structs.fields(result)}
        assert set(schema["properties"]) == fields | {"error"}, name


# -- the other text format -------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["create_agent_identity", "register_agent"])
def test_the_call_says_which_text_it_wants(tool: str) -> None:
    assert server_tools.call(tool, {**GOOD, "format": "toon"}).toon is True
    for other in ("json", None, ""):
        assert server_tools.call(tool, {**GOOD, "format": other}).toon is False
    with pytest.raises(Rejected) as refusal:
        server_tools.call(tool, {**GOOD, "format": "yaml"})
    assert refusal.value.code == Code.PARAMETER_INVALID


WITHOUT = """
import sys

from importlib.machinery import PathFinder

class Hiding:
    @staticmethod
    def find_spec(name, path=None, target=None):
        hidden = name.partition(".")[0] == "toon_format"
        return None if hidden else PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]
from mbxd.core.rejected import Rejected
from mbxd.server import tools
good = {"project_key": "/repos/shop", "program": "p", "model": "m"}
assert tools.call("register_agent", {**good, "format": "json"}).toon is False
try:
    tools.call("register_agent", {**good, "format": "toon"})
except Rejected as refusal:
    print(refusal.code, refusal.message, refusal.hint, sep="|")
"""


def test_without_the_package_the_call_is_refused_in_words() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        env={"PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    code, message, hint = done.stdout.strip().split("|")
    assert code == "PARAMETER_INVALID"
    assert "toon" in message
    assert "mbxd[toon]" in hint
    assert '"json"' in hint
