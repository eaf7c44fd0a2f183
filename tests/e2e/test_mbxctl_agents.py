"""The commands for agent identities against the real daemon."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from mbxctl import calls
from mbxctl.agents import seconds
from mbxctl.failure import Failure
from tests.e2e.test_mbxctl_e2e import AgentCli, agent, needs_a_person, real
from tests.mbxctl.conftest import Place, Result, place

__all__ = ["agent", "place", "real"]

MAKE = ("create", "--program", "codex", "--model", "five")


def error(result: Result) -> tuple[int, str]:
    return result.code, result.document["error"]["code"]


def test_a_person_makes_an_identity_and_hands_over_its_token(real: Place) -> None:
    needs_a_person(real)
    made = real.run(*MAKE, "--hint", "GreenCastle", "--task", "ship it")
    assert made.out == "created GreenCastle (address greencastle), vacant\n"
    assert "register_agent {" in made.err
    assert "mbx_" not in made.out
    token = real.run("token", "show", "GreenCastle")
    assert token.code == 0
    assert token.out.startswith("mbx_")
    assert token.out.count("\n") == 1
    with_token = real.run(*MAKE, "--token", "--json").document
    assert with_token["registration_token"] == real.run("token", "show", with_token["address"]).out.strip()
    assert "registration_token" not in real.run(*MAKE, "--json").document
    rotated = real.run("token", "rotate", "GreenCastle", "--json").document
    assert rotated["generation"] == 1
    assert rotated["registration_token"] != token.out.strip()
    assert "no longer valid" in real.run("token", "rotate", "greencastle").err


def test_whois_by_name_project_and_nowhere(real: Place) -> None:
    real.run(*MAKE, "--hint", "GreenCastle", "--task", "ship it")
    shown = real.run("whois", "greencastle")
    assert "program:      codex" in shown.out
    assert "task:         ship it" in shown.out
    for project in ("shop", str(real.project), ".", "../shop"):
        found = real.run("whois", "GreenCastle", "--project", project, "--json")
        assert found.document["project_id"] == 1, project
    assert real.run("whois", "GreenCastle", "--project", "shop", cwd=real.home).code == 0
    assert error(real.run("whois", "GreenCastel", "--json")) == (3, "UNKNOWN_IDENTITY")
    assert error(real.run("whois", "GreenCastle", "--json", cwd=real.home)) == (3, "NO_PROJECT")
    assert error(real.run("whois", "GreenCastle", "--project", "/no/such", "--json")) == (3, "NO_PROJECT")
    assert error(real.run("whois", "GreenCastle", "--project", "nowhere", "--json")) == (3, "NO_PROJECT")


def test_another_directory_is_another_project_and_its_worktree_is_the_same(real: Place) -> None:
    repository, tree = real.root / "blog", real.root / "blog-tree"
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", str(tree)], check=True, capture_output=True)
    first = real.run(*MAKE, "--hint", "BlueLake", "--project", str(repository), "--json").document
    second = real.run(*MAKE, "--hint", "RedStone", "--project", str(tree), "--json").document
    here = real.run(*MAKE, "--hint", "BlueLake", "--json").document
    assert first["project_id"] == second["project_id"] != here["project_id"]
    assert (first["address"], here["address"]) == ("bluelake", "shop-bluelake")
    assert error(real.run(*MAKE, "--hint", "BlueLake", "--project", str(tree), "--json")) == (4, "NAME_TAKEN")


def test_a_sweep_shows_before_it_acts(real: Place) -> None:
    needs_a_person(real)
    real.run(*MAKE, "--hint", "GreenCastle")
    assert error(real.run("sweep", "--older-than", "5 s", "--json")) == (2, "PARAMETER_INVALID")
    assert error(real.run("sweep", "--older-than", "soon", "--json")) == (2, "PARAMETER_INVALID")
    dry = real.run("sweep", "--older-than", "24h", "--dry-run", "--project", "shop", "--json")
    assert dry.document == {"swept": [], "dry_run": True, "warnings": []}
    assert "0 identities retired" in real.run("sweep", "--older-than", "24h").err


def test_tokens_and_sweeps_are_refused_beneath_an_agent(real: Place, agent: AgentCli) -> None:
    agent.call(action="list")
    made = agent.mbxctl(*MAKE, "--hint", "GreenCastle", "--token", "--json").document
    assert made["bound"] is True
    for args in (("token", "show", "greencastle"), ("token", "rotate", "greencastle"), ("sweep", "--older-than", "1d")):
        assert error(agent.mbxctl(*args, "--json")) == (1, "NOT_ALLOWED"), args
    assert agent.call(action="list")["you"]["name"] == "GreenCastle"


def test_advice_fits_who_asks(real: Place, agent: AgentCli) -> None:
    needs_a_person(real)
    agent.call(action="list")
    real.run(*MAKE, "--hint", "GreenCastle")
    vacant = real.run("why", "greencastle").out
    assert "any agent may claim it: mbx_identity with action=claim, name=greencastle, role=backend" in vacant
    assert "mbxctl claim" not in vacant
    again = real.run("register", "greencastle", "--role", "api")
    assert again.code == 4
    assert "any agent may claim it: mbx_identity with action=claim, name=greencastle, role=api." in again.err
    assert "mbxctl register shop-api --role api" in again.err
    assert agent.mbxctl("claim").err.splitlines()[-1] == "hint: Claim one: mbxctl claim greencastle --role backend."
    assert "any session may claim it: mbxctl claim greencastle --role backend" in agent.mbxctl("why", "greencastle").out
    assert agent.mbxctl("claim", "greencastle", "--role", "backend").code == 0
    assert real.run("free", "greencastle", "--reason", "why not", "--yes").code == 0
    assert "  last host pid " in real.run("why", "greencastle").out


def test_hints_name_commands_and_documents_keep_the_calls(real: Place) -> None:
    real.run("register", "shop-api", "--role", "api")
    assert "mbx_identity" in real.run("why", "shop-api", "--json").out
    assert "See them with mbxctl list." in real.run("whois", "nobody").err


@pytest.mark.parametrize(
    ("call", "command"),
    [
        ('mbx_identity {"action":"list"}', "mbxctl list"),
        ('mbx_identity {"action":"list","all":true}', "mbxctl list --all"),
        ('Try: mbx_identity {"action":"claim","name":"x-y"}.', "Try: mbxctl claim x-y."),
        ('mbx_identity {"action":"claim"}', "mbxctl claim"),
        ('mbx_identity {"action":"register","name":"a","role":"b c"}', "mbxctl register a --role 'b c'"),
        ('mbx_identity {"action":"release"}; or', "mbxctl release; or"),
        ('mbx_identity {"action":"dance"}', 'mbx_identity {"action":"dance"}'),
        ("mbx_identity {nonsense}", "mbx_identity {nonsense}"),
        ('register_agent {"name":"x"}', 'register_agent {"name":"x"}'),
    ],
)
def test_calls_become_commands(call: str, command: str) -> None:
    assert calls.as_commands(call) == command


@pytest.mark.parametrize(
    ("text", "value"), [("90s", 90), ("30m", 1800), ("1.5h", 5400), ("2 D", 172800), ("5min", 300)]
)
def test_lengths_of_time(text: str, value: Any) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "5", "h", "-1h", "1w", "1e9h", "²h"])
def test_wrong_lengths_of_time(text: str) -> None:
    with pytest.raises(Failure, match="no length of time"):
        seconds(text)
