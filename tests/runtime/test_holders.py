"""The states of an identity from scripted processes and clocks: both tables of docs/liveness.md, in a whole daemon."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import trio

from mbxd.core.state import SHIMS_KEPT
from mbxd.runtime import holders
from tests.support.daemon import Refused
from tests.support.fakeprocesses import Machine
from tests.support.rig import running

pytestmark = pytest.mark.trio
HOUR = 3600.0


async def test_a_reused_pid_is_dead_at_once(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, host, _ = await rig.session()
        await client.register("shop-a")
        other, _, _ = await rig.session()
        rig.machine.reuse(host, same_tick=True)
        await trio.testing.wait_all_tasks_blocked()
        assert await other.state("shop-a") == ("vacant", "holder-exited")
        assert (await other.claim("shop-a"))["epoch"] == 2


@pytest.mark.parametrize("pidfs", [True, False])
@pytest.mark.parametrize("same_tick", [True, False])
async def test_a_pid_that_was_reused_while_the_daemon_was_down(
    autojump_clock: trio.abc.Clock, pidfs: bool, same_tick: bool
) -> None:
    machine = Machine(pidfs=pidfs)
    async with running(machine) as rig:
        client, host, _ = await rig.session()
        await client.register("shop-a")
    machine.views.clear()
    machine.reuse(host, same_tick=same_tick)
    async with running(machine, rig.vfs) as after:
        person = await after.person()
        state = await person.state("shop-a")
        if pidfs or not same_tick:
            assert state == ("vacant", "pid-reused")
        else:  # nothing tells them apart; the shim's death makes it claimable in the end
            assert state[0] in {"live", "detached"}


async def test_after_a_reboot_everybody_is_gone(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, host, _ = await rig.session()
        ticks = rig.machine.table[host].ticks
        await client.register("shop-a")
    rig.machine.reboot()
    assert rig.machine.spawn(ticks=ticks) == host
    async with running(rig.machine, rig.vfs) as after:
        assert await (await after.person()).state("shop-a") == ("vacant", "rebooted")


@pytest.mark.parametrize("pidfd", [True, False])
async def test_without_pidfds_the_sweep_sees_a_death(autojump_clock: trio.abc.Clock, pidfd: bool) -> None:
    async with running(Machine(pidfd=pidfd)) as rig:
        client, host, _ = await rig.session()
        await client.register("shop-a")
        person = await rig.person()
        began = trio.current_time()
        rig.machine.kill(host)
        while (await person.state("shop-a"))[0] != "vacant":  # noqa: ASYNC110 - the moment is what is tested
            await trio.sleep(0.1)
        assert trio.current_time() - began <= (0.2 if pidfd else 2.2)
        swept = rig.services.holders.statistics()["sweeps"]
        await trio.sleep(60)
        assert rig.services.holders.statistics()["sweeps"] - swept in ((1, 2) if pidfd else (29, 30))


async def test_the_sweep_sees_a_death_where_a_pidfd_could_not_be_had(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        other, _, _ = await rig.session()
        await other.register("shop-b")
        rig.processes.fail_open = True
        client, host, _ = await rig.session()
        await client.register("shop-a")
        person = await rig.person()
        assert await person.state("shop-a") == ("live", "held")
        await trio.sleep(100)
        assert await person.state("shop-a") == ("live", "held")
        began = trio.current_time()
        rig.machine.kill(host)
        while (await person.state("shop-a"))[0] != "vacant":  # noqa: ASYNC110 - the moment is what is tested
            await trio.sleep(0.1)
        assert trio.current_time() - began <= 2.2
        assert await person.state("shop-b") == ("live", "held")


async def test_a_grant_to_a_process_whose_death_is_known_ends_at_once(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells of that death again before the next sweep."""
    async with running() as rig:
        client, host, _ = await rig.session()
        person = await rig.person()
        rig.machine.kill(host)
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.setattr(rig.dispatcher, "_check_lives", lambda _who: None)  # else none is given
        began = trio.current_time()
        await client.register("shop-a")
        assert await person.state("shop-a") == ("vacant", "holder-exited")
        known = rig.services.engine.state.identities[1]
        assert (known.epoch, known.hold) == (1, None)
        assert trio.current_time() == began


