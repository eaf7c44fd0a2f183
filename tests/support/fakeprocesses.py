"""A scripted process table, and the port `Processes` on top of it. No real process is touched.

`Machine` is the kernel: processes are spawned, exec, exit, become zombies, are reaped, have their pids reused, hide,
live in other pid namespaces; it can reboot. `FakeProcesses` is one daemon's view: make a new one for a restart.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import trio

from mbxd.ports import ProcessId, ProcessInfo, Verdict
from mbxd.runtime.evidence import Evidence, judge
from mbxd.runtime.peer import Peer

NAMESPACE = 4026531836
FIRST_FD = 1000


@dataclass
class Entry:
    """One process ever started. `serial` is unique and stands for the pidfd's inode."""

    serial: int
    pid: int
    ppid: int
    uid: int
    argv: tuple[str, ...]
    exe: str
    ticks: int
    leader_exited: bool = False
    threads: int = 0
    reaped: bool = False
    hidden: bool = False
    foreign: bool = False

    @property
    def dead(self) -> bool:
        """What a pidfd tells: the leader and all threads have exited."""
        return self.leader_exited and self.threads == 0


@dataclass
class Machine:
    """The scripted kernel. pidfd: whether pidfd_open works; pidfs: whether pidfds have inodes of their own."""

    pidfd: bool = True
    pidfs: bool = True
    boot: str = "boot-1"
    namespace: int = NAMESPACE
    tick: int = 100
    entries: dict[int, Entry] = field(default_factory=dict)
    table: dict[int, Entry] = field(default_factory=dict)
    pidfds: dict[int, Entry] = field(default_factory=dict)
    views: list[FakeProcesses] = field(default_factory=list)
    _serials: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _pids: itertools.count[int] = field(default_factory=lambda: itertools.count(100))
    _fds: itertools.count[int] = field(default_factory=lambda: itertools.count(FIRST_FD))

    def __post_init__(self) -> None:
        self.spawn(pid=1, ppid=0, uid=0, argv=("/sbin/init",))

    def processes(self) -> FakeProcesses:
        """A daemon's view. An older view keeps its handles, as an older daemon would."""
        view = FakeProcesses(self)
        self.views.append(view)
        return view

    def spawn(
        self,
        *,
        ppid: int = 1,
        uid: int = 1000,
        argv: tuple[str, ...] = ("/usr/bin/thing",),
        exe: str | None = None,
        pid: int | None = None,
        ticks: int | None = None,
        foreign: bool = False,
    ) -> int:
        """Start a process and return its pid (of a foreign one: a number that only `connect` and `kill` know)."""
        if ticks is None:
            self.tick += 1
            ticks = self.tick
        serial = next(self._serials)
        number = pid if pid is not None else next(self._pids)
        taken = self.table.get(number)
        assert taken is None, f"pid {number} is taken"
        entry = Entry(serial, number, ppid, uid, argv, exe if exe is not None else argv[0], ticks, foreign=foreign)
        self.entries[serial] = entry
        self.table[number] = entry
        return number

    def exec(self, pid: int, argv: tuple[str, ...], exe: str | None = None) -> None:
        """Another program in the same process."""
        self.table[pid].argv = argv
        self.table[pid].exe = exe if exe is not None else argv[0]

    def add_threads(self, pid: int, count: int = 1) -> None:
        """Threads beside the leader."""
        self.table[pid].threads += count

    def exit_leader(self, pid: int) -> None:
        """The leader exits; with threads the process lives on as a zombie with threads."""
        entry = self.table[pid]
        entry.leader_exited = True
        self._settle(entry)

    def end_threads(self, pid: int) -> None:
        """All threads but the leader exit."""
        self.table[pid].threads = 0
        self._settle(self.table[pid])

    def exit(self, pid: int) -> None:
        """Leader and threads exit; a zombie remains until `reap`."""
        entry = self.table[pid]
        entry.leader_exited, entry.threads = True, 0
        self._settle(entry)

    def reap(self, pid: int) -> None:
        """The parent waits for a zombie: the pid is free."""
        entry = self.table.pop(pid)
        assert entry.dead, "only the dead are reaped"
        entry.reaped = True

    def kill(self, pid: int) -> None:
        """Exit and be reaped at once."""
        self.exit(pid)
        self.reap(pid)

    def reuse(self, pid: int, *, same_tick: bool = False, ppid: int = 1, uid: int = 1000) -> int:
        """Kill, and give the pid to an unrelated process."""
        ticks = self.table[pid].ticks if same_tick else None
        self.kill(pid)
        return self.spawn(pid=pid, ticks=ticks, ppid=ppid, uid=uid, argv=("/usr/bin/other",))

    def hide(self, pid: int, *, hidden: bool = True) -> None:
        """Make a process unreadable (EPERM, hidepid), or readable again. A held pidfd still tells."""
        self.table[pid].hidden = hidden

    def reboot(self) -> None:
        """Everything is gone, ticks begin anew, pidfds are closed by nature."""
        self.boot = f"boot-{int(self.boot.rsplit('-', 1)[1]) + 1}"
        self.table.clear()
        self.pidfds.clear()
        self.views.clear()
        self.tick = 100
        self._pids = itertools.count(100)
        self.spawn(pid=1, ppid=0, uid=0, argv=("/sbin/init",))

    def connect(self, pid: int) -> Peer:
        """What `read_peer` would say of a connection that this process made."""
        entry = self.table[pid]
        fd = None
        if self.pidfd:
            fd = next(self._fds)
            self.pidfds[fd] = entry
        return Peer(entry.uid, 0 if entry.foreign else pid, fd)

    def identity(self, pid: int) -> ProcessId:
        """The identity that the daemon would give this process."""
        return self.identity_of(self.table[pid])

    def identity_of(self, entry: Entry) -> ProcessId:
        """See `identity`; also for a process that is gone."""
        inode = entry.serial if self.pidfd and self.pidfs else 0
        if entry.foreign:
            return ProcessId(self.boot, 0, 0, 0, inode or -entry.serial)
        return ProcessId(self.boot, self.namespace, entry.pid, entry.ticks, inode)

    def next_fd(self) -> int:
        """A number for a handle."""
        return next(self._fds)

    def _settle(self, entry: Entry) -> None:
        if not entry.dead:
            return
        for other in self.table.values():
            if other.ppid == entry.pid and other is not entry and not entry.foreign:
                other.ppid = 1
        for view in self.views:
            view.notice(entry)


