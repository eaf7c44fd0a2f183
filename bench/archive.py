"""Figures of the Git archive: how fast it catches up with a burst, and how far it is behind a steady stream.

Owns how they are measured. The floor of the burst is one `git fast-import` of the same files; a change counts as
archived when the branch has moved past it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

from bench import client
from bench.fixture import Bench, daemon, directory
from bench.measure import quantile
from bench.table import Row

MS = 1e3
BURST = 10_000
IN_FLIGHT = 50
STREAM_RATE = 100
STATUS = client.request("archive.status", {})
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}


def burst(bench: Bench) -> Iterator[Row]:
    """Register many, then wait until the archive has them all; from the first registration on."""
    wanted = BURST // 10 if bench.quick else BURST
    with directory(bench) as state:
        with daemon(bench, sync="none", state=state) as running, running.connect() as conn:
            began = time.perf_counter()
            for start in range(0, wanted, IN_FLIGHT):
                conn.send(b"".join(register(f"burst-{number}") for number in range(start, start + IN_FLIGHT)))
                for _ in range(IN_FLIGHT):
                    if b'"error"' in (line := conn.next_line()):
                        raise RuntimeError(line.decode())
            made = time.perf_counter() - began
            wait(conn)
            took = time.perf_counter() - began
        bare = fast_import(bench, state)  # now, since the daemon goes on checking files out
    yield Row("archive: identities until caught up", wanted / took, wanted / (made + bare))


def stream(bench: Bench) -> Iterator[Row]:
    """100 changes a second: how long until each is in the newest commit, looked at every 10 ms."""
    lasts = bench.seconds(15)
    with daemon(bench) as running, running.connect() as conn:
        lags = _stream(conn, int(lasts * STREAM_RATE))
    yield Row("archive: lag p99 at 100 changes/s", quantile(lags, 0.99) * MS)


def _stream(conn: client.Connection, total: int) -> list[float]:
    began = time.perf_counter()
    open_since: dict[int, float] = {}
    lags: list[float] = []
    made = 0
    while made < total or open_since:
        now = time.perf_counter()
        while made < total and now - began >= made / STREAM_RATE:
            conn.ask(register(f"stream-{made}"))
            made += 1
            open_since[int(conn.ask(STATUS)["durable_seq"])] = time.perf_counter()
        upto = conn.ask(STATUS)["seq"] or 0
        now = time.perf_counter()
        lags += [now - open_since.pop(seq) for seq in list(open_since) if seq <= upto]
        time.sleep(0.01)
    return lags


def register(name: str) -> bytes:
    profile = {"project_key": "/bench", "program": "bench", "model": "none", "name": name}
    return client.request("agent.register", profile)


def wait(conn: client.Connection, lasts: float = 120) -> None:
    """Until everything is archived; RuntimeError when that takes more than `lasts` seconds."""
    deadline = time.monotonic() + lasts
    while time.monotonic() < deadline:
        status = conn.ask(STATUS)
        if status["behind"] == 0 and status["error"] is None:
            return
        time.sleep(0.02)
    raise RuntimeError("the archive does not catch up")


def fast_import(bench: Bench, state: str) -> float:
    """Seconds that git's own importer takes for the archive's whole history."""
    archive = f"{state}/archive"
    stream = subprocess.run(
        ["git", "-C", archive, "fast-export", "--use-done-feature", "main"],
        env=ENVIRONMENT,
        capture_output=True,
        check=True,
    ).stdout
    with directory(bench) as where:
        subprocess.run(["git", "init", "-q", "--bare", where], env=ENVIRONMENT, check=True)
        began = time.perf_counter()
        subprocess.run(
            ["git", "-C", where, "fast-import", "--quiet", "--done"], input=stream, env=ENVIRONMENT, check=True
        )
        return time.perf_counter() - began
