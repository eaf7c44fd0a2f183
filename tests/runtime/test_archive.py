"""The archive's loop on fakes: what it writes, when, and how it comes back from every kind of trouble."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import trio
import trio.testing

from mbxd.core import profiles
from mbxd.runtime import archive as subject
from mbxd.runtime.archive import Archive
from tests.support.fakeprocesses import Machine
from tests.support.fakerepo import FakeRepo
from tests.support.memvfs import MemVfs
from tests.support.rig import Rig, RigClient, SlowCommitter, inline, running

T = TypeVar("T")
pytestmark = pytest.mark.trio


class Kept:
    """A rig whose archive is a fake repository; its loop runs unless a test says otherwise."""

    def __init__(self, rig: Rig, repo: FakeRepo) -> None:
        self.rig = rig
        self.repo = repo
        self.archive = Archive(rig.services.engine, repo, inline, rig.clock, rig.services.degraded, "/state/archive")
        rig.services.archive = self.archive
        repo.aborted = False  # it is another process's

    def slow(self, seconds: float, wrote: Callable[[], None] = lambda: None) -> None:
        """Let each commit take this long, and tell of it."""

        async def run_sync(fn: Callable[..., T], *args: Any) -> T:
            if fn == self.archive._write:
                await trio.sleep(seconds)
                wrote()
            return await inline(fn, *args)

        self.archive._run_sync = run_sync

    async def settled(self) -> None:
        """Everything archived; bounded."""
        with trio.fail_after(600):
            while self.archive.status().behind != 0 or self.archive.status().error:  # noqa: ASYNC110  # nothing tells
                await trio.sleep(0.05)

    async def agree(self) -> None:
        result = await self.archive.verify()
        assert result.ok, result
        state = self.rig.services.engine.state
        picture = profiles.everything(list(state.identities.values()), dict(state.projects), 0)
        assert {p: c for p, c in self.repo.present().items() if profiles.is_ours(p)} == dict(profiles.files(picture))
        seqs = [commit.seq for commit in self.repo.commits if commit.ours and "Mbx-Compared" not in commit.message]
        assert seqs == sorted(set(seqs), key=lambda seq: seq or 0)


@asynccontextmanager
async def archived(
    repo: FakeRepo | None = None, vfs: MemVfs | None = None, *, loop: bool = True
) -> AsyncIterator[tuple[Kept, RigClient]]:
    async with running(Machine(), vfs or MemVfs()) as rig:
        kept = Kept(rig, repo or FakeRepo())
        if loop:
            rig.nursery.start_soon(kept.archive.keep)
        yield kept, await rig.person()


async def make(client: RigClient, *names: str) -> None:
    for name in names:
        await client.register(name)


async def test_changes_share_a_commit(autojump_clock: trio.abc.Clock) -> None:
    async with archived() as (kept, client):
        assert kept.repo.calls == [], "nothing is made for an empty registry"
        await make(client, "shop-a", "shop-b", "shop-c")
        await kept.settled()
        assert len(kept.repo.commits) == 1
        assert kept.repo.commits[0].seq == kept.rig.services.engine.durable_seq
        await kept.agree()
        await trio.sleep(5)
        assert kept.repo.checked_out == kept.repo.commits[0].hexsha


async def test_claims_and_looks_make_no_commit(autojump_clock: trio.abc.Clock) -> None:
    async with archived() as (kept, client):
        agent, _, _ = await kept.rig.session()
        await agent.register("shop-a")
        await kept.settled()
        before = len(kept.repo.commits)
        for _ in range(5):
            await agent.call("identity.release")
            await agent.claim("shop-a")
            await client.call("identity.list")
        await trio.sleep(30)
        await kept.settled()
        assert len(kept.repo.commits) == before


async def test_each_kind_of_change(autojump_clock: trio.abc.Clock) -> None:
    async with archived() as (kept, client):
        await make(client, "shop-a")
        await kept.settled()
        agent = {"project_key": "/tmp/shop", "program": "p", "model": "m", "name": "GreenCastle"}
        for method, params in (
            ("agent.register", agent),
            ("agent.register", agent | {"task_description": "more"}),
            ("admin.retire", {"name": "shop-a"}),
            ("admin.unretire", {"name": "shop-a"}),
            ("admin.rename", {"name": "shop-a", "to": "shop-z"}),
        ):
            await client.call(method, params)
            await kept.settled()
        assert [commit.message.partition("\n")[0] for commit in kept.repo.commits[1:]] == [
            "register GreenCastle (shop)",
            "update GreenCastle (shop)",
            "retire shop-a (shop)",
            "unretire shop-a (shop)",
            "rename shop-a to shop-z (shop)",
        ]
        assert "projects/shop/agents/shop-a/profile.json" not in kept.repo.present()
        profile = json.loads(kept.repo.present()["projects/shop/agents/shop-z/profile.json"])
        assert profile["aliases"] == ["shop-a"]
        whois = await client.call("agent.whois", {"project_key": "shop", "agent_name": "GreenCastle"})
        assert [c["summary"] for c in whois["recent_commits"]] == [
            "update GreenCastle (shop)",
            "register GreenCastle (shop)",
        ]
        logged = await client.call("archive.log", {"name": "shop-z", "limit": 2})
        assert [c["summary"] for c in logged["commits"]] == ["rename shop-a to shop-z (shop)", "unretire shop-a (shop)"]
        await kept.agree()


async def test_everybody_has_a_history_of_their_own(autojump_clock: trio.abc.Clock) -> None:
    """Profiles that differ in little more than the name, and one of them under three names."""
    async with archived() as (kept, client):

        async def told(name: str) -> list[str]:
            found = await client.call("archive.log", {"name": name, "limit": 9})
            return [commit["summary"].removesuffix(" (shop)") for commit in found["commits"]]

        agent = {"project_key": "/tmp/shop", "program": "p", "model": "m"}
        for name in ("GreenCastle", "BlueLake"):
            await client.call("agent.register", agent | {"name": name})
            await kept.settled()
        for name, to in (("greencastle", "shop-a"), ("shop-a", "shop-b"), ("bluelake", "shop-c")):
            await client.call("admin.rename", {"name": name, "to": to})
            await kept.settled()
        assert await told("shop-b") == [
            "rename shop-a to shop-b",
            "rename GreenCastle to shop-a",
            "2 changes: project shop, ...",
        ]
        assert await told("GreenCastle") == await told("shop-b"), "whichever of its names is asked for"
        assert await told("shop-c") == ["rename BlueLake to shop-c", "register BlueLake"]
        whois = await client.call("agent.whois", {"project_key": "shop", "agent_name": "shop-c"})
        assert [c["summary"].removesuffix(" (shop)") for c in whois["recent_commits"]] == await told("shop-c")


async def test_nothing_undurable_is_archived(autojump_clock: trio.abc.Clock) -> None:
    async with running(Machine(), MemVfs(), committer=SlowCommitter) as rig:
        kept = Kept(rig, FakeRepo())
        rig.nursery.start_soon(kept.archive.keep)
        client = rig.connect(rig.machine.spawn(argv=("/usr/bin/mbxctl",)))
        await client.hello("mbxctl")
        committer = rig.committer
        assert isinstance(committer, SlowCommitter)
        first = await client.send("identity.register", {"name": "shop-first", "role": "x"})
        await trio.sleep(60)
        assert kept.repo.commits == []
        committer.commit()
        await client.reply(first)
        await kept.settled()
        numbers = [await client.send("identity.register", {"name": "shop-a", "role": "x"})]
        await trio.testing.wait_all_tasks_blocked()
        numbers.append(await client.send("identity.register", {"name": "shop-b", "role": "x"}))
        await trio.sleep(60)
        assert len(kept.repo.commits) == 1
        committer.commit()
        await trio.sleep(60)
        assert len(kept.repo.commits) == 1, "the picture shows shop-b, which is not on the disk"
        committer.commit()
        for number in numbers:
            await client.reply(number)
        await kept.settled()
        await kept.agree()


async def test_trouble_stops_nothing_and_ends_by_itself(autojump_clock: trio.abc.Clock) -> None:
    async with archived() as (kept, client):
        await make(client, "shop-a")
        await kept.settled()
        kept.repo.trouble = "git was not found on PATH"
        await make(client, "shop-b")
        await trio.sleep(200)
        status = await client.call("archive.status")
        assert status["error"] == "git was not found on PATH"
        assert status["lag_s"] > 100
        assert 0 < status["retry_in_s"] <= 60
        assert (await client.call("status"))["degraded"] == [
            "the Git archive is 1 changes behind: git was not found on PATH"
        ]
        whois = await client.call("agent.whois", {"project_key": "/tmp/shop", "agent_name": "shop-b"})
        assert whois["recent_commits"] is None
        assert "git was not found" in whois["warnings"][0]
        assert (await client.refused("archive.log")).code == "ARCHIVE_UNAVAILABLE"
        verdict = await client.call("archive.verify")
        assert (verdict["ok"], verdict["problems"]) == (False, ["git was not found on PATH"])
        tries = kept.repo.calls.count("prepare")
        await trio.sleep(600)
        assert kept.repo.calls.count("prepare") - tries <= 12, "the pause between tries grows"
        kept.repo.trouble = None
        await kept.settled()
        assert (await client.call("status"))["degraded"] == []
        assert len(kept.repo.commits) == 2
        await kept.agree()


async def test_a_moved_branch(autojump_clock: trio.abc.Clock) -> None:
    async with archived() as (kept, client):
        await make(client, "shop-a", "shop-b")
        await kept.settled()
        mine = "projects/shop/agents/shop-a/profile.json"
        kept.repo.by_hand({mine: b"{}", "README": b"x", "projects/shop/agents/ghost/profile.json": b"y"})
        kept.repo.moves = 1
        await make(client, "shop-c")
        await kept.settled()
        assert set(kept.repo.present()) >= {"README", mine}
        assert "ghost" not in str(list(kept.repo.present()))
        assert "Mbx-Compared: " in kept.repo.commits[-1].message
        await kept.agree()


async def test_a_branch_that_keeps_moving(autojump_clock: trio.abc.Clock) -> None:
    async with archived() as (kept, client):
        kept.repo.moves = 5
        await make(client, "shop-c")
        await trio.sleep(0.5)
        assert "moved" in str(kept.archive.status().error)
        await kept.settled()
        await kept.agree()


async def test_a_restart_goes_on_from_the_newest_commit(autojump_clock: trio.abc.Clock) -> None:
    vfs, repo = MemVfs(), FakeRepo()
    async with archived(repo, vfs) as (kept, client):
        await make(client, "shop-a")
        await kept.settled()
        repo.trouble = "broken"
        await make(client, "shop-b")
        await make(client, "shop-c")
    repo.trouble = None
    async with archived(repo, vfs) as (kept, client):
        await trio.sleep(1)
        await kept.settled()
        assert [commit.message.partition("\n")[0] for commit in repo.commits[1:]] == [
            "2 changes: register shop-b (shop), ..."
        ]
        await kept.agree()
        before = len(repo.commits)
    async with archived(repo, vfs) as (kept, client):
        await trio.sleep(1)
        await kept.settled()
        assert len(repo.commits) == before
        await kept.agree()


async def test_a_rename_over_a_restart(autojump_clock: trio.abc.Clock) -> None:
    vfs, repo = MemVfs(), FakeRepo()
    async with archived(repo, vfs) as (kept, client):
        await make(client, "shop-a")
        await kept.settled()
        repo.trouble = "broken"
        await client.call("admin.rename", {"name": "shop-a", "to": "shop-z"})
    repo.trouble = None
    async with archived(repo, vfs) as (kept, client):
        await trio.sleep(1)
        await kept.settled()
        await kept.agree()
        assert len(repo.commits) == 2


async def test_a_rename_at_once_after_a_start_tells_the_name_before(autojump_clock: trio.abc.Clock) -> None:
    """The first look reads the log, which doesn't say it; the tail of changes does."""
    vfs, repo = MemVfs(), FakeRepo()
    async with archived(repo, vfs) as (kept, client):
        await make(client, "shop-a", "shop-b")
        await kept.settled()
        repo.trouble = "broken"
        await client.call("admin.retire", {"name": "shop-b"})
    repo.trouble = None
    async with archived(repo, vfs) as (kept, client):
        await client.call("admin.rename", {"name": "shop-a", "to": "shop-z"})
        assert len(repo.commits) == 1
        await kept.settled()
        told = [line.partition(" ")[2] for line in repo.commits[-1].message.splitlines()[2:4]]
        assert told == ["retire shop-b (shop)", "rename shop-a to shop-z (shop)"]
        assert "Mbx-Compared" not in repo.commits[-1].message
        await kept.agree()


