"""The rules of the agent tools: create, register, whois, retire, tokens, sweep.

Owns provisional bindings and what a token may do. The registry is one: an identity made here is listed,
claimed and released by the rules of `identity`, and the other way round. Tokens never stand in a result that
is kept: the server adds them to the reply.
"""

from __future__ import annotations

import re

import msgspec

from mbx_wire import agent as wire
from mbx_wire.errors import Code
from mbx_wire.identity import Holder
from mbxd.core import admin, agentnames, evolve, naming, projects, tokens, view
from mbxd.core import events as ev
from mbxd.core.binding import check_epoch
from mbxd.core.context import Context
from mbxd.core.identity import Decision, take
from mbxd.core.rejected import Rejected
from mbxd.core.sessions import Acting, acting
from mbxd.core.state import Identity, State
from mbxd.core.times import iso

SWEEP_MAX = 5_000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def create(state: State, params: wire.CreateAgentParams, ctx: Context) -> Decision:
    """`agent.create`: always a new identity; bound to a session that holds nothing, until its token says otherwise."""
    who = None if ctx.caller.host is None else acting(state, ctx.caller)
    profile = _profile(params)
    project = projects.resolve(state, params.project_key, ctx)
    if params.name_hint is None:
        name = agentnames.draw(state, project.id, ctx.entropy)
    else:
        name = agentnames.check_hint(params.name_hint)
        _refuse_taken(state, project, name)
    return _make(state, name, project, profile, who, ctx, provisional=True)


def register(state: State, params: wire.RegisterAgentParams, ctx: Context) -> Decision:
    """`agent.register`: take or update a known name, or make one."""
    who = None if ctx.caller.host is None else acting(state, ctx.caller)
    profile = _profile(params)
    project = projects.resolve(state, params.project_key, ctx)
    if params.name is None:
        drawn = agentnames.draw(state, project.id, ctx.entropy)
        return _make(state, drawn, project, profile, who, ctx, provisional=False, ignored=params.registration_token)
    known = agentnames.taken(state, project.id, params.name)
    if known is None:
        name = agentnames.check_name(params.name, params.program, params.model, strict=ctx.policy.strict_names)
        return _make(state, name, project, profile, who, ctx, provisional=False, ignored=params.registration_token)
    return _update(state, state.identities[known], params, profile, who, ctx)


def _make(
    state: State,
    name: str,
    project: projects.Found,
    profile: ev.ProfileUpdated,
    who: Acting | None,
    ctx: Context,
    *,
    provisional: bool,
    ignored: str | None = None,
) -> Decision:
    made = ev.IdentityRegistered(
        id=state.next_identity,
        name=name,
        address=agentnames.address_for(state, name, project.slug),
        role=None,
        description=None,
        project=project.id,
        at=ctx.now,
        program=profile.program,
        model=profile.model,
        task_description=profile.task_description or "",
        attachments_policy=profile.attachments_policy or "auto",
    )
    events: list[ev.Event] = [*project.events, made]
    identity = evolve.registered(made)
    warnings = [] if ignored is None else ["`registration_token` was not used: the name is new."]
    bound = who is not None and who.holds is None
    if who is not None and bound:
        identity = take(identity, who, ctx, events, provisional=provisional)
    elif who is not None and who.holds is not None:
        warnings.append(
            f"This session already holds {who.holds.address}: {name} is vacant, for a worker of its own process."
        )
    call = {"project_key": project.slug, "program": made.program, "model": made.model, "name": name}
    handed = provisional or not bound  # made for somebody else, or to be taken later
    following = f"register_agent {msgspec.json.encode(call).decode()}" if handed else None
    return Decision(events, _result(identity, ctx, bound=bound, warnings=warnings, following=following))


def _update(
    state: State,
    identity: Identity,
    params: wire.RegisterAgentParams,
    profile: ev.ProfileUpdated,
    who: Acting | None,
    ctx: Context,
) -> Decision:
    token = params.registration_token
    if token is not None and not tokens.matches(ctx.key, identity.id, identity.generation, token):
        raise _mismatch(state, identity)
    yours = who is not None and who.holds is not None and who.holds.id == identity.id
    if yours:
        check_epoch(identity, ctx)
    else:
        _check_free(state, identity, ctx, token=token is not None)
    if who is not None and who.holds is not None and not yours and token is not None:
        raise _shares_session(who.holds, identity)
    events: list[ev.Event] = []
    warnings: list[str] = []
    after = identity
    bound = yours
    if yours and identity.hold is not None and identity.hold.provisional:
        events.append(ev.Confirmed(identity.id, identity.epoch, ctx.now))
        after = evolve.confirmed(after)
    elif who is not None and who.holds is None:
        over = view.standing(identity, ctx).free_in_s == 0.0
        after = take(after, who, ctx, events, how=None if over else "handed-over")
        bound = True
    elif not yours:
        if after.retired is not None:
            events.append(ev.Unretired(after.id, ctx.now))
            after = evolve.with_retired(after, None)
        if who is not None and who.holds is not None:
            warnings.append(f"This session holds {who.holds.address}: the profile was updated, nothing was taken.")
    change = ev.ProfileUpdated(
        identity.id, profile.program, profile.model, profile.task_description, profile.attachments_policy, ctx.now
    )
    events.append(change)
    after = evolve.updated(after, change)
    return Decision(events, _result(after, ctx, bound=bound, warnings=warnings))


