"""What mail has to do when the registry changes.

Owns two duties: mail that is held for a role goes to the first one of it that is claimed, and who waits for an
answer hears, once each, that nobody is there to give it and that somebody is there again. Both survive a crash at
any point: the store knows what was done, the registry what happened. Never changes the registry.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar

import trio

from mbxd.core import addressing
from mbxd.core import events as ev
from mbxd.core.rejected import Rejected
from mbxd.core.state import Identity
from mbxd.mail import commands as c
from mbxd.mail.records import Open
from mbxd.mail.store import MailStore
from mbxd.ports import Clock
from mbxd.runtime.engine import Engine

log = logging.getLogger("mbxd.post")

T = TypeVar("T")
OWED_AT_ONCE = 200
AGAIN_S = 15.0
"""After so long what could not be done is tried again."""

Change = ev.Granted | ev.RoleSet | ev.HolderEnded | ev.Released | ev.Freed


class Office(Protocol):
    """What is needed of the post office."""

    @property
    def store(self) -> MailStore:
        """The open store. Raises Rejected."""
        ...

    async def read(self, fn: Callable[..., T], *args: Any) -> T:
        """Ask the store."""
        ...

    async def write(self, command: c.Command) -> Any:
        """Change it."""
        ...

    def entropy(self) -> bytes:
        """For an id."""
        ...

    def arrived(self, recipient: int, sender: int, subject: str, kind: str, message: str) -> None:
        """Tell of a message."""
        ...


class Duties:
    """Follows the registry, one change after another."""

    def __init__(self, engine: Engine, office: Office, clock: Clock) -> None:
        """`begin` comes before anything else."""
        self._engine = engine
        self._office = office
        self._clock = clock
        # The first two may hold more than they must, never less: they only spare questions to the store.
        self._held: dict[tuple[int, str], int] = {}
        """Roles that mail is held for, each with the number of the last message to it; 0: from before `begin`."""
        self._sends = 0
        self._given: dict[int, tuple[tuple[int, str], int]] = {}
        """Who was given all that was held for its role and is not its own, up to which message."""
        self._involved: set[int] = set()
        self._todo: deque[tuple[int, Change | int]] = deque()
        self._something = trio.Event()
        self._begun = trio.Event()
        """Set at the next `begin`."""
        self._behind = False
        """Whether the registry changed while nobody followed: all has to be compared."""
        self._failing = False
        self._giving = trio.Lock()

    @property
    def backlog(self) -> int:
        """Changes that wait."""
        return len(self._todo)

    def involved(self, identity: int) -> bool:
        """Whether it may owe or wait for an answer."""
        return identity in self._involved

    def begin(self, held: Iterable[c.Role], requests: Iterable[Open]) -> None:
        """What the store holds when it is opened, at the start or after an outage; then there is all to catch up."""
        self._held = {(role.project, role.role): 0 for role in held}
        self._given.clear()
        for request in requests:
            self._involved |= {request.sender, request.recipient}
        self._behind = True
        self._something.set()
        self._begun.set()
        self._begun = trio.Event()

    def on_sent(self, command: c.Send, result: c.Sent) -> None:
        """A message is stored. The registry may have changed since its recipients were looked up."""
        if command.needs_reply:
            self._involved |= {command.sender, *result.recipients}
            for number in result.recipients:
                self._look_again(number, command.now)
        for role in command.held:
            self._sends += 1
            self._held[role.project, role.role] = self._sends
            self._involved.add(command.sender)
            for number in self._engine.state.held.get(role.project, ()):
                self._look_again(number, command.now)

    def _look_again(self, number: int, since: float) -> None:
        identity = self._engine.state.identities.get(number)
        if identity is not None and _changed_at(identity) >= since:
            self._queue(self._engine.staged_seq, number)

    def on_change(self, seq: int, event: Change) -> None:
        """A durable change of who holds what."""
        if self._held or event.identity in self._involved:
            self._queue(seq, event)

    def _queue(self, seq: int, what: Change | int) -> None:
        self._todo.append((seq, what))
        self._something.set()

    async def follow(self) -> None:
        """Do what is asked, for ever; first what a crash or an outage left undone. Nothing before the first `begin`."""
        while True:
            await self._something.wait()
            self._something = trio.Event()
            done = True
            if self._behind:
                self._behind = False
                done = await self._try(self._catch_up())
            while self._todo:
                done = await self._try(self._react(*self._todo.popleft())) and done
            if done:
                self._failing = False
            elif not self._behind:
                with trio.move_on_after(AGAIN_S):
                    await self._begun.wait()
                self._behind = True
                self._something.set()

    async def _try(self, work: Awaitable[None]) -> bool:
        try:
            await work
        except Rejected as refusal:  # a full disk, a broken file
            if not self._failing:
                log.warning("mail could not follow the registry", extra={"why": refusal.message})
            self._failing = True
            return False
        return True

    async def _react(self, seq: int, what: Change | int) -> None:
        if isinstance(what, int):
            await self._engine.wait_durable(seq)
            await self.give_held(what)
            await self._compare(what)
            return
        match what:
            case ev.RoleSet():
                await self.give_held(what.identity)
            case ev.Granted():
                await self.give_held(what.identity)
                await self._announce(what.identity, what.epoch, what.session.client, before=what.at)
            case ev.HolderEnded() if what.to is None:  # else another acts as it from that moment on
                await self._orphan(what.identity, what.epoch, what.reason)
            case ev.Released():
                await self._orphan(what.identity, what.epoch, "released")
            case ev.Freed():
                await self._orphan(what.identity, what.epoch - 1, "freed")  # freeing raised it

    async def _catch_up(self) -> None:
        """Notices and held mail that a crash or an outage came before. Each is given once, however often this runs."""
        for request in await self._office.read(self._office.store.open_requests):
            self._involved |= {request.sender, request.recipient}
        for identity, hold in list(self._engine.state.holders()):
            await self._engine.wait_durable()
            await self.give_held(identity.id, before=hold.since)
        for number in sorted(self._involved):
            await self._engine.wait_durable()
            await self._compare(number)

    async def _compare(self, number: int) -> None:
        """Do for one mailbox what its last changes asked for, whether that was done or not."""
        identity = self._engine.state.identities.get(number)
        if identity is None:
            return
        past, hold = identity.past, identity.hold
        if past is not None and (hold is None or hold.since != past.ended):  # at once it was taken over: see `_react`
            # Each grant raised the epoch by one, and freeing did.
            epoch = identity.epoch - (hold is not None) - (past.reason == "freed")
            await self._orphan(number, epoch, past.reason, after=past.ended)
        if hold is not None:
            await self._announce(number, identity.epoch, hold.session.client, before=hold.since)

    # -- held mail -------------------------------------------------------------------------------------------

    def is_heir(self, identity: Identity) -> bool:
        """Whether mail may be held for the role of a claimed mailbox that it was not given yet."""
        if not self._held or identity.role is None or identity.hold is None:
            return False
        key = (identity.project, identity.role)
        last = self._held.get(key)
        return last is not None and self._given.get(identity.id) != (key, last)

    async def give_held(self, number: int, *, before: float | None = None) -> None:
        """Give a mailbox what is held for its role. Its claim must be durable. Raises Rejected."""
        if self.is_heir(self._engine.state.identities[number]):
            async with self._giving:  # who claims waits until all of what was begun for it is done
                await self._give_held(number, before)

    async def _give_held(self, number: int, before: float | None) -> None:
        identity = self._engine.state.identities[number]
        if identity.role is None or not self.is_heir(identity):
            return
        release = c.ReleaseHeld(identity.project, identity.role, number, before)
        key = (identity.project, identity.role)
        last, more = self._held[key], True
        while more:
            released: c.Released = await self._office.write(release)
            more = released.more
            for message in released.ids:
                letter = await self._office.read(self._office.store.peek, message)
                if letter.needs_reply:
                    self._involved |= {number, letter.sender}
                self._office.arrived(number, letter.sender, letter.subject, letter.kind, message)
        if before is None:
            self._given[number] = (key, last)
        # It stays entered while the store is asked: a claim that comes meanwhile must see it.
        before_looking = self._held.get(key)
        held = await self._office.read(self._office.store.held_roles)
        if c.Role(*key) not in held and self._held.get(key) == before_looking:
            self._held.pop(key, None)  # nothing is there, and nothing came meanwhile

    # -- notices ---------------------------------------------------------------------------------------------

    async def _orphan(self, number: int, epoch: int, reason: str, *, after: float | None = None) -> None:
        for request in await self._owed(number):
            if after is not None and request.sent_at > after:
                continue  # its sender was told at once that nobody is there
            name = self._name(number, request.sender)
            body = (
                f"{name} has not answered {request.id} ({request.subject}) and nobody acts as {name} now ({reason}). "
                "The request waits in its mailbox for whoever claims it."
            )
            await self._notice("orphaned", request, epoch, f"No one to answer: {request.subject}", body)

    async def _announce(self, number: int, epoch: int, client: str, *, before: float) -> None:
        for request in await self._owed(number):
            if request.sent_at >= before:
                continue  # the holder had it from the beginning
            name = self._name(number, request.sender)
            body = f"{client} acts as {name} now and finds {request.id} ({request.subject}) among the requests it owes."
            await self._notice("successor", request, epoch, f"Somebody is there: {request.subject}", body)

    def _name(self, number: int, reader: int) -> str:
        state = self._engine.state
        found = state.identities.get(reader)
        return addressing.name_of(state, number, None if found is None else found.project)  # a person reads anywhere

    async def _owed(self, number: int) -> list[Open]:
        if number not in self._involved:
            return []
        store = self._office.store
        owed = await self._office.read(store.owed, number, OWED_AT_ONCE)
        if len(owed) < OWED_AT_ONCE:
            return owed
        return [one for one in await self._office.read(store.open_requests) if one.recipient == number]

    async def _notice(self, kind: str, request: Open, epoch: int, subject: str, body: str) -> None:
        owes, seq = request.recipient, self._engine.durable_seq
        subject = subject[:200]
        now, entropy = self._clock.wall(), self._office.entropy()
        told: c.Noticed = await self._office.write(
            c.Notice(kind, request.id, owes, epoch, subject, body, now, entropy, seq)
        )
        if told.id is not None:
            self._office.arrived(request.sender, c.SYSTEM, subject, "status", told.id)


def _changed_at(identity: Identity) -> float:
    """When its holder came or went last."""
    if identity.hold is not None:
        return identity.hold.since
    return 0.0 if identity.past is None else identity.past.ended
