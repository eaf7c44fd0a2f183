"""The next segment on a full disk, snapshots, forgotten clients."""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from mbxd.core import snapshot
from mbxd.mail.commands import OWNER, Send
from mbxd.runtime import upkeep
from mbxd.runtime.engine import NoRoom
from mbxd.runtime.holders import SWEEP_S
from mbxd.store.segment import snapshot_name
from tests.core.model import dump
from tests.support.memvfs import MemVfs
from tests.support.rig import DIRECTORY, Rig, RigClient, SlowCommitter, running

pytestmark = pytest.mark.trio
SEGMENT = 4096


async def fill(client: RigClient) -> int:
    """Until DISK_FULL; the last epoch."""
    epoch = 0
    for _ in range(200):
        number = await client.send("identity.claim", {"name": "shop-a"})
        message = await client.receive()
        assert message["id"] == number
        if "error" in message:
            assert message["error"]["data"]["code"] == "DISK_FULL"
            return epoch
        epoch = int(message["result"]["epoch"])
        await client.send("identity.release")
        message = await client.receive()
        if "error" in message:
            assert message["error"]["data"]["code"] == "DISK_FULL"
            return epoch
    raise AssertionError("never full")


def full(rig: Rig) -> None:
    for nth in range(1, 400):
        rig.vfs.fail("create", nth, errno.ENOSPC)


async def test_a_full_disk_is_tried_again_until_there_is_room(autojump_clock: trio.abc.Clock) -> None:
    async with running(segment=SEGMENT) as rig:
        client, _, _ = await rig.session()
        await client.register("shop-a")
        await client.call("identity.release")
        full(rig)
        epoch = await fill(client)
        assert rig.services.degraded["log"]
        assert (await client.row("shop-a"))["name"] == "shop-a"
        began = trio.current_time()
        await client.refused("identity.register", {"name": "shop-b", "role": "x"})
        assert trio.current_time() - began < 1, "a refusal that is known needs no waiting"
        rig.vfs._faults.clear()
        await trio.sleep(3)
        assert not rig.services.degraded
        listed = await client.call("identity.list")
        if listed["you"] is None:
            assert (await client.claim("shop-a"))["epoch"] == epoch + 1


@pytest.mark.parametrize(
    ("before", "between"),
    [("", ""), ('{"name": "mbx_identity", "arguments": {"action": "', '"}, "later": [1e999, {} ] }')],
)
async def test_params_of_a_change_that_finds_no_room_are_kept_as_they_are(
    autojump_clock: trio.abc.Clock, before: str, between: str
) -> None:
    """None at all, and what nobody decodes: a number out of range in a member that a newer client may send."""
    async with running(segment=SEGMENT) as rig:
        client, _, _ = await rig.session()
        await client.register("shop-a")
        await client.call("identity.release")
        full(rig)
        await fill(client)
        verb = "release" if (await client.call("identity.list"))["you"] else "claim"
        request = {"jsonrpc": "2.0", "id": "a", "method": f"identity.{verb}", "meta": {"request_id": "a" * 64}}
        line = json.dumps(request)
        if before:
            line = json.dumps({**request, "method": "tool.call"})[:-1] + f', "params": {before}{verb}{between}}}'
        await client.stream.send_all(line.encode() + b"\n")
        message = await client.receive()
        assert message["id"] == "a"
        refusal = message["result"]["structuredContent"]["error"] if before else message["error"]["data"]
        assert refusal["code"] == "DISK_FULL"
        assert (await client.row("shop-a"))["name"] == "shop-a", "the connection goes on"


async def test_a_spare_that_was_made_meanwhile_is_not_waited_for(autojump_clock: trio.abc.Clock) -> None:
    """The change found no room; the segment was ready before it began to wait."""
    async with running(segment=SEGMENT) as rig:
        await trio.testing.wait_all_tasks_blocked()
        assert not rig.services.engine.log.needs_spare
        began = trio.current_time()
        await rig.spares.wait(began + 5)
        assert trio.current_time() == began
        with pytest.raises(TimeoutError):
            await rig.spares.wait(began)


