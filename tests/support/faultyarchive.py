"""The daemon's program, killed at a named point of its archive's work: MBX_ARCHIVE_FAULT="<point>:<nth>".

Points, in the order of a batch: prepare, tip, in_pack (half of the pack went to git), packed (nothing refers to
it yet), moved (the branch moved, the daemon doesn't know), tidy, checkout. The nth time kills by SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from mbxd import __main__ as program
from mbxd import app
from mbxd.ports import NewCommit, Tip
from mbxd.runtime.repo import GitRepo

POINTS = ("prepare", "tip", "in_pack", "packed", "moved", "tidy", "checkout")


class Plan:
    """Counts how often the point was passed."""

    def __init__(self, text: str) -> None:
        self.point, _, nth = text.partition(":")
        self.left = int(nth or 0)

    def at(self, point: str) -> None:
        if point == self.point:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


PLAN = Plan(os.environ.get("MBX_ARCHIVE_FAULT", "none"))


class FaultyRepo(GitRepo):
    """The real repository."""

    def prepare(self) -> None:
        super().prepare()
        PLAN.at("prepare")

    def tip(self) -> Tip | None:
        PLAN.at("tip")
        return super().tip()

    def write(self, parent: str | None, commits: Iterable[NewCommit]) -> str | None:
        made = super().write(parent, commits)
        if made is not None:
            PLAN.at("moved")
        return made

    def _git(self, *arguments: str, feed: Iterable[bytes] = (), **more: Any) -> bytes:
        if arguments[0] == "index-pack":
            out = super()._git(*arguments, feed=_killed_halfway(feed), **more)
            PLAN.at("packed")
            return out
        if arguments[0] == "read-tree":
            PLAN.at("checkout")
        return super()._git(*arguments, feed=feed, **more)

    def tidy(self) -> None:
        PLAN.at("tidy")
        super().tidy()


def _killed_halfway(feed: Iterable[bytes]) -> Iterator[bytes]:
    for number, piece in enumerate(feed):
        if number == 1:
            yield piece[: len(piece) // 2]
            PLAN.at("in_pack")
            piece = piece[len(piece) // 2 :]  # noqa: PLW2901
        yield piece


def main() -> int:
    setattr(app, "GitRepo", FaultyRepo)  # noqa: B010  # the composition root's own name is exchanged
    return program.run()


if __name__ == "__main__":
    sys.exit(main())
