"""What was asked, what came of it, and what was done to the processes: the record that the model judges. Pure data.

Times are seconds of one monotonic clock. An operation took effect between `sent` and `done` if it was answered, and
at no time or at any time from `sent` on if it was not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """An identity in a list. holder: the session that holds it, "" for none. error: the code that a claim would get."""

    name: str
    state: str
    holder: str
    claimable: bool
    error: str


@dataclass(slots=True)
class Op:
    """One request of a session through a shim. lost: when its answer was given up.

    handle: of its conversation, by which a later process may resume it. name: what it was about.
    epoch: granted by it or, for a stale act, sent with it. released: the name let go.
    you: (name, epoch) that a list shows. holder: the session that a refusal names. to, token, id: of a message.
    tokens: of the messages that it acked or shows. listed: what a list had just said of this claim ("" for
    claimable); calm: nothing else went on meanwhile. same: whether a repeat got the first answer. body: the answer.
    bound: whether it was granted to the session. shown: whether the right token went with it.
    """

    session: str
    host: str
    shim: str
    what: str
    sent: float
    name: str = ""
    done: float = inf
    lost: float = inf
    handle: str = ""
    ok: bool = False
    code: str = ""
    epoch: int = 0
    released: str = ""
    you: tuple[str, int] | None = None
    rows: tuple[Row, ...] = ()
    holder: str = ""
    to: tuple[str, ...] = ()
    token: str = ""
    id: str = ""
    tokens: tuple[str, ...] = ()
    listed: str | None = None
    calm: bool = False
    bound: bool = True
    shown: bool = False
    same: bool = True
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        return self.done < inf

    def __str__(self) -> str:
        how = "ok" if self.ok else self.code or ("lost" if self.lost < inf else "open")
        shown = {
            "name": self.name,
            "epoch": self.epoch,
            "released": self.released,
            "you": self.you,
            "holder": self.holder,
            "token": self.token,
            "to": " ".join(self.to),
            "tokens": " ".join(self.tokens),
            "rows": " ".join(f"{row.name}:{row.state}:{row.holder}" for row in self.rows),
            "listed": self.listed,
        }
        more = " ".join(f"{key}={value}" for key, value in shown.items() if value)
        until = f"{self.done:.3f}" if self.answered else "-"
        return f"{self.sent:.3f} {until} {self.session} ({self.shim}) {self.what} {how} {more}"


@dataclass(frozen=True, slots=True)
class Fault:
    """What ended a hold or may have: what is `host` or `shim` (killed), or `free` (by a person)."""

    what: str
    subject: str
    at: float
    done: float = inf
    ok: bool = True

    def __str__(self) -> str:
        return f"{self.at:.3f} {self.done:.3f} -- {self.what} {self.subject}"


@dataclass(slots=True)
class History:
    """Everything so far. grace: the configured detach_grace, in seconds."""

    grace: float
    ops: list[Op] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def text(self, last: int = 40) -> str:
        """The newest of it, in order."""
        lines = sorted([(op.sent, str(op)) for op in self.ops] + [(fault.at, str(fault)) for fault in self.faults])
        return "\n".join(line for _, line in lines[-last:])
