"""Params and results of the methods about the Git archive: status, verify, rebuild, log.

Owns shapes only. Times are ISO 8601 UTC strings.
"""

from __future__ import annotations

import msgspec

from mbx_wire.agent import Commit


class ArchiveStatusResult(msgspec.Struct, frozen=True):
    """Where the archive is.

    seq: the archive has everything up to this one; durable_seq: the log has this one. behind: changes that are not
    archived yet, null when they were not counted; lag_s: how long the oldest of them waits. error: why it does not go
    on, retry_in_s: when it tries again. checkout_error: why the checked-out files are older than the newest commit.
    """

    path: str
    head: str | None
    seq: int | None
    durable_seq: int
    behind: int | None
    lag_s: float
    error: str | None
    retry_in_s: float | None
    checkout_error: str | None
    commits: int


class ArchiveVerifyResult(msgspec.Struct, frozen=True):
    """Whether the archive agrees with the registry as of `seq`.

    checked: files compared; missing, differing, unexpected: the first 50 paths of each; pending: identities left out
    since they changed meanwhile; problems: everything else that is wrong, in words.
    """

    ok: bool
    head: str | None
    seq: int
    checked: int
    missing: list[str]
    differing: list[str]
    unexpected: list[str]
    pending: int
    problems: list[str]


class ArchiveRebuildResult(msgspec.Struct, frozen=True):
    """The archive was made anew. set_aside: where the old one is; commits: how many the new one has."""

    head: str | None
    commits: int
    set_aside: str | None
    warnings: list[str]


class ArchiveLogParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`archive.log`: commits of one identity's profile, or all, newest first. `limit` 1 to 1000."""

    name: str | None = None
    limit: int = 20


class ArchiveLogResult(msgspec.Struct, frozen=True):
    """Commits, newest first. `path`: the file, null for all."""

    path: str | None
    commits: list[Commit]
