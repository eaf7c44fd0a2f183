"""Agent identities as agents meet them: independent MCP clients, real shims, a real daemon, real processes."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toon_format

from tests.support.agents import Agents
from tests.support.daemon import PATIENCE, DaemonProcess, Place, environment, image, wait_until
from tests.support.trees import Forest

BASE = {"program": "claude-code", "model": "opus-4"}
WORKER = {"program": "codex", "model": "five"}
MADE = re.compile(r"[A-Z][a-z]+[A-Z][a-z]+")
CLIENTS = [("sdk", "auto"), ("sdk", "legacy"), ("sdk", "2026-07-28"), ("fastmcp", "-")]


@pytest.fixture
def agents(daemon: DaemonProcess) -> Iterator[Agents]:
    with Agents(daemon.state) as made:
        yield made


@pytest.fixture
def shop(place: Place) -> Path:
    return directory(place, "shop")


def directory(place: Place, name: str) -> Path:
    path = place.root / name
    path.mkdir()
    return path


@pytest.mark.parametrize(("client", "mode"), CLIENTS)
def test_the_documented_calls(agents: Agents, shop: Path, client: str, mode: str) -> None:
    boss = agents.start(shop, client, mode)
    key = str(shop)
    hinted = boss.call(
        "create_agent_identity", BASE, project_key=key, name_hint="GreenCastle", task_description="Auth refactor"
    )
    assert (hinted["name"], hinted["bound"], hinted["task_description"]) == ("GreenCastle", True, "Auth refactor")
    assert hinted["registration_token"].startswith("mbx_")
    plain = boss.call("create_agent_identity", BASE, project_key=key)
    assert MADE.fullmatch(plain["name"])
    assert (plain["bound"], plain["project_id"]) == (False, hinted["project_id"])
    assert plain["id"] != hinted["id"]
    assert boss.refused("create_agent_identity", **BASE, project_key=key, name_hint="greencastle").code == "NAME_TAKEN"
    assert boss.call("ensure_project", human_key=key)["id"] == hinted["project_id"]
    shown = boss.call("whois", project_key=key, agent_name="greencastle")
    assert (shown["state"], shown["holder"]["pid"]) == ("live", boss.pid)
    assert boss.call("retire_agent", project_key=key, agent_name=plain["name"])["retired"] is True


@pytest.mark.parametrize("tool", ["create_agent_identity", "register_agent"])
def test_toon_is_the_text_alone(agents: Agents, shop: Path, tool: str) -> None:
    agent = agents.start(shop)
    agent.order(tool, {**BASE, "project_key": str(shop), "format": "toon", "task_description": "ship: it, now"})
    answer = agent.answer()
    assert answer["is_error"] is False
    assert toon_format.decode(answer["text"]) == answer["structured"]
    assert answer["text"].startswith(f"id: 1\nname: {answer['structured']['name']}\n")
    agent.order("whois", {"project_key": str(shop), "agent_name": answer["structured"]["name"]})
    plain = agent.answer()
    assert json.loads(plain["text"]) == plain["structured"]


@pytest.mark.parametrize(("client", "mode"), CLIENTS)
def test_registering_with_and_without_a_name(agents: Agents, shop: Path, client: str, mode: str) -> None:
    one = agents.start(shop, client, mode)
    drawn = one.call("register_agent", WORKER, project_key=str(shop))
    assert MADE.fullmatch(drawn["name"])
    assert drawn["bound"] is True
    assert "registration_token" not in drawn
    two = agents.start(shop, client, mode)
    first = two.call("register_agent", WORKER, project_key=str(shop), name="BlueLake")
    again = two.call("register_agent", project_key=str(shop), name="bluelake", program="codex", model="six")
    assert (again["id"], again["name"], again["model"]) == (first["id"], "BlueLake", "six")
    assert (again["epoch"], again["bound"]) == (first["epoch"], True)
    rows = two.call("mbx_identity", action="list")["identities"]
    assert sorted(row["name"] for row in rows) == sorted([drawn["name"], "BlueLake"])
    taken = one.refused("register_agent", **WORKER, project_key=str(shop), name="BlueLake")
    assert taken.code == "IDENTITY_IN_USE"
    assert str(two.pid) in taken.body["message"]


def test_an_own_identity_without_a_token_in_the_transcript(agents: Agents, shop: Path) -> None:
    agent = agents.start(shop)
    made = agent.call("create_agent_identity", BASE, project_key=str(shop), return_registration_token=False)
    assert "registration_token" not in made
    assert made["bound"] is True
    updated = agent.call("register_agent", BASE, project_key=str(shop), name=made["name"], task_description="now")
    assert (updated["id"], updated["epoch"], updated["bound"]) == (made["id"], made["epoch"], True)
    assert agent.call("mbx_identity", action="claim")["identity"]["id"] == made["id"]
    assert agent.call("mbx_identity", action="list")["you"]["name"] == made["name"]
    assert not any("mbx_" in text for text in agent.heard[1:] if "mbx_identity" not in text)


def test_projects_and_worktrees(agents: Agents, place: Place, shop: Path) -> None:
    repository, tree = directory(place, "blog"), place.root / "tree"
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "-q"], check=True, timeout=PATIENCE)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True, timeout=PATIENCE)
    subprocess.run([*git, "worktree", "add", "-q", str(tree)], check=True, capture_output=True, timeout=PATIENCE)
    in_shop, in_blog, in_tree = (agents.start(path) for path in (shop, repository, tree))
    ours = in_shop.call("create_agent_identity", BASE, project_key=str(shop), name_hint="BlueLake")
    theirs = in_blog.call("create_agent_identity", BASE, project_key=str(repository), name_hint="BlueLake")
    assert ours["project_id"] != theirs["project_id"]
    assert (ours["address"], theirs["address"]) == ("bluelake", "blog-bluelake")
    other = in_tree.call("create_agent_identity", BASE, project_key=str(tree), name_hint="RedStone")
    assert other["project_id"] == theirs["project_id"]
    taken = in_tree.refused("register_agent", **BASE, project_key=str(tree), name="bluelake")
    assert (taken.code, taken.body["data"]["holder"]["pid"]) == ("IDENTITY_IN_USE", in_blog.pid)
    listed = in_tree.call("mbx_identity", action="list")
    assert {row["name"] for row in listed["identities"]} == {"BlueLake", "RedStone"}
    assert listed["project"]["slug"] == "blog"
    far = directory(place, "far")
    assert in_shop.call("ensure_project", human_key=str(far))["slug"] == "far"


def test_an_orchestrator_and_its_three_workers(agents: Agents, shop: Path) -> None:
    boss = agents.start(shop)
    key = {"project_key": str(shop)}
    made = [boss.call("create_agent_identity", WORKER, **key) for _ in range(3)]
    assert [one["bound"] for one in made] == [True, False, False]
    for one in made:
        name, _, arguments = one["next"].partition(" ")
        assert name == "register_agent"
        assert json.loads(arguments) | {"name": one["name"]} == json.loads(arguments)
    workers = [agents.start(shop, client, mode) for client, mode in CLIENTS[:3]]
    for worker, one in zip(workers, made, strict=True):
        wrong = worker.refused("register_agent", **WORKER, **key, name=one["name"], registration_token="mbx_wrong")
        assert wrong.code == "TOKEN_MISMATCH"
        mine = worker.call(
            "register_agent", WORKER, **key, name=one["name"], registration_token=one["registration_token"]
        )
        assert (mine["id"], mine["bound"]) == (one["id"], True)
        assert worker.call("mbx_identity", action="list")["you"]["name"] == one["name"]
    listed = boss.call("mbx_identity", action="list")
    assert (listed["you"], listed["lost"]["how"]) == (None, "handed-over")
    assert {row["holder"]["pid"] for row in listed["identities"]} == {worker.pid for worker in workers}
    late = boss.refused(
        "register_agent", **WORKER, **key, name=made[0]["name"], registration_token=made[0]["registration_token"]
    )
    assert late.code == "IDENTITY_IN_USE"


def test_a_subagent_of_the_same_session_is_told(agents: Agents, shop: Path) -> None:
    agent = agents.start(shop)
    key = {"project_key": str(shop)}
    agent.call("create_agent_identity", BASE, **key)
    other = agent.call("create_agent_identity", BASE, **key)
    told = agent.refused(
        "register_agent", **BASE, **key, name=other["name"], registration_token=other["registration_token"]
    )
    assert told.code == "HOLDS_ANOTHER"
    assert "start workers as their own processes" in told.body["hint"]


def test_a_lost_reply_gives_the_same_identity_and_token(place: Place, daemon: DaemonProcess, forest: Forest) -> None:
    speaker = forest.session(daemon)
    params = {"project_key": "/repos/shop", **BASE}
    speaker.client.send("agent.create", params, request_id="r1")
    wait_until("it was made", lambda: daemon.person().rows())
    again = speaker.reconnect(daemon).call("agent.create", params, request_id="r1")
    assert again["bound"] is True
    speaker.client.send("tool.call", {"name": "create_agent_identity", "arguments": params}, request_id="r2")
    wait_until("the second was made", lambda: len(daemon.person().rows()) == 2)
    daemon.kill()
    second = place.start()
    client = speaker.reconnect(second)
    assert client.call("agent.create", params, request_id="r1") == again
    tool = client.call("tool.call", {"name": "create_agent_identity", "arguments": params}, request_id="r2")
    assert tool == client.call("tool.call", {"name": "create_agent_identity", "arguments": params}, request_id="r2")
    assert set(second.person().rows()) == {again["name"], tool["structuredContent"]["name"]}
    for one in (again, tool["structuredContent"]):
        assert (
            one["registration_token"]
            == second.person().call("admin.token", {"name": one["address"]})["registration_token"]
        )


def test_a_killed_daemon_in_mid_call_makes_one_identity(daemon: DaemonProcess, agents: Agents, shop: Path) -> None:
    agent = agents.start(shop)
    agent.call("mbx_identity", action="list")
    agent.order("create_agent_identity", {**BASE, "project_key": str(shop)})
    daemon.kill()
    made = agent.result("create_agent_identity")
    agent.call("mbx_identity", action="list")  # now at the latest its shim has started the next daemon
    person = daemon.person()
    assert list(person.rows()) == [made["name"]]
    shown = person.call("admin.token", {"name": made["address"]})
    assert shown["registration_token"] == made["registration_token"]
    assert person.call("stop")["stopping"]


def test_tokens_are_nowhere_but_in_their_reply(place: Place, daemon: DaemonProcess, agents: Agents, shop: Path) -> None:
    boss, worker = agents.start(shop), agents.start(shop, "fastmcp")
    key = {"project_key": str(shop)}
    made = [boss.call("create_agent_identity", WORKER, **key) for _ in range(2)]
    tokens = [one["registration_token"] for one in made]
    answers = len(boss.heard)
    swapped = worker.refused("register_agent", **WORKER, **key, name=made[0]["name"], registration_token=tokens[1])
    assert swapped.code == "TOKEN_MISMATCH"
    worker.call("register_agent", WORKER, **key, name=made[0]["name"], registration_token=tokens[0])
    for tool, arguments in (
        ("mbx_identity", {"action": "list"}),
        ("whois", {**key, "agent_name": made[0]["name"]}),
        ("register_agent", {**WORKER, **key, "name": made[0]["name"]}),
        ("register_agent", {**WORKER, **key, "name": made[1]["name"], "registration_token": tokens[1]}),
        ("create_agent_identity", {**WORKER, **key, "name_hint": tokens[0]}),
        ("register_agent", {**WORKER, **key, "name": tokens[0]}),
        ("create_agent_identity", {**WORKER, **key, "return_registration_token": False}),
    ):
        worker.order(tool, arguments)
        worker.answer()
    texts = [*boss.heard[answers:], *worker.heard]
    person = daemon.person()
    tokens.append(person.call("admin.token", {"name": made[1]["address"], "rotate": True})["registration_token"])
    texts += [
        json.dumps(person.call(method, params))
        for method, params in (
            ("identity.why", {"name": made[0]["address"]}),
            ("admin.log", {"limit": 1000}),
            ("admin.stats", {}),
            ("status", {}),
            ("identity.list", {"all": True}),
            ("identity.show", {"name": made[0]["address"]}),
        )
    ]
    for args in (
        ("doctor",),
        ("log",),
        ("list", "--all"),
        ("stats", "--json"),
        ("create", "--program", "p", "--model", "m"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "mbxctl", *args],
            env=environment(daemon.state),
            cwd=shop,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        texts += [done.stdout, done.stderr]
    daemon.stop()
    haystacks = {name: text.encode() for name, text in enumerate(texts)} | image(place.root)
    for token in tokens:
        for form in forms(token):
            assert [name for name, data in haystacks.items() if form in data] == []


def forms(token: str) -> list[bytes]:
    bare = token.removeprefix("mbx_")
    return [bare.encode(), bare.lower().encode(), base64.urlsafe_b64decode(bare + "=")]


def test_the_key_is_private_and_a_new_key_makes_new_tokens(place: Place, daemon: DaemonProcess, forest: Forest) -> None:
    client = forest.session(daemon).client
    made: dict[str, Any] = client.call("agent.create", {"project_key": "/repos/shop", **BASE})
    keys = [path for path in daemon.state.rglob("*") if path.is_file() and path.stat().st_size == 32]
    assert [oct(path.stat().st_mode & 0o777) for path in keys] == ["0o600"]
    daemon.kill()
    keys[0].unlink()
    second = place.start()
    shown = second.person().call("admin.token", {"name": made["address"]})
    assert shown["registration_token"] != made["registration_token"]
