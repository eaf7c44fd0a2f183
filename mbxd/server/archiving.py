"""Answers about the Git archive, and the commits of a whois.

Owns their wording. An archive that can't be used is no reason to refuse anything else.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from mbx_wire.agent import Commit, WhoisResult
from mbx_wire.archive import ArchiveLogParams, ArchiveLogResult
from mbx_wire.errors import Code
from mbxd.core import admin, profiles
from mbxd.core.context import Context
from mbxd.core.rejected import Rejected
from mbxd.core.times import iso
from mbxd.ports import PastCommit, RepoFailed
from mbxd.server.services import Services

LIMIT_MAX = 1000


async def answer(services: Services, method: str, params: msgspec.Struct, ctx: Context) -> Any:
    """The result of an `archive.` method. Raises Rejected."""
    archive = services.archive
    try:
        match method:
            case "archive.status":
                return archive.status()
            case "archive.verify":
                return await archive.verify()
            case "archive.rebuild":
                admin.people_only(ctx)
                return await archive.rebuild()
            case _:
                return await _log(services, params, ctx)
    except RepoFailed as problem:
        raise Rejected(
            Code.ARCHIVE_UNAVAILABLE,
            f"The Git archive can't be used now: {problem}.",
            "The registry is not affected. See mbxctl archive status.",
            retryable=True,
        ) from None


async def _log(services: Services, params: msgspec.Struct, ctx: Context) -> ArchiveLogResult:
    if not isinstance(params, ArchiveLogParams):
        raise TypeError(f"no answer for {type(params).__name__}")
    if not 1 <= params.limit <= LIMIT_MAX:
        raise Rejected(
            Code.PARAMETER_INVALID,
            f"`limit` is {params.limit}: it must be 1 to {LIMIT_MAX}.",
            "For example 20.",
            data={"parameter": "limit"},
        )
    if params.name is None:
        return ArchiveLogResult(path=None, commits=_shown(await services.archive.commits(params.limit)))
    identity = admin.lookup(services.engine.state, params.name, ctx)
    path = profiles.path_of(services.engine.state, identity)
    return ArchiveLogResult(path=path, commits=_shown(await services.archive.commits_of(identity, params.limit)))


async def with_commits(services: Services, result: WhoisResult, limit: int) -> WhoisResult:
    """A whois with the newest commits of the profile; without them, and a warning, when the archive can't be read."""
    try:
        found = await services.archive.commits_of(services.engine.state.identities[result.id], limit)
    except RepoFailed as problem:
        warning = f"`recent_commits` is null: the Git archive can't be read ({problem})."
        return replace(result, warnings=[*result.warnings, warning])
    return replace(result, recent_commits=_shown(found))


def _shown(commits: list[PastCommit]) -> list[Commit]:
    return [Commit(hexsha=c.hexsha, summary=c.summary, authored_ts=iso(c.at)) for c in commits]
