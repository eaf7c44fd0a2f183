"""Lists, with rows and whole pages kept in encoded form.

Owns the two caches, of what everybody of a kind sees: those who hold a mailbox, who may claim none, and those who
hold none. What only one session sees (its own row; a mailbox that it may claim for having held it last) is made
for each list. A row is kept as long as all that it shows is the very same: the record, its standing, the last act,
the unread count. A page is dropped by any event of its project and holds good only while all else that decides its
order is the same; its rows are then looked at again, one by one. The rules themselves are the core's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from mbx_wire.identity import ListParams, ListResult
from mbxd.core import events as ev
from mbxd.core import lists as rules
from mbxd.core import view
from mbxd.core.context import PERSON, Context
from mbxd.core.events import SessionRef
from mbxd.core.liveness import Evidence, Policy, Standing, assess
from mbxd.core.sessions import Acting, looking
from mbxd.core.state import Identity, State
from mbxd.ports import ProcessId

ROWS_KEPT = 2048
"""Of each kind."""
PAGES_KEPT = 128
UNREAD_COMPARED = 256
"""With more mailboxes with mail than this, comparing them costs more than a page saves."""

_SESSION = SessionRef(ProcessId("", 0, 0, 0, 0), "", "")
_HOLDER = Acting(_SESSION, (_SESSION.host, ""), Identity(0, "", "", None, None, 0, 0.0, 0.0))
"""A session that holds something else than what is shown: no identity has the id 0."""


class _Kept(NamedTuple):
    """shows: the record, its standing (None when nobody holds it: then it is in the record), act, unread count."""

    shows: tuple[Identity, Standing | None, float | None, int]
    claimable: bool
    encoded: bytes


@dataclass(slots=True)
class _Page:
    """Rows of a project in order, and what they were made from beside its records.

    claimable: place of the first row that is. heirs: the sessions and hints that held a mailbox without a role last.
    array: the rows as one JSON array. result: with it, what a session is told of which there is nothing to be said;
    suggested: a name in it that is good while nobody has it. They are made when they are first needed.
    """

    identities: list[Identity]
    ids: list[int]
    rows: list[bytes]
    active: list[float | None]
    claimable: int | None
    truncated: bool
    heirs: set[object]
    held: list[int]
    evidence: list[Evidence | None]
    stands: dict[int, Standing]
    unread: dict[int, int]
    policy: Policy
    array: msgspec.Raw | None = None
    result: msgspec.Raw | None = None
    suggested: str | None = None


class Rows:
    """Makes list results."""

    def __init__(self, state: State) -> None:
        """`state`: the live registry, whose events `on_staged` must be told of."""
        self._state = state
        self._kept: dict[bool, dict[int, _Kept]] = {False: {}, True: {}}
        self._pages: dict[tuple[int, bool], _Page] = {}
        self._encode = msgspec.json.Encoder().encode

    def on_staged(self, _seq: int, event: ev.Event) -> None:
        """Listener of the engine: the pages of the project that an event changed are no more."""
        if not self._pages:
            return
        number = event.id if isinstance(event, ev.IdentityRegistered) else getattr(event, "identity", None)
        if number is None:
            self._pages.clear()
        else:
            project = self._state.identities[number].project
            self._pages.pop((project, False), None)
            self._pages.pop((project, True), None)

    # -- pages -----------------------------------------------------------------------------------------------

    def _page(self, projects: Collection[int], who: Acting | None, ctx: Context) -> _Page:
        """The page of one project, kept or made; its rows are as they are now, but for the caller's own."""
        holds = None if who is None else who.holds
        key = (next(iter(projects)), holds is not None)
        page = self._pages.get(key)
        if page is None or not self._holds_good(page, ctx):
            page = self._make(projects, who, ctx)
            # One who is gone, but not yet in the log, is shown as gone now, each time.
            gone = any(stand.state == "vacant" for stand in page.stands.values())
            if len(page.unread) <= UNREAD_COMPARED and not gone:
                if len(self._pages) >= PAGES_KEPT:
                    self._pages.clear()
                self._pages[key] = page
            return page
        active = list(map(ctx.active.get, page.ids))
        if holds is not None and holds.id in page.ids:
            place = page.ids.index(holds.id)
            active[place] = page.active[place]  # not to be shown, and it changes with each call of its holder
        if active != page.active:
            self._renew(page, active, ctx, holds=holds is not None)
        return page

    def _holds_good(self, page: _Page, ctx: Context) -> bool:
        # Everyone held in the project decides the order, shown or not; and so does all mail.
        if page.policy is not ctx.policy or page.unread != ctx.unread:
            return False
        evidence = list(map(ctx.evidence, page.held))
        if evidence == page.evidence:
            return True
        # Evidence that ages differs each time, but may say the same.
        return list(page.stands.values()) == _stands(self._state, page.held, evidence, ctx.policy)

    def _make(self, projects: Collection[int], who: Acting | None, ctx: Context) -> _Page:
        # What it is made from is read before it is: what changes meanwhile makes the page unlike it.
        state = self._state
        unread = dict(ctx.unread)
        held = [i for project in projects for i in state.held.get(project, ())]
        evidence = list(map(ctx.evidence, held))
        stands: dict[int, Standing] = dict(zip(held, _stands(state, held, evidence, ctx.policy), strict=True))

        def stand(identity: Identity) -> Standing:
            return stands.get(identity.id) or assess(identity, None, ctx.policy)

        identities, truncated = rules.in_order(state, projects, unread, stand)
        ids = [identity.id for identity in identities]
        active = list(map(ctx.active.get, ids))
        still = Context(PERSON, ctx.now, ctx.policy, active=ctx.active, unread=unread)
        holds = who is not None and who.holds is not None
        rows = self._rows(identities, stands, still, holds=holds)
        return _Page(
            identities,
            ids,
            [row.encoded for row in rows],
            active,
            next((place for place, row in enumerate(rows) if row.claimable), None),
            truncated,
            _heirs(identities),
            held,
            evidence,
            stands,
            unread,
            ctx.policy,
        )

    def _renew(self, page: _Page, active: list[float | None], ctx: Context, *, holds: bool) -> None:
        """Make the rows anew whose last act is another one by now."""
        still = Context(PERSON, ctx.now, ctx.policy, active=ctx.active, unread=page.unread)
        for place, (now, before) in enumerate(zip(active, page.active, strict=True)):
            if now != before:
                [row] = self._rows([page.identities[place]], page.stands, still, holds=holds)
                page.rows[place] = row.encoded
        page.active = active
        page.array = page.result = None

    # -- rows ------------------------------------------------------------------------------------------------

    def _arrange(
        self, page: _Page, projects: Collection[int], who: Acting | None, ctx: Context
    ) -> tuple[msgspec.Raw, int | None]:
        """The rows as this caller sees them, as a JSON array, and the place of the first that it may claim."""
        mine = None if who is None else who.holds
        if mine is not None and mine.project in projects:
            place = page.ids.index(mine.id) if mine.id in page.ids else None
            return _array(rules.own_first(self._encode(view.row(self._state, mine, who, ctx)), page.rows, place)), None
        if who is not None and mine is None and _is_heir(page, who):
            return self._as_heir(page, who, ctx)
        if page.array is None:
            page.array = _array(page.rows)
        return page.array, page.claimable

    def _as_heir(self, page: _Page, who: Acting, ctx: Context) -> tuple[msgspec.Raw, int | None]:
        """The same for a session that may claim what others may not, since it held it last."""
        rows, claimable = page.rows.copy(), [] if page.claimable is None else [page.claimable]
        for place, identity in enumerate(page.identities):
            if identity.role is None and view.resumes(identity, who):
                row = view.row(self._state, identity, who, ctx)
                rows[place] = self._encode(row)
                if row.claimable:
                    claimable.append(place)
        return _array(rows), min(claimable, default=None)

    def _rows(
        self, identities: list[Identity], stands: dict[int, Standing], ctx: Context, *, holds: bool
    ) -> list[_Kept]:
        """The rows as everybody sees them who holds something else, or nothing. stands: of all that are held; ctx:
        with counts that stand still.
        """
        kept = self._kept[holds]
        stand_of, active_of, unread_of = stands.get, ctx.active.get, ctx.unread.get
        rows = []
        for identity in identities:
            number = identity.id
            shows = (identity, stand_of(number), active_of(number), unread_of(number, 0))
            row = kept.get(number)
            if row is None or row.shows != shows:
                row = self._row(shows, ctx, holds=holds)
            rows.append(row)
        return rows

    def _row(self, shows: tuple[Identity, Standing | None, float | None, int], ctx: Context, *, holds: bool) -> _Kept:
        identity, stand, _, _ = shows
        row = view.row(self._state, identity, _HOLDER if holds else None, ctx, stand)
        made = _Kept(shows, row.claimable, self._encode(row))
        if stand is None or stand.state != "vacant":  # one who is gone, but not yet in the log, is gone now, each time
            kept = self._kept[holds]
            if len(kept) >= ROWS_KEPT:
                kept.clear()
            kept[identity.id] = made
        return made

    # -- results ---------------------------------------------------------------------------------------------

    def list(self, params: ListParams, ctx: Context) -> tuple[ListResult | msgspec.Raw, list[int]]:
        """The result of identity.list, encoded or not, and the ids of what it shows."""
        state = self._state
        who, warnings = looking(state, ctx.caller)
        projects = rules.scope(state, params, ctx)
        # A page that is kept is told as a whole, so it is one project's, that is there.
        one = len(projects) == 1 and not params.all
        page = self._page(projects, who, ctx) if one else self._make(projects, who, ctx)
        ids = page.ids.copy()
        loss = None
        if who is not None:
            # That it holds nothing shows the end of what it held last, wherever that is.
            ids.append(abs(state.by_key.get(who.key, 0)) if who.holds is None else who.holds.id)
            loss = state.lost.get(who.key)
            if loss is not None:
                ids.append(loss.identity)
        if who is None or loss is not None or not self._unremarkable(page, who, ctx):
            return self._result(page, projects, who, warnings, ctx), ids
        if page.result is None or page.suggested in state.by_address:
            page.suggested = rules.free_name(state, ctx) if page.claimable is None else None
            page.result = msgspec.Raw(self._encode(self._result(page, projects, who, warnings, ctx)))
        return page.result, ids

    def _unremarkable(self, page: _Page, who: Acting, ctx: Context) -> bool:
        """Whether the session holds nothing, wants nothing and was the holder of nothing here that it alone may claim:
        nothing in the result is about it.
        """
        return (
            who.holds is None
            and ctx.container is None
            and not _is_heir(page, who)
            and view.wished(self._state, who, ctx) is None
        )

    def _result(
        self, page: _Page, projects: Collection[int], who: Acting | None, warnings: Sequence[str], ctx: Context
    ) -> ListResult:
        array, claimable = self._arrange(page, projects, who, ctx)
        free = None if claimable is None else page.identities[claimable]
        listing = rules.Listing(who, page.truncated, [*warnings], free)
        return rules.list_result(self._state, listing, array, ctx)


def _stands(state: State, held: list[int], evidence: list[Evidence | None], policy: Policy) -> list[Standing]:
    return [assess(state.identities[i], seen, policy) for i, seen in zip(held, evidence, strict=True)]


def _array(rows: list[bytes]) -> msgspec.Raw:
    return msgspec.Raw(b"[" + b",".join(rows) + b"]")


def _is_heir(page: _Page, who: Acting) -> bool:
    return bool(page.heirs) and not page.heirs.isdisjoint((who.key, *who.session.hints))


def _heirs(identities: list[Identity]) -> set[object]:
    found: set[object] = set()
    for identity in identities:
        last = None if identity.role is not None else view.last_session(identity)
        if last is not None:
            found.update(((last.host, last.handle), *last.hints))
    return found
