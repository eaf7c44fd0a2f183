"""`python -m bench [--quick] [--full] [--json] [--write FILE] [--only PATTERN] [--dir DIRECTORY]`: measure and tell.

Owns the order of the figures and the output. Exit code 0 also when a target does not hold: the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatch

import msgspec
import trio

from bench import load, table
from bench.fixture import Bench
from bench.table import Row

DISK = "/var/tmp"  # noqa: S108 - on a disk where /tmp is memory; only mkdtemp makes anything in it

LONG = frozenset({"growth_of_mail"})
"""Figures that need minutes: with --full or by name."""

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"

Figure = Callable[[Bench], Iterator[Row]]


def figures() -> dict[Figure, tuple[str, ...]]:
    """Each measurement with the names of its rows, or how they begin."""
    from bench import agents, archive, death, durable, mail, post, scale, sockets, startup

    return {
        sockets.ping: ("ping",),
        sockets.lists: ("list of",),
        sockets.busy_elsewhere: ("list, 8 clients change other",),
        sockets.busy_here: ("list, 8 clients change its",),
        sockets.shim: ("tools/call",),
        durable.one_client: tuple(f"durable {kind}, 1 client" for kind in durable.KINDS),
        durable.eight_clients: tuple(f"durable {kind}, 8 clients" for kind in durable.KINDS),
        durable.rate: ("durable changes",),
        agents.one_client: tuple(f"agent identity: {kind}" for kind in agents.KINDS),
        agents.rate: ("agent identities made",),
        post.send_one: ("mail: send, 1",),
        post.send_many: ("mail: sends",),
        post.lists: ("mail: inbox", "mail: search"),
        post.wake: ("mail: acknowledged",),
        mail.send_one: ("mail store: send, 1",),
        mail.send_many: ("mail store: sends",),
        mail.growth_of_mail: tuple(f"mail store: {kind} at" for kind in mail.KINDS),
        death.kills: ("kill -9",),
        death.false_deaths: ("false deaths",),
        startup.shim: ("shim:",),
        startup.commands: ("mbxctl",),
        startup.daemon_start: ("start with",),
        scale.resident: ("daemon RSS", "daemon idle"),
        scale.memory: ("bytes an identity",),
        scale.replaying: ("replay",),
        scale.snapshots: ("snapshot",),
        archive.burst: ("archive: identities",),
        archive.stream: ("archive: lag",),
        scale.growth: ("one change",),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Figures as ratios to floors of the same run.")
    parser.add_argument("--quick", action="store_true", help="fewer samples: under a minute in all, and noisier")
    parser.add_argument("--full", action="store_true", help="with the ones at a million messages, which take minutes")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    parser.add_argument("--write", metavar="FILE", help="also put the table between the marks of this document")
    parser.add_argument("--only", metavar="PATTERN", help="figures whose name contains this (* and ? as in a shell)")
    parser.add_argument("--dir", default=DISK, help="a directory on the disk to measure (default: %(default)s)")
    options = parser.parse_args()
    bench = Bench(quick=options.quick, place=os.path.abspath(options.dir))
    chosen = [figure for figure, names in figures().items() if wanted(options.only, names)]
    if not options.full and options.only is None:
        chosen = [figure for figure in chosen if figure.__name__ not in LONG]
    if not chosen:
        parser.error(f"no figure matches {options.only!r}; the names are: {', '.join(table.TARGETS)}")
    rows = []
    if not options.json:
        print(table.columns(table.HEADER))
    for figure in chosen:
        began = time.perf_counter()
        for row in figure(bench):
            if options.only and not matches(options.only, row.name):
                continue
            rows.append(row)
            if not options.json:
                print(table.line(row), flush=True)
        print(f"  ({figure.__name__}: {time.perf_counter() - began:.1f} s)", file=sys.stderr)
    if options.json:
        print(json.dumps({"machine": machine(bench), "rows": [row.as_dict() for row in rows]}, indent=1))
    if options.write:
        write(options.write, bench, rows)
    return 0


def write(path: str, bench: Bench, rows: list[Row]) -> None:
    """Put the table, and what it was taken on, between the marks of a document."""
    told = ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in machine(bench).items())
    with open(path, encoding="utf-8") as file:
        before, _, rest = file.read().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{path} has no lines {BEGIN} and {END}: nothing was written")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{before}{BEGIN}\n\n{told}.\n\n{table.markdown(rows)}\n\n{END}{after}")


def wanted(pattern: str | None, names: tuple[str, ...]) -> bool:
    """Whether a measurement may have a row that the pattern matches."""
    full = [target for target in table.TARGETS if any(target.startswith(name) for name in names)]
    return pattern is None or any(matches(pattern, name) for name in full)


def matches(pattern: str, name: str) -> bool:
    return fnmatch(name.lower(), f"*{pattern.lower()}*")


def machine(bench: Bench) -> dict[str, object]:
    """What the figures were taken on."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "trio": trio.__version__,
        "msgspec": msgspec.__version__,
        "load_client": "C" if len(load.program()) == 1 else "Python",
        "quick": bench.quick,
        "directory": bench.place,
    }


if __name__ == "__main__":
    sys.exit(main())
