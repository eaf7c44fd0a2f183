"""Which client instances are connected, and when the kept results of dead ones may go.

Owns the ten minutes. An instance is a client process by the random name it gave itself in `hello`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from mbxd.runtime.clock import AwakeTime

KEEP_S = 600.0
"""Awake seconds that results are kept after the last connection of an instance closed."""
GONE_MAX = 4096
"""Instances without a connection whose results are kept; beyond it those that went first are forgotten before time."""


class Instances:
    """Open connections by instance, and the time since when an instance has none."""

    def __init__(self, awake: AwakeTime, known: Iterable[str]) -> None:
        """`known`: instances with kept results from before the start; they get the full time again."""
        self._awake = awake
        self._open: Counter[str] = Counter()
        self._gone_since: dict[str, float] = {}
        self.known(known)

    def known(self, instances: Iterable[str]) -> None:
        """Others with kept results from before the start."""
        now = self._awake.now()
        for instance in instances:
            if instance not in self._open:
                self._gone_since.setdefault(instance, now)

    def opened(self, instance: str) -> None:
        """A connection introduced itself."""
        self._open[instance] += 1
        self._gone_since.pop(instance, None)

    def closed(self, instance: str) -> None:
        """It closed. A living client reconnects within seconds."""
        self._open[instance] -= 1
        if self._open[instance] <= 0:
            del self._open[instance]
            self._gone_since[instance] = self._awake.now()

    def take_overdue(self) -> tuple[str, ...]:
        """Instances whose time is over; each is returned once."""
        limit = self._awake.now() - KEEP_S
        excess = len(self._gone_since) - GONE_MAX
        # The order of the dict is that of going.
        overdue = tuple(i for at, (i, since) in enumerate(self._gone_since.items()) if since <= limit or at < excess)
        for instance in overdue:
            del self._gone_since[instance]
        return overdue

    def statistics(self) -> dict[str, Any]:
        """How many there are."""
        return {"open": len(self._open), "gone": len(self._gone_since)}