async def test_an_archive_ahead_of_the_log(autojump_clock: trio.abc.Clock) -> None:
    repo = FakeRepo()
    async with archived(repo) as (kept, client):
        await make(client, "shop-a", "shop-b", "shop-c")
        await kept.settled()
    async with archived(repo, MemVfs()) as (kept, client):  # the log was lost, and the numbers begin again
        await make(client, "shop-x")
        await kept.settled()
        assert "was ahead of the log" in repo.commits[-1].message
        await kept.agree()


async def test_the_tail_is_outrun(autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "TAIL_MAX", 4)
    async with archived() as (kept, client):
        await make(client, "shop-a")
        await kept.settled()
        kept.repo.trouble = "slow"
        await make(client, *(f"shop-{n}" for n in range(20)))
        assert len(kept.archive._tail) <= 4
        assert kept.archive.status().behind is None
        kept.repo.trouble = None
        await kept.settled()
        assert len(kept.repo.commits) == 2
        assert kept.repo.commits[-1].message.startswith("20 changes: ")
        await kept.agree()


async def test_a_deleted_repository_is_made_again_from_the_log(autojump_clock: trio.abc.Clock) -> None:
    async with archived() as (kept, client):
        await make(client, "shop-a", "shop-b")
        await client.call("admin.rename", {"name": "shop-a", "to": "shop-z"})
        await kept.settled()
        kept.repo.commits.clear()
        await make(client, "shop-c")
        await kept.settled()
        await kept.agree()
        summaries = [commit.message.partition("\n")[0] for commit in kept.repo.commits]
        assert "rename shop-a to shop-z (shop)" in summaries[1]


