"""Comparing the archive with the registry.

Owns what counts as agreement. Runs in worker threads; changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from mbx_wire.archive import ArchiveVerifyResult
from mbxd.core import profiles
from mbxd.core.profiles import Picture
from mbxd.core.state import Identity, Project
from mbxd.ports import PastCommit, Repo, RepoFailed

SHOWN_MAX = 50


class Difference:
    """What would have to be written and removed so that a commit's files are those of a picture of everything."""

    def __init__(self, found: Mapping[str, str], picture: Picture, repo: Repo) -> None:
        """`found`: path -> blob id, of the commit."""
        self.files: list[tuple[str, bytes]] = []
        self.checked = 0
        wanted = set()
        for path, contents in profiles.files(picture):
            wanted.add(path)
            self.checked += 1
            if found.get(path) != repo.blob_id(contents):
                self.files.append((path, contents))
        self.unexpected = [path for path in found if profiles.is_ours(path) and path not in wanted]


def compare(
    repo: Repo, copies: tuple[list[Identity], dict[int, Project], int], late: set[int], error: str | None
) -> ArchiveVerifyResult:
    """The newest commit against copies of the records as of their seq. late: identities that it can't have yet."""
    identities, projects, seq = copies
    whole = profiles.everything(identities, projects, seq)
    picture = whole._replace(identities=[i for i in identities if i.id not in late])
    head: str | None = None
    problems = [] if error is None else [error]
    missing: list[str] = []
    differing: list[str] = []
    unexpected: list[str] = []
    checked = 0
    try:
        tip = repo.tip()
        head = None if tip is None else tip.hexsha
        found = {} if tip is None else repo.files(tip.hexsha)
        difference = Difference(found, picture, repo)
        checked = difference.checked
        missing = [path for path, _ in difference.files if path not in found]
        differing = [path for path, _ in difference.files if path in found]
        unexpected = [] if late else difference.unexpected
        problems += repo.check() + ([] if tip is None else order(repo.log((), None), seq))
    except RepoFailed as problem:
        if str(problem) not in problems:
            problems.append(str(problem))
    return ArchiveVerifyResult(
        ok=not (missing or differing or unexpected or problems),
        head=head,
        seq=seq,
        checked=checked,
        missing=missing[:SHOWN_MAX],
        differing=differing[:SHOWN_MAX],
        unexpected=unexpected[:SHOWN_MAX],
        pending=len(late),
        problems=problems,
    )


def order(commits: list[PastCommit], seq: int) -> list[str]:
    """What is wrong with the positions of commits, newest first: each holds later changes than the one before.

    A commit that was compared puts right what came from elsewhere, so it may repeat or lower the position.
    """
    problems = []
    newer: PastCommit | None = None
    for commit in commits:
        if commit.seq is None:
            continue
        if newer is None and commit.seq > seq:
            problems.append(f"the archive is ahead of the log: {commit.hexsha[:12]} has {commit.seq}, the log {seq}")
        if newer is not None and newer.seq is not None and not newer.compared and newer.seq <= commit.seq:
            problems.append(f"{newer.hexsha[:12]} ({newer.seq}) follows {commit.hexsha[:12]} ({commit.seq})")
        newer = commit
    return problems[:SHOWN_MAX]
