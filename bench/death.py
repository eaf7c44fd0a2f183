"""Figures of death: how soon a killed holder's mailbox is listed vacant, and that nobody else's ever is.

Owns how they are measured. Victims and bare children are forks of one small interpreter; each is killed by
its number alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from bench import client, floors
from bench.fixture import Bench, Daemon, daemon, stop
from bench.holders import Holders, holders
from bench.measure import p50, quantile
from bench.table import Row

MS = 1e3
WATCHED = 1000
BURN = "while True: pass"


def kills(bench: Bench) -> Iterator[Row]:
    """Kill holders one after another among many watched, in turns with children that nobody but us watches."""
    watched = 200 if bench.quick else WATCHED
    victims = 40 if bench.quick else 300
    with daemon(bench) as running, holders(bench, running, watched, bare=victims) as found:
        killed, bare = _kill(running, found, victims)
    yield Row("kill -9 to listed vacant p50", p50(killed) * MS, p50(bare) * MS)
    yield Row("kill -9 to listed vacant p99", quantile(killed, 0.99) * MS, quantile(bare, 0.99) * MS)


def _kill(running: Daemon, found: Holders, victims: int) -> tuple[list[float], list[float]]:
    killed: list[float] = []
    bare: list[float] = []
    with running.connect() as events, running.connect() as asking:
        events.ask(client.request("events.subscribe", {}))
        for (name, pid), other in zip(list(found.held.items())[:victims], found.bare, strict=True):
            bare.append(floors.bare_death(other))
            show = client.request("identity.show", {"name": name})
            began = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            # The change is pushed once it is durable; what is listed then is what a claim would see.
            wait_for(events, name)
            shown = asking.call(show)
            killed.append(time.perf_counter() - began)
            if b'"state":"vacant"' not in shown:
                raise RuntimeError(f"{name} was killed and is not vacant")
    return killed, bare


def wait_for(events: client.Connection, name: str) -> None:
    """Read changes until this identity was lost."""
    while True:
        change = json.loads(events.next_line())["params"]
        if change.get("name") == name and change.get("what") == "lost":
            return


def false_deaths(bench: Bench) -> Iterator[Row]:
    """How many of the living are taken for dead while they stand still, starve, or change their shims.

    Clock steps and reused pids need privileges: the tests force them.
    """
    lasts = 3.0 if bench.quick else 10.0
    with daemon(bench) as running, contextlib.ExitStack() as stack:
        own = stack.enter_context(holders(bench, running, 20, prefix="own"))
        shared = stack.enter_context(holders(bench, running, 20, prefix="shared", own=False))
        with running.connect() as events:
            events.ask(client.request("events.subscribe", {}))
        stopped = [shared.parent, *list(own.held.values())[:10], *list(shared.held.values())[:5]]
        with _burning(), _standing_still(stopped):
            for pid in list(shared.held.values())[5:15]:
                os.kill(pid, signal.SIGKILL)  # shims, whose host lives
            os.kill(running.pid, signal.SIGSTOP)
            time.sleep(lasts / 4)
            os.kill(running.pid, signal.SIGCONT)
            time.sleep(lasts * 3 / 4)
        names = [*own.held, *shared.held]
        with running.connect() as conn:
            rows = [conn.ask(client.request("identity.show", {"name": name}))["identity"] for name in names]
    yield Row("false deaths (SIGSTOP, busy cores, shim restarts)", sum(row["state"] == "vacant" for row in rows))


@contextlib.contextmanager
def _burning() -> Iterator[None]:
    """Keep every core busy."""
    burners = [subprocess.Popen([sys.executable, "-I", "-S", "-c", BURN]) for _ in range((os.cpu_count() or 1) + 1)]
    try:
        yield
    finally:
        for burner in burners:
            stop(burner)


@contextlib.contextmanager
def _standing_still(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
