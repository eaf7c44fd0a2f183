"""The rule of list: which identities a caller is shown, in which order, and what it is told beside them.

Owns `identity.list`. Reads state; never changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from mbx_wire.identity import HostInfo, ListParams, ListResult, Lost, Pending
from mbxd.core import naming, view
from mbxd.core.context import Context
from mbxd.core.identity import Decision
from mbxd.core.liveness import Standing
from mbxd.core.sessions import Acting, looking
from mbxd.core.state import NO_PROJECT, Identity, State
from mbxd.core.times import iso

ROWS_MAX = 50

T = TypeVar("T")
_by_address = attrgetter("address")


class Listing(NamedTuple):
    """What is told beside the rows. claimable: the first identity among them that the caller may claim."""

    who: Acting | None
    truncated: bool
    warnings: list[str]
    claimable: Identity | None


def scope(state: State, params: ListParams, ctx: Context) -> Collection[int]:
    """The projects that a list looks into; none when nothing was made in the caller's yet."""
    if params.all:
        return state.rosters.keys()
    project = view.project_id(state, ctx)
    return () if project == NO_PROJECT and ctx.caller.project is not None else (project,)


def in_order(
    state: State, projects: Collection[int], unread: Mapping[int, int], stand: Callable[[Identity], Standing]
) -> tuple[list[Identity], bool]:
    """Identities of these projects, vacant ones with mail first, then live ones, then the rest, each by address:
    ROWS_MAX at most, and whether there are more. stand: how an identity stands now.
    """
    identities = state.identities
    # A copy: the counts are live, and the writer's thread changes them.
    with_mail = [identities[i] for i, count in list(unread.items()) if count and i in identities]
    waiting = [i for i in with_mail if i.project in projects and stand(i).state == "vacant"]
    held = [identities[i] for project in projects for i in state.held.get(project, ())]
    live = [i for i in held if stand(i).state == "live"]
    first = [i.id for group in (waiting, live) for i in sorted(group, key=_by_address)]
    # Enough of each project to fill the page, merged by name.
    heads = [address for project in projects for address in state.roster(project)[: ROWS_MAX + 1]]
    if len(projects) > 1:
        heads.sort()
    chosen = dict.fromkeys([*first, *map(state.by_address.__getitem__, heads)])
    return [identities[i] for i in islice(chosen, ROWS_MAX)], len(chosen) > ROWS_MAX


def own_first(own: T, page: list[T], place: int | None) -> list[T]:
    """The page with the caller's own row at its head. place: where that identity stands in it, if it does."""
    others = page if place is None else page[:place] + page[place + 1 :]
    return [own, *others[: ROWS_MAX - 1]]


def list_(state: State, params: ListParams, ctx: Context) -> Decision:
    """`identity.list`."""
    who, warnings = looking(state, ctx.caller)
    projects = scope(state, params, ctx)
    shown, truncated = in_order(state, projects, ctx.unread, lambda identity: view.standing(identity, ctx))
    mine = None if who is None else who.holds
    if mine is not None and mine.project in projects:
        shown = own_first(mine, shown, shown.index(mine) if mine in shown else None)
    rows: list[Any] = [view.row(state, identity, who, ctx) for identity in shown]
    free = next((i for i in shown if view.obstacle(i, who, ctx) is None), None)
    return Decision([], list_result(state, Listing(who, truncated, warnings, free), rows, ctx))


def list_result(state: State, listing: Listing, rows: Any, ctx: Context) -> ListResult:
    """The result around the rows: a list of them, or the whole array encoded already."""
    who = listing.who
    mine = None if who is None else who.holds
    shown = view.waits_for(state, who, ctx)
    loss = None if who is None else state.lost.get(who.key)
    lost = None
    if loss is not None:
        name = view.called(state, state.identities[loss.identity], ctx)
        lost = Lost(name=name, to=loss.to, at=iso(loss.at), how=loss.how)
    return ListResult(
        "list",
        HostInfo(ctx.host_label, ctx.container),
        view.project_info(state, ctx),
        None if mine is None else view.you(state, mine, ctx),
        shown,
        lost,
        rows,
        listing.truncated,
        listing.warnings,
        _next_after_list(state, listing, shown, ctx),
    )


def _next_after_list(state: State, listing: Listing, wish: Pending | None, ctx: Context) -> str | None:
    who = listing.who
    if who is None or who.holds is not None:
        return None
    if wish is not None and wish.claimable:
        return 'mbx_identity {"action":"claim"}'
    if listing.claimable is not None:
        name = view.called(state, listing.claimable, ctx)
        return f'mbx_identity {{"action":"claim","name":"{name}"}}'
    return f'mbx_identity {{"action":"register","name":"{free_name(state, ctx)}","role":"backend"}}'


def free_name(state: State, ctx: Context) -> str:
    """The address that a caller who may claim nothing is told to register."""
    project = view.project_info(state, ctx)
    name = naming.conventional(None if project is None else project.slug, "backend")
    return naming.free_variant(name, state.by_address)
