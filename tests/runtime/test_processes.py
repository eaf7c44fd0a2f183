"""What only the real adapter does: raw readings, failures of the system, pids that are used again."""

from __future__ import annotations

import ast
import errno
import fcntl
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mbxd.ports import Processes, ProcessId
from mbxd.runtime import portable, procfs
from mbxd.runtime.portable import PsutilTable, facts
from mbxd.runtime.processes import LocalProcesses, _ago, unseen
from mbxd.runtime.procfs import Procfs, Stat, parse_stat, pid_of_pidfd, split_cmdline
from tests.support.hosts import PATIENCE, PYTHON, Hosts, in_pid_namespace, is_root, wait_zombie

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="readings of /proc and pidfds")

ROOT = Path(__file__).parents[2]
ALIVE = ("alive", "held")
EXITED = ("dead", "holder-exited")
UNVERIFIABLE = ("unknown", "unverifiable")


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts() as started:
        yield started


@pytest.fixture
def port() -> Iterator[LocalProcesses]:
    processes = LocalProcesses()
    yield processes
    processes.shutdown()


def failing(code: int) -> Callable[[int], int]:
    def open_pidfd(pid: int) -> int:
        raise OSError(code, os.strerror(code), str(pid))

    return open_pidfd


# /proc/<pid>/stat

names = st.binary(max_size=15) | st.sampled_from([b"x) R 1 2 3 (", b"a b", b")", b"(", b"))) S 1 (", b"\n", b""])


@given(
    name=names,
    state=st.sampled_from("RSDZTtXI"),
    pid=st.integers(1, 2**22),
    ppid=st.integers(0, 2**22),
    ticks=st.integers(0, 2**63),
)
def test_a_stat_line_is_read_whatever_the_name_is(name: bytes, state: str, pid: int, ppid: int, ticks: int) -> None:
    between = " ".join(str(n) for n in range(17))
    line = b"%d (%s) %s %d %s %d 4096 77\n" % (pid, name, state.encode(), ppid, between.encode(), ticks)
    assert parse_stat(line) == Stat(state, ppid, ticks)


@given(st.binary(max_size=200))
def test_no_stat_line_is_a_value_error(data: bytes) -> None:
    try:
        parse_stat(data)
    except ValueError:
        pass
    else:
        assert b"(" in data


TWENTY = b"S 1 " + b"0 " * 17 + b"77"
"""The fields behind the name, up to the start time."""


@pytest.mark.parametrize(
    "line", [b"", b"1 (x)", b"1 (x) S 1 2", b"1 (x) " + TWENTY[:-3], b"1 x) " + TWENTY, TWENTY * 2]
)
def test_a_line_that_was_cut_is_a_value_error(line: bytes) -> None:
    assert parse_stat(b"1 (x) " + TWENTY) == Stat("S", 1, 77)
    with pytest.raises(ValueError, match="not a line"):
        parse_stat(line)


@pytest.mark.parametrize(("state", "zombie"), [*((s, True) for s in "ZXx"), *((s, False) for s in "RSDTtIKP")])
def test_states_of_a_leader_that_has_exited(state: str, zombie: bool) -> None:
    assert Stat(state, 1, 77).zombie is zombie


