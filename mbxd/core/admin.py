"""The rules of people's levers: show, free, retire, unretire, rename.

Owns what a person may do to a mailbox. Beneath an agent CLI all changes are refused: an agent must not free
itself a name.
"""

from __future__ import annotations

from mbx_wire.admin import AdminResult, FreeParams, NameOnlyParams, RenameParams, ShowParams, ShowResult
from mbx_wire.errors import Code
from mbxd.core import events as ev
from mbxd.core import evolve, naming, view
from mbxd.core.context import Context
from mbxd.core.identity import Decision
from mbxd.core.rejected import Rejected
from mbxd.core.sessions import looking
from mbxd.core.state import Identity, State

REASON_MAX = 200


def lookup(state: State, name: str, ctx: Context) -> Identity:
    """The identity of this name; UNKNOWN_IDENTITY with near names otherwise."""
    project = view.project_id(state, ctx)
    found = state.find(name, project)
    if found is not None:
        return found
    near = view.near(state, name, project)
    raise Rejected(
        Code.UNKNOWN_IDENTITY,
        f"There is no mailbox {naming.shown(name)}." + (f" Did you mean {' or '.join(near)}?" if near else ""),
        "See all with: mbxctl list --all",
        data={"near": near, "vacant": []},
    )


def show(state: State, params: ShowParams, ctx: Context) -> Decision:
    """`identity.show`."""
    identity = lookup(state, params.name, ctx)
    who, warnings = looking(state, ctx.caller)
    shown = view.row(state, identity, who, ctx)
    return Decision(
        [],
        ShowResult(identity=shown, epoch=identity.epoch, aliases=list(identity.aliases), warnings=warnings),
    )


def free(state: State, params: FreeParams, ctx: Context) -> Decision:
    """`admin.free`: vacant at once, epoch + 1; the holder is fenced and told."""
    people_only(ctx)
    identity = lookup(state, params.name, ctx)
    if not params.reason.strip():
        raise Rejected(
            Code.PARAMETER_INVALID,
            "`reason` is empty: it is kept in the history, and the holder is told.",
            f'For example: mbxctl free {view.called(state, identity, ctx)} --reason "its terminal hangs"',
            data={"parameter": "reason"},
        )
    reason = naming.check_description(params.reason[:REASON_MAX])
    if identity.hold is None:
        return _unchanged(state, identity, ctx, "nobody holds it")
    active = ctx.active.get(identity.id, identity.last_active_at)
    freed = ev.Freed(identity.id, identity.epoch + 1, reason, ctx.now, active)
    after = evolve.ended(identity, "freed", ctx.now, active, freed.epoch)
    return Decision([freed], _changed(state, after, ctx))


def retire(state: State, params: NameOnlyParams, ctx: Context) -> Decision:
    """`admin.retire`: put a vacant mailbox away until a person brings it back."""
    people_only(ctx)
    identity = lookup(state, params.name, ctx)
    if identity.retired == "retired":
        return _unchanged(state, identity, ctx, "it is retired already")
    events, identity = end_if_gone(identity, ctx)
    if identity.hold is not None:
        refusal = view.in_use(identity, identity.hold, view.standing(identity, ctx))
        refusal.hint = f'Free it first: mbxctl free {view.called(state, identity, ctx)} --reason "..."'
        raise refusal
    after = evolve.with_retired(identity, "retired")
    return Decision([*events, ev.Retired(identity.id, "retired", ctx.now)], _changed(state, after, ctx))


def unretire(state: State, params: NameOnlyParams, ctx: Context) -> Decision:
    """`admin.unretire`: bring a retired or swept mailbox back."""
    people_only(ctx)
    identity = lookup(state, params.name, ctx)
    if identity.retired is None:
        return _unchanged(state, identity, ctx, "it is not retired")
    after = evolve.with_retired(identity, None)
    return Decision([ev.Unretired(identity.id, ctx.now)], _changed(state, after, ctx))


def rename(state: State, params: RenameParams, ctx: Context) -> Decision:
    """`admin.rename`: another name; mail, holder and epoch stay, the old address leads to it as an alias."""
    people_only(ctx)
    identity = lookup(state, params.name, ctx)
    to = naming.check_address(params.to)
    # An agent's name may look like an address and be none: `a--b` has the address `a-b`.
    taken = state.by_address.get(to, state.by_agent_name.get((identity.project, to)))
    if taken is not None and taken != identity.id:
        other = state.identities[taken]
        alias = (
            "" if to in (other.address, other.name.lower()) else f" (an older name of {view.called(state, other, ctx)})"
        )
        raise Rejected(
            Code.NAME_TAKEN,
            f"{to}{alias} exists already.",
            "Choose another name; nothing was changed.",
            data={
                "name": other.address,
                "project": state.slug(other.project),
                "state": view.standing(other, ctx).state,
            },
        )
    if to == identity.address:
        return _unchanged(state, identity, ctx, "that is its name already")
    after = evolve.renamed(identity, to, to)
    return Decision([ev.Renamed(identity.id, to, to, ctx.now)], _changed(state, after, ctx))


def end_if_gone(identity: Identity, ctx: Context) -> tuple[list[ev.Event], Identity]:
    """The end of a grant whose holder is proven gone but not logged as such yet."""
    if identity.hold is None or view.standing(identity, ctx).state != "vacant":
        return [], identity
    reason = str(view.standing(identity, ctx).reason)
    active = ctx.active.get(identity.id, identity.last_active_at)
    gone = ev.HolderEnded(identity.id, identity.epoch, reason, ctx.now, active)
    return [gone], evolve.ended(identity, reason, ctx.now, active)


def people_only(ctx: Context) -> None:
    """Refuse a caller beneath an agent CLI."""
    # A caller with a host process is a session, whatever program it is: no agent frees itself a name.
    if ctx.caller.beneath_agent or ctx.caller.host is not None:
        raise Rejected(
            Code.NOT_ALLOWED,
            "This lever is for people: it is refused beneath an agent CLI.",
            "Ask your user to run it in a terminal of their own.",
        )


def _changed(state: State, after: Identity, ctx: Context) -> AdminResult:
    return AdminResult(identity=view.row(state, after, None, ctx), epoch=after.epoch, changed=True, warnings=[])


def _unchanged(state: State, identity: Identity, ctx: Context, why: str) -> Decision:
    shown = view.row(state, identity, None, ctx)
    warning = f"Nothing was changed: {why}."
    return Decision([], AdminResult(identity=shown, epoch=identity.epoch, changed=False, warnings=[warning]))
