"""Message ids: 26 characters that sort by time, as ULIDs do.

Owns their form and their order. Takes time and randomness as arguments; reads neither clock nor random source.
Layout: 48 bits of Unix milliseconds, then 80 bits of entropy, in Crockford's base 32
(https://github.com/ulid/spec, https://www.crockford.com/base32.html).
"""

from __future__ import annotations

from typing import Final

ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH: Final = 26
PREFIX_MIN: Final = 8
ENTROPY_BYTES: Final = 10

_PAIRS: Final = [first + second for first in ALPHABET for second in ALPHABET]
_SHIFTS: Final = range(120, -1, -10)
_VALUES: Final = {char: value for value, char in enumerate(ALPHABET)}
_READ_AS: Final = str.maketrans({"I": "1", "L": "1", "O": "0"})
_MS_MAX: Final = (1 << 48) - 1


def encode(value: int) -> str:
    """128 bits as 26 characters, two at a time."""
    return "".join([_PAIRS[value >> shift & 1023] for shift in _SHIFTS])


def decode(text: str) -> int:
    """The number behind an id in canonical form."""
    value = 0
    for char in text:
        value = value << 5 | _VALUES[char]
    return value


def canonical(text: str) -> str | None:
    """An id or the beginning of one, as typed by people, in canonical form; None when it can't be one.

    Lower case is fine, and the letters I, L and O are read as the digits that they look like.
    """
    text = text.strip().upper().translate(_READ_AS)
    if not PREFIX_MIN <= len(text) <= LENGTH or any(char not in _VALUES for char in text):
        return None
    return text


class Ids:
    """Makes ids, each greater than the one before, also when the wall clock steps back."""

    def __init__(self, last: str = "") -> None:
        """`last`: the greatest id in use, empty when there is none."""
        self._last = decode(last) if last else -1

    def make(self, now: float, entropy: bytes) -> str:
        """The next id. now: Unix seconds; entropy: at least 10 random bytes."""
        ms = min(max(int(now * 1000), 0), _MS_MAX)
        drawn = int.from_bytes(entropy[:ENTROPY_BYTES].ljust(ENTROPY_BYTES, b"\0"), "big")
        self._last = max(ms << 80 | drawn, self._last + 1)
        return encode(self._last)

    def seen(self, last: str) -> None:
        """Go on behind an id that somebody else made."""
        if last:
            self._last = max(self._last, decode(last))
