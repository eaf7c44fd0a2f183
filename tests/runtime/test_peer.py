"""From a connection to its host process: real trees of processes, and the scripted ones for what can't be staged."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from mbxd.runtime import peer as peers
from mbxd.runtime.peer import FOREIGN, GONE, HostFinding, Peer, host_of, read_peer
from mbxd.runtime.processes import LocalProcesses
from tests.support.fakeprocesses import Machine
from tests.support.hosts import PATIENCE, PYTHON, Hosts, in_pid_namespace, is_root, wait_zombie

linux = pytest.mark.skipif(sys.platform != "linux", reason="SO_PEERPIDFD and /proc")
ROOT = Path(__file__).parents[2]
ALIVE = ("alive", "held")


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts() as started:
        yield started


@pytest.fixture
def port() -> Iterator[LocalProcesses]:
    processes = LocalProcesses()
    yield processes
    processes.shutdown()


def find(port: LocalProcesses, connection: socket.socket) -> HostFinding:
    finding = host_of(port, read_peer(connection))
    assert finding is not None
    assert port.probe(finding.shim, finding.shim_handle) == ALIVE
    assert port.probe(finding.host, finding.host_handle) == ALIVE
    return finding


async def next_death(port: LocalProcesses) -> list[int]:
    with trio.fail_after(PATIENCE):
        return await port.wait_deaths()


# Real trees

WRAPPED: dict[str, Callable[[Hosts], list[str]]] = {
    "direct": lambda hosts: hosts.shim(),
    "sh -c": lambda hosts: ["sh", "-c", '"$@"; true', "sh", *hosts.shim()],
    "timeout": lambda hosts: ["timeout", "60", *hosts.shim()],
    "env": lambda hosts: ["env", "A=1", *hosts.shim()],
    "setsid": lambda hosts: ["setsid", "-w", *hosts.shim()],
    "nice": lambda hosts: ["nice", "-n", "1", *hosts.shim()],
    "uvx": lambda hosts: hosts.wrapper("uvx", hosts.shim()),
    "uv run": lambda hosts: hosts.wrapper("uv", hosts.shim()),
    "pipx": lambda hosts: hosts.wrapper("pipx", hosts.shim()),
    "npx by script": lambda hosts: hosts.wrapper("npx-cli.js", hosts.shim()),
    "npx by title": lambda hosts: (
        ["bash", "-c", 'exec -a "npm exec @scope/claude" "$@"', "b", *hosts.wrapper("ignored", hosts.shim())]
    ),
    "script": lambda hosts: ["sh", hosts.script("start.sh", '"$@"; true'), *hosts.shim()],
    "sh -c timeout uvx sh": lambda hosts: [
        *("sh", "-c", '"$@"; true', "sh", "timeout", "60"),
        *hosts.wrapper("uvx", ["sh", "-c", '"$@"; true', "sh", *hosts.shim()]),
    ],
}


@linux
@pytest.mark.parametrize("how", WRAPPED)
def test_the_host_is_the_agent_whatever_stands_between(hosts: Hosts, port: LocalProcesses, how: str) -> None:
    agent = hosts.start(hosts.agent(WRAPPED[how](hosts), name="claude"))
    finding = find(port, hosts.accept())
    assert finding.host.pid == agent.pid
    assert finding.label == "claude-code"
    assert finding.host == port.ancestry(agent.pid)[0].identity
    assert f"claude-code {agent.pid} (host)" in finding.description
    assert finding.description.startswith(f"mbx-mcp {finding.shim.pid} < ")
    assert finding.chain[0] == finding.shim
    assert len(finding.handles()) == 2


@linux
def test_an_interactive_shell_is_a_host(hosts: Hosts, port: LocalProcesses) -> None:
    shell = hosts.start(["bash", "--norc"])
    assert shell.stdin is not None
    shell.stdin.write(" ".join(f"'{word}'" for word in hosts.shim()).encode() + b"\n")
    shell.stdin.flush()
    finding = find(port, hosts.accept())
    assert (finding.host.pid, finding.label) == (shell.pid, "bash")


@linux
def test_the_agents_death_is_seen_and_the_shims_is_not_the_agents(hosts: Hosts, port: LocalProcesses) -> None:
    agent = hosts.start(hosts.agent(["sh", "-c", '"$@"; true', "sh", *hosts.shim()]))
    finding = find(port, hosts.accept())
    os.kill(finding.shim.pid, signal.SIGKILL)
    assert trio.run(next_death, port) == [finding.shim_handle]
    assert port.probe(finding.host, finding.host_handle) == ALIVE
    agent.kill()
    assert trio.run(next_death, port) == [finding.host_handle]
    assert port.probe(finding.host, finding.host_handle) == ("dead", "holder-exited")


@linux
def test_a_shim_that_outlives_its_agent_does_not_keep_it_alive(hosts: Hosts, port: LocalProcesses) -> None:
    agent = hosts.start(hosts.agent(hosts.shim()))
    finding = find(port, hosts.accept())
    agent.kill()
    wait_zombie(agent.pid)
    assert port.probe(finding.shim, finding.shim_handle) == ALIVE
    assert port.probe(finding.host, finding.host_handle) == ("dead", "holder-exited")


@linux
def test_a_wrappers_death_alone_changes_nothing(hosts: Hosts, port: LocalProcesses) -> None:
    hosts.start(hosts.agent(hosts.wrapper("uvx", hosts.shim())))
    finding = find(port, hosts.accept())
    assert len(finding.chain) > 2
    wrapper = port.open(finding.chain[1])
    os.kill(finding.chain[1].pid, signal.SIGKILL)
    assert trio.run(next_death, port) == [wrapper]
    assert port.probe(finding.host, finding.host_handle) == ALIVE
    assert port.probe(finding.shim, finding.shim_handle) == ALIVE


@linux
def test_an_orphan_is_its_own_host(hosts: Hosts, port: LocalProcesses) -> None:
    starter = hosts.start(hosts.double_fork(hosts.shim()))
    starter.wait(PATIENCE)
    connection = hosts.accept()
    peer = read_peer(connection)
    hosts.care_for(peer.pid)
    if port.ancestry(peer.pid)[0].ppid != 1:
        pytest.skip("orphans here belong to a subreaper")
    finding = host_of(port, peer)
    assert finding is not None
    assert finding.host == finding.shim
    assert finding.host_handle == finding.shim_handle
    assert len(finding.handles()) == 1


@linux
def test_an_orphan_below_a_service_manager_is_its_own_host(hosts: Hosts, port: LocalProcesses) -> None:
    hosts.start(hosts.subreaper(hosts.double_fork(hosts.shim()), name="systemd"))
    finding = find(port, hosts.accept())
    hosts.care_for(finding.shim.pid)
    assert finding.host == finding.shim


@linux
@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_the_walk_ends_below_a_terminal_multiplexer(hosts: Hosts, port: LocalProcesses) -> None:
    command = " ".join(f"'{word}'" for word in hosts.shim())
    tmux = ["tmux", "-S", str(hosts.root / "t"), "-f", "/dev/null"]
    subprocess.run([*tmux, "new-session", "-d", f"{command}; true"], check=True, timeout=PATIENCE)
    try:
        finding = find(port, hosts.accept())
        assert "tmux" in finding.description
        assert finding.host in finding.chain[:2]
        assert finding.why.startswith("outermost wrapper") or finding.host == finding.shim
    finally:
        subprocess.run([*tmux, "kill-server"], check=True, timeout=PATIENCE)


@linux
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npx") is None, reason="needs npx")
def test_the_real_npx_is_a_wrapper(hosts: Hosts, port: LocalProcesses) -> None:
    package = hosts.root / "package"
    shim = " ".join(f"'{word}'" for word in hosts.shim())
    hosts.script("mbx-mcp-test", f"#!/bin/sh\n{shim}; true\n", folder="package/node_modules/.bin")
    (package / "node_modules" / ".bin" / "mbx-mcp-test").chmod(0o755)
    (package / "package.json").write_text("{}")
    npx = ["sh", "-c", f"cd '{package}' && npx --no-install mbx-mcp-test; true"]
    agent = hosts.start(
        hosts.agent(npx), npm_config_cache=str(hosts.root / "cache"), npm_config_update_notifier="false"
    )
    finding = find(port, hosts.accept())
    assert finding.host.pid == agent.pid, finding.description


@linux
@pytest.mark.skipif(not is_root() or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_the_walk_ends_at_another_users_process(hosts: Hosts, port: LocalProcesses) -> None:
    hosts.open_to_all()
    shim = ["/usr/bin/python3", *hosts.shim()[1:]]
    as_nobody = ["setpriv", "--reuid", "65534", "--clear-groups", "sh", "-c", '"$@"; true', "sh", *shim]
    agent = hosts.start(hosts.agent(as_nobody))
    connection = hosts.accept()
    assert read_and_close(connection).uid == 65534
    finding = find(port, connection)
    assert finding.host.pid not in {agent.pid, os.getpid()}
    assert finding.label == "sh"


def read_and_close(connection: socket.socket) -> Peer:
    peer = read_peer(connection)
    if peer.pidfd is not None:
        os.close(peer.pidfd)
    return peer


# The peer itself


@linux
def test_the_kernel_names_the_peer() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = read_and_close(ours)
    assert (peer.uid, peer.pid) == (os.geteuid(), os.getpid())
    assert peer.pidfd is not None


@linux
def test_a_socket_inherited_by_a_child_is_no_life(hosts: Hosts, port: LocalProcesses) -> None:
    code = (
        "import os, socket, sys\n"
        "peer = socket.socket(socket.AF_UNIX); peer.connect(sys.argv[1]); peer.sendall(b'up\\n')\n"
        "child = os.fork()\n"
        "if child == 0: peer.recv(1); os._exit(0)\n"
        "print(child, flush=True); sys.stdin.read()"
    )
    starter = hosts.start([*PYTHON, "-c", code, hosts.path])
    connection = hosts.accept()
    finding = find(port, connection)
    assert starter.stdout is not None
    child = int(starter.stdout.readline())
    hosts.care_for(child)
    starter.kill()
    wait_zombie(starter.pid)
    connection.setblocking(False)
    with pytest.raises(BlockingIOError):
        connection.recv(1)
    assert port.probe(finding.shim, finding.shim_handle) == ("dead", "holder-exited")


@linux
def test_a_peer_that_is_gone_has_no_host(hosts: Hosts, port: LocalProcesses) -> None:
    child = hosts.start(hosts.shim())
    connection = hosts.accept()
    hosts.end(child)
    peer = read_peer(connection)
    assert peer.pid in {GONE, child.pid}
    assert host_of(port, peer) is None
    assert port.statistics()["watched"] == 0


class Credentials(socket.socket):
    """A socket of a kernel that refuses SO_PEERPIDFD with an errno."""

    refusal = 0

    def getsockopt(self, level: int, option: int, size: int = 0) -> bytes:  # type: ignore[override]
        if option == peers._SO_PEERPIDFD:
            raise OSError(self.refusal, os.strerror(self.refusal))
        return super().getsockopt(level, option, size)


@linux
@pytest.mark.parametrize("code", [errno.ENOPROTOOPT, errno.EMFILE, errno.ESRCH, errno.EINVAL])
def test_without_a_pidfd_of_the_peer_its_pid_must_do(port: LocalProcesses, code: int) -> None:
    ours, theirs = socket.socketpair()
    with theirs, Credentials(fileno=ours.detach()) as old:
        old.refusal = code
        peer = read_peer(old)
    if code in {errno.ESRCH, errno.EINVAL}:
        assert peer == Peer(os.geteuid(), GONE, None)
        assert host_of(port, peer) is None
        return
    assert peer == Peer(os.geteuid(), os.getpid(), None)
    finding = host_of(port, peer)
    assert finding is not None
    assert finding.shim == port.ancestry(os.getpid())[0].identity
    assert port.probe(finding.shim, finding.shim_handle) == ALIVE


@linux
@pytest.mark.skipif(not is_root(), reason="a pid namespace needs root")
def test_a_peer_in_a_namespace_that_can_not_be_seen_is_its_own_host(hosts: Hosts) -> None:
    path = str(hosts.root / "d")
    daemon = subprocess.Popen(
        in_pid_namespace([sys.executable, str(ROOT / "tests" / "support" / "foreigndaemon.py"), path]),
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'client'}:{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    hosts._children.append(daemon)
    assert daemon.stdout is not None
    assert daemon.stdin is not None
    assert daemon.stdout.readline() == b"up\n"
    child = hosts.start([*hosts.shim()[:-1], path])
    assert daemon.stdout.readline() == b"seen\n"
    hosts.end(child)
    daemon.stdin.write(b"\n")
    daemon.stdin.flush()
    seen = json.loads(daemon.stdout.read())
    assert (seen["me"], seen["pid"], seen["own_host"], seen["stable"]) == (1, FOREIGN, True, True)
    assert seen["host"][1:4] == [0, 0, 0]
    assert seen["looks"] == [["alive", "held"], ["dead", "holder-exited"]]
    assert seen["restarted"] == ["unknown", "unverifiable"]


@linux
@pytest.mark.skipif(not is_root(), reason="a pid namespace needs root")
def test_a_peer_in_a_child_namespace_follows_the_rules_of_ours(hosts: Hosts, port: LocalProcesses) -> None:
    agent = hosts.start(in_pid_namespace(hosts.agent(hosts.shim(), name="codex")))
    finding = find(port, hosts.accept())
    assert finding.label == "codex"
    assert finding.host.pid not in {0, 1, agent.pid}
    assert finding.host.ns == port.ancestry(os.getpid())[0].identity.ns
    assert port.probe(finding.host, None) == ALIVE


# Acting for an agent


@linux
def test_a_command_acts_for_the_agent_above_it(hosts: Hosts, port: LocalProcesses) -> None:
    agent = hosts.start(hosts.agent(["bash", "-c", '"$@"; true', "b", *hosts.shim()], name="codex"))
    identity = port.ancestry(agent.pid)[0].identity
    assert find(port, hosts.accept()).agent(lambda _: False) == identity


@linux
def test_a_command_acts_for_a_watched_host_and_else_for_nobody(hosts: Hosts, port: LocalProcesses) -> None:
    agent = hosts.start(hosts.agent(["bash", "-c", '"$@"; true', "b", *hosts.shim()], name="unheard-of"))
    finding = find(port, hosts.accept())
    identity = port.ancestry(agent.pid)[0].identity
    assert finding.agent(lambda process: process == identity) == identity
    assert finding.agent(lambda process: process == finding.shim) is None


# Scripted: what can't be staged


def scripted() -> tuple[Machine, int, int]:
    machine = Machine()
    agent = machine.spawn(argv=("/usr/bin/claude",))
    shim = machine.spawn(ppid=machine.spawn(ppid=agent, argv=("uvx", "mbx-mcp")), argv=("python", "/v/mbx-mcp"))
    return machine, agent, shim


def test_an_unreadable_peer_is_its_own_host_and_alive() -> None:
    machine, _, shim = scripted()
    machine.hide(shim)
    port = machine.processes()
    finding = host_of(port, machine.connect(shim))
    assert finding is not None
    assert finding.host == finding.shim
    assert port.probe(finding.host, finding.host_handle) == ALIVE
    assert finding.chain == ()
    assert finding.agent(lambda _: True) is None


def test_a_foreign_peer_without_pidfd_is_unknown_and_never_two_of_a_kind() -> None:
    machine, _, _ = scripted()
    machine.pidfd = False
    port = machine.processes()
    strangers = [host_of(port, machine.connect(machine.spawn(foreign=True))) for _ in range(2)]
    assert all(finding is not None for finding in strangers)
    assert all(finding is not None and finding.agent(lambda _: True) is None for finding in strangers)
    hosts = {finding.host for finding in strangers if finding is not None}
    assert len(hosts) == 2
    for host in hosts:
        assert host.inode < 0
        assert port.probe(host, None) == ("unknown", "unverifiable")


@pytest.mark.parametrize(
    ("above", "place"),
    [
        (["codex", "tmux: server", "bash"], 0),
        (["codex", "claude", "bash -c x"], 1),
        (["sshd: me", "bash"], None),
        (["codex", "another user's", "bash"], None),
    ],
)
def test_a_command_acts_for_the_nearest_agent_of_its_user(above: list[str], place: int | None) -> None:
    machine = Machine()
    pids = [1]
    for line in above:
        uid = 1001 if line == "another user's" else 1000
        pids.append(machine.spawn(ppid=pids[-1], argv=tuple(line.split()), uid=uid))
    finding = host_of(machine.processes(), machine.connect(machine.spawn(ppid=pids[-1], argv=("mbxctl",))))
    assert finding is not None
    assert finding.agent(lambda _: False) == (None if place is None else machine.identity(pids[1 + place]))


def test_a_pid_reused_between_connect_and_the_walk_is_not_the_peer() -> None:
    machine, _, shim = scripted()
    peer = machine.connect(shim)
    machine.reuse(shim, same_tick=True)
    port = machine.processes()
    assert host_of(port, peer) is None
    assert port.statistics()["watched"] == 0


def test_a_reboot_ends_every_host() -> None:
    machine, _, shim = scripted()
    finding = host_of(machine.processes(), machine.connect(shim))
    assert finding is not None
    machine.reboot()
    again = machine.spawn(pid=finding.host.pid, ticks=finding.host.ticks, argv=("/usr/bin/claude",))
    port = machine.processes()
    assert port.probe(finding.host, None) == ("dead", "rebooted")
    assert port.ancestry(again)[0].identity != finding.host


def test_the_host_is_the_same_for_every_shim_of_an_agent() -> None:
    machine, agent, shim = scripted()
    port = machine.processes()
    other = machine.spawn(ppid=agent, argv=("mbx-mcp",))
    first, second = host_of(port, machine.connect(shim)), host_of(port, machine.connect(other))
    assert first is not None
    assert second is not None
    assert first.host == second.host == machine.identity(agent)
    assert first.shim != second.shim
