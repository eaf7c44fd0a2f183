"""evolve and replay: the one place that changes state.

Owns what each event does to the records and their indexes. `evolve` never refuses: whatever is in the log
happened. The functions that make one record from another are shared with the rules, which use them to show
a result before it is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from mbxd.core import events as ev
from mbxd.core.state import (
    HINTS_KEPT,
    LOST_KEPT,
    REPLIES_KEPT,
    SHIMS_KEPT,
    Hold,
    Identity,
    Kept,
    Loss,
    PastHold,
    Project,
    SessionKey,
    State,
)

K = TypeVar("K")


def replay(state: State, history: Iterable[ev.Event]) -> State:
    """Fold events into a state; the state is changed and returned."""
    table = _EVOLVE
    for event in history:
        table[type(event)](state, event)
    return state


def evolve(state: State, event: ev.Event) -> None:
    """Apply one event."""
    _EVOLVE[type(event)](state, event)


def _project_created(state: State, e: ev.ProjectCreated) -> None:
    state.add_project(Project(e.id, e.key, e.slug, e.at))


def _registered(state: State, e: ev.IdentityRegistered) -> None:
    state.add(registered(e))


def registered(e: ev.IdentityRegistered) -> Identity:
    """The record that a registration makes."""
    return Identity(
        id=e.id,
        name=e.name,
        address=e.address,
        role=e.role,
        description=e.description,
        project=e.project,
        created_at=e.at,
        last_active_at=e.at,
        program=e.program,
        model=e.model,
        task_description=e.task_description,
        attachments_policy=e.attachments_policy,
    )


def granted(identity: Identity, e: ev.Granted) -> Identity:
    """The record after a grant."""
    hold = Hold(e.session, e.at, e.shims[-SHIMS_KEPT:], e.provisional)
    return replace(identity, epoch=e.epoch, hold=hold, last_active_at=e.at)


def _granted(state: State, e: ev.Granted) -> None:
    session = e.session
    key = (session.host, session.handle)
    identity = state.identities[e.identity] = granted(state.identities[e.identity], e)
    state.index_hold(identity, key)
    if state.lost:
        state.lost.pop(key, None)
    _remember(state.by_key, key, e.identity)
    for hint in session.hints:
        if not _spoken_for(state, hint, e.identity):
            _remember(state.by_hint, hint, e.identity)


def _spoken_for(state: State, hint: str, identity: int) -> bool:
    """Whether somebody holds another identity with this hint: children inherit hints, and take nothing by them."""
    hold = state.identities[known].hold if (known := state.by_hint.get(hint, 0)) > 0 and known != identity else None
    return hold is not None and hint in hold.session.hints


def _remember(memory: dict[K, int], key: K, identity: int) -> None:
    before = len(memory)
    memory[key] = identity
    if len(memory) == before:
        del memory[key]  # it was known: to the young end
        memory[key] = identity
    elif before >= HINTS_KEPT:
        # An eighth at once: finding a dict's oldest key steps over all that were deleted before it.
        for old in list(islice(memory, HINTS_KEPT // 8)):
            del memory[old]


def _let_go(state: State, number: int, hold: Hold, key: SessionKey) -> None:
    """Note in the memories of its session that it doesn't want the name back by itself."""
    if state.by_key.get(key) == number:
        state.by_key[key] = -number
    for hint in hold.session.hints:
        if state.by_hint.get(hint) == number:
            state.by_hint[hint] = -number


def _shim_attached(state: State, e: ev.ShimAttached) -> None:
    identity = state.identities[e.identity]
    if identity.hold is not None and identity.epoch == e.epoch:
        known = identity.hold.shims
        # The first is the session's own; the others may be sub-agents', which come and go.
        shims = (*known, e.shim) if len(known) < SHIMS_KEPT else (known[0], *known[2:], e.shim)
        state.put(replace(identity, hold=replace(identity.hold, shims=shims), last_active_at=e.at))


def ended(identity: Identity, reason: str, at: float, active_at: float, epoch: int | None = None) -> Identity:
    """The record after its grant ended."""
    past = PastHold(cast("Hold", identity.hold).session, at, reason)
    if epoch is None:
        return replace(identity, hold=None, past=past, last_active_at=active_at)
    return replace(identity, epoch=epoch, hold=None, past=past, last_active_at=active_at)


def _lose(state: State, number: int, key: SessionKey, to: str | None, at: float, how: str) -> None:
    state.lost.pop(key, None)
    state.lost[key] = Loss(number, to, at, how)
    if len(state.lost) > LOST_KEPT:
        del state.lost[next(iter(state.lost))]


