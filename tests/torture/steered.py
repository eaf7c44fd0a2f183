"""The daemon's program with faults (tests.support.faulty) and a wall clock that can be set, for the harness.

The file $MBX_CLOCK holds the seconds by which its wall clock is ahead; missing or empty is 0.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mbxd.runtime import clock
from tests.support import faulty

AHEAD = Path(os.environ["MBX_CLOCK"])


class SteppedClock(clock.RealClock):
    """Steps as often as somebody writes the file; what it counts awake never does."""

    def wall(self) -> float:
        try:
            return super().wall() + float(AHEAD.read_text() or 0)
        except FileNotFoundError:
            return super().wall()


if __name__ == "__main__":
    setattr(clock, "RealClock", SteppedClock)  # noqa: B010 - a type checker refuses the plain form
    sys.exit(faulty.main())
