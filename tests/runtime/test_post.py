"""The post office: who is woken, what mail owes to the registry's changes, also over races and crashes.

A real store and its thread below a daemon in memory; waits are real and bounded.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mbxd.core.liveness import Policy
from mbxd.core.rejected import Rejected
from mbxd.mail import commands as c
from mbxd.mail.errors import MailBusy, MailError, MailFull, MailRefused, MailUnusable
from mbxd.runtime import duties
from mbxd.runtime.post import Post, refused
from mbxd.server import letters
from tests.support.daemon import Refused
from tests.support.rig import Rig, RigClient, SlowCommitter, running

pytestmark = pytest.mark.trio
PATIENCE = 20.0
_numbers = itertools.count(1)


def letter(sender: int, to: tuple[int, ...], now: float, **more: Any) -> c.Send:
    return c.Send(sender, to, "Build", "b", now, next(_numbers).to_bytes(10, "big"), 1, **more)


class Scene:
    """Anna (1) and bert (2) hold mailboxes of role x; their mail is in a real file."""

    def __init__(self, rig: Rig, path: str) -> None:
        self.rig = rig
        self.path = path
        self.post: Post = rig.services.post
        self.anna: RigClient
        self.bert: RigClient

    @property
    def now(self) -> float:
        return self.rig.clock.wall()

    async def begin(self) -> None:
        self.post.open(self.path)
        self.anna, _, _ = await self.rig.session()
        self.bert, _, _ = await self.rig.session()
        await self.anna.register("shop-a")
        await self.bert.register("shop-b")

    def follow(self) -> None:
        self.rig.nursery.start_soon(self.post.follow)

    def crash(self) -> None:
        """Another post office on the same file, which knows nothing of before."""
        self.post.close()
        services = self.rig.services
        services.post = self.post = Post(services.engine, services.run_sync, self.rig.clock, services.degraded)
        services.engine.on_durable.append(self.post.on_durable)
        self.post.open(self.path)
        self.follow()

    async def subjects(self, identity: int) -> list[str]:
        page = await self.post.read(self.post.store.inbox, identity, limit=200)
        return [one.subject.partition(":")[0] for one in page.letters]

    async def until(self, identity: int, wanted: list[str]) -> None:
        with trio.fail_after(PATIENCE):
            while (found := await self.subjects(identity)) != wanted:  # nothing announces what a thread did
                assert len(found) <= len(wanted), found
                await trio.sleep(0.005)

    async def quiet(self) -> None:
        """Everything that was asked of mail so far is done: one who was registered now is given what he waits for."""
        number = await self.post.write(letter(1, (1,), self.now))
        await self.post.write(c.Ack(1, (number.id,), self.now))
        with trio.fail_after(PATIENCE):
            while self.post.statistics()["to_follow"]:
                await self.subjects(1)


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with running() as rig:
        made = Scene(rig, str(tmp_path / "mail.db"))
        await made.begin()
        try:
            yield made
        finally:
            made.post.close()


GONE, THERE = "No one to answer", "Somebody is there"


# -- waiting -----------------------------------------------------------------------------------------------


async def test_an_arrival_wakes_its_mailbox_alone(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        woken: list[int] = []

        async def wait(identity: int) -> None:
            if await s.post.wait(identity, trio.current_time() + PATIENCE):
                woken.append(identity)

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for identity in (1, 2, 2):
                    nursery.start_soon(wait, identity)
                while s.post.statistics()["waiting_readers"] < 3:
                    await trio.lowlevel.checkpoint()
                await s.post.write(letter(1, (2,), s.now))
                while len(woken) < 2:
                    await trio.lowlevel.checkpoint()
                assert woken == [2, 2]
                s.post.wake_all()
        assert woken == [2, 2, 1]
        assert s.post.statistics()["waiting_readers"] == 0
        assert not await s.post.wait(1, trio.current_time())


async def test_a_caller_that_goes_away_loses_its_answer_not_the_mail(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        arrived: list[str] = []
        s.post.on_arrival = lambda _to, _from, _subject, _kind, message, _unread: arrived.append(message)
        with trio.move_on_after(0):
            await s.post.write(letter(1, (2,), s.now))
        await s.until(2, ["Build"])
        with trio.fail_after(PATIENCE):
            while not arrived:
                await trio.lowlevel.checkpoint()


async def test_what_comes_in_one_turn_of_the_loop_goes_to_the_store_in_order_each_for_itself(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        outcomes: dict[int, Any] = {}

        async def write(number: int, command: c.Send) -> None:
            try:
                outcomes[number] = await s.post.write(command)
            except Rejected as refusal:
                outcomes[number] = refusal.code
            except AttributeError as bug:
                outcomes[number] = bug

        fine = [letter(1, (2,), s.now) for _ in range(4)]
        nothing: Any = None
        broken = c.Send(1, (2,), "Build", nothing, s.now, b"", 1)  # a bug of ours
        wrong = c.Send(1, (2,), "Build", "b", s.now, b"", 1, kind="nonsense")
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for number, command in enumerate([fine[0], wrong, fine[1], broken, fine[2]]):
                    nursery.start_soon(write, number, command)
            await write(5, fine[3])
        assert outcomes[1] == "PARAMETER_INVALID"
        assert isinstance(outcomes[3], AttributeError)
        stored = sorted([outcomes[number].id for number in (0, 2, 4)])
        page = await s.post.read(s.post.store.inbox, 2, limit=200)
        assert [one.id for one in page.letters] == [*stored, outcomes[5].id]


async def test_random_bytes_are_given_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        drawn = [s.post.entropy() for _ in range(1_000)]
    assert {len(one) for one in drawn} == {10}
    assert len(set(drawn)) == 1_000


# -- notices -----------------------------------------------------------------------------------------------


async def test_what_a_crash_came_before_is_done_once_at_the_next_start(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        await s.post.write(letter(1, (2,), s.now, needs_reply=True))
        await s.bert.call("identity.release")  # nobody follows: the daemon dies right after
        s.crash()
        await s.until(1, [GONE])
        for _ in range(3):
            s.crash()
            await s.quiet()
        assert await s.subjects(1) == [GONE]


async def test_both_notices_come_when_the_crash_came_before_both(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        await s.post.write(letter(1, (2,), s.now, needs_reply=True))
        await (await s.rig.person()).call("admin.free", {"name": "shop-b", "reason": "hangs"})
        carl, _, _ = await s.rig.session()
        await carl.claim("shop-b")
        s.crash()
        await s.until(1, [GONE, THERE])
        s.crash()
        await s.quiet()
        assert await s.subjects(1) == [GONE, THERE]


async def test_a_holder_that_goes_while_the_request_is_written(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.follow()
        request = letter(1, (2,), s.now, needs_reply=True)  # bert was live when it was addressed
        await s.bert.call("identity.release")
        await s.post.write(request)
        await s.until(1, [GONE])


@pytest.mark.parametrize("crash", [False, True])
async def test_a_takeover_has_one_notice(tmp_path: Path, crash: bool) -> None:
    """At no moment nobody was there."""
    async with scene(tmp_path) as s:
        if not crash:
            s.follow()
        dora, _, shim = await s.rig.session()
        await dora.register("shop-d")
        await s.post.write(letter(1, (3,), s.now, needs_reply=True))
        carl, _, _ = await s.rig.session()
        await dora.stream.aclose()
        s.rig.machine.kill(shim)
        s.rig.services.settings.policy = Policy(detach_grace=0.0)
        await trio.testing.wait_all_tasks_blocked()
        await carl.claim("shop-d")
        assert s.rig.services.engine.state.identities[3].epoch == 2
        if crash:
            s.crash()
        await s.until(1, [THERE])
        await s.quiet()
        assert await s.subjects(1) == [THERE]


async def test_who_was_told_at_once_gets_no_notice(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        await s.bert.call("identity.release")
        await s.post.write(letter(1, (2,), s.now, needs_reply=True))
        s.crash()
        await s.quiet()
        assert await s.subjects(1) == []
        await s.bert.claim("shop-b")
        await s.until(1, [THERE])


async def test_every_one_of_very_many_requests_gets_its_notice(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.follow()
        async with trio.open_nursery() as nursery:
            for _ in range(230):
                nursery.start_soon(s.post.write, letter(1, (2,), s.now, needs_reply=True))
        await s.bert.call("identity.release")
        with trio.fail_after(PATIENCE):
            while s.post.unread.get(1, 0) < 230:
                await s.subjects(1)
        await s.quiet()
        assert s.post.unread[1] == 230


# -- held mail ---------------------------------------------------------------------------------------------


def held(sender: int, now: float, **more: Any) -> c.Send:
    return letter(sender, (), now, held=(c.Role(1, "x"),), **more)


async def test_a_claim_while_held_mail_is_written(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.follow()
        addressed = s.now
        carl, _, _ = await s.rig.session()
        await carl.register("shop-c")
        await s.post.write(held(1, addressed))
        await s.until(3, ["Build"])
        assert await s.subjects(2) == [], "bert was there before it and is no new one"


async def test_held_mail_waits_for_the_next_one_over_a_crash(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        await s.post.write(held(1, s.now, needs_reply=True))
        s.crash()
        await s.quiet()
        assert [await s.subjects(one) for one in (1, 2)] == [[], []], "they held their mailboxes before it was sent"
        carl, _, _ = await s.rig.session()
        await carl.register("shop-c")
        await s.until(3, ["Build"])
        await s.until(1, [THERE])
        await carl.call("identity.release")
        await s.until(1, [THERE, GONE])


async def test_a_claim_while_the_store_is_asked_what_is_still_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path) as s:
        await s.post.write(held(1, s.now))
        s.crash()  # what follows looks at once for heirs; anna and bert are none: they came before
        asked, go = trio.Event(), trio.Event()
        read = s.post.read

        async def slowly(fn: Any, *args: Any, **options: Any) -> Any:
            found = await read(fn, *args, **options)
            if fn == s.post.store.held_roles:
                asked.set()
                await go.wait()
            return found

        monkeypatch.setattr(s.post, "read", slowly)
        carl, _, _ = await s.rig.session()
        with trio.fail_after(PATIENCE):
            await asked.wait()
            claim = await carl.send("identity.register", {"name": "shop-c", "role": "x"})
            engine = s.rig.services.engine
            while 3 not in engine.state.identities:
                await trio.lowlevel.checkpoint()
            await engine.wait_durable()  # now mail has heard of the claim
            go.set()
            await carl.reply(claim)
        await s.until(3, ["Build"])


async def test_a_claim_is_answered_with_the_mail_that_was_held_for_its_role(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        kept = await s.post.write(held(1, s.now, needs_reply=True))
        carl, _, _ = await s.rig.session()
        claimed = await carl.register("shop-c")  # nobody follows
        assert (claimed["unread"], [one["id"] for one in claimed["inbox"]]) == (1, [kept.id])
        assert claimed["owed"] == [kept.id]
        s.follow()
        await s.until(1, [THERE])
        assert await s.subjects(3) == ["Build"], "once"


async def test_held_mail_whose_heir_came_before_the_crash(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        addressed = s.now
        carl, _, _ = await s.rig.session()
        await carl.register("shop-c")
        await s.post.write(held(1, addressed))  # nobody follows
        s.crash()
        await s.until(3, ["Build"])


async def test_a_holder_that_was_there_is_given_what_is_held_at_its_next_call(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:  # nobody follows
        first = await s.post.write(held(1, s.now, needs_reply=True))  # bert was detached
        who = await s.bert.call("mail.whoami")
        assert (who["unread"], [one["id"] for one in who["owed"]]) == (1, [first.id])
        second = await s.post.write(held(1, s.now))
        assert [one["id"] for one in (await s.bert.call("mail.inbox"))["messages"]] == [first.id, second.id]
        third = await s.post.write(held(1, s.now))
        assert (await s.bert.call("mail.ack", {"ids": [third.id]}))["results"][0]["ok"]
        assert await s.subjects(1) == []


async def test_who_sends_to_its_own_role_gets_nothing_of_it_and_the_next_one_does(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.follow()
        own = await s.post.write(held(1, s.now, needs_reply=True))
        assert (await s.anna.claim("shop-a"))["unread"] == 0
        who = await s.anna.call("mail.whoami")
        assert (who["unread"], who["owed"], who["waited_for"]) == (0, [], [])
        commits = -1
        with trio.fail_after(60):  # it is asked for once; those who follow the registry may have begun before that
            while commits != (commits := s.post.statistics()["commits"]):
                for method in ("mail.whoami", "mail.inbox", "mail.sent"):
                    await s.anna.call(method)
        carl, _, _ = await s.rig.session()
        assert [one["id"] for one in (await carl.register("shop-c"))["inbox"]] == [own.id]


async def test_a_full_disk_keeps_nobody_from_looking_because_something_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path) as s:
        await s.post.write(held(1, s.now))

        async def full(*_args: Any) -> None:
            await trio.lowlevel.checkpoint()
            raise refused(MailFull("no room"))

        with monkeypatch.context() as patch:
            patch.setattr(s.post, "write", full)
            assert (await s.bert.call("mail.whoami"))["unread"] == 0
        assert (await s.bert.call("mail.whoami"))["unread"] == 1


async def test_the_beginning_of_an_id_means_ones_own_mail(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        at = s.now
        others = [(await s.post.write(letter(1, (1,), at))).id for _ in range(6)]
        mine = (await s.post.write(letter(1, (2,), at, needs_reply=True))).id
        short = mine[:8]
        assert all(one.startswith(short) for one in others)
        assert [one["id"] for one in (await s.bert.call("mail.read", {"ids": [short]}))["messages"]] == [mine]
        assert (await s.bert.call("mail.thread", {"id": short}))["messages"][0]["id"] == mine
        assert (await s.bert.call("mail.ack", {"ids": [short]}))["results"] == [{"id": mine, "ok": True}]
        assert (await s.bert.call("mail.reply", {"id": short, "body": "b"}))["thread"] == mine
        person = await s.rig.person()
        asked = (await s.post.write(letter(1, (0,), at))).id
        assert (await person.call("mail.reply", {"id": short, "body": "b"}))["thread"] == asked
        far = (await s.post.write(letter(1, (2,), at + 120))).id
        assert (await person.call("mail.reply", {"id": far[:8], "body": "b"}))["thread"] == far


async def test_read_leaves_for_the_next_call_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "PAGE_BYTES", 600)
    async with scene(tmp_path) as s:
        ids = [(await s.post.write(letter(1, (2,), s.now))).id for _ in range(5)]
        seen, call = [], {"ids": ids}
        while call:
            page = await s.bert.call("mail.read", call)
            seen.append([one["id"] for one in page["messages"]])
            call = json.loads(page["next"].removeprefix("mbx_read ")) if page["next"] else {}
        assert len(seen) > 1
        assert [*itertools.chain(*seen)] == ids


# -- who waits and loses the name --------------------------------------------------------------------------


async def waiting(s: Scene, client: RigClient) -> int:
    number = await client.send("mail.inbox", {"wait_s": 45})
    with trio.fail_after(PATIENCE):
        while s.post.statistics()["waiting_readers"] != 1:
            await trio.lowlevel.checkpoint()
    return number


async def test_a_process_that_dies_while_it_waits_takes_nothing_back(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.follow()
        carl, host, _ = await s.rig.session()
        await carl.register("shop-c")
        owed = await s.post.write(letter(1, (3,), s.now, needs_reply=True))
        await s.post.write(c.Ack(3, (owed.id,), s.now))
        number = await waiting(s, carl)
        s.rig.machine.kill(host)
        with pytest.raises(Refused) as refusal:
            await carl.reply(number)
        assert refusal.value.code == "NOT_ALLOWED"
        assert await s.anna.state("shop-c") == ("vacant", "holder-exited")
        assert s.rig.services.engine.state.identities[3].epoch == 1
        await s.until(1, [GONE])
        await s.quiet()
        assert await s.subjects(1) == [GONE]


async def test_who_lost_the_name_while_it_waited_is_told_and_has_it_back_at_its_next_call(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        number = await waiting(s, s.bert)
        s.rig.daemon._propose_death(2, 1, "holder-exited")
        with pytest.raises(Refused) as refusal:
            await s.bert.reply(number)
        assert (refusal.value.code, refusal.value.data["name"]) == ("LEASE_LOST", "shop-b")
        assert s.rig.services.engine.state.identities[2].epoch == 1
        assert (await s.bert.call("mail.whoami"))["epoch"] == 2


async def test_who_lets_the_name_go_while_it_waits_is_nobody(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        number = await waiting(s, s.bert)
        released = await s.bert.send("identity.release")
        answers = {one["id"]: one for one in [await s.bert.receive(), await s.bert.receive()]}
        assert answers[number]["error"]["data"]["code"] == "NOT_BOUND"
        assert "result" in answers[released]


# -- files and errors --------------------------------------------------------------------------------------


async def test_a_file_that_is_no_database_stops_mail_alone(tmp_path: Path) -> None:
    (tmp_path / "mail.db").write_bytes(b"no database" * 1000)
    async with scene(tmp_path) as s:
        s.follow()
        assert not s.post.usable
        assert s.post.trouble is not None
        assert "mail" in s.rig.services.degraded
        assert (await s.anna.call("mail.whoami"))["name"] == "shop-a"
        for method, params in (("mail.inbox", {"wait_s": 45}), ("mail.ack", {"ids": ["01JAAAAAAA"]})):
            assert (await s.anna.refused(method, params)).code == "MAIL_UNAVAILABLE"
        with pytest.raises(Rejected, match="no mail"):
            await s.post.write(letter(1, (2,), s.now))


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (MailRefused("NOT_YOURS", "m", "h"), "NOT_YOURS", False),
        (MailFull("m"), "DISK_FULL", True),
        (MailBusy("m"), "BUSY", True),
        (MailUnusable("m"), "MAIL_UNAVAILABLE", False),
        (MailError("m"), "MAIL_UNAVAILABLE", False),
    ],
)
async def test_errors_of_the_store_have_codes(error: MailError, code: str, retryable: bool) -> None:
    await trio.lowlevel.checkpoint()
    assert (refused(error).code, refused(error).retryable) == (code, retryable)


# -- fencing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["mail.send", "mail.ack"])
async def test_who_loses_the_mailbox_while_the_call_waits_for_the_disk_does_nothing(
    tmp_path: Path, method: str
) -> None:
    async with running(committer=SlowCommitter) as rig:
        assert isinstance(rig.committer, SlowCommitter)
        s = Scene(rig, str(tmp_path / "mail.db"))
        s.post.open(s.path)
        try:
            anna, _, _ = await rig.session()
            person = await rig.person()
            await anna.send("identity.register", {"name": "shop-a", "role": "x"})
            await _batch(rig.committer)
            await anna.receive()
            mine = await s.post.write(letter(2, (1,), s.now))
            # The grant becomes confirmed, or another change is on its way: the act waits for the disk.
            await person.send("identity.register", {"name": "shop-c", "role": "x"})
            await _batch(rig.committer, commit=False)
            params = {"to": ["owner"], "subject": "s", "body": "b"} if method == "mail.send" else {"ids": [mine.id]}
            number = await anna.send(method, params)
            await trio.testing.wait_all_tasks_blocked(0.05)
            await person.send("admin.free", {"name": "shop-a", "reason": "hangs"})
            await trio.testing.wait_all_tasks_blocked(0.05)
            rig.committer.commit()
            await _batch(rig.committer)
            with trio.fail_after(PATIENCE):
                refusal = await anna.receive()
            assert refusal["id"] == number
            assert refusal["error"]["data"]["code"] == "LEASE_LOST"
            assert (s.post.unread.get(0, 0), s.post.unread.get(1, 0)) == (0, 1)
        finally:
            s.post.close()


async def _batch(committer: SlowCommitter, *, commit: bool = True) -> None:
    """Wait until a batch is there, and write it."""
    with trio.fail_after(PATIENCE):
        while committer.batch is None:
            await trio.lowlevel.checkpoint()
    if commit:
        committer.commit()


async def test_mail_that_could_not_be_opened_is_opened_when_it_can_be(tmp_path: Path) -> None:
    path = tmp_path / "mail.db"
    path.write_bytes(b"not a database at all, and long enough to be looked at" * 20)
    with trio.fail_after(PATIENCE):
        async with running() as rig:
            post = rig.services.post
            post.open(str(path))
            assert (post.usable, post.trouble is not None) == (False, True)
            await post.reopen(str(path))
            assert not post.usable
            path.unlink()
            await post.reopen(str(path))
            assert (post.usable, post.trouble) == (True, None)
            post.close()


# -- after an outage ---------------------------------------------------------------------------------------


async def test_what_the_registry_asks_of_mail_is_done_after_a_start_without_mail(tmp_path: Path) -> None:
    good, bad = tmp_path / "mail.db", tmp_path / "bad.db"
    bad.write_bytes(b"no database" * 1000)
    async with scene(tmp_path) as s:
        await s.post.write(letter(1, (2,), s.now, needs_reply=True))
        s.post.close()
        s.path = str(bad)
        s.crash()
        assert not s.post.usable
        await trio.testing.wait_all_tasks_blocked()
        await s.post.reopen(str(good))
        await s.bert.call("identity.release")
        await s.until(1, [GONE])
        await s.bert.claim("shop-b")
        await s.until(1, [GONE, THERE])


async def test_what_an_outage_came_before_is_done_when_there_is_mail_again(tmp_path: Path) -> None:
    bad = tmp_path / "bad.db"
    bad.write_bytes(b"no database" * 1000)
    async with scene(tmp_path) as s:
        s.follow()
        await s.post.write(letter(1, (2,), s.now, needs_reply=True))
        await s.post.write(held(1, s.now))
        await s.quiet()
        await s.post.reopen(str(bad))
        assert not s.post.usable
        await s.bert.call("identity.release")
        carl, _, _ = await s.rig.session()
        await carl.register("shop-c")
        await s.post.reopen(s.path)
        await s.until(1, [GONE])
        await s.until(3, ["Build"])


async def test_what_fails_with_a_broken_store_is_done_with_the_next(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.follow()
        await s.post.write(letter(1, (2,), s.now, needs_reply=True))
        await s.quiet()
        s.post.store._writer._failed = MailUnusable("the sync failed")
        await s.bert.call("identity.release")
        with trio.fail_after(PATIENCE):
            while s.post.trouble is None:
                await trio.lowlevel.checkpoint()
        await s.post.reopen(s.path)
        await s.until(1, [GONE])
        assert s.post.trouble is None


async def test_what_a_full_disk_refuses_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "AGAIN_S", 0.005)
    async with scene(tmp_path) as s:
        s.follow()
        await s.post.write(letter(1, (2,), s.now, needs_reply=True))
        await s.quiet()
        write, tries = s.post.write, itertools.count(1)
        tried = trio.Event()

        async def full(*_args: Any) -> None:
            await trio.lowlevel.checkpoint()
            if next(tries) == 3:
                tried.set()
            raise refused(MailFull("no room"))

        monkeypatch.setattr(s.post, "write", full)
        await s.bert.call("identity.release")
        with trio.fail_after(PATIENCE):
            await tried.wait()
        monkeypatch.setattr(s.post, "write", write)
        await s.until(1, [GONE])