def _released(state: State, e: ev.Released) -> None:
    identity = state.identities[e.identity]
    hold = identity.hold
    if hold is not None and identity.epoch == e.epoch:
        key = hold.key
        _let_go(state, identity.id, hold, key)
        state.drop_hold(identity, key)
        state.identities[identity.id] = ended(identity, "released", e.at, e.active_at)


def _holder_ended(state: State, e: ev.HolderEnded) -> None:
    identity = state.identities[e.identity]
    if identity.hold is not None and identity.epoch == e.epoch:
        key = identity.hold.key
        if e.to is not None:
            _lose(state, identity.id, key, e.to, e.at, e.reason)
        state.drop_hold(identity, key)
        state.put(ended(identity, e.reason, e.at, e.active_at))


def _freed(state: State, e: ev.Freed) -> None:
    identity = state.identities[e.identity]
    hold = identity.hold
    if hold is None:
        state.put(replace(identity, epoch=e.epoch))
        return
    key = hold.key
    _lose(state, identity.id, key, None, e.at, "freed")
    _let_go(state, identity.id, hold, key)
    state.drop_hold(identity, key)
    state.put(ended(identity, "freed", e.at, e.active_at, e.epoch))


def _role_set(state: State, e: ev.RoleSet) -> None:
    state.put(replace(state.identities[e.identity], role=e.role, last_active_at=e.at))


def with_retired(identity: Identity, how: str | None) -> Identity:
    """The record put away, or brought back."""
    return replace(identity, retired=how)


def _retired(state: State, e: ev.Retired) -> None:
    state.put(with_retired(state.identities[e.identity], e.how))


def _unretired(state: State, e: ev.Unretired) -> None:
    state.put(with_retired(state.identities[e.identity], None))


def renamed(identity: Identity, name: str, address: str) -> Identity:
    """The record under another name. The old address stays as an alias, and so does the name of an agent, since
    its worker was started with it; a new address is no alias any more.
    """
    aliases = tuple(a for a in (*identity.aliases, identity.address) if a != address)
    former = identity.former if identity.name == identity.address else (*identity.former, identity.name)
    return replace(identity, name=name, address=address, aliases=aliases, former=former)


def _renamed(state: State, e: ev.Renamed) -> None:
    old = state.identities[e.identity]
    state.drop_names(old)
    new = renamed(old, e.name, e.address)
    state.put(new)
    state.index_names(new)


def updated(identity: Identity, e: ev.ProfileUpdated) -> Identity:
    """The record with its new profile."""
    return replace(
        identity,
        program=identity.program if e.program is None else e.program,
        model=identity.model if e.model is None else e.model,
        task_description=identity.task_description if e.task_description is None else e.task_description,
        attachments_policy=identity.attachments_policy if e.attachments_policy is None else e.attachments_policy,
        last_active_at=e.at,
    )


def _profile_updated(state: State, e: ev.ProfileUpdated) -> None:
    state.put(updated(state.identities[e.identity], e))


def _token_rotated(state: State, e: ev.TokenRotated) -> None:
    state.put(replace(state.identities[e.identity], generation=e.generation))


def confirmed(identity: Identity) -> Identity:
    """The record with its grant no longer provisional."""
    return replace(identity, hold=replace(cast("Hold", identity.hold), provisional=False))


def _confirmed(state: State, e: ev.Confirmed) -> None:
    identity = state.identities[e.identity]
    if identity.hold is not None and identity.epoch == e.epoch:
        state.put(confirmed(identity))


def _replied(state: State, e: ev.Replied) -> None:
    kept = state.replies.get(e.instance)
    if kept is None:
        kept = state.replies[e.instance] = {}
    kept[e.request_id] = Kept(e.digest, e.result)
    if len(kept) > REPLIES_KEPT:
        del kept[next(iter(kept))]


def _instances_forgotten(state: State, e: ev.InstancesForgotten) -> None:
    for instance in e.instances:
        state.replies.pop(instance, None)


_EVOLVE: dict[type[Any], Callable[[State, Any], None]] = {
    ev.ProjectCreated: _project_created,
    ev.IdentityRegistered: _registered,
    ev.Granted: _granted,
    ev.ShimAttached: _shim_attached,
    ev.Released: _released,
    ev.HolderEnded: _holder_ended,
    ev.Freed: _freed,
    ev.RoleSet: _role_set,
    ev.Retired: _retired,
    ev.Unretired: _unretired,
    ev.Renamed: _renamed,
    ev.Replied: _replied,
    ev.InstancesForgotten: _instances_forgotten,
    ev.ProfileUpdated: _profile_updated,
    ev.TokenRotated: _token_rotated,
    ev.Confirmed: _confirmed,
}
