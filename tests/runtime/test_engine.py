"""Nothing is known before it is durable; what can't be made durable did not happen."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mbxd.core import events as ev
from mbxd.runtime import engine
from mbxd.store.errors import LogFailed
from tests.support.memvfs import MemVfs
from tests.support.rig import Rig, RigClient, SlowCommitter, running

pytestmark = pytest.mark.trio


async def settled(rig: Rig) -> SlowCommitter:
    """The committer, once everything that is under way waits for it."""
    assert isinstance(rig.committer, SlowCommitter)
    await trio.testing.wait_all_tasks_blocked()
    return rig.committer


async def silent(client: RigClient) -> bool:
    """Whether no answer is there."""
    with trio.move_on_after(0.01) as scope:
        await client.receive()
    return scope.cancelled_caught


async def test_no_reply_before_the_disk_has_it(autojump_clock: trio.abc.Clock) -> None:
    async with running(committer=SlowCommitter) as rig:
        client, host, _ = await rig.session()
        number = await client.send("identity.register", {"name": "shop-a", "role": "x"})
        committer = await settled(rig)
        assert await silent(client)
        committer.commit()
        assert (await client.reply(number))["identity"]["holder"]["pid"] == host


async def test_no_act_through_another_shim_is_answered_before_the_log_knows_the_shim(
    autojump_clock: trio.abc.Clock,
) -> None:
    """Its shims keep a session attached after a crash: those that spoke for it."""
    async with running(committer=SlowCommitter) as rig:
        client, host, shim = await rig.session()
        number = await client.send("identity.register", {"name": "shop-a", "role": "x"})
        (await settled(rig)).commit()
        await client.reply(number)
        rig.machine.kill(shim)
        second = rig.connect(rig.machine.spawn(ppid=host, argv=("/usr/bin/mbx-mcp",)))
        await second.hello()
        number = await second.send("identity.claim")
        committer = await settled(rig)
        assert await silent(second)
        committer.commit()
        committer = await settled(rig)
        assert await silent(second), "the shim is known; what the claim is answered with is not"
        committer.commit()
        assert (await second.reply(number))["identity"]["state"] == "live"


@pytest.mark.parametrize("method", ["identity.show", "identity.why", "identity.list"])
async def test_no_read_shows_what_is_not_durable(autojump_clock: trio.abc.Clock, method: str) -> None:
    async with running(committer=SlowCommitter) as rig:
        client, _, _ = await rig.session()
        other, _, _ = await rig.session()
        await client.send("identity.register", {"name": "shop-a", "role": "x"})
        committer = await settled(rig)
        number = await other.send(method, {} if method == "identity.list" else {"name": "shop-a"})
        assert await silent(other)
        committer.commit()
        assert "shop-a" in str(await other.reply(number))


async def test_no_refusal_tells_what_is_not_durable(autojump_clock: trio.abc.Clock) -> None:
    async with running(committer=SlowCommitter) as rig:
        winner, host, _ = await rig.session()
        loser, _, _ = await rig.session()
        tool, _, _ = await rig.session()
        await winner.send("identity.register", {"name": "shop-a", "role": "x"})
        committer = await settled(rig)
        await loser.send("identity.claim", {"name": "shop-a"})
        arguments = {"action": "claim", "name": "shop-a"}
        await tool.send("tool.call", {"name": "mbx_identity", "arguments": arguments})
        assert await silent(loser)
        assert await silent(tool)
        committer.commit()
        assert (await loser.receive())["error"]["data"]["data"]["holder"]["pid"] == host
        assert (await tool.receive())["result"]["isError"]


async def test_a_read_of_other_rows_does_not_wait(autojump_clock: trio.abc.Clock) -> None:
    async with running(committer=SlowCommitter) as rig:
        client, _, _ = await rig.session()
        other, _, _ = await rig.session()
        await other.send("identity.register", {"name": "shop-b", "role": "x"})
        (await settled(rig)).commit()
        await other.receive()
        await client.send("identity.register", {"name": "shop-a", "role": "x"})
        await settled(rig)
        assert (await other.row("shop-b"))["state"] == "live"


async def test_what_arrives_during_a_commit_shares_the_next(autojump_clock: trio.abc.Clock) -> None:
    async with running(committer=SlowCommitter) as rig:
        clients = [(await rig.session())[0] for _ in range(8)]
        for at, client in enumerate(clients):
            await client.send("identity.register", {"name": f"shop-{at}", "role": "x"})
            await trio.testing.wait_all_tasks_blocked()
        committer = await settled(rig)
        committer.commit()
        await trio.testing.wait_all_tasks_blocked()
        assert [await silent(client) for client in clients] == [False] + [True] * 7
        committer.commit()
        for client in clients[1:]:
            assert (await client.receive())["result"]["epoch"] == 1
        assert len(committer.batches) == 2
        assert committer.batches[1] == 7 * 3, "a registration, a grant and the kept result each"


async def test_events_are_pushed_when_they_are_durable(autojump_clock: trio.abc.Clock) -> None:
    async with running(committer=SlowCommitter) as rig:
        watcher = await rig.person()
        await watcher.call("events.subscribe")
        client, _, _ = await rig.session()
        await client.send("identity.register", {"name": "shop-a", "role": "x"})
        committer = await settled(rig)
        assert await silent(watcher)
        committer.commit()
        assert [(await watcher.receive())["params"]["what"] for _ in range(2)] == ["registered", "claimed"]


async def test_a_failed_commit_ends_the_daemon_and_nobody_is_told(autojump_clock: trio.abc.Clock) -> None:
    answers: list[Any] = []

    async def listen(client: RigClient) -> None:
        answers.append(await client.receive())

    with pytest.RaisesGroup(pytest.RaisesExc(LogFailed), flatten_subgroups=True):
        async with running(committer=SlowCommitter) as rig:
            client, _, _ = await rig.session()
            await client.send("identity.register", {"name": "shop-a", "role": "x"})
            committer = await settled(rig)
            rig.nursery.start_soon(listen, client)
            committer.commit(LogFailed("the disk is gone"))
            await trio.sleep(60)
    assert not answers


async def test_after_a_failure_a_restart_knows_what_was_acknowledged(autojump_clock: trio.abc.Clock) -> None:
    vfs = MemVfs()
    machine = None
    with pytest.RaisesGroup(pytest.RaisesExc(LogFailed), flatten_subgroups=True):
        async with running(vfs=vfs) as rig:
            machine = rig.machine
            client, _, shim = await rig.session()
            await client.register("shop-a")
            vfs.fail("sync_data", code=errno.EIO)
            await client.call("identity.release", request_id="r9")
    assert machine is not None
    async with running(machine, vfs.after_power_cut(3)) as rig:
        client = rig.connect(shim)
        await client.hello()
        again = await client.call("identity.release", request_id="r9")
        assert again["released"] == "shop-a"


async def test_a_power_cut_loses_nothing_acknowledged(autojump_clock: trio.abc.Clock) -> None:
    vfs = MemVfs()
    async with running(vfs=vfs, segment=4096) as rig:
        client, _, shim = await rig.session()
        epoch = (await client.register("shop-a"))["epoch"]
        for _ in range(20):
            await client.call("identity.release")
            epoch = (await client.claim("shop-a"))["epoch"]
    for seed in range(10):
        async with running(rig.machine, vfs.after_power_cut(seed), segment=4096) as after:
            again = after.connect(shim, client.instance)
            await again.hello()
            assert (await again.claim())["epoch"] == epoch


async def test_order_of_waiters_with_an_older_seq(autojump_clock: trio.abc.Clock) -> None:
    async with running(committer=SlowCommitter) as rig:
        first, _, _ = await rig.session()
        second, _, _ = await rig.session()
        reader, _, _ = await rig.session()
        await first.send("identity.register", {"name": "shop-a", "role": "x"})
        await trio.testing.wait_all_tasks_blocked()
        await second.send("identity.register", {"name": "shop-b", "role": "x"})
        await trio.testing.wait_all_tasks_blocked()
        await reader.send("identity.show", {"name": "shop-a"})  # waits for less than the second does
        committer = await settled(rig)
        committer.commit()
        assert (await reader.receive())["result"]["identity"]["name"] == "shop-a"
        assert await silent(second)
        committer.commit()
        assert (await second.receive())["result"]["epoch"] == 1


@pytest.mark.parametrize("kept", [True, False])
async def test_a_takeover_is_one_batch_or_nothing(autojump_clock: trio.abc.Clock, kept: bool) -> None:
    """The end of the old grant and the new one: a crash has both or none."""
    async with running(committer=SlowCommitter) as rig:
        holder, _, shim = await rig.session()
        number = await holder.send("identity.register", {"name": "shop-a", "role": "x"})
        (await settled(rig)).commit()
        await holder.reply(number)
        await holder.stream.aclose()
        rig.machine.kill(shim)
        await trio.sleep(100)  # its grace is over
        heir, heir_host, _ = await rig.session()
        number = await heir.send("identity.claim", {"name": "shop-a"})
        committer = await settled(rig)
        assert committer.batch is not None
        assert [type(ev.decode(record)) for record in committer.batch[:2]] == [ev.HolderEnded, ev.Granted]
        if kept:
            committer.commit()
            assert (await heir.reply(number))["epoch"] == 2
        else:
            assert await silent(heir)
    async with running(rig.machine, rig.vfs) as after:
        row = await (await after.person()).row("shop-a")
        assert (row["holder"]["pid"] == heir_host, row["state"]) == ((True, "live") if kept else (False, "detached"))
        person = await after.person()
        assert (await person.call("identity.show", {"name": "shop-a"}))["epoch"] == (2 if kept else 1)


async def test_a_change_is_never_cut_between_two_batches(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between two batches must leave whole changes, and a repeat of each must find its result."""
    monkeypatch.setattr(engine, "BATCH_BYTES", 1000)
    async with running(committer=SlowCommitter) as rig:
        clients = [(await rig.session())[0] for _ in range(30)]
        for at, client in enumerate(clients):
            # Of many lengths, so that the bound falls into every place of a change.
            params = {"name": f"shop-{at}", "role": "x", "description": "d" * (at * 17 % 200 + 1)}
            await client.send("identity.register", params)
        committer = await settled(rig)
        batches: list[list[ev.Event]] = []
        while committer.batch is not None:
            batches.append([ev.decode(record) for record in committer.batch])
            committer.commit()
            await trio.testing.wait_all_tasks_blocked()
        assert len(batches) > 5, "too few to say anything"
        assert sum(len(batch) for batch in batches) > len(clients) * 3 - 1
        for batch in batches:
            assert type(batch[-1]) is ev.Replied
            registered = [e.id for e in batch if isinstance(e, ev.IdentityRegistered)]
            assert registered == [e.identity for e in batch if isinstance(e, ev.Granted)]
        for client in clients:
            assert (await client.receive())["result"]["epoch"] == 1


