"""Figures of durable changes: latency of one and of eight clients, rate of sixty-four.

Owns how they are measured. The floor is one bare write and fdatasync of as many bytes as the daemon's log took
for a change, plus a ping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from bench import client, floors, load
from bench.fixture import Bench, Daemon, daemon
from bench.measure import in_turns, p50, timed
from bench.table import Row

US = 1e6
KINDS = ("claim", "release", "register")


def one_client(bench: Bench) -> Iterator[Row]:
    """Claim, release and register, one after another by one client."""
    with daemon(bench) as running, running.connect() as conn, running.connect() as other:
        kinds = _Cycle(conn)
        kinds.walk(50)
        samples: dict[str, list[float]] = {kind: [] for kind in KINDS}
        syncs: list[float] = []
        pings: list[float] = []
        size = _bytes_a_change(running, lambda: kinds.walk(25))
        with floors.disk(bench, size) as sync:
            for _ in range(bench.rounds(60)):
                for kind, took in kinds.walk(12):
                    samples[kind].append(took)
                found = in_turns(1, 24, sync, timed(lambda: other.call(client.PING)))
                syncs += found[0]
                pings += found[1]
    floor = (p50(syncs) + p50(pings)) * US
    for kind in KINDS:
        yield Row(f"durable {kind}, 1 client p50", p50(samples[kind]) * US, floor)


class _Cycle:
    """register, release, claim, release by one conversation."""

    def __init__(self, conn: client.Connection) -> None:
        self._conn = conn
        self._says = client.Changes("one", "one")
        self._numbers = count(1)

    def walk(self, times: int) -> list[tuple[str, float]]:
        """Kinds and seconds of `times` cycles."""
        says, found = self._says, []
        for _ in range(times):
            number = next(self._numbers)
            name = f"one-{client.NUMBER}"
            for kind, line in (
                ("register", says.register(name)),
                ("release", says.release("r")),
                ("claim", says.claim(name)),
                ("release", says.release("s")),
            ):
                ready = client.numbered(line, number)
                took = timed(lambda ready=ready: self._check(ready))()  # type: ignore[misc]
                found.append((kind, took))
        return found

    def _check(self, line: bytes) -> None:
        if b'"error":{' in self._conn.call(line):
            raise RuntimeError(f"refused: {line!r}")


def _bytes_a_change(running: Daemon, act: Callable[[], object]) -> int:
    before = running.written()
    act()
    after = running.written()
    return (after[0] - before[0]) // (after[1] - before[1])


def eight_clients(bench: Bench) -> Iterator[Row]:
    """The same by eight clients at once."""
    places = {"claim": 0, "release": 1, "register": 2}
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    syncs: list[float] = []
    pings: list[float] = []
    with daemon(bench) as running, running.connect() as conn:
        for number in range(bench.rounds(8)):
            scripts = [load.changing(n, "bench", f"e{number}", registers=True) for n in range(8)]
            outcome = load.run(running.socket, scripts, bench.seconds(1.0))
            for kind, place in places.items():
                found[kind].append(outcome.kinds[place].p50)
            taken, batches = running.written()
            with floors.disk(bench, taken // batches) as sync:
                more = in_turns(1, 200, sync, timed(lambda: conn.call(client.PING)))
            syncs += more[0]
            pings += more[1]
    floor = (p50(syncs) + p50(pings)) * US
    for kind in KINDS:
        yield Row(f"durable {kind}, 8 clients p50", p50(found[kind]), floor)


def rate(bench: Bench) -> Iterator[Row]:
    """Changes a second at 64 clients: with and without syncing, and against one sync after another."""
    with daemon(bench) as synced, daemon(bench, sync="none") as unsynced:
        rates: dict[int, list[float]] = {synced.pid: [], unsynced.pid: []}
        alone: list[float] = []
        size = _bytes_of_one(synced)
        for number in range(bench.rounds(10)):
            order = (synced, unsynced) if number % 2 else (unsynced, synced)
            for running in order:
                scripts = [load.changing(n, "bench", f"r{number}") for n in range(64)]
                rates[running.pid].append(load.run(running.socket, scripts, bench.seconds(1.5)).rate)
            with floors.disk(bench, size) as sync:
                alone += [sync() for _ in range(500)]
        value = p50(rates[synced.pid])
    yield Row("durable changes, 64 clients", value, p50(rates[unsynced.pid]))
    yield Row("durable changes, 64 clients, against one sync each", value, 1 / _mean(alone))


def _bytes_of_one(running: Daemon) -> int:
    """Bytes that a change of one client takes in the log."""
    with running.connect() as conn:
        says = client.Changes("size", "size")
        conn.ask(client.numbered(says.register("size-000"), 0))
        conn.ask(client.numbered(says.release("once"), 0))

        def act() -> None:
            for number in range(20):
                conn.ask(client.numbered(says.claim("size-000"), number))
                conn.ask(client.numbered(says.release(), number))

        return _bytes_a_change(running, act)


def _mean(samples: list[float]) -> float:
    return sum(samples) / len(samples)