async def test_rebuild(autojump_clock: trio.abc.Clock) -> None:
    async with archived() as (kept, client):
        await make(client, "shop-a", "shop-b")
        await kept.settled()
        kept.repo.by_hand({"README": b"x"})
        agent, _, _ = await kept.rig.session()
        assert (await agent.refused("archive.rebuild")).code == "NOT_ALLOWED"
        result = await client.call("archive.rebuild")
        assert result["commits"] == 1
        assert result["head"] == kept.repo.commits[-1].hexsha
        assert len(kept.repo.set_aside) == 2
        assert "README" not in kept.repo.present()
        await make(client, "shop-c")
        await kept.settled()
        await kept.agree()


async def test_verify_names_what_differs(autojump_clock: trio.abc.Clock) -> None:
    async with archived(loop=False) as (kept, client):
        await make(client, "shop-a", "shop-b")
        await kept.archive.catch_up()
        path = "projects/shop/agents/{}/profile.json"
        kept.repo.commits[-1].files[path.format("shop-a")] = b"{}"
        kept.repo.commits[-1].files[path.format("ghost")] = b"{}"
        del kept.repo.commits[-1].files[path.format("shop-b")]
        verdict = await client.call("archive.verify")
        assert not verdict["ok"]
        assert verdict["differing"] == [path.format("shop-a")]
        assert verdict["missing"] == [path.format("shop-b")]
        assert verdict["unexpected"] == [path.format("ghost")]


