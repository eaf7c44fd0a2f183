"""A whole daemon in this process: memory disk, scripted processes, fake clocks, memory streams. No socket, no thread.

For tests in which time matters: run them on trio's autojump clock.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import trio
import trio.testing

from mbx_wire.framing import LineReader, Oversized
from mbxd.app import Daemon, Parts
from mbxd.ground import Ground
from mbxd.runtime import upkeep
from mbxd.runtime.committer import Committer, Done
from mbxd.runtime.poller import Poller
from mbxd.server.dispatch import Dispatcher
from mbxd.server.session import Session
from mbxd.server.systemd import Notifier
from mbxd.store.lock import Lock
from mbxd.store.log import Log
from tests.support.daemon import PROJECT, Refused
from tests.support.fakeprocesses import FakeProcesses, Machine
from tests.support.memvfs import MemVfs
from tests.support.streams import StreamTransport

T = TypeVar("T")
DIRECTORY = "/state/registry"


class FakeClock:
    """Follows trio's clock. `wall_by` and `awake_by` (seconds) move the two readings."""

    def __init__(self) -> None:
        self.wall_by = 0.0
        self.awake_by = 0.0

    def wall(self) -> float:
        return 1_700_000_000 + trio.current_time() + self.wall_by

    def awake(self) -> float:
        return trio.current_time() + self.awake_by


class FakeLock:
    """A lock that is held."""

    path = "/state/mbxd.lock"
    identity = (1, 2)

    def still_mine(self) -> bool:
        return True


class InlineCommitter:
    """Writes at once in the event loop: a memory file system makes nobody wait."""

    def __init__(self, log: Log) -> None:
        """`log` is written from the loop's own thread."""
        self._log = log
        self._done: Done | None = None

    def start(self, done: Done) -> None:
        """Remember whom to tell."""
        self._done = done

    def submit(self, records: Sequence[bytes]) -> None:
        """Write, then tell in the loop's next round, as the thread would."""
        try:
            seq, failure = self._log.append(records), None
        except BaseException as error:  # as in ThreadCommitter
            seq, failure = 0, error
        if self._done is not None:
            trio.lowlevel.current_trio_token().run_sync_soon(self._done, seq, failure)

    def stop(self) -> None:
        """Nothing to end."""