async def test_changes_that_find_no_room_wait_for_the_next_segment(autojump_clock: trio.abc.Clock) -> None:
    async with running(segment=SEGMENT) as rig:
        client, _, _ = await rig.session()
        await client.register("shop-a")
        for _ in range(100):  # many segments: some changes have to wait for one
            await client.call("identity.release")
            await client.claim("shop-a")
        assert rig.services.engine.log.statistics()["rolls"] > 10
        assert not rig.services.degraded


async def test_a_burst_larger_than_a_segment_is_taken_in_turns(autojump_clock: trio.abc.Clock) -> None:
    async with running(segment=SEGMENT, committer=SlowCommitter) as rig:
        committer = rig.committer
        assert isinstance(committer, SlowCommitter)
        clients = [(await rig.session())[0] for _ in range(40)]
        for at, client in enumerate(clients):
            await client.send("identity.register", {"name": f"shop-{at}", "role": "x"})
        await trio.testing.wait_all_tasks_blocked()
        assert rig.services.engine.statistics()["no_room"] > 0
        while committer.batch is not None:
            committer.commit()
            await trio.testing.wait_all_tasks_blocked()
        assert rig.services.engine.log.statistics()["rolls"] > 3
        for client in clients:
            assert (await client.receive())["result"]["epoch"] == 1


