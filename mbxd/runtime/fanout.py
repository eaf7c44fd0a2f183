"""Tells subscribers about durable changes and about mail that came.

Owns the list of subscribers and the words for changes. Never waits: a subscriber that can't take a change is
told that its stream ends, and is forgotten; the daemon is never slowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from mbx_wire.admin import Change
from mbx_wire.mail import Arrival
from mbxd.core import addressing
from mbxd.core import events as ev
from mbxd.core.state import Identity, State
from mbxd.core.times import iso

Push = Callable[[bytes], bool]
"""Takes an encoded notification; False when the subscriber can't take more and has been told so."""

_encode = msgspec.json.Encoder().encode


class Notification(msgspec.Struct, frozen=True):
    """A JSON-RPC notification."""

    method: str
    params: Any
    jsonrpc: str = "2.0"


class Fanout:
    """Subscribers of one daemon, by project slug or for the whole host."""

    def __init__(self, state: State, wall: Callable[[], float]) -> None:
        """`state` is read when an event is durable: it may be newer by then, which the reader sees by seq."""
        self._state = state
        self._wall = wall
        self._subscribers: dict[Push, str | None] = {}
        self._counts = {"pushed": 0, "dropped": 0}

    def subscribe(self, push: Push, project: str | None) -> None:
        """Begin to tell; `project` None means everything."""
        self._subscribers[push] = project

    def unsubscribe(self, push: Push) -> None:
        """Stop; unknown ones are ignored."""
        self._subscribers.pop(push, None)

    def on_durable(self, seq: int, event: ev.Event) -> None:
        """Listener of the engine."""
        if not self._subscribers:
            return
        change = describe(self._state, seq, event, self._wall())
        if change is None:
            return
        self._tell(Notification("events.change", change), change.project)

    def on_mail(self, to: int, sender: int, subject: str, kind: str, message: str, unread: int) -> None:
        """Tell of a message that reached a mailbox and is durable. A repeated send may be told of again."""
        if not self._subscribers:
            return
        identity = self._state.identities.get(to)
        # The person's mail is read in any project.
        project = None if identity is None else identity.project
        arrival = Arrival(
            to=addressing.name_of(self._state, to, project),
            from_=addressing.name_of(self._state, sender, project),
            subject=subject,
            kind=kind,
            id=message,
            unread=unread,
            project=None if project is None else self._state.slug(project),
        )
        self._tell(Notification("events.mail", arrival), arrival.project)

    def _tell(self, notification: Notification, where: str | None) -> None:
        line = _encode(notification) + b"\n"
        for push, project in list(self._subscribers.items()):
            if project is not None and project != where:
                continue
            self._counts["pushed"] += 1
            if not push(line):
                self._counts["dropped"] += 1
                self._subscribers.pop(push, None)

    def statistics(self) -> dict[str, Any]:
        """Counters since the start."""
        return {**self._counts, "subscribers": len(self._subscribers)}


def describe(state: State, seq: int, event: ev.Event, now: float) -> Change | None:
    """One event in words, or None for what nobody needs to hear of."""
    said = words(event)
    if said is None:
        return None
    what, number, who, reason = said
    identity = state.identities[number]
    return Change(
        seq=seq,
        at=iso(getattr(event, "at", now)),
        what=what,
        name=identity.address,
        project=state.slug(identity.project),
        state=_after(event, identity),
        # The live record may be ahead of the disk: what the event itself says goes first.
        epoch=getattr(event, "epoch", identity.epoch),
        who=who,
        reason=reason,
    )


def _after(event: ev.Event, identity: Identity) -> str:
    match event:
        case ev.Granted() | ev.Confirmed():
            return "live"
        case ev.Released() | ev.HolderEnded() | ev.Freed() | ev.IdentityRegistered() | ev.Unretired():
            return "vacant"
        case ev.Retired():
            return "retired"
        case _ if identity.retired is not None:
            return "retired"
        case _:
            return "vacant" if identity.hold is None else "live"


def words(event: ev.Event) -> tuple[str, int, str | None, str | None] | None:
    """(what happened, identity, by whom, why) of an event; None for bookkeeping."""
    match event:
        case ev.IdentityRegistered():
            return ("registered", event.id, None, None)
        case ev.Granted():
            return ("claimed", event.identity, event.session.client, None)
        case ev.Released():
            return ("released", event.identity, None, None)
        case ev.HolderEnded():
            return ("lost", event.identity, event.to, event.reason)
        case ev.Freed():
            return ("freed", event.identity, "owner", event.reason)
        case ev.RoleSet():
            return ("role-set", event.identity, None, event.role)
        case ev.Retired():
            return ("retired", event.identity, None, event.how)
        case ev.Unretired():
            return ("unretired", event.identity, None, None)
        case ev.Renamed():
            return ("renamed", event.identity, None, event.name)
        case ev.ProfileUpdated():
            return ("updated", event.identity, None, event.model)
        case ev.TokenRotated():
            return ("token-rotated", event.identity, "owner", None)
        case ev.Confirmed():
            return ("confirmed", event.identity, None, None)
        case ev.ProjectCreated() | ev.ShimAttached() | ev.Replied() | ev.InstancesForgotten():
            return None
