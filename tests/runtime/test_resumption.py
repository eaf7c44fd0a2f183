"""Sessions that come back: under another id, after a reboot, after an eviction, while nothing can be read."""

from __future__ import annotations

import pytest
import trio

from tests.support.daemon import Refused
from tests.support.fakeprocesses import Machine
from tests.support.rig import Rig, RigClient, running

pytestmark = pytest.mark.trio
HOUR = 3600.0
SHIM = ("/usr/bin/mbx-mcp",)


async def resumed(rig: Rig, *ids: str) -> RigClient:
    """An agent whose client says that it goes on with these conversations."""
    client = rig.connect(rig.agent()[1])
    await client.hello(resume=list(ids))
    return client


async def held(rig: Rig) -> dict[str, int]:
    """Who is held under which epoch."""
    rows = (await (await rig.person()).call("identity.list", {"all": True}))["identities"]
    people = [row["name"] for row in rows if row["holder"] is not None]
    return {name: (await (await rig.person()).call("identity.show", {"name": name}))["epoch"] for name in people}


async def test_another_session_id_in_the_same_process_is_the_same_session(autojump_clock: trio.abc.Clock) -> None:
    """An agent CLI may clear or compact: its id changes, its process and its shim do not."""
    async with running() as rig:
        host, shim = rig.agent()
        client = rig.connect(shim)
        await client.hello(resume=["claude-code:one"])
        epoch = (await client.register("shop-a"))["epoch"]
        await client.hello(resume=["claude-code:two"])
        assert (await client.claim())["epoch"] == epoch
        second = rig.connect(rig.machine.spawn(ppid=host, argv=SHIM))  # as a hook or a restarted server would
        await second.hello(resume=["claude-code:three"])
        assert (await second.call("identity.list"))["you"]["epoch"] == epoch
        assert await held(rig) == {"shop-a": epoch}


