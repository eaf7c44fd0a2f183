"""The rules of claim, register and release. Those of list are in `lists`.

Owns what `mbx_identity` may do. Reads state, returns events and a result; never changes anything.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from mbx_wire.errors import Code
from mbx_wire.identity import (
    ClaimParams,
    ClaimResult,
    Predecessor,
    RegisterParams,
    ReleaseParams,
    ReleaseResult,
)
from mbxd.core import advice, evolve, naming, view
from mbxd.core import events as ev
from mbxd.core.context import Context
from mbxd.core.liveness import Standing
from mbxd.core.rejected import Rejected
from mbxd.core.sessions import Acting, acting, held_last, pending
from mbxd.core.state import NO_PROJECT, Identity, State
from mbxd.core.times import iso


class Decision(NamedTuple):
    """What a rule decided: events to log, in order, and the result for the caller."""

    events: list[ev.Event]
    result: Any


# --- claim --------------------------------------------------------------------------------------------


def claim(state: State, params: ClaimParams, ctx: Context) -> Decision:
    """`identity.claim`: take a mailbox that is there, or make one when the name is plainly new."""
    who = acting(state, ctx.caller)
    role = None if params.role is None else naming.check_role(params.role)
    description = None if params.description is None else naming.check_description(params.description)
    found = params.name or _unnamed(state, role, who, ctx)
    if isinstance(found, str):
        project = view.project_id(state, ctx)
        name, known = found, state.find(found, project)
        if known is None and "/" in name:
            raise view.unknown_there(state, name, project)
        if known is None:
            naming.check_address(name)
            return _claim_unknown(state, name, role, description, who, ctx)
        found = known
    return claim_known(state, found, role, description, who, ctx)


def claim_known(
    state: State, identity: Identity, role: str | None, description: str | None, who: Acting, ctx: Context
) -> Decision:
    """Take this mailbox. Not by its name: the same word may mean another one in the caller's project."""
    refusal = view.blocker(state, identity, who, ctx, role=role is not None)
    if refusal is not None:
        raise refusal
    _check_same_role(state, identity, role, who, ctx)
    warnings = _foreign_project(state, identity, ctx)
    if description is not None:
        warnings.append("`description` was not used: the mailbox exists.")
    return grant(state, identity, who, ctx, action="claim", role=role, warnings=warnings)


def _unnamed(state: State, role: str | None, who: Acting, ctx: Context) -> Identity | str:
    """What a claim without a name means; a name where a wish is for a mailbox that doesn't exist."""
    if who.holds is not None:
        return who.holds
    project = view.project_id(state, ctx)
    wish = pending(state, ctx.caller, who, project)
    if wish is not None:
        return wish.identity or wish.name
    last = held_last(state, who.session, project)
    if last is not None:
        return last
    # Only what the call below gives: those of this role or none, or those that need none; else those that need one.
    if role is not None:
        vacant = advice.vacant(state, ctx, lambda i: i.role in {role, None})
        needed, like = role, f' with the role "{role}" or none'
    else:
        vacant = advice.vacant(state, ctx, lambda i: view.obstacle(i, who, ctx) is None)
        needed, like = None, ""
        if not vacant:
            vacant = advice.vacant(state, ctx, lambda i: i.role is None)
            needed, like = advice.ANY_ROLE, " without a role" if vacant else ""
    raise Rejected(
        Code.NAME_REQUIRED,
        "This session held nothing before, so claim needs a name."
        + (f" Vacant here{like}: {', '.join(vacant)}." if vacant else f" Nothing{like} is vacant here."),
        f"Claim one: {advice.claim(vacant[0], needed)}."
        if vacant
        else f"Register one: {advice.register(state, role or advice.ANY_ROLE, ctx)}.",
        data={"vacant": vacant},
    )


def _check_same_role(state: State, identity: Identity, role: str | None, who: Acting, ctx: Context) -> None:
    if role is not None and identity.role is not None and role != identity.role:
        # Who holds one, this one by then, can't register another.
        other = "" if who.holds is not None else f" Or register another: {advice.register(state, role, ctx)}."
        raise Rejected(
            Code.ROLE_MISMATCH,
            f'{identity.address} has the role "{identity.role}", not "{role}".',
            f"Claim it without a role: {advice.claim(view.called(state, identity, ctx), None)}.{other}",
            data={"role": identity.role},
        )


def _foreign_project(state: State, identity: Identity, ctx: Context) -> list[str]:
    wanted = ctx.caller.project
    here = NO_PROJECT if wanted is None else state.project_by_key.get(wanted.key, -1)
    if identity.project == here:
        return []
    where = state.slug(identity.project) or "no project"
    return [f"{identity.address} belongs to another project ({where})."]


