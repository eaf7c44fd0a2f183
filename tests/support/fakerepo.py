"""The port `Repo` in memory: commits as dictionaries, faults and other people's commits on demand."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mbxd.ports import NewCommit, PastCommit, RepoFailed, RepoMoved, Tip


class FakeCommit(NamedTuple):
    """A commit: its files as they are after it."""

    hexsha: str
    message: str
    at: float
    files: dict[str, bytes]
    ours: bool = True

    @property
    def seq(self) -> int | None:
        found = re.search(r"^Mbx-Seq: (\d+)$", self.message, re.MULTILINE)
        return int(found[1]) if found and self.ours else None


class FakeRepo:
    """`trouble`: every call fails with it. `moves`: how often the branch moves away while something is written."""

    def __init__(self) -> None:
        self.commits: list[FakeCommit] = []
        self.trouble: str | None = None
        self.moves = 0
        self.calls: list[str] = []
        self.checked_out: str | None = None
        self.set_aside: list[FakeCommit] = []
        self.aborted = False
        self._numbers = itertools.count(1)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.aborted:
            raise RepoFailed("the daemon is stopping")
        if self.trouble is not None:
            raise RepoFailed(self.trouble)

    def _add(self, message: str, at: float, files: dict[str, bytes], *, ours: bool = True) -> str:
        hexsha = f"{next(self._numbers):040x}"
        self.commits.append(FakeCommit(hexsha, message, at, files, ours))
        return hexsha

    def by_hand(self, files: dict[str, bytes | None], message: str = "by hand") -> str:
        """A person's commit."""
        present = dict(self.commits[-1].files) if self.commits else {}
        for path, contents in files.items():
            if contents is None:
                present.pop(path)
            else:
                present[path] = contents
        return self._add(message, 0.0, present, ours=False)

    def present(self) -> dict[str, bytes]:
        return self.commits[-1].files if self.commits else {}

    # -- the port --------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self._called("prepare")

    def tip(self) -> Tip | None:
        self._called("tip")
        return Tip(self.commits[-1].hexsha, self.commits[-1].seq) if self.commits else None

    def blob_id(self, contents: bytes) -> str:
        return hashlib.sha1(b"blob %d\0%s" % (len(contents), contents), usedforsecurity=False).hexdigest()

    def files(self, hexsha: str) -> dict[str, str]:
        self._called("files")
        for commit in self.commits:
            if commit.hexsha == hexsha:
                return {path: self.blob_id(contents) for path, contents in commit.files.items()}
        raise RepoFailed(f"there is no {hexsha}")

    def write(self, parent: str | None, commits: Iterable[NewCommit]) -> str | None:
        self._called("write")
        fresh: list[tuple[NewCommit, dict[str, bytes]]] = []
        present = self.present()
        for commit in commits:
            after = {path: contents for path, contents in present.items() if path not in set(commit.gone)}
            after.update(commit.files)
            if after != present:
                fresh.append((commit, after))
                present = after
        if self.moves:
            self.moves -= 1
            self.by_hand({"README": b"%d" % self.moves})
        if parent != (self.commits[-1].hexsha if self.commits else None):
            raise RepoMoved("the branch was moved by somebody else")
        for commit, after in fresh:
            self._add(commit.message, commit.at, after)
        return self.commits[-1].hexsha if fresh else None

    def checkout(self) -> None:
        self._called("checkout")
        self.checked_out = self.commits[-1].hexsha if self.commits else None

    def log(self, paths: Sequence[str], limit: int | None) -> list[PastCommit]:
        self._called("log")
        found = []
        for at in range(len(self.commits) - 1, -1, -1):
            commit, before = self.commits[at], self.commits[at - 1].files if at else {}
            if paths and all(commit.files.get(path) == before.get(path) for path in paths):
                continue
            compared = "\nMbx-Compared: " in commit.message
            summary = commit.message.partition("\n")[0]
            found.append(PastCommit(commit.hexsha, commit.seq, compared, summary, float(int(commit.at))))
        return found[:limit]

    def check(self) -> list[str]:
        self._called("check")
        return []

    def tidy(self) -> None:
        self._called("tidy")

    def start_over(self) -> None:
        self._called("start_over")
        self.set_aside, self.commits = self.commits, []

    def abort(self) -> None:
        self.aborted = True