class FakeProcesses:
    """See `mbxd.ports.Processes`. `fail_open` makes pidfds unavailable for this view only, as EMFILE would."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.fail_open = False
        self.held: dict[int, Entry] = {}
        self._dead: list[int] = []
        self._wake = trio.Event()
        self._counts = {"opened": 0, "deaths": 0, "open_failed": 0, "watch_failed": 0, "probes": 0, "unknown": 0}

    def boot_id(self) -> str:
        return self.machine.boot

    def has_pidfd(self) -> bool:
        return self.machine.pidfd

    def statistics(self) -> dict[str, int]:
        return {"watched": len(self.held), "pidfd": int(self.machine.pidfd), **self._counts}

    def ancestry(self, pid: int) -> list[ProcessInfo]:
        chain: list[ProcessInfo] = []
        entry = self._visible(pid)
        while entry is not None and not entry.hidden:
            identity = self._without_inode(self.machine.identity_of(entry))
            chain.append(ProcessInfo(identity, entry.ppid, entry.uid, entry.argv, entry.exe))
            entry = self._visible(entry.ppid)
        return chain

    def open(self, identity: ProcessId) -> int | None:
        entry = self._visible(identity.pid) if identity.pid > 0 else None
        if not self._can_open() or entry is None:
            return None
        seen = self._evidence(identity, entry)
        if judge(identity, seen).status != "alive":
            return None
        return self._hold(entry)

    def adopt(self, pidfd: int) -> tuple[ProcessId, int]:
        entry = self.machine.pidfds.pop(pidfd)
        identity = self.machine.identity_of(entry)
        if entry.reaped:
            identity = identity._replace(ns=0, pid=0, ticks=0, inode=identity.inode or -entry.serial)
        elif entry.hidden and not entry.foreign:
            identity = identity._replace(ticks=0)
        return identity, self._hold(entry, pidfd)

    def probe(self, identity: ProcessId, handle: int | None) -> Verdict:
        self._counts["probes"] += 1
        if handle in self.held:
            seen = Evidence(handle_dead=self.held[handle].dead)
        else:
            seen = self._evidence(identity, self._visible(identity.pid))
        verdict = judge(identity, seen)
        self._counts["unknown"] += verdict.status == "unknown"
        return verdict

    def close(self, handle: int) -> None:
        self.held.pop(handle, None)
        if handle in self._dead:
            self._dead.remove(handle)

    def shutdown(self) -> None:
        self.held.clear()
        self._dead.clear()
        if self in self.machine.views:
            self.machine.views.remove(self)

    async def wait_deaths(self) -> list[int]:
        if not self.machine.pidfd:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        while not self._dead:
            self._wake = trio.Event()
            await self._wake.wait()
        dead, self._dead = self._dead, []
        self._counts["deaths"] += len(dead)
        return dead

    def describe(self, pid: int) -> str | None:
        entry = self._visible(pid)
        if entry is None or entry.hidden:
            return None
        return f"{entry.argv[0].rsplit('/', 1)[-1]} (pid {pid}, started 0 s ago)"

    def notice(self, entry: Entry) -> None:
        """Called by the machine when a process has died."""
        dead = [handle for handle, held in self.held.items() if held is entry]
        if dead:
            self._dead.extend(dead)
            self._wake.set()

    def _hold(self, entry: Entry, fd: int | None = None) -> int:
        handle = fd if fd is not None else self.machine.next_fd()
        self.held[handle] = entry
        self._counts["opened"] += 1
        if entry.dead:
            self.notice_one(handle)
        return handle

    def notice_one(self, handle: int) -> None:
        """A handle on a process that was dead already is readable at once."""
        self._dead.append(handle)
        self._wake.set()

    def _evidence(self, identity: ProcessId, entry: Entry | None) -> Evidence:
        seen = Evidence(boot=self.machine.boot, ns=self.machine.namespace)
        if entry is None:
            return seen._replace(exists=False)
        can_open = self._can_open()
        if entry.hidden and not can_open:
            return seen
        ended: bool | None = entry.dead
        return replace_evidence(seen, entry, inode=self.machine.pidfs and can_open, ended=ended)

    def _visible(self, pid: int) -> Entry | None:
        entry = self.machine.table.get(pid)
        return None if entry is None or entry.foreign else entry

    def _can_open(self) -> bool:
        if self.fail_open:
            self._counts["open_failed"] += 1
        return self.machine.pidfd and not self.fail_open

    def _without_inode(self, identity: ProcessId) -> ProcessId:
        return identity._replace(inode=0) if self.fail_open else identity


def replace_evidence(seen: Evidence, entry: Entry, *, inode: bool, ended: bool | None) -> Evidence:
    """Evidence of an existing process as far as it can be read."""
    return seen._replace(
        exists=True,
        ticks=0 if entry.hidden else entry.ticks,
        inode=entry.serial if inode else 0,
        ended=ended,
    )
