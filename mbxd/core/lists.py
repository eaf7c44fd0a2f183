"""The rule of list: which identities a caller is shown, in which order, and what it is told beside them.

Owns `identity.list`. Reads state; never changes anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from mbx_wire.identity import HostInfo, ListParams, ListResult, Lost, Pending
from mbxd.core import naming, view
from mbxd.core.context import Context
from mbxd.core.identity import Decision
from mbxd.core.sessions import Acting, looking, pending
from mbxd.core.state import NO_PROJECT, Identity, State
from mbxd.core.times import iso

ROWS_MAX = 50


class Listing(NamedTuple):
    """What a list shows, before rows are made of it."""

    who: Acting | None
    identities: list[Identity]
    truncated: bool
    warnings: list[str]


def select(state: State, params: ListParams, ctx: Context) -> Listing:
    """Which identities a list shows, in order: yours, vacant with mail, live, the rest by name."""
    who, warnings = looking(state, ctx.caller)
    mine = None if who is None else who.holds
    project = view.project_id(state, ctx)
    projects = list(state.rosters) if params.all else [project]
    if not params.all and ctx.caller.project is not None and project == NO_PROJECT:
        projects = []  # nothing was made in the project yet
    chosen: dict[int, Identity] = {}
    if mine is not None and (params.all or mine.project == project):
        chosen[mine.id] = mine
    for identity in _in_order(state, projects, ctx):
        if len(chosen) > ROWS_MAX:
            break
        chosen.setdefault(identity.id, identity)
    rows = list(islice(chosen.values(), ROWS_MAX))
    return Listing(who, rows, len(chosen) > ROWS_MAX, warnings)


def _in_order(state: State, projects: list[int], ctx: Context) -> Iterator[Identity]:
    wanted = set(projects)
    # A copy: the counts are live, and the writer's thread changes them.
    with_mail = (state.identities[i] for i, n in list(ctx.unread.items()) if n and i in state.identities)
    yield from sorted(
        (i for i in with_mail if i.project in wanted and view.standing(i, ctx).state == "vacant"),
        key=lambda i: i.address,
    )
    held = sorted((state.identities[i] for p in projects for i in state.held.get(p, ())), key=lambda i: i.address)
    yield from (i for i in held if view.standing(i, ctx).state == "live")
    if len(projects) == 1:
        yield from (state.identities[state.by_address[a]] for a in state.roster(projects[0]))
        return
    # Enough of each project to fill the page, merged by name.
    heads = [address for p in projects for address in state.roster(p)[: ROWS_MAX + 1]]
    yield from (state.identities[state.by_address[a]] for a in sorted(heads))


def list_(state: State, params: ListParams, ctx: Context) -> Decision:
    """`identity.list`."""
    listing = select(state, params, ctx)
    rows: list[Any] = [view.row(state, identity, listing.who, ctx) for identity in listing.identities]
    free = (i for i in listing.identities if view.obstacle(i, listing.who, ctx) is None)
    return Decision([], list_result(state, listing, rows, ctx, next(free, None)))


def list_result(
    state: State, listing: Listing, rows: list[Any], ctx: Context, claimable: Identity | None
) -> ListResult:
    """The result around the rows, which may be encoded already. claimable: the first of them that is."""
    who = listing.who
    mine = None if who is None else who.holds
    wish = None if who is None else pending(state, ctx.caller, who, view.project_id(state, ctx))
    shown = None
    if wish is not None:
        free = wish.identity is not None and view.obstacle(wish.identity, who, ctx) is None
        shown = Pending(name=wish.name, why=wish.why, claimable=free)
    loss = None if who is None else state.lost.get(who.key)
    return ListResult(
        action="list",
        host=HostInfo(label=ctx.host_label, container=ctx.container),
        project=view.project_info(state, ctx),
        you=None if mine is None else view.you(state, mine, ctx),
        pending=shown,
        lost=None
        if loss is None
        else Lost(name=state.identities[loss.identity].address, to=loss.to, at=iso(loss.at), how=loss.how),
        identities=rows,
        truncated=listing.truncated,
        warnings=listing.warnings,
        next=_next_after_list(state, listing, shown, ctx, claimable),
    )


def _next_after_list(
    state: State, listing: Listing, wish: Pending | None, ctx: Context, claimable: Identity | None
) -> str | None:
    who = listing.who
    if who is None or who.holds is not None:
        return None
    if wish is not None and wish.claimable:
        return 'mbx_identity {"action":"claim"}'
    if claimable is not None:
        return f'mbx_identity {{"action":"claim","name":"{claimable.address}"}}'
    project = view.project_info(state, ctx)
    name = naming.conventional(None if project is None else project.slug, "backend")
    name = naming.free_variant(name, state.by_address)
    return f'mbx_identity {{"action":"register","name":"{name}","role":"backend"}}'
