"""The commands for the Git archive against the real daemon."""

from __future__ import annotations

import time

from tests.e2e.test_mbxctl_e2e import AgentCli, agent, needs_a_person, real
from tests.mbxctl.conftest import Place, place

__all__ = ["agent", "place", "real"]

PATIENCE = 30.0


def archived(real: Place) -> None:
    """Wait until the archive has everything."""
    until = time.monotonic() + PATIENCE
    while real.run("archive", "status", "--json").document["behind"] != 0:
        assert time.monotonic() < until, "the archive does not follow"


def test_a_profile_and_its_history(real: Place) -> None:
    needs_a_person(real)
    real.run("create", "--program", "codex", "--model", "five", "--hint", "GreenCastle")
    archived(real)
    status = real.run("archive", "status")
    assert status.code == 0
    assert "behind:   0 changes" in status.out
    shown = real.run("archive", "log", "GreenCastle", "--json").document
    assert shown["path"].endswith("/agents/GreenCastle/profile.json")
    assert len(shown["commits"]) == 1
    assert real.run("archive", "log", "greencastle").out.startswith(shown["commits"][0]["hexsha"][:12])
    assert real.run("archive", "log", "--limit", "1").code == 0
    assert real.run("archive", "log", "no-such", "--json").code == 3
    assert "commit: " in real.run("whois", "GreenCastle").out
    verified = real.run("archive", "verify", "--json")
    assert (verified.code, verified.document["ok"]) == (0, True)
    rebuilt = real.run("archive", "rebuild", "--json")
    assert rebuilt.code == 0, rebuilt
    assert rebuilt.document["commits"] >= 1
    archived(real)
    assert "agrees with the registry" in real.run("archive", "verify").err


def test_a_changed_file_is_found(real: Place) -> None:
    real.run("create", "--program", "codex", "--model", "five", "--hint", "GreenCastle")
    archived(real)
    (profile,) = (real.state / "archive").rglob("profile.json")
    profile.write_text("{}")
    verified = real.run("archive", "verify")
    assert verified.code in {0, 1}
    if verified.code:
        assert "mbxctl archive rebuild" in verified.err


def test_rebuilding_is_refused_beneath_an_agent(real: Place, agent: AgentCli) -> None:
    agent.call(action="list")
    refused = agent.mbxctl("archive", "rebuild", "--json")
    assert (refused.code, refused.document["error"]["code"]) == (1, "NOT_ALLOWED")
