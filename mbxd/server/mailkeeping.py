"""Care for the mail file, by people: copy it, look for damage, delete what ended long ago.

Owns `mail.backup`, `mail.check` and `mail.prune`. Never shows what is in a message.
"""

from __future__ import annotations

import os

from mbx_wire import mail as wire
from mbx_wire.errors import Code
from mbxd.core.admin import people_only
from mbxd.core.context import Context
from mbxd.core.rejected import Rejected
from mbxd.mail import commands as c
from mbxd.server.services import Services


async def backup(services: Services, params: wire.BackupParams, ctx: Context) -> wire.BackupResult:
    """Copy the file as of one moment, while it is in use."""
    people_only(ctx)
    path = params.path
    if not os.path.isabs(path) or "\0" in path:
        raise _path("must be an absolute path", "/home/me/mail-backup.db")
    try:
        await services.post.read(services.post.store.backup, path)
        size = (await services.run_sync(os.stat, path)).st_size
    except FileExistsError as error:
        there = error.filename2 or error.filename  # or its .partial, which a crash in a backup leaves
        raise _path(f"can't be used: {there} exists, and a backup replaces nothing", "a new name") from None
    except (OSError, UnicodeEncodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise _path(f"can't be written: {why}", "a new file in a directory of yours") from None
    return wire.BackupResult(path=path, bytes=size)


async def check(services: Services, ctx: Context) -> wire.CheckResult:
    """Look at everything; sends wait for a part of it."""
    people_only(ctx)
    report = await services.post.read(services.post.store.check)
    return wire.CheckResult(
        ok=not report.problems,
        messages=report.messages,
        deliveries=report.deliveries,
        unread=report.unread,
        problems=report.problems,
    )


async def prune(services: Services, params: wire.PruneParams, ctx: Context) -> wire.PruneResult:
    """Delete old threads in steps, so that mail goes on in between. Deleting again what is gone does nothing."""
    people_only(ctx)
    now = services.clock.wall()
    threads = messages = size = 0
    after: int | None = 0
    while after is not None:
        step: c.Pruned = await services.post.write(
            c.Prune(now - params.older_than_s, now, after, dry_run=params.dry_run)
        )
        threads, messages, size = threads + step.threads, messages + step.messages, size + step.bytes
        after = step.after
    return wire.PruneResult(threads=threads, messages=messages, bytes=size, dry_run=params.dry_run)


def _path(fault: str, example: str) -> Rejected:
    return Rejected(Code.PARAMETER_INVALID, f"`path` {fault}.", f"For example {example}.", data={"parameter": "path"})
