"""Figures of the socket: ping, lists, and a tool call through the shim.

Owns how they are measured. Clients are raw blocking sockets; subject and floor take turns.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from typing import Self

from bench import client, floors, load
from bench.fixture import Bench, Daemon, daemon, directory, environment, one_core, script
from bench.holders import holders
from bench.measure import Sample, in_turns, p50, timed
from bench.table import Row

US = 1e6


def ping(bench: Bench) -> Iterator[Row]:
    """A ping against an echo of the same bytes."""
    with one_core(), daemon(bench) as running, running.connect() as conn, directory(bench) as folder:
        reply = conn.call(client.PING)
        with floors.echo(f"{folder}/echo", client.PING, reply) as echo:
            subject = timed(lambda: conn.call(client.PING))
            in_turns(1, 300, subject, echo)
            pings, echoes = in_turns(bench.rounds(80), 100, subject, echo)
    yield Row("ping p50", p50(pings) * US, p50(echoes) * US)


def lists(bench: Bench) -> Iterator[Row]:
    """Lists of 20 and of 100 identities, half of them held by living processes, against a ping."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_core())
        running = stack.enter_context(daemon(bench))
        pinging = stack.enter_context(running.connect())
        subjects = [timed(lambda: pinging.call(client.PING))]
        for count in (20, 100):
            project = f"of{count}"
            stack.enter_context(holders(bench, running, count // 2, project=project, prefix=f"{project}-held"))
            register(running, project, count // 2)
            conn = stack.enter_context(running.connect(project))
            subjects.append(lister(conn))
        in_turns(1, 100, *subjects)
        found = in_turns(bench.rounds(80), 50, *subjects)
    pings = p50(found[0]) * US
    yield Row("list of 20 p50", p50(found[1]) * US, pings)
    yield Row("list of 100 p50", p50(found[2]) * US, pings)


def busy_elsewhere(bench: Bench) -> Iterator[Row]:
    """A list while others change other projects: a read waits only for what it shows."""
    name = "list, 8 clients change other projects"
    for sync, row in (("real", name), ("+5", f"{name}, sync +5 ms")):
        with daemon(bench, sync=sync) as running, holders(bench, running, 10, project="quiet", prefix="quiet-held"):
            register(running, "quiet", 10)
            with running.connect("quiet") as conn:
                scripts = [load.changing(number, "noisy", "noisy") for number in range(8)]
                idle, loaded = under_load(bench, running, scripts, lister(conn))
        yield Row(row, p50(loaded) * US, p50(idle) * US)


def busy_here(bench: Bench) -> Iterator[Row]:
    """A list while others change the very rows that it shows: it waits for their sync, and no longer."""
    with daemon(bench) as running, running.connect("noisy") as conn:
        before = running.written()
        warm = [load.changing(number, "noisy", "warm") for number in range(8)]
        load.run(running.socket, warm, 0.2)
        after = running.written()
        size = (after[0] - before[0]) // (after[1] - before[1])
        scripts = [load.changing(number, "noisy", "noisy") for number in range(8)]
        idle, loaded = under_load(bench, running, scripts, lister(conn))
        with floors.disk(bench, size) as sync:
            syncs = [sync() for _ in range(300)]
    yield Row("list, 8 clients change its rows", p50(loaded) * US, (p50(idle) + 1.5 * p50(syncs)) * US)


def shim(bench: Bench) -> Iterator[Row]:
    """`tools/call` through the shim against the same method on the socket."""
    with daemon(bench) as running, holders(bench, running, 10, project="bench"):
        register(running, "bench", 10)
        with running.connect() as conn, Shim(running.state) as tool:
            listing = lister(conn)
            tool_list = timed(lambda: tool.call({"action": "list"}))
            in_turns(1, 50, listing, tool_list)
            direct, through = in_turns(bench.rounds(40), 25, listing, tool_list)
            yield Row("tools/call list through the shim", p50(through) * US, p50(direct) * US)
            direct, through = _claims(bench, conn, tool)
            yield Row("tools/call claim through the shim", p50(through) * US, p50(direct) * US)


def _claims(bench: Bench, conn: client.Connection, tool: Shim) -> list[list[float]]:
    """Durable claims of a vacant mailbox each, released outside the measured time."""
    says = client.Changes("direct", "direct")
    numbers = iter(range(100_000_000))

    def direct() -> float:
        number = next(numbers)
        took = timed(lambda: conn.call(client.numbered(says.claim("vacant-0000"), number)))()
        conn.ask(client.numbered(says.release(), number))
        return took

    def through() -> float:
        took = timed(lambda: tool.call({"action": "claim", "name": "vacant-0001"}))()
        tool.call({"action": "release"})
        return took

    return in_turns(bench.rounds(40), 10, direct, through)


class Shim:
    """A shim with an MCP client around it: one call at a time."""

    def __init__(self, state: str) -> None:
        self._process = subprocess.Popen(
            script("mbx_mcp.main"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(state),
            cwd=state,
            bufsize=0,
        )
        self.pid = self._process.pid
        info = {"name": "bench", "version": "0"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        self._ask({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(10)
        process.stdout.close()

    def call(self, arguments: dict[str, str]) -> bytes:
        """Call `mbx_identity`; RuntimeError when it is refused."""
        params = {"name": "mbx_identity", "arguments": arguments}
        reply = self._ask({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        if b'"isError":true' in reply or b'"error":{' in reply:
            raise RuntimeError(reply.decode())
        return reply

    def _ask(self, message: dict[str, object]) -> bytes:
        self._send(message)
        assert self._process.stdout is not None
        data = self._process.stdout.read(262_144)
        while data[-1:] != b"\n":
            more = self._process.stdout.read(262_144)
            if not more:
                raise RuntimeError("the shim ended")
            data += more
        return data

    def _send(self, message: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def register(running: Daemon, project: str, count: int) -> None:
    """Make vacant identities in a project."""
    with running.connect(project) as conn:
        says = client.Changes("maker", f"maker-{project}")
        prefix = "vacant" if project == "bench" else f"{project}-vacant"
        for number in range(count):
            conn.ask(client.numbered(says.register(f"{prefix}-{number:04d}"), number))
            conn.ask(client.numbered(says.release(), number))


def lister(conn: client.Connection) -> Sample:
    """A sample of identity.list on a connection."""
    return timed(lambda: conn.call(client.LIST))


def under_load(
    bench: Bench, running: Daemon, scripts: list[load.Script], sample: Sample
) -> tuple[list[float], list[float]]:
    """Samples without and with a load, in turns. Names of one-time lines differ a round."""
    idle: list[float] = []
    loaded: list[float] = []
    for number in range(bench.rounds(6)):
        idle += [sample() for _ in range(200)]
        again = [_renamed(script, number) for script in scripts]
        work = load.Running(running.socket, again, bench.seconds(1.2))
        time.sleep(0.05)  # its clients are off by then
        while work.running:
            loaded.append(sample())
        work.result()
        del loaded[-20:]  # its last ones may have met an idle daemon
    return idle, loaded


def _renamed(script: load.Script, number: int) -> load.Script:
    """The script without its one-time lines after the first round: what they make is there by then."""
    fresh = client.hello("noisy")
    return load.Script(fresh, script.once if number == 0 else [], script.cycle)
