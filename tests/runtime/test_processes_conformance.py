"""One suite for the port `Processes`: the kernel's processes and the scripted ones must behave alike."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Protocol

import pytest
import trio
import trio.testing

from mbxd.ports import Processes, ProcessId
from mbxd.runtime.peer import Peer, host_of, read_peer
from mbxd.runtime.processes import LocalProcesses
from tests.support.fakeprocesses import FakeProcesses, Machine
from tests.support.hosts import PYTHON, ZOMBIE_WITH_THREAD, Hosts, wait_until, wait_zombie

ALIVE = ("alive", "held")
EXITED = ("dead", "holder-exited")


class World(Protocol):
    """What the suite does to processes."""

    port: Processes

    def start(self) -> int: ...
    def stop(self, pid: int) -> None: ...
    def exit(self, pid: int) -> None:
        """Leaves a zombie."""

    def reap(self, pid: int) -> None: ...
    def start_threaded(self) -> int:
        """A process whose leader has exited while a thread runs."""

    def end_threads(self, pid: int) -> None: ...
    def connect(self) -> tuple[int, Peer]:
        """A new process that connected to us; it is a child of ours, an agent."""

    def me(self) -> int: ...
    def restart(self) -> Processes: ...
    def no_pidfd(self) -> Processes: ...


class RealWorld:
    """Real children of the test."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.ports: list[LocalProcesses] = []
        self.port: Processes = self._port(LocalProcesses())
        self.children: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> int:
        child = self.hosts.sleeper()
        self.children[child.pid] = child
        return child.pid

    def stop(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)

    def exit(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        wait_zombie(pid)

    def reap(self, pid: int) -> None:
        self.children[pid].wait(5)

    def start_threaded(self) -> int:
        child = self.hosts.start([*PYTHON, "-c", ZOMBIE_WITH_THREAD])
        self.children[child.pid] = child
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        for _ in wait_until("the leader is a zombie"):
            with open(f"/proc/{child.pid}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] == b"Z":
                    return child.pid
        raise AssertionError

    def end_threads(self, pid: int) -> None:
        stdin = self.children[pid].stdin
        assert stdin is not None
        stdin.close()
        wait_zombie(pid)

    def connect(self) -> tuple[int, Peer]:
        child = self.hosts.start(self.hosts.shim())
        self.children[child.pid] = child
        return child.pid, read_peer(self.hosts.accept())

    def me(self) -> int:
        return os.getpid()

    def restart(self) -> Processes:
        return self._port(LocalProcesses())

    def no_pidfd(self) -> Processes:
        def refuse(pid: int) -> int:
            raise OSError(38, f"no pidfd_open for {pid}")

        return self._port(LocalProcesses(opener=refuse))

    def close(self) -> None:
        for port in self.ports:
            port.shutdown()

    def _port(self, port: LocalProcesses) -> LocalProcesses:
        self.ports.append(port)
        return port


class ScriptedWorld:
    """The fake."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.port: Processes = self.machine.processes()
        self._me = self.machine.spawn(argv=("/usr/bin/agent",))

    def start(self) -> int:
        return self.machine.spawn(ppid=self._me)

    def stop(self, pid: int) -> None:
        """Nothing that a probe could see."""

    def exit(self, pid: int) -> None:
        self.machine.exit(pid)

    def reap(self, pid: int) -> None:
        self.machine.reap(pid)

    def start_threaded(self) -> int:
        pid = self.start()
        self.machine.add_threads(pid)
        self.machine.exit_leader(pid)
        return pid

    def end_threads(self, pid: int) -> None:
        self.machine.end_threads(pid)

    def connect(self) -> tuple[int, Peer]:
        pid = self.start()
        return pid, self.machine.connect(pid)

    def me(self) -> int:
        return self._me

    def restart(self) -> Processes:
        return self.machine.processes()

    def no_pidfd(self) -> Processes:
        port = FakeProcesses(self.machine)
        port.fail_open = True
        return port


@pytest.fixture(params=["real", "fake"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "fake":
        yield ScriptedWorld()
        return
    if sys.platform != "linux":
        pytest.skip("the real suite needs /proc and pidfds")
    with Hosts() as hosts:
        real = RealWorld(hosts)
        yield real
        real.close()


def identify(port: Processes, pid: int) -> ProcessId:
    return port.ancestry(pid)[0].identity


def test_a_living_process_is_alive_with_and_without_a_handle(world: World) -> None:
    identity = identify(world.port, world.start())
    handle = world.port.open(identity)
    assert handle is not None
    assert world.port.probe(identity, handle) == ALIVE
    assert world.port.probe(identity, None) == ALIVE
    assert world.no_pidfd().probe(identity, None) == ALIVE


def test_looking_twice_gives_the_same_identity(world: World) -> None:
    pid = world.start()
    assert identify(world.port, pid) == identify(world.port, pid) == identify(world.restart(), pid)


def test_a_stopped_process_is_alive(world: World) -> None:
    pid = world.start()
    identity = identify(world.port, pid)
    handle = world.port.open(identity)
    world.stop(pid)
    assert world.port.probe(identity, handle) == ALIVE
    assert world.port.probe(identity, None) == ALIVE
    assert world.no_pidfd().probe(identity, None) == ALIVE


def test_a_zombie_without_threads_is_dead_by_every_means(world: World) -> None:
    pid = world.start()
    identity = identify(world.port, pid)
    handle = world.port.open(identity)
    world.exit(pid)
    assert world.port.probe(identity, handle) == EXITED
    assert world.port.probe(identity, None) == EXITED
    assert world.no_pidfd().probe(identity, None) == EXITED
    assert world.port.open(identity) is None


def test_a_reaped_process_is_dead_by_every_means(world: World) -> None:
    pid = world.start()
    identity = identify(world.port, pid)
    handle = world.port.open(identity)
    world.exit(pid)
    world.reap(pid)
    assert world.port.probe(identity, handle) == EXITED
    assert world.port.probe(identity, None) == EXITED
    assert world.no_pidfd().probe(identity, None) == EXITED
    assert world.port.open(identity) is None
    assert world.port.ancestry(pid) == []
    assert world.port.describe(pid) is None


def test_a_zombie_leader_with_a_running_thread_is_alive(world: World) -> None:
    pid = world.start_threaded()
    identity = identify(world.port, pid)
    handle = world.port.open(identity)
    assert handle is not None
    assert world.port.probe(identity, handle) == ALIVE
    assert world.port.probe(identity, None) == ALIVE
    assert world.no_pidfd().probe(identity, None) == ALIVE
    world.end_threads(pid)
    assert world.port.probe(identity, handle) == EXITED
    assert world.port.probe(identity, None) == EXITED
    assert world.no_pidfd().probe(identity, None) == EXITED


@pytest.mark.trio
async def test_a_death_is_reported_once(world: World) -> None:
    pids = [world.start() for _ in range(3)]
    handles = [world.port.open(identify(world.port, pid)) for pid in pids]
    with trio.fail_after(5):
        world.exit(pids[1])
        assert await world.port.wait_deaths() == [handles[1]]
        world.reap(pids[1])
        world.exit(pids[0])
        assert await world.port.wait_deaths() == [handles[0]]
    with trio.move_on_after(0.05) as scope:
        await world.port.wait_deaths()
    assert scope.cancelled_caught
    assert world.port.statistics()["deaths"] == 2


@pytest.mark.trio
async def test_a_waiter_wakes_for_a_death_that_comes_later(world: World) -> None:
    pid = world.start()
    handle = world.port.open(identify(world.port, pid))
    found: list[list[int]] = []

    async def wait() -> None:
        found.append(await world.port.wait_deaths())

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            world.exit(pid)
    assert found == [[handle]]


@pytest.mark.trio
async def test_a_closed_handle_is_not_reported(world: World) -> None:
    first, second = world.start(), world.start()
    gone = world.port.open(identify(world.port, first))
    kept = world.port.open(identify(world.port, second))
    assert gone is not None
    world.exit(first)
    world.port.close(gone)
    world.port.close(gone)
    world.exit(second)
    with trio.fail_after(5):
        assert await world.port.wait_deaths() == [kept]


@pytest.mark.trio
async def test_an_adopted_peer_is_watched_like_any_other(world: World) -> None:
    pid, peer = world.connect()
    if peer.pidfd is None:
        pytest.skip("no SO_PEERPIDFD here")
    identity, handle = world.port.adopt(peer.pidfd)
    assert identity == identify(world.port, pid)
    assert world.port.probe(identity, handle) == ALIVE
    world.exit(pid)
    with trio.fail_after(5):
        assert await world.port.wait_deaths() == [handle]
    assert world.port.probe(identity, handle) == EXITED


@pytest.mark.trio
async def test_adopting_the_dead_reports_the_death(world: World) -> None:
    pid, peer = world.connect()
    if peer.pidfd is None:
        pytest.skip("no SO_PEERPIDFD here")
    world.exit(pid)
    world.reap(pid)
    identity, handle = world.port.adopt(peer.pidfd)
    assert identity == ProcessId(world.port.boot_id(), 0, 0, 0, identity.inode)
    assert identity.inode != 0
    with trio.fail_after(5):
        assert await world.port.wait_deaths() == [handle]


def test_the_identity_survives_a_restart_of_the_daemon(world: World) -> None:
    pid = world.start()
    identity = identify(world.port, pid)
    port = world.restart()
    handle = port.open(identity)
    assert handle is not None
    assert port.probe(identity, handle) == ALIVE
    world.exit(pid)
    world.reap(pid)
    assert world.restart().probe(identity, None) == EXITED


@pytest.mark.parametrize("field", ["ticks", "inode"])
def test_another_start_at_the_same_pid_is_a_reused_pid(world: World, field: str) -> None:
    identity = identify(world.port, world.start())
    if identity.inode == 0:
        pytest.skip("no pidfs here")
    other = identity._replace(inode=identity.inode + 1) if field == "inode" else identity._replace(ticks=1, inode=0)
    assert world.port.probe(other, None) == ("dead", "pid-reused")
    assert world.port.open(other) is None


def test_another_boot_is_dead_without_looking(world: World) -> None:
    identity = identify(world.port, world.start())._replace(boot="another")
    assert world.port.probe(identity, None) == ("dead", "rebooted")
    assert world.port.open(identity) is None


def test_another_boot_counts_more_than_a_pid_that_is_gone(world: World) -> None:
    pid = world.start()
    identity = identify(world.port, pid)._replace(boot="another")
    world.exit(pid)
    world.reap(pid)
    assert world.port.probe(identity, None) == ("dead", "rebooted")


def test_ticks_alone_are_enough_to_open(world: World) -> None:
    """What a daemon wrote down where pidfds had no inodes."""
    identity = identify(world.port, world.start())._replace(inode=0)
    handle = world.port.open(identity)
    assert handle is not None
    assert world.port.probe(identity, handle) == ALIVE


def test_a_pid_of_another_namespace_is_never_looked_up(world: World) -> None:
    identity = identify(world.port, world.start())
    for foreign in (identity._replace(ns=1), identity._replace(ns=1, pid=2**22), identity._replace(pid=0, ticks=0)):
        assert world.port.probe(foreign, None) == ("unknown", "unverifiable")
        assert world.port.open(foreign) is None


def test_nonsense_is_no_evidence_and_raises_nothing(world: World) -> None:
    identity = identify(world.port, world.start())
    for odd in (identity._replace(pid=-5), identity._replace(pid=0), identity._replace(ticks=0, inode=0)):
        assert world.port.probe(odd, None) == ("unknown", "unverifiable")
    assert world.port.probe(identity, 987654) == ALIVE
    assert world.port.ancestry(-1) == world.port.ancestry(0) == []
    assert world.port.describe(-1) is None


def test_the_ancestry_leads_to_pid_1(world: World) -> None:
    pid = world.start()
    chain = world.port.ancestry(pid)
    assert chain[0].identity.pid == pid
    assert chain[1].identity.pid == world.me()
    assert chain[-1].identity.pid == 1
    assert [info.ppid for info in chain[:-1]] == [info.identity.pid for info in chain[1:]]


def test_a_host_is_found_for_a_peer_and_can_be_watched(world: World) -> None:
    pid, peer = world.connect()
    finding = host_of(world.port, peer)
    assert finding is not None
    assert finding.shim == identify(world.port, pid)
    assert finding.host in [info.identity for info in world.port.ancestry(world.me())]
    assert world.port.probe(finding.host, finding.host_handle) == ALIVE
    for handle in finding.handles():
        world.port.close(handle)
    assert world.port.statistics()["watched"] == 0


def test_a_description_has_the_pid_and_no_arguments(world: World) -> None:
    text = world.port.describe(world.start())
    assert text is not None
    assert "pid" in text
    assert "sys.stdin" not in text


def test_shutdown_gives_everything_back(world: World) -> None:
    port = world.restart()
    for _ in range(3):
        assert port.open(identify(port, world.start())) is not None
    port.shutdown()
    assert port.statistics()["watched"] == 0


def test_without_pidfd_there_are_no_handles(world: World) -> None:
    port = world.no_pidfd()
    identity = identify(port, world.start())
    assert identity.inode == 0
    assert port.open(identity) is None
    assert port.probe(identity, None) == ALIVE


def test_the_kernel_gives_what_linux_is_first_class_for() -> None:
    if sys.platform != "linux":
        pytest.skip("Linux only")
    port = LocalProcesses()
    pidfd = os.pidfd_open(os.getpid())
    assert port.has_pidfd()
    assert not os.get_inheritable(pidfd)
    assert select.select([pidfd], [], [], 0)[0] == []
    os.close(pidfd)
    assert socket.SO_PEERCRED
    port.shutdown()
