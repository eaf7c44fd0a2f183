"""The installation changes under a running daemon: it goes on, and an older one leaves newer data alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from mbx_wire.methods import METHODS
from mbx_wire.tools import TOOLS
from tests.support.daemon import ROOT, Client, Place, wait_until
from tests.support.trees import Forest

UNASKED = {"hello", "stop", "tool.call"}
"""Methods that every session uses or that come last."""
AGENT = {"project_key": "shop", "program": "codex", "model": "five", "format": "toon"}
LETTER = {"subject": "s", "body": "b"}


def parameters(number: str, backup: Path) -> dict[str, dict[str, Any]]:
    """What makes each method do its work; methods that are missing here take nothing."""
    name = {"name": "shop-b"}
    return {
        "identity.show": name,
        "identity.why": name,
        "identity.claim": {"name": "shop-a"},
        "identity.register": {"name": "shop-c", "role": "x"},
        "agent.create": {"project_key": "shop", "program": "p", "model": "m"},
        "agent.register": {"project_key": "shop", "program": "p", "model": "m"},
        "agent.whois": {"project_key": "shop", "agent_name": "shop-b"},
        "agent.retire": {"project_key": "shop", "agent_name": "shop-b"},
        "project.ensure": {"human_key": "/tmp/other"},
        "mail.read": {"ids": [number]},
        "mail.send": {"to": ["shop-b"], **LETTER},
        "mail.reply": {"id": number, "body": "b"},
        "mail.ack": {"ids": [number]},
        "mail.thread": {"id": number},
        "mail.search": {"query": "b"},
        "mail.peek": name,
        "mail.backup": {"path": str(backup)},
        "mail.prune": {"older_than_s": 86400.0 * 30},
        "admin.free": {**name, "reason": "r"},
        "admin.retire": name,
        "admin.unretire": name,
        "admin.rename": {**name, "to": "shop-d"},
        "admin.token": name,
        "admin.sweep": {"older_than_s": 86400.0 * 30},
        "archive.log": name,
    }


def exercise(client: Client, method: str, params: dict[str, Any]) -> None:
    """The method answers or refuses in words; nothing breaks inside."""
    number = client.send(method, params)
    while (answer := client.receive()).get("id") != number:
        assert "method" in answer, answer
    error = answer.get("error", {})
    assert error.get("code") not in {-32603, -32602, -32601}, (method, error)
    assert (error.get("data") or {}).get("code") not in {"INTERNAL", "PARAMETER_UNKNOWN"}, (method, error)


def test_every_method_works_when_the_installation_is_gone(place: Place, forest: Forest) -> None:
    installed, seal = place.root / "installed", place.root / "seal"
    for package in ("mbxd", "client/mbx_wire"):
        shutil.copytree(ROOT / package, installed / Path(package).name)
    path = os.pathsep.join([str(installed), str(ROOT)])
    program = (str(ROOT / "tests/support/sealed.py"),)
    daemon = place.start(program, MBX_SEAL=str(seal), PYTHONPATH=path)
    wait_until("all is loaded", seal.with_suffix(".warm").exists)
    installed.rename(place.root / "replaced")
    seal.touch()
    agent, other = (speaker.client for speaker in forest.sessions(daemon, 2))
    agent.register("shop-a")
    other.register("shop-b")
    letter = other.call("mail.send", {"to": ["shop-a"], **LETTER, "needs_reply": True})
    sent = str(letter["id"])
    known = parameters(sent, place.root / "backup.db")
    for name, method in METHODS.items():
        if name not in UNASKED:
            exercise(daemon.person() if method.people else agent, name, known.get(name, {}))
    for tool, definition in TOOLS.items():
        arguments = known.get(definition.method or "", {"action": "list"} if definition.method is None else {})
        exercise(agent, "tool.call", {"name": tool, "arguments": arguments})
    toon = agent.call("tool.call", {"name": "create_agent_identity", "arguments": AGENT})
    assert not toon["isError"]
    assert not toon["content"][0]["text"].startswith("{")
    assert daemon.stop() == 0, daemon.log()
    late = seal.with_suffix(".late")
    assert not late.exists(), late.read_text()
    assert "Traceback" not in daemon.log()
