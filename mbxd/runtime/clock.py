"""The machine's clocks, and time that passes only while this process can see it.

Owns every reading of a clock in the daemon. Never compares wall-clock times.
"""

from __future__ import annotations

import time

from mbxd.ports import Clock

TICK = 1.0
"""Seconds between two ticks of AwakeTime."""
LONGEST_STEP = 3.0
"""The most that one step counts, in seconds: a longer gap means that the machine or this process stood still."""


class RealClock:
    """CLOCK_REALTIME and CLOCK_MONOTONIC; the latter stands still while Linux and macOS sleep."""

    def wall(self) -> float:
        """Unix seconds."""
        return time.time()

    def awake(self) -> float:
        """Seconds since some start."""
        return time.monotonic()


class AwakeTime:
    """Seconds during which the daemon was really watching.

    Graces are counted in it: after suspend, SIGSTOP of the daemon or a stall of the machine, nobody could have
    reconnected, so that time must not count against anyone. `tick` must be called every TICK seconds.
    """

    __slots__ = ("_clock", "_last", "_sum")

    def __init__(self, clock: Clock) -> None:
        """Starts at 0."""
        self._clock = clock
        self._last = clock.awake()
        self._sum = 0.0

    def tick(self) -> float:
        """Count what passed since the last tick, and return the sum."""
        now = self._clock.awake()
        self._sum += self._step(now)
        self._last = now
        return self._sum

    def now(self) -> float:
        """The sum up to this moment."""
        return self._sum + self._step(self._clock.awake())

    def _step(self, now: float) -> float:
        return min(max(now - self._last, 0.0), LONGEST_STEP)
