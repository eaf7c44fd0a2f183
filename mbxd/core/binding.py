"""The identity that a call acts as: fencing, and the one place where a session takes its name back by itself.

Owns NOT_BOUND and LEASE_LOST. A session that lost a name or let it go never takes it back here.
"""

from __future__ import annotations

import msgspec

from mbx_wire.errors import Code
from mbxd.core import events as ev
from mbxd.core import identity as rules
from mbxd.core import view
from mbxd.core.context import Context
from mbxd.core.identity import Decision
from mbxd.core.rejected import Rejected
from mbxd.core.sessions import Acting, acting, pending
from mbxd.core.state import Identity, State
from mbxd.core.times import iso


class Bind(msgspec.Struct, frozen=True):
    """`internal.bind`: which identity the caller acts as. acts: the call changes something, so it confirms a grant."""

    acts: bool = False


class Bound(msgspec.Struct, frozen=True):
    """The identity and the epoch it is held under."""

    identity: int
    epoch: int


def bind(state: State, params: Bind, ctx: Context) -> Decision:
    """The caller's identity, claimed now when a valid hint or wish waits for it."""
    who = acting(state, ctx.caller)
    if who.holds is not None:
        check_epoch(who.holds, ctx)
        return _held(who.holds, params, ctx)
    loss = state.lost.get(who.key)
    if loss is not None:
        raise lease_lost(state, state.identities[loss.identity], loss.to, loss.at, loss.how)
    return _take_back(state, who, ctx)


def _held(held: Identity, params: Bind, ctx: Context) -> Decision:
    events: list[ev.Event] = []
    if params.acts and held.hold is not None and held.hold.provisional:
        events.append(ev.Confirmed(held.id, held.epoch, ctx.now))
    return Decision(events, Bound(held.id, held.epoch))


def _take_back(state: State, who: Acting, ctx: Context) -> Decision:
    wish = pending(state, ctx.caller, who, view.project_id(state, ctx))
    if wish is None or wish.identity is None:
        waits = "" if wish is None else f" The wished name {wish.name} does not exist."
        raise Rejected(
            Code.NOT_BOUND,
            "This session acts as nobody yet." + waits,
            'Look with mbx_identity {"action":"list"}, then claim or register a mailbox.',
        )
    refusal = view.blocker(state, wish.identity, who, ctx)
    if refusal is not None:
        raise Rejected(
            Code.NOT_BOUND,
            f"This session waits for {wish.name}: {refusal.message}",
            f"{refusal.hint} It is tried again at the next call.",
            retryable=refusal.retryable,
            data={"pending": wish.name, "why": str(refusal.code)},
        )
    claimed = rules.claim_known(state, wish.identity, None, None, who, ctx)
    return Decision(claimed.events, Bound(wish.identity.id, claimed.result.epoch))


def check_epoch(held: Identity, ctx: Context) -> None:
    """Refuse an act on one's own mailbox under an older epoch: LEASE_LOST."""
    if ctx.caller.epoch is not None and ctx.caller.epoch != held.epoch:
        raise Rejected(
            Code.LEASE_LOST,
            f"This call was made under epoch {ctx.caller.epoch}; {held.address} is at {held.epoch} now.",
            'Look again with mbx_identity {"action":"list"}.',
            data={"name": held.address, "to": None, "at": iso(ctx.now), "how": "epoch"},
        )


def lease_lost(state: State, identity: Identity, to: str | None, at: float, how: str) -> Rejected:
    """LEASE_LOST: to whom, when, how, and who has it now."""
    now = "" if identity.hold is None else f" {identity.hold.session.client} holds it now."
    return Rejected(
        Code.LEASE_LOST,
        f"This session lost {identity.address} at {iso(at)} ({how}).{now}",
        'Claim or register a mailbox; look with mbx_identity {"action":"list"}.',
        data={"name": identity.address, "to": to, "at": iso(at), "how": how, "project": state.slug(identity.project)},
    )