HOSTILE = [b"x) R 1 2 3 (", b"a) Z 1 (b c", b"))))", b"\xff\xfe \n"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_process_can_not_lie_through_its_name(hosts: Hosts, port: LocalProcesses, name: bytes) -> None:
    code = (
        f"import ctypes, sys; ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0); print('up', flush=True); sys.stdin.read()"
    )
    child = hosts.start([*PYTHON, "-c", code])
    assert child.stdout is not None
    child.stdout.readline()
    me = port.ancestry(child.pid)[0]
    assert me.ppid == os.getpid()
    assert me.identity.ticks >= port.ancestry(os.getpid())[0].identity.ticks > 0
    assert port.probe(me.identity, None) == ALIVE


def test_a_hostile_argv_gives_a_clean_description(hosts: Hosts, port: LocalProcesses) -> None:
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    argv = ["\x1b[2J) Z 1 (\nname --token hunter2", "-I", "-S", "-c", code, "--password=hunter2"]
    child = subprocess.Popen(argv, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    hosts._children.append(child)
    assert child.stdout is not None
    child.stdout.readline()
    text = port.describe(child.pid)
    assert text is not None
    assert text.isprintable()
    assert "hunter2" not in text
    assert port.probe(port.ancestry(child.pid)[0].identity, None) == ALIVE


def test_ticks_are_the_raw_field(port: LocalProcesses) -> None:
    raw = Path("/proc/self/stat").read_bytes().rsplit(b")", 1)[1].split()[19]
    assert port.ancestry(os.getpid())[0].identity.ticks == int(raw)


def test_an_identity_names_the_boot_and_the_namespace_that_its_pid_belongs_to(port: LocalProcesses) -> None:
    me = port.ancestry(os.getpid())[0].identity
    assert me.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert me.ns == Path("/proc/self/ns/pid").stat().st_ino


def test_identity_never_comes_from_create_time() -> None:
    """psutil's create_time() moves with the wall clock: no code of ours may even name it."""
    for module in (procfs, portable):
        tree = ast.parse(Path(str(module.__file__)).read_text())
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert "create_time" not in used
    for path in (ROOT / "mbxd").rglob("*.py"):
        assert ".create_time" not in path.read_text(), path


def test_identity_does_not_move_with_the_clock(
    hosts: Hosts, port: LocalProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = hosts.sleeper().pid
    before = port.ancestry(pid)[0].identity
    monkeypatch.setattr(psutil, "boot_time", lambda: 90.0)
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: 90.0)
    assert psutil.Process(pid).create_time() < 1e9
    assert port.ancestry(pid)[0].identity == before
    assert LocalProcesses().probe(before, None) == ALIVE


# Threads


def test_a_thread_is_no_process(port: LocalProcesses) -> None:
    ready, done = threading.Event(), threading.Event()
    found: list[int] = []

    def stay() -> None:
        found.append(threading.get_native_id())
        ready.set()
        done.wait(PATIENCE)

    thread = threading.Thread(target=stay)
    thread.start()
    assert ready.wait(PATIENCE)
    ticks = Procfs().stat(found[0]).ticks
    identity = port.ancestry(os.getpid())[0].identity._replace(pid=found[0], ticks=ticks, inode=0)
    try:
        assert port.probe(identity, None) == ("dead", "pid-reused")
        assert port.open(identity) is None
    finally:
        done.set()
        thread.join()


# Failures of pidfd_open


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.ENOMEM])
def test_a_failing_pidfd_open_means_polling_and_never_death(hosts: Hosts, code: int) -> None:
    port = LocalProcesses(opener=failing(code))
    child = hosts.sleeper()
    identity = port.ancestry(child.pid)[0].identity
    assert not port.has_pidfd()
    assert identity.inode == 0
    assert port.open(identity) is None
    assert port.probe(identity, None) == ALIVE
    assert port.probe(identity._replace(ticks=1), None) == ("dead", "pid-reused")
    child.kill()
    wait_zombie(child.pid)
    assert port.probe(identity, None) == EXITED
    child.wait(PATIENCE)
    assert port.probe(identity, None) == EXITED
    assert port.statistics()["open_failed"] > 0
    port.shutdown()


def test_only_esrch_means_gone(hosts: Hosts, port: LocalProcesses) -> None:
    identity = port.ancestry(hosts.sleeper().pid)[0].identity
    gone = LocalProcesses(opener=failing(errno.ESRCH))
    assert gone.probe(identity, None) == EXITED
    assert gone.open(identity) is None
    assert gone.ancestry(identity.pid) == []
    gone.shutdown()