def _check_free(state: State, identity: Identity, ctx: Context, *, token: bool) -> None:
    """Refuse a name that somebody else holds, unless the right token is there and the hold gives way to it."""
    if identity.retired == "retired":
        raise view.retired(state, identity)
    if identity.hold is None:
        return
    stand = view.standing(identity, ctx)
    if stand.free_in_s == 0.0:
        return
    gives_way = identity.hold.provisional or stand.state in {"detached", "unknown"}
    if not (token and gives_way):
        raise view.in_use(identity, identity.hold, stand)


def _mismatch(state: State, identity: Identity) -> Rejected:
    return Rejected(
        Code.TOKEN_MISMATCH,
        f"This is not the registration token of {identity.name}. Nothing was changed.",
        "Use the token that came with the name; a person can see it with: mbxctl token show "
        + state.called(identity, None),
        data={"name": identity.name},
    )


def _shares_session(held: Identity, wanted: Identity) -> Rejected:
    return Rejected(
        Code.HOLDS_ANOTHER,
        f"This session already holds {held.address}; it can't take {wanted.name} as well.",
        "Subagents share this session's mailbox; start workers as their own processes.",
        data={"holds": held.address, "epoch": held.epoch},
    )


def _refuse_taken(state: State, project: projects.Found, name: str) -> None:
    known = agentnames.taken(state, project.id, name)
    if known is not None:
        other = state.identities[known]
        kept = (
            ""
            if other.name.lower() == name.lower()
            else f": {other.name} was called that before, and still answers to it"
        )
        there = "" if other.retired == "retired" else "; to take the existing one use register_agent"
        raise Rejected(
            Code.NAME_TAKEN,
            f"{name} exists already in {project.slug}{kept}.",
            f"Choose another hint or leave it out{there}.",
            data={"name": other.name, "project": project.slug},
        )


def _profile(params: wire.CreateAgentParams | wire.RegisterAgentParams) -> ev.ProfileUpdated:
    for name, value in (("program", params.program), ("model", params.model)):
        check_text(name, value, wire.LABEL_MAX, _LINE)
    if params.task_description is not None:
        check_text("task_description", params.task_description, wire.TASK_MAX, _CONTROL, empty=True)
    return ev.ProfileUpdated(0, params.program, params.model, params.task_description, params.attachments_policy, 0.0)


def check_text(parameter: str, value: str, longest: int, forbidden: re.Pattern[str], *, empty: bool = False) -> None:
    """Refuse text that is empty, too long, or has characters that would break out of a line."""
    if len(value) <= longest and value.isascii() and value.isprintable() and (empty or value.strip()):
        return  # nearly every text
    fault = None
    if not value.strip() and not empty:
        fault = "is empty"
    elif len(value) > longest:
        fault = f"has {len(value)} characters, more than {longest}"
    elif forbidden.search(value):
        fault = "has control characters"
    else:
        naming.check_unicode(value, parameter)
    if fault is not None:
        raise Rejected(
            Code.PARAMETER_INVALID,
            f"`{parameter}` {fault}.",
            f"Give 1 to {longest} characters of plain text.",
            data={"parameter": parameter},
        )


def _result(
    identity: Identity, ctx: Context, *, bound: bool, warnings: list[str], following: str | None = None
) -> wire.AgentResult:
    return wire.AgentResult(
        id=identity.id,
        name=identity.name,
        program=identity.program or "",
        model=identity.model or "",
        task_description=identity.task_description or "",
        inception_ts=iso(identity.created_at),
        last_active_ts=iso(identity.last_active_at),
        project_id=identity.project,
        address=identity.address,
        bound=bound,
        epoch=identity.epoch,
        unread=ctx.unread.get(identity.id, 0),
        warnings=warnings,
        next=following,
    )


# --- whois, retire ------------------------------------------------------------------------------------


def _agent(state: State, project_key: str, name: str, ctx: Context) -> Identity:
    project = projects.existing(state, project_key, ctx)
    number = agentnames.taken(state, project, name)
    # A name with its project means that one, wherever the other names are meant.
    found = state.find(name, project) if "/" in name else state.identities.get(number or 0)
    if found is not None:
        return found
    near = view.near(state, name, project)
    raise Rejected(
        Code.UNKNOWN_IDENTITY,
        f"There is no agent {naming.shown(name)}{'' if '/' in name else f' in {state.slug(project)}'}."
        + (f" Did you mean {' or '.join(near)}?" if near else ""),
        'See them with mbx_identity {"action":"list"}.',
        data={"near": near, "vacant": []},
    )