async def test_a_death_without_room_is_proposed_again_by_the_next_start(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, host, _ = await rig.session()
        await client.register("shop-a")
        person = await rig.person()
        engine, room = rig.services.engine, rig.services.engine._unwritten
        engine._unwritten = engine.log.room()
        rig.machine.kill(host)
        await trio.testing.wait_all_tasks_blocked()
        assert (await person.state("shop-a")) == ("vacant", "holder-exited"), "the evidence shows"
        assert engine.state.held_count() == 1
        engine._unwritten = room
    async with running(rig.machine, rig.vfs) as after:
        await trio.testing.wait_all_tasks_blocked()
        assert after.services.engine.state.held_count() == 0


async def test_a_death_without_room_is_proposed_again_by_the_sweep(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, host, _ = await rig.session()
        await client.register("shop-a")
        engine, room = rig.services.engine, rig.services.engine._unwritten
        engine._unwritten = engine.log.room()
        rig.machine.kill(host)
        await trio.testing.wait_all_tasks_blocked()
        await rig.services.holders.sweep()
        assert engine.state.held_count() == 1, "there is no room yet"
        engine._unwritten = room
        await trio.sleep(SWEEP_S + 1)
        assert engine.state.held_count() == 0
        seq = engine.staged_seq
        await trio.sleep(2 * SWEEP_S)
        assert engine.staged_seq == seq, "once is enough"


@asynccontextmanager
async def swept(tmp_path: Path, *, mail: bool) -> AsyncIterator[tuple[Rig, RigClient]]:
    """shop-a, released, and the sweep of a configuration that retires after an hour; with a person."""
    async with running() as rig:
        if mail:
            rig.services.post.open(str(tmp_path / "mail.db"))
        try:
            client, _, _ = await rig.session()
            await client.register("shop-a")
            await client.call("identity.release")
            rig.services.settings.sweep_older_than_s = 3600.0
            rig.nursery.start_soon(rig.daemon._sweep_names)
            yield rig, await rig.person()
        finally:
            rig.services.post.close()


async def retired(person: RigClient) -> bool:
    rows = (await person.call("identity.list", {"all": True}))["identities"]
    return [row["state"] for row in rows] == ["retired"]


async def test_the_sweep_retires_what_nobody_used(autojump_clock: trio.abc.Clock, tmp_path: Path) -> None:
    async with swept(tmp_path, mail=True) as (_, person):
        assert not await retired(person)
        await trio.sleep(3 * upkeep.SWEEP_NAMES_EVERY_S)
        assert await retired(person)


async def test_the_sweep_leaves_unread_mail_alone(mock_clock: trio.testing.MockClock, tmp_path: Path) -> None:
    async with swept(tmp_path, mail=True) as (rig, person):
        note = Send(OWNER, (1,), "Build", "b", rig.clock.wall(), bytes(10), 1)
        # Time stands still until it is stored: the store's thread is none of trio's tasks, all of which wait for it.
        await rig.services.post.write(note)
        mock_clock.autojump_threshold = 0
        assert rig.services.post.unread == {1: 1}
        await trio.sleep(3 * upkeep.SWEEP_NAMES_EVERY_S)
        assert not await retired(person)


async def test_the_sweep_does_nothing_without_mail(autojump_clock: trio.abc.Clock, tmp_path: Path) -> None:
    """Nobody knows what is unread."""
    async with swept(tmp_path, mail=False) as (_, person):
        await trio.sleep(3 * upkeep.SWEEP_NAMES_EVERY_S)
        assert not await retired(person)
        refusal = await person.refused("admin.sweep", {"older_than_s": 3600})
        assert refusal.code == "MAIL_UNAVAILABLE"
        assert not await retired(person)


async def test_a_snapshot_has_what_changed_while_it_was_copied(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "CHUNK", 1)
    monkeypatch.setattr(snapshot, "PIECES_A_STEP", 1)
    vfs = MemVfs()
    async with running(vfs=vfs) as rig:
        snapshots, engine = rig.daemon._snapshots, rig.services.engine
        snapshots._run_sync = rig.services.run_sync
        client, _, _ = await rig.session()
        for number in range(8):
            await client.register(f"shop-{number}")
            await client.call("identity.release")
        listeners, began = list(engine.on_staged), engine.staged_seq
        async with trio.open_nursery() as nursery:
            nursery.start_soon(snapshots.write)
            await client.claim("shop-0")
        assert engine.on_staged == listeners
        [name] = [name for name in vfs.list_dir(DIRECTORY) if name.endswith(".snap")]
        assert name == snapshot_name(engine.durable_seq)
        assert engine.durable_seq > began, "the claim came while it was copied"
        before = dump(engine.state)
    async with running(rig.machine, vfs) as after:
        assert dump(after.services.engine.state) == before


async def test_a_snapshot_is_written_and_a_restart_begins_with_it(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "SNAPSHOT_AFTER", 2000)
    vfs = MemVfs()
    async with running(vfs=vfs) as rig:
        snapshots = rig.daemon._snapshots
        snapshots._run_sync = rig.services.run_sync
        client, _, shim = await rig.session()
        await client.register("shop-a")
        assert not snapshots.due()
        for _ in range(10):
            await client.call("identity.release")
            await client.claim("shop-a")
        assert snapshots.due()
        await snapshots.write()
        assert snapshots.written == 1
        assert not snapshots.due()
        vfs.fail("create", code=errno.ENOSPC)
        await client.call("identity.release")
        epoch = (await client.claim("shop-a"))["epoch"]
        await snapshots.write()
        assert "snapshot" in rig.services.degraded
    assert [name for name in vfs.list_dir(DIRECTORY) if name.endswith(".snap")]
    async with running(rig.machine, vfs) as after:
        again = after.connect(shim, client.instance)
        await again.hello()
        assert (await again.claim())["epoch"] == epoch


async def test_results_of_dead_clients_are_forgotten_after_ten_minutes(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, _, shim = await rig.session()
        first = await client.register("shop-a", request_id="r1")
        await trio.sleep(1200)
        assert (await client.register("shop-a", request_id="r1")) == first, "it lives"
        await client.stream.aclose()
        await trio.sleep(500)
        again = rig.connect(shim, client.instance)
        await again.hello()
        assert (await again.register("shop-a", request_id="r1")) == first
        await again.stream.aclose()
        await trio.sleep(800)
        assert rig.services.engine.state.replies == {}


async def test_no_room_changes_nothing(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        engine = rig.services.engine
        engine._unwritten = engine.log.room()
        before = engine.staged_seq
        with pytest.raises(NoRoom):
            engine._admit([b"x"])
        assert engine.staged_seq == before
