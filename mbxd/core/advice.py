"""Calls that a refusal or a look advises, each so that it works as it stands for the caller who reads it.

Owns those words. Reads state; never changes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from mbxd.core import naming, view
from mbxd.core.context import Context
from mbxd.core.sessions import Acting
from mbxd.core.state import NO_PROJECT, Identity, State

CANDIDATES_MAX = 5
ANY_ROLE = "backend"
"""Named where some role is needed and the caller said none."""


def claim(name: str, role: str | None) -> str:
    """The call by which a session claims this mailbox."""
    given = "" if role is None else f',"role":"{role}"'
    return f'mbx_identity {{"action":"claim","name":"{name}"{given}}}'


def claim_by_any(name: str, role: str | None) -> str:
    """The same for a reader who can't claim, a person: in words, since a call would be told as a command of theirs."""
    given = "" if role is None else f", role={role}"
    return f"any agent may claim it: mbx_identity with action=claim, name={name}{given}"


def register(state: State, role: str, ctx: Context, name: str | None = None) -> str:
    """The call that makes a mailbox for this role: under this name, if it may be one and is free."""
    project = view.project_info(state, ctx)
    if name is None or not naming.is_address(name) or state.find(name, view.project_id(state, ctx)) is not None:
        wanted = naming.conventional(None if project is None else project.slug, role)
        name = naming.free_variant(wanted, state.by_address)
    return f'mbx_identity {{"action":"register","name":"{name}","role":"{role}"}}'


def release_first(who: Acting | None) -> str:
    """What a session that holds a mailbox has to do before it takes another; empty for everybody else."""
    if who is None or who.holds is None:
        return ""
    return f'This session holds {who.holds.address}; release it first: mbx_identity {{"action":"release"}}. '


def vacant(state: State, ctx: Context, fits: Callable[[Identity], bool]) -> list[str]:
    """Addresses of some vacant mailboxes of the caller's project."""
    project = view.project_id(state, ctx)
    if ctx.caller.project is not None and project == NO_PROJECT:
        return []
    free = (
        i.address
        for i in (state.identities[state.by_address[a]] for a in islice(state.roster(project), naming.NEAR_SCANNED))
        if i.retired is None and view.standing(i, ctx).state == "vacant" and fits(i)
    )
    return list(islice(free, CANDIDATES_MAX))