def _claim_unknown(
    state: State, name: str, role: str | None, description: str | None, who: Acting, ctx: Context
) -> Decision:
    project = view.project_id(state, ctx)
    slug = state.slug(project)
    known = ctx.caller.project is None or project != NO_PROJECT
    others = state.roster(project) if known else []
    near = naming.near(name, others, slug)
    vacant = [] if role is None else advice.vacant(state, ctx, lambda i: i.role == role)
    if role is None or near or vacant:
        like = f" Did you mean {' or '.join(near)}?" if near else ""
        same = f' Vacant with the role "{role}": {", ".join(vacant)}.' if vacant else ""
        raise Rejected(
            Code.UNKNOWN_IDENTITY,
            f"There is no mailbox {name}.{like}{same}",
            f"{advice.release_first(who)}Claim one that exists, or make this one: "
            f"{advice.register(state, role or advice.ANY_ROLE, ctx, name)}.",
            data={"near": near, "vacant": vacant},
        )
    if who.holds is not None:
        raise view.holds_another(who.holds, name)
    return _create(state, name, role, description, who, ctx, "claim")


# --- register -----------------------------------------------------------------------------------------


def register(state: State, params: RegisterParams, ctx: Context) -> Decision:
    """`identity.register`: a new mailbox, claimed in the same step; a person makes a vacant one."""
    who = None if ctx.caller.host is None else acting(state, ctx.caller)
    slug = None if (info := view.project_info(state, ctx)) is None else info.slug
    if params.role is None:
        raise Rejected(
            Code.ROLE_REQUIRED,
            "register needs a role: what the mailbox is for.",
            f"{advice.release_first(who)}For example {advice.register(state, advice.ANY_ROLE, ctx, params.name)}.",
        )
    role = naming.check_role(params.role)
    if params.name is None:
        raise Rejected(
            Code.NAME_REQUIRED,
            "register needs a name; none is ever made up for you.",
            f"{advice.release_first(who)}By convention <project>-<role>: {advice.register(state, role, ctx)}.",
        )
    name = naming.check_address(params.name)
    description = None if params.description is None else naming.check_description(params.description)
    taken = state.find(name, view.project_id(state, ctx))
    if taken is not None and who is not None and who.holds is not None and who.holds.id == taken.id:
        _check_same_role(state, taken, role, who, ctx)
        return grant(state, taken, who, ctx, action="register", role=role, warnings=[])
    if taken is not None:
        raise _name_taken(state, taken, name, role, slug, who, ctx)
    if who is not None and who.holds is not None:
        raise view.holds_another(who.holds, name)
    return _create(state, name, role, description, who, ctx, "register")


def _name_taken(
    state: State, taken: Identity, name: str, role: str, slug: str | None, who: Acting | None, ctx: Context
) -> Rejected:
    stand = view.standing(taken, ctx)
    obstacle = view.obstacle(taken, who, ctx)
    claimable = obstacle is None
    wanted = naming.conventional(slug, role)
    suggested = naming.free_variant(wanted, state.by_address)
    called = view.called(state, taken, ctx)
    alias = "" if name in (taken.address, taken.name.lower()) else f" (now called {called})"
    refusal = Rejected(
        Code.NAME_TAKEN,
        f"{name}{alias} exists already, in {state.slug(taken.project) or 'no project'}; "
        f"it is {stand.state} ({stand.reason}).",
        f'Claim it: mbx_identity {{"action":"claim","name":"{called}"}}.'
        if claimable
        else f'Register another name, for example "{suggested}".',
        data={
            "name": taken.address,
            "project": state.slug(taken.project),
            "state": stand.state,
            "claimable": claimable,
            "suggested_name": suggested,
        },
    )
    needed = role if obstacle == Code.ROLE_REQUIRED else None
    if who is None:  # a person, who registers and claims nothing
        another = f"Register another name: {advice.register(state, role, ctx)}."
        free = claimable or needed is not None
        refusal.hint = f"It exists, and {advice.claim_by_any(called, needed)}. {another}" if free else another
    elif needed is not None:
        refusal.hint = f"Claim it with your role: {advice.claim(called, needed)}."
    elif who.holds is not None:
        then = "claim it, or register" if obstacle == Code.HOLDS_ANOTHER else "register"
        refusal.hint = f'{advice.release_first(who)}Then {then} another name, for example "{suggested}".'
    return refusal


def _create(
    state: State,
    name: str,
    role: str,
    description: str | None,
    who: Acting | None,
    ctx: Context,
    action: Literal["claim", "register"],
) -> Decision:
    events, project, slug = ensure_project(state, ctx)
    made = ev.IdentityRegistered(state.next_identity, name, name, role, description, project, ctx.now)
    events.append(made)
    identity = evolve.registered(made)
    warnings = []
    if name != naming.conventional(slug, role):
        warnings.append(f"By convention a role mailbox is called {naming.conventional(slug, role)}.")
    if who is not None:
        decision = grant(
            state, identity, who, ctx, action=action, role=None, warnings=warnings, slug=slug, created=True
        )
        return Decision([*events, *decision.events], decision.result)
    shown = view.row(state, identity, None, ctx)
    result = ClaimResult(
        action=action,
        identity=replace(shown, project=slug),
        epoch=0,
        created=True,
        resumed=False,
        unread=0,
        inbox=[],
        predecessor=None,
        warnings=warnings,
        next=f'mbx_identity {{"action":"claim","name":"{name}"}}',
    )
    return Decision(events, result)


