"""How an identity looks to a caller: rows, and the one function that says whether a claim would work.

Owns `blocker`, which `claim` runs and `claimable` shows, so the two can't disagree.
"""

from __future__ import annotations

import math
from typing import Any, cast

from mbx_wire.errors import Code
from mbx_wire.identity import Holder, LastHolder, Pending, ProjectInfo, Row, You
from mbxd.core import naming
from mbxd.core.context import Context
from mbxd.core.events import SessionRef
from mbxd.core.liveness import Standing, assess
from mbxd.core.rejected import Rejected
from mbxd.core.sessions import Acting, Wish, pending
from mbxd.core.state import NO_PROJECT, NOWHERE, Hold, Identity, State
from mbxd.core.times import iso


def standing(identity: Identity, ctx: Context) -> Standing:
    """State, reason and waiting time now."""
    return assess(identity, None if identity.hold is None else ctx.evidence(identity.id), ctx.policy)


def blocker(
    state: State, identity: Identity, who: Acting | None, ctx: Context, *, role: bool = False
) -> Rejected | None:
    """Why a claim by this session with nothing but the name would be refused now; None when it would work.

    who: None for a caller without a session, who is judged as a fresh one would be. role: a role is given too.
    """
    match obstacle(identity, who, ctx, role=role):
        case None:
            return None
        case Code.RETIRED:
            return retired(state, identity)
        case Code.HOLDS_ANOTHER if who is not None and who.holds is not None:
            return holds_another(who.holds, identity.address)
        case Code.ROLE_REQUIRED:
            return role_required(called(state, identity, ctx))
        case _:
            return in_use(identity, cast("Hold", identity.hold), standing(identity, ctx))


def obstacle(
    identity: Identity, who: Acting | None, ctx: Context, *, role: bool = False, stand: Standing | None = None
) -> Code | None:
    """The code of `blocker`, without its words: lists ask for every row. stand: its standing, if it is known."""
    mine = None if who is None else who.holds
    if mine is not None and mine.id == identity.id:
        return None
    if identity.retired == "retired":
        return Code.RETIRED
    if identity.hold is not None and (stand or standing(identity, ctx)).free_in_s != 0.0:
        return Code.IDENTITY_IN_USE
    if mine is not None:
        return Code.HOLDS_ANOTHER
    if identity.role is None and not role and (who is None or not resumes(identity, who)):
        return Code.ROLE_REQUIRED
    return None


def last_session(identity: Identity) -> SessionRef | None:
    """The session that holds it or held it last, if any did."""
    if identity.hold is not None:
        return identity.hold.session
    return None if identity.past is None else identity.past.session


def resumes(identity: Identity, who: Acting) -> bool:
    """Whether this session, or one of its hints, is or was the last holder."""
    last = last_session(identity)
    if last is None:
        return False
    same = (last.host, last.handle) == who.key
    return same or any(hint in last.hints for hint in who.session.hints)


def in_use(identity: Identity, hold: Hold, stand: Standing) -> Rejected:
    """IDENTITY_IN_USE: who, since when, and what to do."""
    wait = _wait(stand)
    since = iso(hold.since)
    message = (
        f"{identity.address} is held by {hold.session.client} (pid {hold.session.host.pid}) since {since}; "
        f"it is {stand.state} ({stand.reason})."
    )
    if wait is None:
        hint = "A live holder is not displaced: ask your user, or register another name."
    else:
        hint = f"Unless its session comes back, it can be claimed in {wait:.0f} s; or register another name."
    data = {
        "name": identity.address,
        "holder": holder_data(hold),
        "since": since,
        "state": stand.state,
        "claimable_in_s": wait,
    }
    return Rejected(Code.IDENTITY_IN_USE, message, hint, retryable=wait is not None, data=data)


def holds_another(held: Identity, wanted: str) -> Rejected:
    """HOLDS_ANOTHER: one session, one identity."""
    return Rejected(
        Code.HOLDS_ANOTHER,
        f"This session already holds {held.address}; it can't take {wanted} as well.",
        'Release it first: mbx_identity {"action":"release"}; or start another agent for the other mailbox.',
        data={"holds": held.address, "epoch": held.epoch},
    )


def role_required(name: str) -> Rejected:
    """ROLE_REQUIRED: the mailbox has none yet."""
    return Rejected(
        Code.ROLE_REQUIRED,
        f"{name} needs a role.",
        f'Give one: mbx_identity {{"action":"claim","name":"{name}","role":"backend"}}.',
    )


def retired(state: State, identity: Identity) -> Rejected:
    """RETIRED: put away on purpose."""
    person = state.called(identity, None)  # who types it may be anywhere
    return Rejected(
        Code.RETIRED,
        f"{identity.address} was retired on purpose.",
        f"A person can bring it back with: mbxctl unretire {person}. Or register another name.",
    )


def _wait(stand: Standing) -> float | None:
    """Seconds until time alone lets others claim, in tenths and never too few; None for never."""
    return None if stand.free_in_s is None else math.ceil(stand.free_in_s * 10) / 10