class Steps(trio.abc.Instrument):
    """Counts how often tasks of this name run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith(self.name)


async def test_only_what_has_no_pidfd_is_swept_often(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        other, _, _ = await rig.session()
        await other.register("shop-b")
        steps = Steps("._sweep_unheld")
        trio.lowlevel.add_instrument(steps)

        await trio.sleep(HOUR + 1)
        assert steps.count == 0, "nothing wakes for nothing"
        rig.processes.fail_open = True
        rig.services.holders.hold(rig.machine.identity(rig.machine.spawn()))
        swept = rig.services.holders.statistics()["sweeps"]
        before = rig.processes.statistics()["probes"]
        await trio.sleep(21)
        assert rig.services.holders.statistics()["sweeps"] == swept, "not of everything"
        assert rig.processes.statistics()["probes"] == before + 10
        rig.processes.fail_open = False
        await trio.sleep(5)
        assert rig.services.holders.statistics()["with_handle"] == 3
        rested = steps.count
        assert rested > 10
        await trio.sleep(HOUR)
        assert steps.count == rested, "all have a handle again"


async def test_out_of_descriptors_is_no_death(autojump_clock: trio.abc.Clock) -> None:
    async with running(Machine(pidfd=False)) as rig:
        client, host, shim = await rig.session()
        await client.register("shop-a")
        person = await rig.person()
        rig.machine.hide(host)
        rig.machine.hide(shim)
        await trio.sleep(HOUR)
        assert (await person.state("shop-a"))[0] == "live", "unreadable, but its connection is open"
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        row = await person.row("shop-a")
        assert (row["state"], row["reason"], row["claimable"]) == ("unknown", "unverifiable", False)
        assert 0 < row["claimable_in_s"] <= 60
        other, _, _ = await rig.session()
        assert (await other.refused("identity.claim", {"name": "shop-a"})).body["retryable"]
        await trio.sleep(61)
        row = await person.row("shop-a")
        assert (row["state"], row["reason"], row["claimable"]) == ("unknown", "grace-over", True)
        rig.machine.hide(host, hidden=False)
        rig.machine.hide(shim, hidden=False)
        await trio.sleep(3)
        assert (await person.state("shop-a"))[0] == "live", "a definite answer counts at once"
        assert not (await other.refused("identity.claim", {"name": "shop-a"})).body["retryable"]


async def test_the_last_of_several_connections_is_the_one_that_counts(autojump_clock: trio.abc.Clock) -> None:
    async with running(Machine(pidfd=False)) as rig:
        client, host, shim = await rig.session()
        await client.register("shop-a")
        more = [rig.connect(shim) for _ in range(2)]
        for connection in more:
            await connection.hello()
        person = await rig.person()
        rig.machine.hide(host)
        rig.machine.hide(shim)
        await trio.sleep(3)
        for connection in (more[0], client):
            await connection.stream.aclose()
            await trio.testing.wait_all_tasks_blocked()
            assert (await person.state("shop-a"))[0] == "live"
        await more[1].stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert (await person.state("shop-a"))[0] == "unknown"


async def test_a_session_that_can_not_be_seen_lives_by_its_pidfd(autojump_clock: trio.abc.Clock) -> None:
    """Another pid namespace: the number means nothing, SO_PEERPIDFD does."""
    async with running() as rig:
        shim = rig.machine.spawn(foreign=True)
        client = rig.connect(shim)
        await client.hello(container="box")
        await client.register("shop-a")
        person = await rig.person()
        assert (await person.state("shop-a"))[0] == "live"
        await client.stream.aclose()
        await trio.sleep(HOUR)
        assert (await person.state("shop-a"))[0] == "live"
        rig.machine.kill(shim)
        await trio.testing.wait_all_tasks_blocked()
        assert (await person.state("shop-a")) == ("vacant", "holder-exited")


async def test_a_zombie_leader_with_threads_lives(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, host, _ = await rig.session()
        await client.register("shop-a")
        rig.machine.add_threads(host)
        rig.machine.exit_leader(host)
        await trio.sleep(HOUR)
        person = await rig.person()
        assert (await person.state("shop-a"))[0] == "live"
        rig.machine.end_threads(host)
        await trio.testing.wait_all_tasks_blocked()
        assert (await person.state("shop-a"))[0] == "vacant"


async def test_age_frees_nothing(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, _, _ = await rig.session()
        other, _, _ = await rig.session()
        epoch = (await client.register("shop-a"))["epoch"]
        await trio.sleep(3 * HOUR)
        assert (await other.refused("identity.claim", {"name": "shop-a"})).data["claimable_in_s"] is None
        assert (await client.claim())["epoch"] == epoch


@pytest.mark.parametrize("step", [90.0, 1.5e9, -1.6e9, 12 * HOUR])
async def test_a_clock_step_frees_nothing(autojump_clock: trio.abc.Clock, step: float) -> None:
    async with running() as rig:
        client, _, shim = await rig.session()
        await client.register("shop-a")
        rig.machine.kill(shim)  # the grace runs
        await trio.testing.wait_all_tasks_blocked()
        person = await rig.person()
        before = (await person.row("shop-a"))["claimable_in_s"]
        rig.clock.wall_by = step
        await rig.services.holders.sweep()
        row = await person.row("shop-a")
        assert row["state"] == "detached"
        assert abs(row["claimable_in_s"] - before) < 2


async def test_time_that_nobody_watched_does_not_count(autojump_clock: trio.abc.Clock) -> None:
    """Suspend, or the daemon stopped: an hour passes between two ticks."""
    async with running() as rig:
        client, _, shim = await rig.session()
        await client.register("shop-a")
        rig.machine.kill(shim)
        await trio.sleep(10)
        rig.clock.awake_by += HOUR
        person = await rig.person()
        row = await person.row("shop-a")
        assert 40 < row["claimable_in_s"] < 51
        await trio.sleep(10)
        rig.clock.awake_by -= 2 * HOUR  # never goes back by itself, and would not count either
        assert not (await person.row("shop-a"))["claimable"]
        await trio.sleep(60)
        assert (await person.row("shop-a"))["claimable"]


async def test_a_restart_gives_a_fresh_grace(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, _, shim = await rig.session()
        await client.register("shop-a")
        rig.machine.kill(shim)
        await trio.sleep(55)
    async with running(rig.machine, rig.vfs) as after:
        person = await after.person()
        row = await person.row("shop-a")
        assert row["state"] == "detached"
        assert row["claimable_in_s"] > 55


@pytest.mark.parametrize("method", ["identity.list", "identity.claim", "tool.call"])
async def test_a_session_that_comes_back_sees_itself_attached_at_once(
    autojump_clock: trio.abc.Clock, method: str
) -> None:
    async with running() as rig:
        client, host, shim = await rig.session()
        await client.register("shop-a")
        rig.machine.kill(shim)
        await trio.testing.wait_all_tasks_blocked()
        back = rig.connect(rig.machine.spawn(ppid=host, argv=("/usr/bin/mbx-mcp",)))
        await back.hello()
        tool = {"name": "mbx_identity", "arguments": {"action": "list"}}
        answer = await back.call(method, tool if method == "tool.call" else {})
        answer = answer.get("structuredContent", answer)
        row = answer["identity"] if method == "identity.claim" else answer["identities"][0]
        assert (row["state"], row["reason"], row["claimable"]) == ("live", "yours", True)


async def test_a_session_that_comes_back_ends_the_grace(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, host, shim = await rig.session()
        epoch = (await client.register("shop-a"))["epoch"]
        rig.machine.kill(shim)
        await trio.sleep(59)
        again = rig.connect(rig.machine.spawn(ppid=host, argv=("/usr/bin/mbx-mcp",)))
        await again.hello()
        assert (await again.claim())["epoch"] == epoch
        await trio.sleep(HOUR)
        person = await rig.person()
        assert (await person.state("shop-a"))[0] == "live"
        why = await person.call("identity.why", {"name": "shop-a"})
        assert sorted(p["verdict"] for p in why["processes"]) == ["alive", "alive", "dead"]


@pytest.mark.parametrize("method", ["identity.list", "identity.show", "mail.whoami"])
async def test_a_shim_that_only_looked_is_logged_and_attached_after_a_restart(
    autojump_clock: trio.abc.Clock, method: str
) -> None:
    """Its host's name was claimed in a conversation by another shim, which is gone; it is silent after the restart."""
    async with running() as rig:
        client, host, shim = await rig.session()
        await client.register("shop-a", session="c1")
        second = rig.connect(rig.machine.spawn(ppid=host, argv=("/usr/bin/mbx-mcp",)))
        await second.hello()
        params = {"name": "shop-a"} if method == "identity.show" else {}
        with contextlib.suppress(Refused):  # there is no mail here, and it spoke all the same
            await second.call(method, params)
        seq = rig.services.engine.staged_seq
        await second.call("identity.list")
        assert rig.services.engine.staged_seq == seq, "once is enough"
        rig.machine.kill(shim)
        assert (await (await rig.person()).state("shop-a"))[0] == "live"
    async with running(rig.machine, rig.vfs) as after:
        assert (await (await after.person()).state("shop-a"))[0] == "live"


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("identity.register", {"name": "shop-b", "role": "x"}),
        ("identity.why", {"name": "nobody"}),
        ("agent.whois", {"agent_name": "nobody", "project_key": "/tmp/shop"}),
        ("mail.send", {"to": ["nobody"], "subject": "s", "body": "b"}),
    ],
)
async def test_a_shim_whose_call_is_refused_spoke_all_the_same(
    autojump_clock: trio.abc.Clock, method: str, params: dict[str, Any]
) -> None:
    async with running() as rig:
        client, host, shim = await rig.session()
        await client.register("shop-a")
        rig.machine.kill(shim)
        again = rig.connect(rig.machine.spawn(ppid=host, argv=("/usr/bin/mbx-mcp",)))
        await again.hello()
        await trio.testing.wait_all_tasks_blocked()
        person = await rig.person()
        assert (await person.state("shop-a"))[0] == "detached"
        await again.refused(method, params)
        assert (await person.state("shop-a"))[0] == "live"