async def test_the_last_flush(autojump_clock: trio.abc.Clock) -> None:
    async with archived() as (kept, client):
        await make(client, "shop-a")
        await kept.archive.close()
        assert len(kept.repo.commits) == 1
        assert kept.repo.checked_out == kept.repo.commits[0].hexsha
    assert kept.repo.aborted, "whatever ends the loop ends git"


async def test_the_end_of_the_loop_ends_git(autojump_clock: trio.abc.Clock) -> None:
    async with archived() as (kept, _):
        await trio.testing.wait_all_tasks_blocked()
        assert not kept.repo.aborted
    assert kept.repo.aborted


async def test_a_burst_shares_its_commits(autojump_clock: trio.abc.Clock) -> None:
    async with archived() as (kept, client):
        for n in range(4):
            await make(client, *(f"shop-{n}-{m}" for m in range(subject.BURST)))
            await trio.sleep(0.9 * subject.GATHER_S)
        assert kept.repo.commits == []
        await kept.settled()
        assert len(kept.repo.commits) == 1
        await kept.agree()


async def test_a_burst_without_an_end_is_archived_meanwhile(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "BURST", 5)
    async with archived() as (kept, client):
        for n in range(60):
            await make(client, *(f"shop-{n}-{m}" for m in range(5)))
            await trio.sleep(0.9 * subject.GATHER_S)
            assert kept.archive.status().lag_s <= subject.GATHER_MAX_S + 2 * subject.GATHER_S
        await kept.settled()
        assert len(kept.repo.commits) <= 12
        await kept.agree()