def test_a_system_without_pidfd_open_polls(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    port = LocalProcesses()
    identity = port.ancestry(hosts.sleeper().pid)[0].identity
    assert (port.has_pidfd(), port.open(identity)) == (False, None)
    assert port.probe(identity, None) == ALIVE
    port.shutdown()


@pytest.mark.trio
async def test_without_pidfds_waiting_for_deaths_waits_for_ever() -> None:
    port = LocalProcesses(opener=failing(errno.ENOSYS))
    with trio.move_on_after(0.02) as scope:
        await port.wait_deaths()
    assert scope.cancelled_caught
    port.shutdown()


def test_out_of_descriptors_nothing_is_dead_and_the_next_probe_tries_again(hosts: Hosts, port: LocalProcesses) -> None:
    child = hosts.sleeper()
    identity = port.ancestry(child.pid)[0].identity
    handle = port.open(identity)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        seen = [port.probe(identity, None), port.probe(identity, handle), port.probe(identity._replace(pid=1), None)]
        chain = port.ancestry(child.pid)
        opened = port.open(identity)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert seen == [UNVERIFIABLE, ALIVE, UNVERIFIABLE]
    assert (chain, opened) == ([], None)
    assert port.probe(identity, None) == ALIVE


def test_a_full_epoll_set_leaves_the_handle_to_the_sweep(hosts: Hosts, port: LocalProcesses) -> None:
    class Full:
        def register(self, fd: int, events: int) -> None:
            raise OSError(errno.ENOSPC, "full")

        def unregister(self, fd: int) -> None:
            raise OSError(errno.ENOENT, "not there")

    child = hosts.sleeper()
    identity = port.ancestry(child.pid)[0].identity
    epoll, port._epoll = port._epoll, Full()  # type: ignore[assignment]
    handle = port.open(identity)
    assert handle is not None
    child.kill()
    wait_zombie(child.pid)
    assert port.probe(identity, handle) == EXITED
    port.close(handle)
    assert port.statistics()["watch_failed"] == 1
    port._epoll = epoll


def test_all_descriptors_are_close_on_exec_and_given_back(hosts: Hosts) -> None:
    def descriptors() -> set[str]:
        return set(os.listdir("/proc/self/fd"))

    child = hosts.sleeper()
    before = descriptors()
    port = LocalProcesses()
    identity = port.ancestry(child.pid)[0].identity
    first, second = port.open(identity), port.open(identity)
    raw = os.pidfd_open(child.pid)
    os.set_inheritable(raw, True)
    _, third = port.adopt(raw)
    for fd in (first, second, third, port._epoll.fileno() if port._epoll else None):
        assert fd is not None
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    port.probe(identity, None)
    port.describe(child.pid)
    port.shutdown()
    assert descriptors() == before


@pytest.mark.trio
async def test_many_deaths_are_all_seen(hosts: Hosts, port: LocalProcesses) -> None:
    children = [hosts.start(["sleep", "600"]) for _ in range(60)]
    handles = {port.open(port.ancestry(child.pid)[0].identity) for child in children}
    for child in children:
        child.kill()
    found: list[int] = []
    with trio.fail_after(PATIENCE):
        while len(found) < len(children):
            found += await port.wait_deaths()
    assert sorted(found) == sorted(handle for handle in handles if handle is not None)


# What /proc may be like


def test_an_unreadable_or_foreign_proc_is_no_evidence(hosts: Hosts, port: LocalProcesses, tmp_path: Path) -> None:
    identity = port.ancestry(hosts.sleeper().pid)[0].identity
    blind = LocalProcesses(table=Procfs(str(tmp_path)), opener=failing(errno.ENOSYS))
    assert (blind.boot_id(), blind.ancestry(identity.pid), blind.describe(identity.pid)) == ("", [], None)
    assert blind.probe(identity, None) == UNVERIFIABLE
    assert blind.probe(identity._replace(ns=0), None) == UNVERIFIABLE
    (tmp_path / "self").symlink_to("4000000")
    assert not Procfs(str(tmp_path)).ours
    blind.shutdown()


def test_a_hidden_process_is_not_gone(hosts: Hosts, port: LocalProcesses) -> None:
    """hidepid: no directory in /proc, and signal 0 finds the process all the same."""

    class Hiding(Procfs):
        def stat(self, pid: int) -> Stat:
            raise FileNotFoundError(errno.ENOENT, "hidden", str(pid))

    child = hosts.sleeper()
    identity = port.ancestry(child.pid)[0].identity
    polling = LocalProcesses(table=Hiding(), opener=failing(errno.EPERM))
    assert polling.probe(identity, None) == UNVERIFIABLE
    seeing = LocalProcesses(table=Hiding())
    assert seeing.probe(identity, None) == ALIVE  # by the pidfd's inode
    hosts.end(child)
    assert polling.probe(identity, None) == EXITED
    assert seeing.probe(identity, None) == EXITED
    polling.shutdown()
    seeing.shutdown()


def test_a_failed_read_is_not_remembered(hosts: Hosts) -> None:
    class Flaky(Procfs):
        failures = 0

        def stat(self, pid: int) -> Stat:
            if self.failures:
                self.failures -= 1
                raise TimeoutError(errno.ETIMEDOUT, "slow machine")
            return super().stat(pid)

    table = Flaky()
    port = LocalProcesses(table=table, opener=failing(errno.ENOSYS))
    identity = port.ancestry(hosts.sleeper().pid)[0].identity
    table.failures = 2
    assert [port.probe(identity, None) for _ in range(3)] == [UNVERIFIABLE, UNVERIFIABLE, ALIVE]
    table.failures = 1
    assert port.ancestry(identity.pid) == []
    assert port.ancestry(identity.pid)[0].identity == identity
    port.shutdown()


def test_a_link_that_changes_while_it_is_read_is_read_again(hosts: Hosts) -> None:
    """The parent dies between two readings: the chain must not join a child to a stranger."""

    class Reparented(Procfs):
        readings = 0

        def stat(self, pid: int) -> Stat:
            stat = super().stat(pid)
            if pid == child.pid:
                self.readings += 1
                return stat._replace(ppid=middle.pid) if self.readings == 1 else stat
            return stat

    child, middle = hosts.sleeper(), hosts.sleeper()
    table = Reparented()
    port = LocalProcesses(table=table)
    assert [info.identity.pid for info in port.ancestry(child.pid)][:2] == [child.pid, os.getpid()]
    assert table.readings > 2
    port.shutdown()


def test_a_process_may_be_adopted_while_its_pid_is_unreadable(hosts: Hosts) -> None:
    class Blind(Procfs):
        def stat(self, pid: int) -> Stat:
            raise PermissionError(errno.EACCES, "no", str(pid))

    child = hosts.sleeper()
    port = LocalProcesses(table=Blind())
    identity, handle = port.adopt(os.pidfd_open(child.pid))
    assert (identity.pid, identity.ticks) == (child.pid, 0)
    assert port.probe(identity, handle) == ALIVE
    port.shutdown()


def test_a_process_that_is_reaped_while_it_is_adopted_is_not_its_successor(hosts: Hosts) -> None:
    """The ticks that were read may be those of the pid's next owner: none of both is believed."""

    class Late(Procfs):
        def stat(self, pid: int) -> Stat:
            child.kill()
            child.wait(PATIENCE)
            return Stat("S", 1, 12345)

    child = hosts.sleeper()
    port = LocalProcesses(table=Late())
    identity, handle = port.adopt(os.pidfd_open(child.pid))
    assert identity == ProcessId(port.boot_id(), 0, 0, 0, identity.inode)
    assert identity.inode != 0
    assert port.probe(identity, handle) == EXITED
    port.shutdown()


def test_pid_1_is_a_process_like_any_other(port: LocalProcesses) -> None:
    """In a container the agent itself may be pid 1."""
    identity, handle = port.adopt(os.pidfd_open(1))
    assert identity == port.ancestry(1)[0].identity
    assert port.probe(identity, handle) == ALIVE


def test_a_descriptor_that_was_closed_behind_our_back_is_no_death(hosts: Hosts, port: LocalProcesses) -> None:
    identity = port.ancestry(hosts.sleeper().pid)[0].identity
    handle = port.open(identity)
    assert handle is not None
    os.close(handle)
    assert port.probe(identity, handle) == ALIVE  # from the table
    del port._watched[handle]


def test_a_closed_handle_says_nothing_though_somebody_inherited_it(hosts: Hosts, port: LocalProcesses) -> None:
    """The epoll set would go on reporting it, under a number that is another handle's by now."""
    first, second = hosts.sleeper(), hosts.sleeper()
    handle = port.open(port.ancestry(first.pid)[0].identity)
    assert handle is not None
    inherited = os.dup(handle)
    port.close(handle)
    assert port.open(port.ancestry(second.pid)[0].identity) == handle
    first.kill()
    wait_zombie(first.pid)
    assert port._epoll is not None
    assert port._epoll.poll(0) == []
    os.close(inherited)


def test_the_inode_that_all_anonymous_files_share_tells_nobody_apart(port: LocalProcesses) -> None:
    """Before Linux 6.9 a pidfd is such a file."""
    fd = os.eventfd(0)
    assert port._inode(fd) == 0
    os.close(fd)


def test_the_pid_of_a_pidfd() -> None:
    child = subprocess.Popen([*PYTHON, "-c", "pass"])
    fd = os.pidfd_open(child.pid)
    assert pid_of_pidfd(fd) == child.pid
    child.wait(PATIENCE)
    assert pid_of_pidfd(fd) == -1
    os.close(fd)
    assert pid_of_pidfd(fd) == 0


def test_numbers_of_ours_are_negative_and_differ() -> None:
    numbers = {unseen() for _ in range(50)}
    assert len(numbers) == 50
    assert all(-(2**63) < number < 0 for number in numbers)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.9, "0 s"), (59.9, "59 s"), (60, "1 min"), (3599, "59 min"), (7200, "2 h"), (86399, "23 h"), (200000, "2 d")],
)
def test_how_long_ago_is_told_in_one_unit(seconds: float, text: str) -> None:
    assert _ago(seconds) == text