class SlowCommitter:
    """Writes only when the test says so."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.batch: Sequence[bytes] | None = None
        self.batches: list[int] = []
        self._done: Done | None = None

    def start(self, done: Done) -> None:
        self._done = done

    def submit(self, records: Sequence[bytes]) -> None:
        assert self.batch is None, "one batch at a time"
        self.batch = records

    def commit(self, failure: Exception | None = None) -> None:
        """Write the batch that waits, or fail it."""
        batch, self.batch = self.batch, None
        assert batch is not None
        assert self._done is not None
        self.batches.append(len(batch))
        self._done(0 if failure else self.log.append(batch), failure)

    def stop(self) -> None:
        """Nothing to end."""


class RigClient:
    """A connection of one scripted process."""

    def __init__(self, stream: trio.StapledStream[Any, Any], instance: str) -> None:
        self.stream = stream
        self.instance = instance
        self._numbers = itertools.count(1)
        self._reader = LineReader()
        self._lines: deque[bytes | Oversized] = deque()
        self.notes: list[Any] = []

    async def send(self, method: str, params: Any = None, **meta: Any) -> int:
        number = next(self._numbers)
        meta = {"request_id": f"{id(self)}-{number}", **meta}
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}, "meta": meta}
        await self.stream.send_all(json.dumps(request).encode() + b"\n")
        return number

    async def receive(self) -> Any:
        while not self._lines:
            data = await self.stream.receive_some()
            if not data:
                raise ConnectionError("closed")
            self._lines.extend(self._reader.feed(bytes(data)))
        return json.loads(cast("bytes", self._lines.popleft()))

    async def reply(self, number: int) -> Any:
        while True:
            message = await self.receive()
            if "method" in message:
                self.notes.append(message)
                continue
            assert message["id"] == number
            if "error" in message:
                raise Refused(message["error"])
            return message["result"]

    async def call(self, method: str, params: Any = None, **meta: Any) -> Any:
        return await self.reply(await self.send(method, params, **meta))

    async def refused(self, method: str, params: Any = None, **meta: Any) -> Refused:
        try:
            result = await self.call(method, params, **meta)
        except Refused as refusal:
            return refusal
        raise AssertionError(f"{method} was not refused: {result}")

    async def hello(self, name: str = "mbx-mcp", **hints: Any) -> Any:
        client = {"name": name, "version": "0", "instance": self.instance}
        params = {"protocol": {"min": 1, "max": 1}, "client": client, "project": PROJECT, "hints": hints}
        return await self.call("hello", params)

    async def register(self, name: str, **meta: Any) -> Any:
        return await self.call("identity.register", {"name": name, "role": "x"}, **meta)

    async def claim(self, name: str | None = None, **meta: Any) -> Any:
        return await self.call("identity.claim", {"name": name} if name else {}, **meta)

    async def row(self, name: str) -> Any:
        return (await self.call("identity.show", {"name": name}))["identity"]

    async def state(self, name: str) -> tuple[str, str]:
        row = await self.row(name)
        return row["state"], row["reason"]


class Rig:
    """One running daemon. Make it with `running`."""

    def __init__(
        self,
        nursery: trio.Nursery,
        machine: Machine,
        vfs: MemVfs,
        *,
        segment: int,
        committer: Callable[[Log], Committer],
    ) -> None:
        self.machine = machine
        self.vfs = vfs
        self.clock = FakeClock()
        self.nursery = nursery
        self.processes: FakeProcesses = machine.processes()
        salts = itertools.count(1)
        recovery = Log.open(vfs, DIRECTORY, entropy=lambda n: next(salts).to_bytes(n, "big"), segment_size=segment)
        self.committer = committer(recovery.log)
        self.daemon = Daemon(
            Parts(
                ground=Ground("/state", "/state/run/mbxd.sock", "/nowhere/config.toml"),
                lock=cast("Lock", FakeLock()),
                recovery=recovery,
                processes=self.processes,
                clock=self.clock,
                committer=self.committer,
                poller=Poller(),
                notifier=Notifier({}),
                passed=None,
                host_label="here",
                ready=lambda: None,
                key=b"k" * 32,
            )
        )
        self.services = self.daemon.services
        self.services.run_sync = inline
        self.spares = self.daemon._spares
        self.spares._run_sync = inline
        self.dispatcher = Dispatcher(self.services)

    async def start(self) -> None:
        services = self.services
        await self.nursery.start(services.engine.run)
        self.nursery.start_soon(self.spares.keep)
        services.holders.adopt(services.engine.state)
        services.holders.propose_all_gone()
        for loop in (services.holders.watch_deaths, services.holders.sweep_for_ever):
            self.nursery.start_soon(loop)
        self.nursery.start_soon(upkeep.tick, services.awake)
        self.nursery.start_soon(upkeep.forget, services.engine, services.instances, self.clock, elsewhere)

    def agent(self, **more: Any) -> tuple[int, int]:
        """A host process and its shim."""
        host = self.machine.spawn(argv=("/usr/bin/agentcli",), **more)
        return host, self.machine.spawn(ppid=host, argv=("/usr/bin/mbx-mcp",), **more)

    def connect(self, pid: int, instance: str | None = None) -> RigClient:
        ours, theirs = trio.testing.memory_stream_pair()
        session = Session(self.services, self.dispatcher, StreamTransport(theirs), self.machine.connect(pid))
        self.nursery.start_soon(session.run)
        return RigClient(ours, instance or f"i{pid}")

    async def session(self, **more: Any) -> tuple[RigClient, int, int]:
        """An introduced agent: connection, host, shim."""
        host, shim = self.agent(**more)
        client = self.connect(shim)
        await client.hello()
        return client, host, shim

    async def person(self) -> RigClient:
        client = self.connect(self.machine.spawn(argv=("/usr/bin/mbxctl",)))
        await client.hello("mbxctl")
        return client


@asynccontextmanager
async def running(
    machine: Machine | None = None,
    vfs: MemVfs | None = None,
    *,
    segment: int = 65536,
    committer: Callable[[Log], Committer] = InlineCommitter,
) -> AsyncIterator[Rig]:
    """A daemon for the time of a block; at its end it just vanishes, as by kill -9."""
    async with trio.open_nursery() as nursery:
        rig = Rig(nursery, machine or Machine(), vfs or MemVfs(), segment=segment, committer=committer)
        await rig.start()
        yield rig
        nursery.cancel_scope.cancel()


async def elsewhere(_instances: tuple[str, ...]) -> None:
    """Nobody else keeps anything for clients."""


async def inline(fn: Callable[..., T], *args: Any) -> T:
    """The RunSync port without threads."""
    await trio.lowlevel.checkpoint()
    return fn(*args)
