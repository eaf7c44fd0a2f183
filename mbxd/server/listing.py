"""Lists, with rows kept in encoded form.

Owns the cache of encoded rows. A row is reused only while everything that it shows is the very same: the
record, the evidence, the last act, the caller's kind. The rules themselves are the core's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from mbx_wire.identity import ListParams, ListResult
from mbxd.core import identity as rules
from mbxd.core import view
from mbxd.core.context import Context
from mbxd.core.liveness import Evidence, Policy
from mbxd.core.sessions import Acting
from mbxd.core.state import Identity, State

ROWS_KEPT = 4096


class _Kept(NamedTuple):
    record: Identity
    evidence: Evidence | None
    active: float | None
    unread: int
    policy: Policy
    claimable: bool
    raw: msgspec.Raw


class Rows:
    """Makes list results."""

    def __init__(self, state: State) -> None:
        """`state`: the live registry."""
        self._state = state
        self._kept: dict[tuple[int, bool], _Kept] = {}
        self._encode = msgspec.json.Encoder().encode

    def list(self, params: ListParams, ctx: Context) -> tuple[ListResult, list[int]]:
        """The result of identity.list, and the ids of what it shows."""
        listing = rules.select(self._state, params, ctx)
        who = listing.who
        kept = [self._row(identity, who, ctx) for identity in listing.identities]
        rows: list[Any] = [row.raw for row in kept]
        ids = [identity.id for identity in listing.identities]
        if who is not None and who.holds is not None:
            ids.append(who.holds.id)
        elif who is not None:
            # That it holds nothing shows the end of what it held last, wherever that is.
            ids.append(abs(self._state.by_key.get(who.key, 0)))
        loss = None if who is None else self._state.lost.get(who.key)
        if loss is not None:
            ids.append(loss.identity)
        claimable = next((row.record for row in kept if row.claimable), None)
        return rules.list_result(self._state, listing, rows, ctx, claimable), ids

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
