"""The order of version numbers. Owns that; never says what to do about it."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"\d+")


def order(version: str) -> list[int]:
    """A version as something to compare: `0.10.0` is newer than `0.9.1`, and a text without numbers oldest."""
    return [int(number) for number in _NUMBERS.findall(version)[:4]]