def test_age_counts_from_the_start_of_the_process(hosts: Hosts) -> None:
    table = Procfs()
    stat = table.stat(hosts.sleeper().pid)
    age = table.age(stat)
    assert 0 <= age < PATIENCE
    hour = 3600 * os.sysconf("SC_CLK_TCK")
    assert 0 <= table.age(stat._replace(ticks=stat.ticks - hour)) - age - 3600 < PATIENCE
    assert table.age(stat._replace(ticks=stat.ticks + hour)) == 0.0


# The portable paths


def test_the_portable_table_agrees_with_proc(hosts: Hosts) -> None:
    child = hosts.sleeper()
    table = PsutilTable()
    port = LocalProcesses(table=table, opener=failing(errno.ENOSYS))
    identity = port.ancestry(child.pid)[0].identity
    assert [info.identity.pid for info in port.ancestry(child.pid)][1] == os.getpid()
    assert table.stat(child.pid).ppid == os.getpid()
    assert port.probe(identity, None) == ALIVE
    assert port.probe(identity._replace(ticks=identity.ticks + 1), None) == ("dead", "pid-reused")
    child.kill()
    wait_zombie(child.pid)
    assert port.probe(identity, None) == EXITED
    child.wait(PATIENCE)
    assert port.probe(identity, None) == EXITED
    with pytest.raises(ProcessLookupError):
        table.stat(child.pid)
    port.shutdown()