def ensure_project(state: State, ctx: Context) -> tuple[list[ev.Event], int, str | None]:
    """Events that make the caller's project if need be, its id and slug."""
    wanted = ctx.caller.project
    if wanted is None:
        return [], NO_PROJECT, None
    found = state.project_by_key.get(wanted.key)
    if found is not None:
        return [], found, state.projects[found].slug
    slug = view.new_slug(state, wanted.slug)
    return [ev.ProjectCreated(state.next_project, wanted.key, slug, ctx.now)], state.next_project, slug


# --- grants -------------------------------------------------------------------------------------------


def grant(
    state: State,
    identity: Identity,
    who: Acting,
    ctx: Context,
    *,
    action: Literal["claim", "register"],
    role: str | None,
    warnings: list[str],
    slug: str | None = None,
    created: bool = False,
) -> Decision:
    """Make the session the holder, or give it the grant that it has."""
    events: list[ev.Event] = []
    yours = who.holds is not None and who.holds.id == identity.id
    predecessor = None if yours else _predecessor(identity, who, ctx)
    resumed = yours or view.resumes(identity, who)
    after = identity
    if not yours:
        after = take(after, who, ctx, events)
    elif identity.hold is not None and identity.hold.provisional:
        events.append(ev.Confirmed(identity.id, identity.epoch, ctx.now))
        after = evolve.confirmed(after)
    if role is not None and after.role is None:
        events.append(ev.RoleSet(identity.id, role, ctx.now))
        after = replace(after, role=role)
    if not ctx.caller.shims:
        warnings = [
            *warnings,
            "No mbx-mcp of this session is running: others may claim it after the detach grace.",
        ]
    # The shim that asks keeps it attached, whatever was known of the session's earlier ones.
    stand = view.standing(identity, ctx) if yours and not ctx.caller.shims else _fresh(ctx)
    shown = view.row(state, after, Acting(who.session, who.key, after), ctx, stand)
    result = ClaimResult(
        action=action,
        identity=shown if slug is None else replace(shown, project=slug),
        epoch=after.epoch,
        created=created,
        resumed=resumed,
        unread=ctx.unread.get(identity.id, 0),
        inbox=[],
        predecessor=predecessor,
        warnings=warnings,
        next=None,
    )
    return Decision(events, result)


def take(
    identity: Identity,
    who: Acting,
    ctx: Context,
    events: list[ev.Event],
    *,
    how: str | None = None,
    provisional: bool = False,
) -> Identity:
    """Make the session the holder: append what happens to `events`, return the record after it.

    An old grant ends first: by proof of death, because its grace is over, or for the reason `how`.
    """
    if identity.hold is not None:
        stand = view.standing(identity, ctx)
        active = ctx.active.get(identity.id, identity.last_active_at)
        gone = stand.state == "vacant"
        reason = stand.reason if gone or how is None else how
        to = None if gone else who.session.client
        events.append(ev.HolderEnded(identity.id, identity.epoch, reason, ctx.now, active, to))
        identity = evolve.ended(identity, reason, ctx.now, active)
    if identity.retired is not None:
        events.append(ev.Unretired(identity.id, ctx.now))
        identity = evolve.with_retired(identity, None)
    granted = ev.Granted(identity.id, identity.epoch + 1, who.session, ctx.caller.shims, ctx.now, provisional)
    events.append(granted)
    return evolve.granted(identity, granted)


def _fresh(ctx: Context) -> Standing:
    if ctx.caller.shims:
        return Standing("live", "held", None)
    return Standing("detached", "detached", ctx.policy.detach_grace)


def _predecessor(identity: Identity, who: Acting, ctx: Context) -> Predecessor | None:
    if identity.hold is not None:
        stand = view.standing(identity, ctx)
        session, ended, reason = identity.hold.session, ctx.now, str(stand.reason)
    elif identity.past is not None:
        session, ended, reason = identity.past.session, identity.past.ended, identity.past.reason
    else:
        return None
    if (session.host, session.handle) == who.key:
        return None
    return Predecessor(
        client=session.client,
        ended=iso(ended),
        reason=reason,
        task_description=identity.task_description,
        last_act_at=iso(ctx.active.get(identity.id, identity.last_active_at)),
    )


# --- release ------------------------------------------------------------------------------------------


def release(state: State, _params: ReleaseParams, ctx: Context) -> Decision:
    """`identity.release`: let go. Nothing held, or a late release of an older epoch, changes nothing."""
    who = acting(state, ctx.caller)
    held = who.holds
    warnings = []
    if held is not None and ctx.caller.epoch is not None and ctx.caller.epoch != held.epoch:
        warnings.append(f"This release was for epoch {ctx.caller.epoch}; {held.address} is at {held.epoch} now.")
        held = None
    if held is None:
        nothing = ReleaseResult(
            action="release", released=None, warnings=warnings, next='mbx_identity {"action":"list"}'
        )
        return Decision([], nothing)
    result = ReleaseResult(
        action="release",
        released=held.address,
        warnings=warnings,
        next=f'mbx_identity {{"action":"claim","name":"{view.called(state, held, ctx)}"}}',
    )
    return Decision([ev.Released(held.id, held.epoch, ctx.now, ctx.now)], result)
