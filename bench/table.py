"""The figures to reach, and the table of what was measured.

Owns names, units and targets. A target holds for the ratio of value to floor unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """limit on `value / floor`, or on the value itself where `on_value`. at_least: the limit is a lower one."""

    unit: str
    limit: float | None
    at_least: bool = False
    on_value: bool = False
    floor: str = ""

    def text(self) -> str:
        if self.limit is None:
            return "-"
        sign = ">=" if self.at_least else "<="
        return f"{sign} {self.limit:g}" + (f" {self.unit}" if self.on_value else "x")


TARGETS: dict[str, Target] = {
    "ping p50": Target("us", 1.15, floor="trio SocketStream echo of the same bytes"),
    "list of 20 p50": Target("us", 1.5, floor="ping"),
    "list of 100 p50": Target("us", 2.7, floor="ping"),
    "list, 8 clients change other projects": Target("us", 2.5, floor="the same list, unloaded"),
    "list, 8 clients change other projects, sync +5 ms": Target("us", 2.5, floor="the same list, unloaded"),
    "list, 8 clients change its rows": Target("us", 1.0, floor="unloaded + 1.5 syncs"),
    "tools/call list through the shim": Target("us", 3.0, floor="identity.list on the socket"),
    "tools/call claim through the shim": Target("us", 3.0, floor="identity.claim on the socket"),
    "durable claim, 1 client p50": Target("us", 1.6, floor="write + fdatasync of the same bytes, plus ping"),
    "durable release, 1 client p50": Target("us", 1.6, floor="write + fdatasync of the same bytes, plus ping"),
    "durable register, 1 client p50": Target("us", 1.6, floor="write + fdatasync of the same bytes, plus ping"),
    "durable claim, 8 clients p50": Target("us", 1.9, floor="write + fdatasync of the same bytes, plus ping"),
    "durable release, 8 clients p50": Target("us", 1.9, floor="write + fdatasync of the same bytes, plus ping"),
    "durable register, 8 clients p50": Target("us", 1.9, floor="write + fdatasync of the same bytes, plus ping"),
    "durable changes, 64 clients": Target("1/s", 0.55, at_least=True, floor="the same with syncing off"),
    "durable changes, 64 clients, against one sync each": Target(
        "1/s", 3.0, at_least=True, floor="one write + fdatasync after another"
    ),
    "agent identity: create, 1 client p50": Target("us", 1.6, floor="write + fdatasync of the same bytes, plus ping"),
    "agent identity: register, 1 client p50": Target("us", 1.6, floor="write + fdatasync of the same bytes, plus ping"),
    "agent identities made, 64 clients": Target("1/s", 0.55, at_least=True, floor="the same with syncing off"),
    "mail: send, 1 client p50": Target("us", 2.5, floor="write + fdatasync of the same bytes, plus ping"),
    "mail: sends, 64 clients": Target("1/s", 3.0, at_least=True, floor="one write + fdatasync after another"),
    "mail: inbox of 30 p50": Target("us", None, floor="SELECT of the same rows, plus ping"),
    "mail: search, 30 found p50": Target("us", None, floor="SELECT of the same rows, plus ping"),
    "mail: acknowledged to the waiting reader's answer p50": Target("us", None),
    "mail store: send, 1 writer p50": Target("us", None, floor="write + fdatasync of the same bytes"),
    "mail store: sends, 64 writers": Target("1/s", None, floor="one write + fdatasync after another"),
    **{
        f"mail store: {kind} at {count}": Target("us", 1.5, floor="the same at 10,000 messages")
        for kind in ("inbox", "sent", "thread", "search, common word", "search, rare word", "unread", "send")
        for count in ("1,000,000", "100,000")
    },
    "kill -9 to listed vacant p50": Target("ms", 4.0, floor="bare pidfd wait, p50"),
    "kill -9 to listed vacant p99": Target("ms", 10.0, floor="bare pidfd wait, p99"),
    "false deaths (SIGSTOP, busy cores, shim restarts)": Target("", 0.0, on_value=True),
    "shim: exec to initialize answered": Target("ms", 2.2, floor="bare python of the same venv"),
    "shim: private memory": Target("MiB", 5.0, on_value=True),
    "mbxctl list, cold": Target("ms", 4.5, floor="bare python of the same venv"),
    "mbxctl hook, cold": Target("ms", 3.0, floor="bare python of the same venv"),
    "start with 100,000 identities to ready": Target("ms", 1000.0, on_value=True),
    "daemon RSS, 1,000 identities, 100 sessions": Target("MiB", 60.0, on_value=True),
    "daemon idle CPU, 1,000 identities, 100 sessions": Target("%", 0.1, on_value=True),
    "bytes an identity at 100,000": Target("B", 900.0, on_value=True),
    "bytes an identity at 100,000, held once": Target("B", None),
    "replay, of processor time": Target(
        "1/s", 400_000.0, at_least=True, on_value=True, floor="decoding the same records and nothing else"
    ),
    "snapshot of 100,000: longest hold of the loop": Target("ms", 2.0, on_value=True, floor="without a snapshot"),
    "archive: identities until caught up": Target(
        "1/s", 0.9, at_least=True, floor="registering them, then one git fast-import of the same history"
    ),
    "archive: lag p99 at 100 changes/s": Target("ms", 1000.0, on_value=True),
    "one change at 100,000 identities": Target("us", 1.2, floor="at 100 identities, syncing off"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `floor` has the value's unit; None where the target is absolute and nothing is compared."""

    name: str
    value: float
    floor: float | None = None

    @property
    def ratio(self) -> float | None:
        return None if not self.floor else self.value / self.floor

    @property
    def holds(self) -> bool | None:
        target = TARGETS[self.name]
        judged = self.value if target.on_value else self.ratio
        if target.limit is None or judged is None:
            return None
        return judged >= target.limit if target.at_least else judged <= target.limit

    def as_dict(self) -> dict[str, Any]:
        target = TARGETS[self.name]
        return {
            "name": self.name,
            "value": round(self.value, 3),
            "unit": target.unit,
            "floor": None if self.floor is None else round(self.floor, 3),
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "target": target.text(),
            "holds": self.holds,
        }


HEADER = ("name", "value", "unit", "floor", "ratio", "target", "holds", "floor is")
WIDTHS = (52, 10, 5, 10, 6, 10, 5, 0)


def line(row: Row) -> str:
    target = TARGETS[row.name]
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    holds = "-" if row.holds is None else "yes" if row.holds else "NO"
    return columns(
        (row.name, number(row.value), target.unit, number(row.floor), ratio, target.text(), holds, target.floor)
    )


def columns(cells: tuple[str, ...]) -> str:
    padded = [
        cell.rjust(width) if place in {1, 3, 4} else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))
    ]
    return "  ".join(padded).rstrip()


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table of a document."""
    lines = [
        "| figure | value | unit | floor | ratio | target | holds | the floor is |",
        "|---|--:|---|--:|--:|---|---|---|",
    ]
    for row in rows:
        target = TARGETS[row.name]
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        holds = "" if row.holds is None else "yes" if row.holds else "**no**"
        cells = (row.name, number(row.value), target.unit, number(row.floor), ratio, target.text(), holds, target.floor)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