def holder_data(hold: Hold) -> dict[str, Any]:
    """The holder as error data."""
    return {
        "client": hold.session.client,
        "session": hold.session.handle or None,
        "pid": hold.session.host.pid,
        "since": iso(hold.since),
    }


def row(state: State, identity: Identity, who: Acting | None, ctx: Context, stand: Standing | None = None) -> Row:
    """The identity as this caller sees it. `stand` overrides the evidence (for a grant that is just being made)."""
    stand = stand or standing(identity, ctx)
    yours = who is not None and who.holds is not None and who.holds.id == identity.id
    refusal = obstacle(identity, who, ctx, stand=stand)
    hold, past = identity.hold, identity.past
    # A holder that is proven gone is no holder any more, even before that is in the log.
    shown = hold if stand.state != "vacant" else None
    # In the order of the fields: a list has fifty rows, and by their names they take eight times as long.
    return Row(
        identity.id,
        identity.name,
        identity.address,
        state.slug(identity.project),
        identity.role,
        identity.description,
        stand.state,
        "yours" if yours and stand.state == "live" else stand.reason,
        refusal is None,  # claimable
        None if refusal is None else refusal.value,  # claim_error
        _wait(stand) if refusal is Code.IDENTITY_IN_USE else None,  # claimable_in_s
        ctx.unread.get(identity.id, 0),
        None if shown is None else _holder(shown),
        _last_holder(identity, stand, ctx) if past is not None or shown is not hold else None,
        identity.program,
        identity.model,
        identity.task_description,
        iso(identity.created_at),
        iso(ctx.active.get(identity.id, identity.last_active_at)),
    )


def _holder(hold: Hold) -> Holder:
    session = hold.session
    return Holder(session.client, session.handle or None, session.host.pid, iso(hold.since))


def _last_holder(identity: Identity, stand: Standing, ctx: Context) -> LastHolder | None:
    if stand.state == "vacant" and identity.hold is not None:
        session = identity.hold.session
        return LastHolder(session.client, session.host.pid, iso(ctx.now), stand.reason)
    past = identity.past
    if past is None:
        return None
    return LastHolder(past.session.client, past.session.host.pid, iso(past.ended), past.reason)


def you(state: State, identity: Identity, ctx: Context) -> You:
    """What the caller holds."""
    return You(
        name=identity.name,
        address=identity.address,
        role=identity.role,
        project=state.slug(identity.project),
        epoch=identity.epoch,
        unread=ctx.unread.get(identity.id, 0),
    )


def wished(state: State, who: Acting | None, ctx: Context) -> Wish | None:
    """What the caller would take by itself."""
    return None if who is None else pending(state, ctx.caller, who, project_id(state, ctx))


def waits_for(state: State, who: Acting | None, ctx: Context) -> Pending | None:
    """The same as results show it: also whether a claim of it would work now."""
    wish = wished(state, who, ctx)
    if wish is None:
        return None
    free = wish.identity is not None and obstacle(wish.identity, who, ctx) is None
    return Pending(name=wish.name, why=wish.why, claimable=free)


def project_id(state: State, ctx: Context) -> int:
    """The caller's project, NO_PROJECT when it has none or nothing was made in it yet."""
    wanted = ctx.caller.project
    return NO_PROJECT if wanted is None else state.project_by_key.get(wanted.key, NO_PROJECT)


def called(state: State, identity: Identity, ctx: Context) -> str:
    """The shortest name that means this identity to the caller."""
    return state.called(identity, project_id(state, ctx))


def near(state: State, word: str, project: int) -> list[str]:
    """Up to three names, as they are called in `project`, that are like one which means nothing there."""
    slug, _, bare = word.rpartition("/")
    where = (NO_PROJECT if slug == NOWHERE else state.slugs.get(slug, -1)) if slug else project
    found = naming.near(bare.lower(), state.roster(where), state.slug(where))
    return [state.called(state.identities[state.by_address[address]], project) for address in found]


def unknown_there(state: State, name: str, project: int) -> Rejected:
    """UNKNOWN_IDENTITY for a name with its project: nothing is made by such a one."""
    like = near(state, name, project)
    return Rejected(
        Code.UNKNOWN_IDENTITY,
        f"There is no mailbox {naming.shown(name)}." + (f" Did you mean {' or '.join(like)}?" if like else ""),
        'See all with mbx_identity {"action":"list","all":true}.',
        data={"near": like, "vacant": []},
    )


def project_info(state: State, ctx: Context) -> ProjectInfo | None:
    """The caller's project, also when nothing was made in it yet."""
    wanted = ctx.caller.project
    if wanted is None:
        return None
    found = state.project_by_key.get(wanted.key)
    if found is not None:
        return ProjectInfo(id=found, key=wanted.key, slug=state.projects[found].slug)
    return ProjectInfo(id=None, key=wanted.key, slug=new_slug(state, wanted.slug))


def new_slug(state: State, wanted: str) -> str:
    """The slug that a new project would get."""
    return naming.free_variant(naming.slug(wanted), state.slugs, naming.SLUG_MAX)