async def test_a_silent_conversation_gives_way_only_while_its_siblings_go_on(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, _, _ = await rig.session()
        other, _, _ = await rig.session()
        await client.register("shop-a", session="s1")
        await client.register("shop-b", session="s2")
        await trio.sleep(2 * HOUR)
        assert (await other.row("shop-a"))["state"] == "live", "a quiet process is no evidence"
        await client.call("identity.list", session="s2")
        row = await other.row("shop-a")
        assert (row["state"], row["reason"]) == ("detached", "grace-over")
        assert (await other.row("shop-b"))["state"] == "live"
        assert (await other.claim("shop-a"))["epoch"] == 2
        listed = await client.call("identity.list", session="s1")
        assert listed["lost"]["name"] == "shop-a"
        assert (await client.refused("identity.claim", {"name": "shop-a"}, session="s1")).code == "IDENTITY_IN_USE"


async def test_the_conversation_that_called_last_is_the_one_that_goes_on(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, _, _ = await rig.session()
        person = await rig.person()

        async def states() -> tuple[str, ...]:
            return tuple([(await person.state(name))[0] for name in ("shop-a", "shop-b", "shop-c")])

        for name in ("shop-a", "shop-b", "shop-c"):
            await client.register(name, session=name)
        await trio.sleep(HOUR)
        assert await states() == ("live", "live", "live")
        await client.call("identity.list", session="shop-c")
        assert await states() == ("detached", "detached", "live")
        await client.call("identity.list", session="shop-a")
        assert await states() == ("live", "detached", "live")
        await trio.sleep(HOUR)
        assert await states() == ("live", "live", "live"), "now all are silent"
        await client.call("identity.list", session="shop-a")
        assert await states() == ("live", "detached", "detached")
        await client.call("identity.release", session="shop-a")
        assert await states() == ("vacant", "live", "live"), "who has gone is no sibling"
        for name in ("shop-b", "shop-c"):
            await client.call("identity.release", session=name)
        assert rig.services.holders._calls == {}


async def test_death_is_final_whatever_is_seen_at_the_pid_later(autojump_clock: trio.abc.Clock) -> None:
    async with running(Machine(pidfd=False)) as rig:
        client, _, shim = await rig.session()
        await client.register("shop-a")
        rig.machine.reuse(shim)
        await trio.sleep(3)
        person = await rig.person()
        assert (await person.state("shop-a"))[0] == "detached"
        rig.machine.hide(shim)
        await trio.sleep(10)
        assert (await person.state("shop-a"))[0] == "detached"
        why = await person.call("identity.why", {"name": "shop-a"})
        assert sorted(p["verdict"] for p in why["processes"]) == ["alive", "dead"]


async def test_a_conversation_that_goes_leaves_its_siblings_watched(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, host, shim = await rig.session()
        for name in ("shop-a", "shop-b", "shop-c"):
            await client.register(name, session=name)
        await client.call("identity.release", session="shop-a")
        person = await rig.person()
        await client.stream.aclose()
        rig.machine.kill(shim)
        await trio.testing.wait_all_tasks_blocked()
        assert [(await person.state(name))[0] for name in ("shop-b", "shop-c")] == ["detached", "detached"]
        rig.machine.kill(host)
        await trio.testing.wait_all_tasks_blocked()
        for name in ("shop-b", "shop-c"):
            assert await person.state(name) == ("vacant", "holder-exited")
        assert rig.services.holders._by_process == {}


async def test_who_is_a_host_and_whose_shim_is_whose(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, host_pid, shim_pid = await rig.session()
        host, shim = rig.machine.identity(host_pid), rig.machine.identity(shim_pid)
        holders = rig.services.holders
        assert (holders.is_host(host), holders.host_of_shim(shim)) == (False, None)
        await client.register("shop-a")
        assert (holders.is_host(host), holders.is_host(shim)) == (True, False)
        assert (holders.host_of_shim(host), holders.host_of_shim(shim)) == (None, host)
        await client.call("identity.release")
        assert (holders.is_host(host), holders.host_of_shim(shim)) == (False, None)


async def test_a_death_is_written_down_under_its_epoch(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, host, _ = await rig.session()
        for name in ("shop-a", "shop-b"):
            await client.register(name, session=name)
        before = rig.services.engine.staged_seq
        rig.machine.kill(host)
        await trio.testing.wait_all_tasks_blocked()
        state = rig.services.engine.state
        assert rig.services.engine.staged_seq == before + 2
        assert list(state.holders()) == []
        for identity in state.identities.values():
            assert identity.past is not None
            assert (identity.past.reason, identity.epoch) == ("holder-exited", 1)
        assert rig.services.holders.statistics()["seats"] == 0


async def test_stale_evidence_does_not_end_a_newer_grant(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, _, _ = await rig.session()
        epoch = (await client.register("shop-a"))["epoch"]
        await client.call("identity.release")
        other, _, _ = await rig.session()
        assert (await other.claim("shop-a"))["epoch"] == epoch + 1
        rig.daemon._propose_death(1, epoch, "holder-exited")
        assert (await other.row("shop-a"))["state"] == "live"


async def test_handles_are_given_back(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        await rig.person()
        held = len(rig.processes.held)
        for _ in range(20):
            client, host, shim = await rig.session()
            beneath = rig.machine.spawn(ppid=host, argv=("/usr/bin/mbxctl",))
            command = rig.connect(beneath)
            await command.hello("mbxctl")
            await command.stream.aclose()
            mute = rig.connect(shim)
            await mute.call("ping")
            await mute.stream.aclose()
            await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert len(rig.processes.held) == held
        assert rig.services.connections == 0
        assert rig.services.shims_of == {}


async def test_shims_that_come_and_go_by_the_hundred_cost_nothing(autojump_clock: trio.abc.Clock) -> None:
    """Sub-agents of one living process: the seat keeps a few shims, and no handle of the dead."""
    async with running() as rig:
        client, host, first = await rig.session()
        epoch = (await client.register("shop-a"))["epoch"]
        await trio.testing.wait_all_tasks_blocked()
        held = len(rig.processes.held)
        for _ in range(100):
            shim = rig.machine.spawn(ppid=host, argv=("/usr/bin/mbx-mcp",))
            short = rig.connect(shim)
            await short.hello()
            assert (await short.claim())["epoch"] == epoch
            rig.machine.kill(shim)
            await short.stream.aclose()
            await trio.testing.wait_all_tasks_blocked()
        seat = rig.services.holders.seat(1)
        assert seat is not None
        assert len(seat.shims) <= SHIMS_KEPT
        assert rig.machine.identity(first) in seat.shims, "the dead are forgotten before the living"
        assert len(rig.processes.held) == held
        assert rig.services.holders.statistics()["watched"] <= SHIMS_KEPT + 1
        assert await client.state("shop-a") == ("live", "yours")
        await client.call("identity.release")
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert rig.services.holders.statistics()["watched"] == 0
        assert len(rig.processes.held) == 0


async def test_a_living_shim_is_not_forgotten_for_sub_agents(autojump_clock: trio.abc.Clock) -> None:
    async with running() as rig:
        client, host, _ = await rig.session()
        await client.register("shop-a")
        pids = []
        for _ in range(3 * SHIMS_KEPT):
            pids.append(rig.machine.spawn(ppid=host, argv=("/usr/bin/mbx-mcp",)))
            more = rig.connect(pids[-1])
            await more.hello()
            await more.call("identity.list")
        for pid in pids:
            rig.machine.kill(pid)
        await trio.testing.wait_all_tasks_blocked()
        assert (await (await rig.person()).state("shop-a"))[0] == "live"
        seat = rig.services.holders.seat(1)
        assert seat is not None
        more = rig.connect(rig.machine.spawn(ppid=host, argv=("/usr/bin/mbx-mcp",)))
        await more.hello()
        await more.call("identity.list")
        assert len(seat.shims) == 2, "the dead are forgotten"
    async with running(rig.machine, rig.vfs) as after:
        person = await after.person()
        assert (await person.state("shop-a"))[0] == "live", "the log keeps the first one too"


async def test_shims_beyond_all_measure_are_given_up(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is watched by a descriptor."""
    monkeypatch.setattr(holders, "SHIMS_WATCHED", 20)
    async with running() as rig:
        client, host, shim = await rig.session()
        await client.register("shop-a")
        for _ in range(30):
            more = rig.connect(rig.machine.spawn(ppid=host, argv=("/usr/bin/mbx-mcp",)))
            await more.hello()
            await more.call("identity.list")
        seat = rig.services.holders.seat(1)
        assert seat is not None
        assert len(seat.shims) == 20
        assert next(iter(seat.shims)).pid == shim
        assert await client.state("shop-a") == ("live", "yours")
        rig.machine.kill(host)
        await trio.testing.wait_all_tasks_blocked()
        assert (await (await rig.person()).state("shop-a"))[0] == "vacant"
