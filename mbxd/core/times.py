"""Times as people and programs read them: ISO 8601, UTC, milliseconds, `Z`. Pure arithmetic, no clock."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(seconds: float) -> str:
    """Unix seconds as `2026-01-31T12:00:00.000Z`. A time out of range is shown as the epoch's edge, never an error."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        moment = datetime.fromtimestamp(0, UTC)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"  # strftime does not pad the year
