"""Figures of starting up: the shim, one command, the daemon.

Owns how they are measured. The floor is a bare interpreter of the same environment, from exec to exit.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator

from bench import floors, seed
from bench.fixture import Bench, daemon, directory, environment, script, start, stop
from bench.holders import holders
from bench.measure import in_turns, p50, timed
from bench.sockets import Shim, register
from bench.table import Row

MS = 1e3
INITIALIZE = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
    b'"clientInfo":{"name":"bench","version":"0"}}}\n'
)


def shim(bench: Bench) -> Iterator[Row]:
    """From exec until `initialize` is answered; and what a connected, idle shim has for itself."""
    with daemon(bench) as running:
        env = environment(running.state)

        def answered() -> float:
            began = time.perf_counter()
            process = subprocess.Popen(
                script("mbx_mcp.main"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd="/"
            )
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(INITIALIZE)
            process.stdin.flush()
            process.stdout.readline()
            took = time.perf_counter() - began
            process.stdin.close()
            process.wait(10)
            process.stdout.close()
            return took

        in_turns(1, 2, answered, floors.bare_python)
        starts, bare = in_turns(bench.rounds(20), 4, answered, floors.bare_python)
        yield Row("shim: exec to initialize answered", p50(starts) * MS, p50(bare) * MS)
        with Shim(running.state) as one, Shim(running.state) as other:
            # Pages that two shims share are paid once for all of them.
            for both in (one, other):
                both.call({"action": "list"})
            yield Row("shim: private memory", private(one.pid) / 1024)


def private(pid: int) -> int:
    """KiB that no other process shares, from proc(5) smaps_rollup."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_"))


def commands(bench: Bench) -> Iterator[Row]:
    """`mbxctl list` and `mbxctl hook`, their output not to a terminal, against a bare interpreter."""
    with daemon(bench) as running, holders(bench, running, 10):
        register(running, "bench", 10)
        env = environment(running.state)

        def command(*words: str) -> Callable[[], object]:
            return lambda: subprocess.run(
                [*script("mbxctl.main"), *words],
                check=True,
                env=env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

        subjects = (timed(command("list", "--all")), timed(command("hook")), floors.bare_python)
        in_turns(1, 2, *subjects)
        lists, hooks, bare = in_turns(bench.rounds(20), 4, *subjects)
    yield Row("mbxctl list, cold", p50(lists) * MS, p50(bare) * MS)
    yield Row("mbxctl hook, cold", p50(hooks) * MS, p50(bare) * MS)


def daemon_start(bench: Bench) -> Iterator[Row]:
    """From exec until it is ready: a snapshot of 100,000 identities and 10,000 events behind it."""
    with directory(bench) as state:
        seed.directory(state, 100_000, tail=10_000)
        took = []
        for _ in range(2 if bench.quick else 5):
            running = start(state, module="mbxd")
            took.append(running.start_s)
            stop(running.process)
    yield Row("start with 100,000 identities to ready", p50(took) * MS)
