"""What all connections together make the daemon hold: beginnings of lines, and replies that nobody takes.

Owns the bound on each. What one connection may hold is bounded elsewhere; here thousands of them are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mbxd.server.limits import UNFINISHED_MAX, UNTAKEN_MAX


class Connection(Protocol):
    """A session, as far as it is asked here."""

    @property
    def unfinished(self) -> int:
        """Bytes of a line that has not ended yet."""
        ...

    @property
    def untaken(self) -> int:
        """Bytes that the peer has not taken yet."""
        ...

    def drop_line(self) -> None:
        """Give the unfinished line up, and say so."""
        ...

    def cut_off(self) -> None:
        """End the connection of a peer that does not read."""
        ...


class Held:
    """Bytes by connection, at most `limit` in all; beyond it one after the other has to let go."""

    def __init__(
        self,
        limit: int,
        size: Callable[[Connection], int],
        choose: Callable[[dict[Connection, int]], Connection],
        let_go: Callable[[Connection], None],
    ) -> None:
        """`size`: of a connection now; `choose` gets all that hold any, in the order in which they began to."""
        self._limit = limit
        self._size = size
        self._choose = choose
        self._let_go = let_go
        self._held: dict[Connection, int] = {}
        self._total = 0
        self._given_up = 0

    def note(self, connection: Connection) -> None:
        """It may hold more, less or nothing now."""
        self._set(connection, self._size(connection))
        if self._total > self._limit:
            self._make_room()

    def forget(self, connection: Connection) -> None:
        """It has gone."""
        self._set(connection, 0)

    def statistics(self) -> dict[str, int]:
        """What is held now, and how often one had to let go."""
        return {"connections": len(self._held), "bytes": self._total, "given_up": self._given_up}

    def _set(self, connection: Connection, size: int) -> None:
        before = self._held.get(connection, 0)
        if size:
            self._held[connection] = size
        elif before:
            del self._held[connection]
        self._total += size - before

    def _make_room(self) -> None:
        for connection in list(self._held):
            self._set(connection, self._size(connection))  # what was taken meanwhile was not noted
        while self._total > self._limit and self._held:
            chosen = self._choose(self._held)
            self._set(chosen, 0)
            self._given_up += 1
            self._let_go(chosen)


def unfinished_lines() -> Held:
    """Beginnings of lines: the oldest goes, for an honest line ends within moments."""
    return Held(UNFINISHED_MAX, lambda c: c.unfinished, lambda held: next(iter(held)), lambda c: c.drop_line())


def untaken_replies() -> Held:
    """Replies and events that are not read: the connection with most of them is closed."""
    return Held(UNTAKEN_MAX, lambda c: c.untaken, lambda held: max(held, key=held.__getitem__), lambda c: c.cut_off())