async def begun(rig: Rig) -> tuple[SlowCommitter, RigClient, RigClient]:
    """A session that holds shop-a, and a person."""
    client, _, _ = await rig.session()
    person = await rig.person()
    number = await client.send("identity.register", {"name": "shop-a", "role": "x"})
    committer = await settled(rig)
    committer.commit()
    await client.reply(number)
    return committer, client, person


@pytest.mark.parametrize("tool", [False, True])
async def test_no_refusal_that_needs_waiting_tells_what_is_not_durable(
    autojump_clock: trio.abc.Clock, tool: bool, tmp_path: Path
) -> None:
    async with running(committer=SlowCommitter) as rig:
        rig.services.post.open(str(tmp_path / "mail.db"))
        try:
            committer, client, person = await begun(rig)
            await person.send("admin.free", {"name": "shop-a", "reason": "test"})
            await settled(rig)
            if tool:
                await client.send("tool.call", {"name": "mbx_inbox", "arguments": {}})
            else:
                await client.send("mail.inbox")
            await settled(rig)
            assert await silent(client), "it would tell of a free that a crash undoes"
            committer.commit()
            assert "LEASE_LOST" in str(await client.receive())
        finally:
            rig.services.post.close()


async def test_no_answer_that_needs_waiting_shows_what_is_not_durable(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    async with running(committer=SlowCommitter) as rig:
        rig.services.post.open(str(tmp_path / "mail.db"))
        try:
            committer, client, person = await begun(rig)
            await person.send("admin.free", {"name": "shop-a", "reason": "test"})
            await settled(rig)
            number = await client.send("mail.whoami")
            await settled(rig)
            assert await silent(client), "it would tell of a free that a crash undoes"
            committer.commit()
            assert (await client.reply(number))["name"] is None
        finally:
            rig.services.post.close()


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("mbx_identity", {"action": "register", "name": "shop-b", "role": "x"}),
        ("mbx_send", {"to": ["shop-a"], "subject": "s", "body": "b"}),
    ],
)
async def test_stopping_is_an_error_and_no_answer_to_an_agent(
    autojump_clock: trio.abc.Clock, tool: str, arguments: dict[str, Any]
) -> None:
    """A shim asks the next daemon after an error; an answer it would pass on."""
    async with running() as rig:
        client, _, _ = await rig.session()
        await client.register("shop-a")
        rig.services.stopping = True
        assert (await client.refused("tool.call", {"name": tool, "arguments": arguments})).code == "STOPPING"