def whois(state: State, params: wire.WhoisParams, ctx: Context) -> Decision:
    """`agent.whois`. The commits are added by the server, which can read the archive."""
    if not 1 <= params.commit_limit <= wire.COMMITS_MAX:
        raise Rejected(
            Code.PARAMETER_INVALID,
            f"`commit_limit` is {params.commit_limit}: it must be 1 to {wire.COMMITS_MAX}.",
            "For example 5.",
            data={"parameter": "commit_limit"},
        )
    identity = _agent(state, params.project_key, params.agent_name, ctx)
    stand = view.standing(identity, ctx)
    hold = identity.hold if stand.state != "vacant" else None
    result = wire.WhoisResult(
        id=identity.id,
        name=identity.name,
        address=identity.address,
        program=identity.program,
        model=identity.model,
        role=identity.role,
        task_description=identity.task_description or "",
        attachments_policy=identity.attachments_policy or "auto",
        inception_ts=iso(identity.created_at),
        last_active_ts=iso(ctx.active.get(identity.id, identity.last_active_at)),
        project_id=identity.project,
        state=stand.state,
        reason=stand.reason,
        holder=None if hold is None else Holder(**view.holder_data(hold)),
        unread=ctx.unread.get(identity.id, 0),
        recent_commits=None,
        warnings=[],
    )
    return Decision([], result)


def retire(state: State, params: wire.RetireAgentParams, ctx: Context) -> Decision:
    """`agent.retire`: your own or a vacant one."""
    identity = _agent(state, params.project_key, params.agent_name, ctx)
    who = None if ctx.caller.host is None else acting(state, ctx.caller)
    events: list[ev.Event] = []
    if identity.retired != "retired":
        if identity.hold is not None:
            stand = view.standing(identity, ctx)
            yours = who is not None and who.holds is not None and who.holds.id == identity.id
            active = ctx.active.get(identity.id, identity.last_active_at)
            if yours:
                check_epoch(identity, ctx)
                events.append(ev.Released(identity.id, identity.epoch, ctx.now, ctx.now))
            elif stand.state == "vacant":
                events.append(ev.HolderEnded(identity.id, identity.epoch, stand.reason, ctx.now, active))
            else:
                refusal = view.in_use(identity, identity.hold, stand)
                free = f'mbxctl free {state.called(identity, None)} --reason "..."'
                refusal.hint = f"Its own session can retire it; or ask your user to free it first: {free}"
                raise refusal
        events.append(ev.Retired(identity.id, "retired", ctx.now))
    result = wire.RetireResult(
        name=identity.name,
        address=identity.address,
        retired=True,
        warnings=[] if events else ["Nothing was changed: it is retired already."],
        next=None,
    )
    return Decision(events, result)


# --- people: tokens, sweep ----------------------------------------------------------------------------


def token(state: State, params: wire.TokenParams, ctx: Context) -> Decision:
    """`admin.token`: which generation is in force; `rotate` begins the next. The server adds the token."""
    admin.people_only(ctx)
    identity = admin.lookup(state, params.name, ctx)
    generation = identity.generation + (1 if params.rotate else 0)
    events: list[ev.Event] = [ev.TokenRotated(identity.id, generation, ctx.now)] if params.rotate else []
    return Decision(events, wire.TokenResult(id=identity.id, name=identity.name, generation=generation, warnings=[]))


def sweep(state: State, params: wire.SweepParams, ctx: Context) -> Decision:
    """`admin.sweep`: retire what is vacant, has no unread mail and was inactive for long; a claim revives it."""
    admin.people_only(ctx)
    if not params.older_than_s >= 60:
        raise Rejected(
            Code.PARAMETER_INVALID,
            f"`older_than_s` is {params.older_than_s:g}: it must be at least 60 seconds.",
            "For example 86400 for a day.",
            data={"parameter": "older_than_s"},
        )
    project = None if params.project is None else projects.existing(state, params.project, ctx)
    before = ctx.now - params.older_than_s
    events: list[ev.Event] = []
    names: list[str] = []
    for identity in state.identities.values():
        idle = ctx.active.get(identity.id, identity.last_active_at) < before
        if not idle or identity.hold is not None or identity.retired is not None or ctx.unread.get(identity.id):
            continue
        if project is None or identity.project == project:
            names.append(identity.address)
            events.append(ev.Retired(identity.id, "swept", ctx.now))
            if len(events) == SWEEP_MAX:
                break
    more = [f"Only the first {SWEEP_MAX} were taken: repeat for the rest."] if len(events) == SWEEP_MAX else []
    result = wire.SweepResult(swept=names, dry_run=params.dry_run, warnings=more)
    return Decision([] if params.dry_run else events, result)