async def test_an_id_that_another_living_process_used_moves_nothing(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        first = await resumed(rig, "claude-code:one")
        epoch = (await first.register("shop-a"))["epoch"]
        second = await resumed(rig, "claude-code:two")
        await second.register("shop-b")
        await second.hello(resume=["claude-code:one"])
        assert (await second.call("identity.list"))["you"]["name"] == "shop-b"
        third = await resumed(rig, "claude-code:one")
        assert (await third.refused("identity.claim")).code == "IDENTITY_IN_USE"
        assert (await first.claim())["epoch"] == epoch
        assert set(await held(rig)) == {"shop-a", "shop-b"}


async def test_after_a_reboot_everybody_gets_their_own_name_and_nobody_else_gets_one(
    autojump_clock: trio.abc.Clock,
) -> None:
    """Twenty sessions of one folder start in a burst, those without a name first."""
    async with running() as rig:
        for at in range(5):
            client = await resumed(rig, f"claude-code:{at}")
            await client.register(f"shop-{'abcde'[at]}")
    rig.machine.reboot()
    async with running(rig.machine, rig.vfs) as after:
        clients = {at: await resumed(after, f"claude-code:{at}") for at in reversed(range(20))}
        answers: dict[int, object] = {}

        async def first_call(at: int) -> None:
            try:
                answers[at] = (await clients[at].claim())["identity"]["name"]
            except Refused as refusal:
                answers[at] = refusal.code

        async with trio.open_nursery() as nursery:
            for at in clients:
                nursery.start_soon(first_call, at)
        assert answers == {at: f"shop-{'abcde'[at]}" if at < 5 else "NAME_REQUIRED" for at in range(20)}
        assert await held(after) == dict.fromkeys((f"shop-{letter}" for letter in "abcde"), 2)


async def test_resuming_is_tried_again_until_it_succeeds(autojump_clock: trio.abc.Clock) -> None:
    """At a mass start nothing can be read for a while: nobody gives up, nobody is given another name."""
    machine = Machine(pidfd=False)
    async with running(machine) as rig:
        hosts = []
        for at in range(20):
            host, shim = rig.agent()
            client = rig.connect(shim)
            await client.hello(resume=[f"claude-code:{at}"])
            await client.register(f"shop-a{at:02}")
            hosts.append((host, shim))
    for pair in hosts:
        for pid in pair:
            machine.hide(pid)
    machine.views.clear()
    async with running(machine, rig.vfs) as after:
        clients = [await resumed(after, f"claude-code:{at}") for at in range(20)]
        for at, client in enumerate(clients):
            refusal = await client.refused("identity.claim")
            assert (refusal.code, refusal.body["retryable"]) == ("IDENTITY_IN_USE", True)
            pending = (await client.call("identity.list"))["pending"]
            assert pending == {"name": f"shop-a{at:02}", "why": "resume", "claimable": False}
        for host, shim in hosts:
            machine.hide(host, hidden=False)
            machine.kill(host)
            machine.hide(shim, hidden=False)
            machine.kill(shim)
        await trio.sleep(3)  # the sweep, where there is no pidfd
        for at, client in enumerate(clients):
            claimed = await client.claim()
            assert (claimed["identity"]["name"], claimed["epoch"]) == (f"shop-a{at:02}", 2)


async def test_a_client_that_evicts_its_shim_every_hour_keeps_its_name(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        host, shim = rig.agent()
        client = rig.connect(shim)
        await client.hello()
        epoch = (await client.register("shop-a"))["epoch"]
        rival, _, _ = await rig.session()
        for _ in range(5):
            await client.stream.aclose()
            rig.machine.kill(shim)
            await trio.sleep(50)
            assert (await rival.refused("identity.claim", {"name": "shop-a"})).body["retryable"]
            shim = rig.machine.spawn(ppid=host, argv=SHIM)
            client = rig.connect(shim)
            await client.hello()
            assert (await client.claim())["epoch"] == epoch, "the next call is enough"
            await trio.sleep(HOUR)
        rig.machine.kill(shim)
        await trio.sleep(HOUR)
        again = rig.connect(rig.machine.spawn(ppid=host, argv=SHIM))
        await again.hello()
        assert (await again.claim())["epoch"] == epoch, "after its grace too, as long as nobody took it"


async def test_a_name_that_was_taken_during_an_eviction_stays_taken(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, host, shim = await rig.session()
        await client.register("shop-a")
        rival, _, _ = await rig.session()
        await client.stream.aclose()
        rig.machine.kill(shim)
        await trio.sleep(HOUR)
        assert (await rival.claim("shop-a"))["epoch"] == 2
        again = rig.connect(rig.machine.spawn(ppid=host, argv=SHIM))
        await again.hello()
        listed = await again.call("identity.list")
        assert (listed["you"], listed["lost"]["name"]) == (None, "shop-a")
        assert (await again.refused("identity.claim", {"name": "shop-a"})).code == "IDENTITY_IN_USE"
        assert (await rival.claim())["epoch"] == 2


@pytest.mark.parametrize("to", [0.0, 60 * 365 * 86400.0])
async def test_a_clock_that_starts_in_1970_and_jumps(autojump_clock: trio.abc.Clock, to: float) -> None:
    async with running() as rig:
        rig.clock.wall_by = -rig.clock.wall()
        client, _, shim = await rig.session()
        first = await client.register("shop-a")
        assert first["identity"]["created_at"].startswith("1970-01-01")
        rig.clock.wall_by = to
        other, _, _ = await rig.session()
        await other.register("shop-b")
        assert (await client.claim())["epoch"] == first["epoch"]
        assert (await other.row("shop-b"))["id"] == first["identity"]["id"] + 1
        rig.machine.kill(shim)
        await trio.testing.wait_all_tasks_blocked()
        assert 59 < (await other.row("shop-a"))["claimable_in_s"] <= 60
    async with running(rig.machine, rig.vfs) as after:
        after.clock.wall_by = -after.clock.wall()  # and back again with the next start
        person = await after.person()
        assert [(await person.state(name))[0] for name in ("shop-a", "shop-b")] == ["detached", "live"]