def test_facts_of_nobody_are_empty() -> None:
    assert facts(2**22 - 1) == facts(-1) == procfs.NO_FACTS
    assert Procfs().facts(2**22 - 1) == Procfs().facts(-1) == procfs.NO_FACTS


def test_facts_are_the_same_by_both_ways(hosts: Hosts) -> None:
    child = hosts.start([*PYTHON, "-c", "import sys; print('up', flush=True); sys.stdin.read()", "a b", "", "é"])
    assert child.stdout is not None
    child.stdout.readline()
    assert Procfs().facts(child.pid) == facts(child.pid)
    assert Procfs().facts(os.getpid()).uid == os.geteuid()


@pytest.mark.parametrize(
    ("line", "uid"), [("Uid:\t1\t2\t3\t4", 2), ("Uid:", -1), ("Uid:\t1", -1), ("Uid:\tx\ty", -1), ("Gid:\t5\t6", -1)]
)
def test_the_effective_user_is_meant_and_a_strange_line_names_nobody(tmp_path: Path, line: str, uid: int) -> None:
    (tmp_path / "self").symlink_to(str(os.getpid()))
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(f"Name:\tx\n{line}\nThreads:\t1\n")
    assert Procfs(str(tmp_path)).facts(7) == procfs.NO_FACTS._replace(uid=uid)


@pytest.mark.parametrize(
    ("data", "argv"),
    [
        (b"", ()),
        (b"\0", ()),
        (b"sh\0-c\0a b\0", ("sh", "-c", "a b")),
        (b"npm exec x\0\0\0\0", ("npm exec x",)),
        (b"tmux: server", ("tmux: server",)),
        (b"a\0\0b\0", ("a", "", "b")),
        (b"\xff\0", ("\udcff",)),
        (b"cut\0off", ("cut", "off")),
        (b"sh\0X\0", ("sh", "X")),
    ],
)
def test_a_command_line_is_split(data: bytes, argv: tuple[str, ...]) -> None:
    assert split_cmdline(data) == argv


# Reused pids


@pytest.mark.skipif(not is_root(), reason="a pid namespace needs root")
def test_a_reused_pid_is_never_taken_for_the_old_process() -> None:
    done = subprocess.run(
        in_pid_namespace([sys.executable, str(ROOT / "tests" / "support" / "pidreuse.py")]),
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'client'}:{ROOT}"},
        capture_output=True,
        timeout=60,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["pid"] == 1
    rounds = found["by_handle holder-exited"]
    assert rounds == 40
    assert found["same_tick"] > 0, "the test must have reached what ticks can't tell apart"
    assert found["successor held"] == rounds
    if found["inodes"]:
        assert found["by_inode pid-reused"] == rounds
        assert (found["same_identity"], found["reopened"]) == (0, 0)
    assert found.get("by_ticks pid-reused", 0) == rounds - found["same_tick"]


def port_is_complete(port: LocalProcesses) -> Processes:
    """The type checker says that the adapter fits the port."""
    return port
