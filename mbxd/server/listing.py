"""Lists, with rows and whole pages kept in encoded form.

Owns the two caches. A row is reused only while everything that it shows is the very same: the record, the
evidence, the last act, the caller's kind. A page, for callers who hold nothing, is dropped by any event of its
project and reused only while all else that decides rows and order is the same. The rules themselves are the core's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from mbx_wire.identity import ListParams, ListResult
from mbxd.core import events as ev
from mbxd.core import lists as rules
from mbxd.core import view
from mbxd.core.context import Context
from mbxd.core.liveness import Evidence, Policy
from mbxd.core.sessions import Acting, looking
from mbxd.core.state import NO_PROJECT, Identity, State

ROWS_KEPT = 4096
PAGES_KEPT = 256
UNREAD_COMPARED = 256
"""With more mailboxes with mail than this, comparing them costs more than a page saves."""


class _Kept(NamedTuple):
    record: Identity
    evidence: Evidence | None
    active: float | None
    unread: int
    policy: Policy
    claimable: bool
    raw: msgspec.Raw


class _Page(NamedTuple):
    """Rows of a project in order, and what they were made from beside its records."""

    identities: list[Identity]
    rows: list[Any]
    ids: list[int]
    claimable: Identity | None
    truncated: bool
    roleless: list[Identity]
    held: list[int]
    evidence: list[Evidence | None]
    active: list[float | None]
    unread: dict[int, int]
    policy: Policy


class Rows:
    """Makes list results."""

    def __init__(self, state: State) -> None:
        """`state`: the live registry, whose events `on_staged` must be told of."""
        self._state = state
        self._kept: dict[tuple[int, bool], _Kept] = {}
        self._pages: dict[int, _Page] = {}
        self._encode = msgspec.json.Encoder().encode

    def on_staged(self, _seq: int, event: ev.Event) -> None:
        """Listener of the engine: the page of the project that an event changed is no more."""
        if not self._pages:
            return
        number = event.id if isinstance(event, ev.IdentityRegistered) else getattr(event, "identity", None)
        if number is None:
            self._pages.clear()
        else:
            self._pages.pop(self._state.identities[number].project, None)

    def list(self, params: ListParams, ctx: Context) -> tuple[ListResult, list[int]]:
        """The result of identity.list, and the ids of what it shows."""
        state = self._state
        who, warnings = looking(state, ctx.caller)
        project = view.project_id(state, ctx)
        unborn = project == NO_PROJECT and ctx.caller.project is not None
        shared = not params.all and not unborn and (who is None or who.holds is None)
        page = self._pages.get(project) if shared else None
        if page is None or not self._holds_good(page, who, ctx):
            page = self._make(params, ctx, project)
            if shared and len(page.unread) <= UNREAD_COMPARED and not _own(page, who):
                if len(self._pages) >= PAGES_KEPT:
                    self._pages.clear()
                self._pages[project] = page
        ids = page.ids.copy()
        if who is not None and who.holds is not None:
            ids.append(who.holds.id)
        elif who is not None:
            # That it holds nothing shows the end of what it held last, wherever that is.
            ids.append(abs(state.by_key.get(who.key, 0)))
        loss = None if who is None else state.lost.get(who.key)
        if loss is not None:
            ids.append(loss.identity)
        listing = rules.Listing(who, page.identities, page.truncated, warnings)
        return rules.list_result(state, listing, page.rows, ctx, page.claimable), ids

    def _holds_good(self, page: _Page, who: Acting | None, ctx: Context) -> bool:
        # Evidence that ages differs each time, so that a page with it is made anew. It decides the order too, so
        # that of everyone held in the project counts, shown or not; and so does all mail.
        return (
            page.policy is ctx.policy
            and page.unread == ctx.unread
            and page.active == list(map(ctx.active.get, page.ids))
            and page.evidence == list(map(ctx.evidence, page.held))
            and not _own(page, who)
        )

    def _make(self, params: ListParams, ctx: Context, project: int) -> _Page:
        # What it is made from is read before it is: what changes meanwhile makes the page unlike it.
        unread, held = dict(ctx.unread), list(self._state.held.get(project, ()))
        evidence = list(map(ctx.evidence, held))
        listing = rules.select(self._state, params, ctx)
        kept = [self._row(identity, listing.who, ctx) for identity in listing.identities]
        ids = [identity.id for identity in listing.identities]
        return _Page(
            listing.identities,
            [row.raw for row in kept],
            ids,
            next((row.record for row in kept if row.claimable), None),
            listing.truncated,
            [identity for identity in listing.identities if identity.role is None],
            held,
            evidence,
            list(map(ctx.active.get, ids)),
            unread,
            ctx.policy,
        )

    def _row(self, identity: Identity, who: Acting | None, ctx: Context) -> _Kept:
        holds = None if who is None else who.holds
        key = (identity.id, holds is not None)
        evidence = None if identity.hold is None else ctx.evidence(identity.id)
        active = ctx.active.get(identity.id)
        unread = ctx.unread.get(identity.id, 0)
        mine = holds is not None and holds.id == identity.id
        # Its own last mailbox may be claimable for a session where it is not for others.
        mine = mine or (identity.role is None and who is not None and view.resumes(identity, who))
        kept = None if mine else self._kept.get(key)
        if (
            kept is not None
            and kept.record is identity
            and kept.evidence is evidence  # steady evidence is one object; evidence that ages is a new one each time
            and kept.active == active
            and kept.unread == unread
            and kept.policy is ctx.policy
        ):
            return kept
        row = view.row(self._state, identity, who, ctx)
        made = _Kept(identity, evidence, active, unread, ctx.policy, row.claimable, msgspec.Raw(self._encode(row)))
        if mine:
            return made  # only this session sees it like this
        if len(self._kept) >= ROWS_KEPT:
            self._kept.clear()
        self._kept[key] = made
        return made


def _own(page: _Page, who: Acting | None) -> bool:
    """Whether this session may claim a row that others may not: the page is for it alone."""
    return who is not None and any(view.resumes(identity, who) for identity in page.roleless)
