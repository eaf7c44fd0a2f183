"""A process of the same user that says it is somebody else: what it says counts for nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mbx_wire.methods import METHODS
from tests.support.daemon import Client, DaemonProcess, Refused, wait_until
from tests.support.trees import Forest, Speaker

HANDLE = "0199-thread"
HINT = "claude-code:0199-session"
AGENT: dict[str, Any] = {"project_key": "/tmp/shop", "program": "codex", "model": "five"}


@pytest.fixture
def victim(daemon: DaemonProcess, forest: Forest) -> Speaker:
    """A conversation that holds a mailbox with mail in it."""
    speaker = forest.session(daemon, label="claude-code", resume=[HINT])
    speaker.client.register("shop-a", session=HANDLE)
    daemon.person().call("mail.send", {"to": ["shop-a"], "subject": "secret plans", "body": "the vault"})
    return speaker


@pytest.fixture
def liar(daemon: DaemonProcess, forest: Forest, victim: Speaker) -> Client:
    """Another process that knows everything about the victim and says so, in hello and with every call."""
    shim = forest.ground().fork().fork()
    client = shim.connect(daemon.socket_path, instance=victim.client.instance)
    hello: dict[str, Any] = {
        "protocol": {"min": 1, "max": 1},
        "client": {"name": "mbx-mcp", "version": "0", "instance": victim.client.instance, "label": "claude-code"},
        "project": {"key": "/tmp/shop", "slug": "shop"},
        "hints": {"resume": [HINT], "sessions": [HANDLE, ""], "agent": "shop-a"},
        "pid": victim.shim.pid,
        "host": {"pid": victim.host.pid},
    }
    client.call("hello", {**hello, "client": {**hello["client"], "pid": victim.host.pid}})
    return client


def as_victim(**more: Any) -> dict[str, Any]:
    return {"session": HANDLE, "epoch": 1, **more}


def test_it_acts_as_nobody(daemon: DaemonProcess, victim: Speaker, liar: Client) -> None:
    shown = liar.call("mail.whoami", {}, **as_victim())
    assert shown["name"] is None
    assert "vault" not in json.dumps(shown)
    for method, params in (
        ("mail.inbox", {}),
        ("mail.send", {"to": ["shop-a"], "subject": "x", "body": "x"}),
        ("mail.search", {"query": "vault"}),
    ):
        refusal = liar.refused(method, params, **as_victim())
        assert refusal.code == "NOT_BOUND"
        assert "vault" not in json.dumps(refusal.body)
    assert liar.call("identity.release", {}, **as_victim())["released"] is None
    assert liar.call("identity.list", {}, **as_victim())["you"] is None
    assert liar.refused("identity.claim", {"name": "shop-a"}, **as_victim()).code == "IDENTITY_IN_USE"
    row = daemon.person().row("shop-a")
    assert row["state"] == "live"
    assert row["holder"]["pid"] == victim.host.pid
    assert victim.client.call("identity.list", {}, session=HANDLE)["you"]["unread"] == 1


def test_it_keeps_nobody_attached(daemon: DaemonProcess, victim: Speaker, liar: Client) -> None:
    """Hellos that name the victim's handle do not make it look as if the victim's session were there."""
    victim.shim.kill()
    victim.client.close()
    wait_until("it is detached", lambda: daemon.person().row("shop-a")["state"] == "detached")
    assert liar.refused("identity.claim", {"name": "shop-a"}, **as_victim()).code == "IDENTITY_IN_USE"
    assert daemon.person().row("shop-a")["holder"]["pid"] == victim.host.pid


def test_the_kernel_names_its_process(daemon: DaemonProcess, victim: Speaker, liar: Client) -> None:
    liar.register("shop-b", session=HANDLE)
    rows = daemon.person().rows()
    assert rows["shop-b"]["holder"]["pid"] not in {victim.host.pid, victim.shim.pid, 0}
    assert rows["shop-a"]["holder"]["pid"] == victim.host.pid
    assert victim.client.call("identity.list", {}, session=HANDLE)["you"]["name"] == "shop-a"


def test_a_request_id_of_another_process_gets_nothing(daemon: DaemonProcess, victim: Speaker, liar: Client) -> None:
    """The kept result of a creation would come with its token."""
    mine = victim.client.call("agent.create", AGENT, request_id="r1", session=HANDLE)
    theirs = liar.call("agent.create", AGENT, request_id="r1", session=HANDLE)
    assert theirs["id"] != mine["id"]
    assert theirs["registration_token"] != mine["registration_token"]
    again = victim.client.call("agent.create", AGENT, request_id="r1", session=HANDLE)
    assert (again["id"], again["registration_token"]) == (mine["id"], mine["registration_token"])
    # Nor can it use up an id before its owner does.
    liar.call("agent.create", AGENT, request_id="r2", session=HANDLE)
    other = {**AGENT, "model": "six"}
    assert victim.client.call("agent.create", other, request_id="r2", session=HANDLE)["model"] == "six"
    letter = {"to": ["shop-a"], "subject": "one", "body": "one"}
    sent = victim.client.call("mail.send", letter, request_id="m1", session=HANDLE)
    assert liar.call("mail.send", letter, request_id="m1", session=HANDLE)["id"] != sent["id"]
    assert victim.client.call("mail.send", letter, request_id="m1", session=HANDLE)["id"] == sent["id"]


def test_ids_of_messages_open_nothing(daemon: DaemonProcess, victim: Speaker, liar: Client) -> None:
    (header,) = victim.client.call("mail.inbox", {}, session=HANDLE)["messages"]
    liar.register("shop-b", session=HANDLE)
    for method, params in (
        ("mail.read", {"ids": [header["id"]]}),
        ("mail.thread", {"id": header["id"]}),
        ("mail.reply", {"id": header["id"], "body": "x"}),
        ("mail.ack", {"ids": [header["id"]]}),
        ("mail.ack", {"ids": [header["id"][:10]]}),
    ):
        try:
            text = json.dumps(liar.call(method, params, **as_victim()))
        except Refused as refusal:
            text = json.dumps(refusal.body)
        assert "vault" not in text, method
        assert "secret plans" not in text, method
    assert liar.call("mail.search", {"query": "vault"}, **as_victim())["messages"] == []
    assert victim.client.call("identity.list", {}, session=HANDLE)["you"]["unread"] == 1


def test_tokens_are_for_one_identity_and_one_generation(daemon: DaemonProcess, forest: Forest) -> None:
    boss, worker = forest.sessions(daemon, 2)
    first, second = (boss.client.call("agent.create", AGENT) for _ in range(2))
    old = second["registration_token"]
    wrong = [first["registration_token"], old[:-1], old + "A", old.upper(), "mbx_", "x" * 10_000, "\u202e" + old]
    for token in wrong:
        refusal = worker.client.refused(
            "agent.register", {**AGENT, "name": second["name"], "registration_token": token}
        )
        assert refusal.code == "TOKEN_MISMATCH"
        assert token[4:14] not in json.dumps(refusal.body) or len(token) < 5
    daemon.person().call("admin.token", {"name": second["address"], "rotate": True})
    stale = worker.client.refused("agent.register", {**AGENT, "name": second["name"], "registration_token": old})
    assert stale.code == "TOKEN_MISMATCH"


LEVERS: dict[str, dict[str, Any]] = {
    "mail.peek": {"name": "shop-a"},
    "mail.backup": {"path": "/tmp/never-written"},
    "mail.check": {},
    "mail.prune": {"older_than_s": 86400},
    "admin.free": {"name": "shop-a", "reason": "because"},
    "admin.retire": {"name": "shop-a"},
    "admin.unretire": {"name": "shop-a"},
    "admin.rename": {"name": "shop-a", "to": "shop-z"},
    "admin.token": {"name": "shop-a"},
    "admin.sweep": {"older_than_s": 86400},
    "archive.rebuild": {},
}


def test_every_lever_is_listed() -> None:
    assert set(LEVERS) == {name for name, method in METHODS.items() if method.people}


@pytest.mark.parametrize("name", ["mbx-mcp", "mbxctl", "owner", "person"])
def test_peoples_levers_beneath_an_agent(daemon: DaemonProcess, forest: Forest, victim: Speaker, name: str) -> None:
    """Whatever a process beneath an agent calls itself, it is no person. (One that the agent set free of it is.)"""
    agent = forest.session(daemon)
    agent.client.register("shop-b")
    client = agent.host.fork().connect(daemon.socket_path)
    client.hello(name)
    for method, params in LEVERS.items():
        refusal = client.refused(method, params)
        assert refusal.code == "NOT_ALLOWED", (method, refusal.body)
    assert daemon.person().row("shop-a")["state"] == "live"