async def test_many_changes_of_a_burst_do_not_wait(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the tail is not outrun by waiting."""
    monkeypatch.setattr(subject, "TAIL_MAX", 40)
    monkeypatch.setattr(subject, "BURST", 5)
    async with archived() as (kept, client):
        for n in range(6):
            await make(client, *(f"shop-{n}-{m}" for m in range(10)))
            await trio.sleep(0.9 * subject.GATHER_S)
            assert not kept.archive._outrun
        await kept.settled()
        assert len(kept.repo.commits) >= 2
        await kept.agree()


async def test_a_slow_archive_rests(autojump_clock: trio.abc.Clock) -> None:
    """What two commits are worth in pauses may be put off; in the long run it works a third of the time."""
    async with archived(loop=False) as (kept, client):
        seconds = 0.0

        def wrote() -> None:
            nonlocal seconds
            seconds += 1.0

        kept.slow(1.0, wrote)
        kept.rig.nursery.start_soon(kept.archive.keep)
        began = trio.current_time()
        while trio.current_time() - began < 2.3:
            await make(client, f"shop-{trio.current_time() - began:.1f}".replace(".", "-"))
            await trio.sleep(0.1)
        assert seconds == 2.0
        while trio.current_time() - began < 60:
            await make(client, f"shop-{trio.current_time() - began:.1f}".replace(".", "-"))
            await trio.sleep(0.1)
        assert 17 <= seconds <= 22
        await kept.settled()
        await kept.agree()


async def test_whoever_asks_for_the_history_cuts_a_pause_short(autojump_clock: trio.abc.Clock) -> None:
    async with archived() as (kept, client):
        await make(client, "shop-a")
        await kept.settled()
        kept.archive._rested_at = trio.current_time() + 100
        await make(client, "shop-b")
        logged = await client.call("archive.log", {"name": "shop-b"})
        assert [c["summary"] for c in logged["commits"]] == ["register shop-b (shop)"]


async def test_the_files_wait_for_the_end_of_a_burst(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "BURST", 5)
    async with archived() as (kept, client):
        kept.slow(0.3)
        for n in range(9):
            await make(client, *(f"shop-{n}-{m}" for m in range(5)))
            await trio.sleep(0.9 * subject.GATHER_S)
        await kept.settled()
        await trio.testing.wait_all_tasks_blocked()
        assert len(kept.repo.commits) == 2
        assert kept.repo.calls.count("checkout") == 1
        assert kept.repo.checked_out == kept.repo.commits[-1].hexsha
