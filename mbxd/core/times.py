"""Times as people and programs read them: ISO 8601, UTC, milliseconds, `Z`. Pure arithmetic, no clock."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


@lru_cache(maxsize=1024)  # a call shows its own time more than once, and that of the same events again and again
def iso(seconds: float) -> str:
    """Unix seconds as `2026-01-31T12:00:00.000Z`. A time out of range is shown as the epoch's edge, never an error."""
    try:
        whole = int(seconds // 1)
        micros = round((seconds - whole) * 1e6)  # as datetime.fromtimestamp rounds; then cut to milliseconds
        if micros == 1_000_000:
            whole, micros = whole + 1, 0
        return f"{_second(whole)}.{micros // 1000:03d}Z"
    except (OverflowError, ValueError, OSError):
        return "1970-01-01T00:00:00.000Z"


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    """Up to the second. Kept, for most times that are shown are shown again."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.replace(tzinfo=None).isoformat(timespec="seconds")  # strftime does not pad the year
