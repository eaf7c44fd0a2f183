"""`python -m bench.soak [--minutes N]`: a steady load for a while, and what it left behind.

Owns the load (200 sessions, 20,000 identities, 50 changes and 200 reads a second, each due at its own time, so that a
slow answer makes the next ones late and is seen) and the report of what grew: memory, descriptors, pidfds, threads,
the log. Exit code 1 when something did.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from bench import client, seed
from bench.fixture import Bench, Daemon, daemon, directory
from bench.holders import holders
from bench.measure import quantile
from bench.scale import rss_kib
from mbxd.core.state import REPLIES_KEPT

SESSIONS = 200
PROCESSES = 100
"""Of the sessions, those in host processes of their own that hold a name and are quiet: each has a pidfd."""
IDENTITIES = 20_000
CHANGES_S = 50
READS_S = 200
EVERY = READS_S // CHANGES_S + 1
WARM_S = 10.0
PATIENCE_S = 30.0
ALLOWED = {"rss_mib": 20.0, "descriptors": 12, "pidfds": 0, "threads": 12}
"""What may come after the warm-up: SQLite's page caches (16 MiB at most) fill as the mail file grows; readers of mail
(four, each with three files) and worker threads come with a burst and go again.
"""

READS = ("identity.list", "identity.show", "mail.inbox", "mail.whoami")


@dataclass(slots=True)
class Counted:
    """What the daemon holds at a moment."""

    rss_mib: float
    descriptors: int
    pidfds: int
    threads: int
    log_mib: float
    mail_mib: float

    def as_dict(self) -> dict[str, float]:
        return {name: round(getattr(self, name), 2) for name in self.__slots__}


def counted(running: Daemon) -> Counted:
    """Read from /proc and the state directory."""
    links = []
    for name in os.listdir(f"/proc/{running.pid}/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/{running.pid}/fd/{name}"))
    return Counted(
        rss_kib(running.pid) / 1024,
        len(links),
        sum("pidfd" in link for link in links),
        len(os.listdir(f"/proc/{running.pid}/task")),
        _size(f"{running.state}/registry"),
        sum(_size(f"{running.state}/mail.db{end}") for end in ("", "-wal")),
    )


def _size(path: str) -> float:
    names = [f"{path}/{name}" for name in os.listdir(path)] if os.path.isdir(path) else [path]
    total = 0
    for name in names:
        with contextlib.suppress(OSError):
            total += os.path.getsize(name)
    return total / 2**20


class Session:
    """One conversation on a connection of its own: it holds a name, gives it up, takes it again, writes and acks."""

    def __init__(self, running: Daemon, number: int) -> None:
        self.name = f"soak-{number:03d}"
        self.conn = running.connect()
        self._numbers = count(1)
        self._changes = self._cycle()
        self._reads = count(number)
        self._got: list[str] = []
        self.holds = True
        self.kind = ""
        self.due = 0.0
        self.rest = b""
        self.conn.ask(self._line("identity.register", {"name": self.name, "role": "backend"}))

    def _line(self, method: str, params: dict[str, object]) -> bytes:
        return client.request(method, params, session=self.name, request_id=f"{self.name}-{next(self._numbers)}")

    def fill(self, changes: int) -> None:
        """Change that often at once: the results of its last changes are kept, and so many are all that is kept."""
        for _ in range(changes // 2):
            self.conn.ask(self._line("identity.release", {}))
            self.conn.ask(self._line("identity.claim", {"name": self.name}))

    def _cycle(self) -> Iterator[tuple[str, dict[str, object]]]:
        while True:
            yield "identity.release", {}
            yield "identity.claim", {"name": self.name}
            yield "mail.send", {"to": [self.name], "subject": "note to myself", "body": "x" * 200}
            yield "mail.ack", {"ids": self._got[-1:]}

    def issue(self, due: float, *, change: bool) -> None:
        """Send the next request of a kind. Nothing of this session is under way."""
        if change:
            method, params = next(self._changes)
        else:
            method = READS[next(self._reads) % len(READS)]
            if method == "mail.inbox" and not self.holds:
                method = "identity.list"
            params = {"name": self.name} if method == "identity.show" else {}
        self.kind, self.due = method, due
        self.holds = method == "identity.claim" or (self.holds and method != "identity.release")
        self.conn.send(self._line(method, params))

    def receive(self) -> bool:
        """Take what came; True when it is the whole answer. RuntimeError for a refusal."""
        self.rest += self.conn.receive()
        if not self.rest.endswith(b"\n"):
            return False
        line, self.rest = self.rest, b""
        if b'"error":{' in line:
            raise RuntimeError(f"{self.kind}: {line[:600].decode(errors='replace')}")
        if self.kind == "mail.send":
            self._got.append(json.loads(line)["result"]["id"])
        return True


@dataclass(slots=True)
class Report:
    """Counts before and after, and by method how many seconds each answer took from when its request was due."""

    start: Counted
    end: Counted | None = None
    took: dict[str, list[float]] = field(default_factory=dict)

    def grew(self) -> list[str]:
        """What is more than at the start by more than it may."""
        before, after = self.start, self.end
        assert after is not None
        return [
            f"{name}: {getattr(before, name):g} -> {getattr(after, name):g}"
            for name, more in ALLOWED.items()
            if getattr(after, name) > getattr(before, name) + more
        ]


def soak(
    bench: Bench,
    seconds: float,
    *,
    warm: float = WARM_S,
    fill: int = REPLIES_KEPT,
    identities: int = IDENTITIES,
    quiet: int = PROCESSES,
    talking: int = SESSIONS - PROCESSES,
) -> Report:
    """Run the load; RuntimeError when a request is refused or not answered in PATIENCE_S."""
    with directory(bench) as state:
        seed.directory(state, identities - quiet - talking)
        with (
            daemon(bench, state=state) as running,
            holders(bench, running, quiet),
            contextlib.ExitStack() as connections,
        ):
            sessions = [Session(running, number) for number in range(talking)]
            for session in sessions:
                connections.enter_context(session.conn)
                session.fill(fill)
            _drive(sessions, warm, None)
            report = Report(counted(running))
            _drive(sessions, seconds, report)
            report.end = counted(running)
            return report


def _drive(sessions: list[Session], seconds: float, report: Report | None) -> None:
    idle, busy = list(reversed(sessions)), 0
    with selectors.DefaultSelector() as poller:
        for session in sessions:
            poller.register(session.conn.fileno(), selectors.EVENT_READ, session)
        gap = 1 / (CHANGES_S + READS_S)
        began = time.perf_counter()
        total = int(seconds / gap)
        issued = 0
        while issued < total or busy:
            now = time.perf_counter()
            while issued < total and (due := began + issued * gap) <= now:
                if not idle:
                    break  # it is sent when one is free, and its time counts from when it was due
                session = idle.pop(0)
                session.issue(due, change=issued % EVERY == 0)
                issued, busy = issued + 1, busy + 1
            wait = began + issued * gap - time.perf_counter() if issued < total and idle else PATIENCE_S
            events = poller.select(max(wait, 0.0))
            if not events and wait == PATIENCE_S:
                raise RuntimeError(f"{busy} requests were not answered in {PATIENCE_S:.0f} s")
            for key, _ in events:
                session = key.data
                if session.receive():
                    idle.append(session)
                    busy -= 1
                    if report is not None:
                        report.took.setdefault(session.kind, []).append(time.perf_counter() - session.due)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=str(__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: %(default)s)")
    parser.add_argument("--dir", default="/var/tmp", help="a directory on a disk (default: %(default)s)")  # noqa: S108
    options = parser.parse_args()
    report = soak(Bench(quick=False, place=os.path.abspath(options.dir)), options.minutes * 60)
    assert report.end is not None
    print(f"{'method':<18}{'n':>8}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}")
    for kind, samples in sorted(report.took.items()):
        figures = [quantile(samples, 0.5), quantile(samples, 0.99), max(samples)]
        print(f"{kind:<18}{len(samples):>8}" + "".join(f"{value * 1e3:>9.2f}" for value in figures))
    print(f"{'':<18}{'start':>12}{'end':>12}")
    for name, value in report.start.as_dict().items():
        print(f"{name:<18}{value:>12}{report.end.as_dict()[name]:>12}")
    for line in report.grew():
        print(f"grew: {line}")
    return 1 if report.grew() else 0


if __name__ == "__main__":
    sys.exit(main())
