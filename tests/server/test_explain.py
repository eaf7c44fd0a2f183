"""`why`: the rule that was applied, the evidence, and options that the caller can follow to the letter."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from mbxd.core.liveness import Policy
from tests.support.rig import Rig, RigClient, running

pytestmark = pytest.mark.trio
CALL = re.compile(r"mbx_identity (\{[^{}]*\})")
WORDS = re.compile(r"action=claim, name=([a-z0-9-]+)(?:, role=([a-z]+))?")
MAKE = {"project_key": "shop", "program": "codex", "model": "five"}


async def why(client: RigClient, name: str) -> Any:
    return await client.call("identity.why", {"name": name})


async def beneath(rig: Rig, host: int) -> RigClient:
    """A command line beneath an agent."""
    client = rig.connect(rig.machine.spawn(ppid=host, argv=("/usr/bin/mbxctl",)))
    await client.hello("mbxctl")
    return client


async def follow(client: RigClient, options: list[str]) -> Any:
    """Make the call of the options."""
    (call,) = CALL.findall(" ".join(options))
    params = json.loads(call)
    return await client.call(f"identity.{params.pop('action')}", params)


@pytest.mark.parametrize(("idle_after", "told"), [(1800.0, "30 minutes"), (90.0, "90 s"), (150.0, "150 s")])
async def test_an_idle_conversation_is_told_as_that_before_and_after_its_grace(
    autojump_clock: trio.abc.Clock, idle_after: float, told: str
) -> None:
    async with running() as rig:
        rig.services.settings.policy = Policy(detach_grace=50.0, idle_after=idle_after)
        client, _, _ = await rig.session()
        await client.register("shop-a", session="s1")
        await client.register("shop-b", session="s2")
        person = await rig.person()
        await trio.sleep(idle_after + 10)
        await client.call("identity.list", session="s2")
        before = await why(person, "shop-a")
        assert (before["state"], before["reason"], before["attached"]) == ("detached", "conversation-idle", True)
        rule = f"the conversation was silent for {told} while others of its process went on"
        assert before["rule"] == rule
        assert "in 40 s" in before["options"][0]
        await trio.sleep(45)
        await client.call("identity.list", session="s2")
        after = await why(person, "shop-a")
        assert (after["state"], after["reason"]) == ("detached", "grace-over")
        assert after["rule"] == rule + "; its grace of 50 s is over"


async def test_a_detached_one_is_told_as_that_before_and_after_its_grace(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, _, shim = await rig.session()
        await client.register("shop-a")
        rig.machine.kill(shim)
        await trio.sleep(59.5)
        person = await rig.person()
        before = await why(person, "shop-a")
        assert before["rule"] == "the host process lives, but no process that spoke for the session does"
        assert before["options"][0].endswith("in 1 s"), "never too few"
        await trio.sleep(1)
        after = await why(person, "shop-a")
        assert after["rule"] == before["rule"] + "; its grace of 60 s is over"
        other, _, _ = await rig.session()
        words = WORDS.search(after["options"][0])
        assert words is not None
        assert (await other.claim(words[1]))["epoch"] == 2


Made = Callable[[RigClient], Awaitable[Any]]


async def registered(person: RigClient) -> None:
    await person.call("identity.register", {"name": "shop-a", "role": "x"})


async def made_without_a_role(person: RigClient) -> None:
    await person.call("agent.register", {**MAKE, "name": "shop-a"})


@pytest.mark.parametrize("make", [registered, made_without_a_role])
async def test_a_vacant_one_is_claimed_as_its_options_say(autojump_clock: trio.abc.Clock, make: Made) -> None:
    async with running() as rig:
        person = await rig.person()
        await rig.session()
        await make(person)
        for_person = (await why(person, "shop-a"))["options"]
        assert not CALL.search(" ".join(for_person)), "it would be told as a command, which refuses people"
        client, host, _ = await rig.session()
        command = await beneath(rig, host)
        assert (await follow(command, (await why(command, "shop-a"))["options"]))["epoch"] == 1
        mine = await why(command, "shop-a")
        assert mine["options"][1].startswith("for your user: mbxctl free"), "levers are refused beneath an agent"
        assert (await follow(command, mine["options"]))["released"] == "shop-a"
        other, _, _ = await rig.session()
        words = WORDS.search(for_person[0])
        assert words is not None
        params = {"name": words[1], **({"role": words[2]} if words[2] else {})}
        assert (await other.call("identity.claim", params))["epoch"] == 2
        assert "register another name" in (await why(client, "shop-a"))["options"][0]
        assert (await why(person, "shop-a"))["options"][0] == "end the agent, or let it release"


async def test_a_session_that_holds_another_is_told_to_release_it_first(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        await registered(await rig.person())
        client, _, _ = await rig.session()
        await client.register("shop-b")
        assert (await follow(client, (await why(client, "shop-a"))["options"]))["released"] == "shop-b"
        assert (await follow(client, (await why(client, "shop-a"))["options"]))["epoch"] == 1


async def test_a_put_away_one_is_brought_back_by_a_person(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        person = await rig.person()
        await registered(person)
        await person.call("admin.retire", {"name": "shop-a"})
        assert (await why(person, "shop-a"))["options"] == ["mbxctl unretire shop-a brings it back"]
        client, _, _ = await rig.session()
        assert (await why(client, "shop-a"))["options"] == ["for your user: mbxctl unretire shop-a brings it back"]


async def test_the_last_holder_is_evidence_and_is_looked_at_anew(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        person = await rig.person()
        await registered(person)
        assert (await why(person, "shop-a"))["processes"] == []
        client, host, _ = await rig.session()
        await client.claim("shop-a")
        await person.call("admin.free", {"name": "shop-a", "reason": "why not"})
        freed = await why(person, "shop-a")
        (process,) = freed["processes"]
        assert (process["role"], process["pid"], process["verdict"]) == ("last host", host, "alive")
        assert freed["rule"].startswith("nobody holds it; agentcli did until 20")
        rig.machine.kill(host)
        (process,) = (await why(person, "shop-a"))["processes"]
        assert (process["pid"], process["verdict"], process["description"]) == (host, "dead", None)


async def test_what_is_advised_leads_to_what_was_asked_for(autojump_clock: trio.abc.Clock) -> None:
    """The address of another project's mailbox can be the name of an agent here."""
    async with running() as rig:
        person = await rig.person()
        elsewhere = {**MAKE, "project_key": "/tmp/docs"}
        await person.call("agent.register", {**elsewhere, "name": "Worker"})
        await person.call("admin.rename", {"name": "worker", "to": "castle"})
        await person.call("agent.register", {**MAKE, "name": "Castle"})
        found = await why(person, "worker")
        assert found["name"] == "docs/castle"
        assert "name=docs/castle" in found["options"][0]


async def test_a_swept_one_is_revived_by_a_claim(autojump_clock: trio.abc.Clock, tmp_path: Path) -> None:
    async with running() as rig:
        rig.services.post.open(str(tmp_path / "mail.db"))
        try:
            person = await rig.person()
            await registered(person)
            await trio.sleep(100)
            assert (await person.call("admin.sweep", {"older_than_s": 60}))["swept"] == ["shop-a"]
            for_person = await why(person, "shop-a")
            assert for_person["rule"].endswith("a claim revives it")
            assert WORDS.search(for_person["options"][0])
            assert for_person["options"][1] == "mbxctl unretire shop-a brings it back"
            client, _, _ = await rig.session()
            assert (await follow(client, (await why(client, "shop-a"))["options"]))["epoch"] == 1
        finally:
            rig.services.post.close()
