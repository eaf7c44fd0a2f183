"""Figures of agent identities: how long making one and taking a known one takes, and how many are made a second.

Owns how they are measured. Floors are those of durable changes: the same bytes written and synced, plus a ping.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from bench import client, floors, load
from bench.fixture import Bench, Daemon, daemon
from bench.measure import in_turns, p50, timed
from bench.table import Row

US = 1e6
KINDS = ("create", "register")
PROFILE = {"program": "codex", "model": "five", "task_description": "Takes orders and looks after them"}


def one_client(bench: Bench) -> Iterator[Row]:
    """Create (a name is drawn) and register (a known name is updated), in turns, by one client."""
    with daemon(bench) as running, running.connect() as conn, running.connect() as other:
        numbers = count(1)
        samples: dict[str, list[float]] = {kind: [] for kind in KINDS}
        floor: dict[str, list[float]] = {kind: [] for kind in KINDS}
        sizes = {kind: _bytes_a_change(running, conn, kind, numbers) for kind in KINDS}
        for _ in range(bench.rounds(40)):
            for kind in KINDS:
                lines = [client.numbered(_line(kind), next(numbers)) for _ in range(24)]
                samples[kind] += [timed(lambda line=line: _check(conn, line))() for line in lines]  # type: ignore[misc]
                with floors.disk(bench, sizes[kind]) as sync:
                    syncs, pings = in_turns(1, 24, sync, timed(lambda: other.call(client.PING)))
                floor[kind].append(p50(syncs) + p50(pings))
    for kind in KINDS:
        yield Row(f"agent identity: {kind}, 1 client p50", p50(samples[kind]) * US, p50(floor[kind]) * US)


def rate(bench: Bench) -> Iterator[Row]:
    """Identities made a second by 64 clients, with and without syncing; each client in a project of its own."""
    with daemon(bench) as synced, daemon(bench, sync="none") as unsynced:
        rates: dict[int, list[float]] = {synced.pid: [], unsynced.pid: []}
        for number in range(bench.rounds(6)):
            for running in (synced, unsynced) if number % 2 else (unsynced, synced):
                scripts = [_creating(f"a{number}-{n}") for n in range(64)]
                rates[running.pid].append(load.run(running.socket, scripts, bench.seconds(1.5)).rate)
    yield Row("agent identities made, 64 clients", p50(rates[synced.pid]), p50(rates[unsynced.pid]))


def _creating(prefix: str) -> load.Script:
    line = _line("create", project=f"/bench/{prefix}", session=prefix)
    return load.Script(client.hello(), [line.replace(b"-create-", b"-once-")], [line])


def _line(kind: str, *, project: str = "/bench/agents", session: str = "one") -> bytes:
    params = {"project_key": project, **PROFILE}
    if kind == "register":
        params["name"] = "worker-1"
    request_id = f"{session}-{kind}-{client.NUMBER}"
    return client.request(f"agent.{kind}", params, session=session, request_id=request_id)


def _bytes_a_change(running: Daemon, conn: client.Connection, kind: str, numbers: count[int]) -> int:
    """What the log takes for one, measured over a few that warm the way as well."""
    _check(conn, client.numbered(_line(kind), next(numbers)))
    before = running.written()
    for _ in range(50):
        _check(conn, client.numbered(_line(kind), next(numbers)))
    after = running.written()
    return (after[0] - before[0]) // (after[1] - before[1])


def _check(conn: client.Connection, line: bytes) -> None:
    if b'"error":{' in conn.call(line):
        raise RuntimeError(f"refused: {line!r}")
