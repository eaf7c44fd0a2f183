"""The post office: mail on the event loop's side.

Owns the open mail store, who waits for mail, and what mail has to do when the registry changes: held mail goes
to the first of a role, and senders of unanswered requests hear when who owes the answer goes or comes. A mail
file that can't be used stops mail alone.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import trio

from mbx_wire.errors import Code
from mbxd.core import events as ev
from mbxd.core.rejected import Rejected
from mbxd.core.state import State
from mbxd.mail import commands as c
from mbxd.mail.errors import MailBusy, MailError, MailFull, MailRefused, MailUnusable
from mbxd.mail.records import Open
from mbxd.mail.store import MailStore
from mbxd.ports import Clock, RunSync
from mbxd.runtime.engine import Engine

log = logging.getLogger("mbxd.post")

T = TypeVar("T")
OWED_MAX = 200
ENTROPY = 10
_NONE: Mapping[int, int] = {}


class Post:
    """Mail as the server sees it. Everything that touches the disk runs in the store's or a worker thread."""

    def __init__(self, engine: Engine, run_sync: RunSync, clock: Clock, degraded: dict[str, str]) -> None:
        """`open` makes it usable; until then every call is refused with MAIL_UNAVAILABLE."""
        self._engine = engine
        self._run_sync = run_sync
        self._clock = clock
        self._degraded = degraded
        self._store: MailStore | None = None
        self._held: set[tuple[int, str]] = set()
        self._involved: set[int] = set()
        self._todo: deque[tuple[int, ev.Event]] = deque()
        self._something = trio.Event()
        self._waiting: dict[int, set[trio.Event]] = {}
        self.on_arrival: Callable[[int, c.Sent, c.Send], None] = _ignore
        """Told of each delivered message, by recipient: for subscribers."""

    # -- life ------------------------------------------------------------------------------------------------

    def open(self, path: str) -> None:
        """Open the store, or say why there is no mail. Blocks: for the start, before anybody is served."""
        token = trio.lowlevel.current_trio_token()
        try:
            self._store = MailStore.open(path, post=token.run_sync_soon)
            self._held = {(role.project, role.role) for role in self._store.held_roles()}
            for request in self._store.open_requests():
                self._involved |= {request.sender, request.recipient}
        except MailError as error:
            self._store = None
            self._degraded["mail"] = f"no mail: {error}"
            log.error("no mail", extra={"why": str(error)})

    def close(self) -> None:
        """Finish what was queued. Blocks."""
        if self._store is not None:
            self._store.close()
            self._store = None

    @property
    def store(self) -> MailStore:
        """The open store; MAIL_UNAVAILABLE without one."""
        if self._store is None:
            raise Rejected(
                Code.MAIL_UNAVAILABLE,
                "There is no mail: " + self._degraded.get("mail", "the daemon is stopping").removeprefix("no mail: "),
                "Identities work without it. A person can look with: mbxctl status",
            )
        return self._store

    @property
    def unread(self) -> Mapping[int, int]:
        """Unacked messages by identity, live."""
        return _NONE if self._store is None else self._store.unread_counts

    def involved(self, identity: int) -> bool:
        """Whether it may owe or wait for an answer. May be true for one that no longer does."""
        return identity in self._involved

    def statistics(self) -> dict[str, Any]:
        """The store's counters, and what waits here."""
        waiting = sum(len(events) for events in self._waiting.values())
        counts = {} if self._store is None else self._store.statistics()
        return {**counts, "open": self._store is not None, "waiting_readers": waiting, "to_follow": len(self._todo)}

    # -- reading and writing ---------------------------------------------------------------------------------

    async def read(self, fn: Callable[..., T], *args: Any, **options: Any) -> T:
        """Ask the store in a worker thread."""
        try:
            return await self._run_sync(_call, fn, args, options)
        except MailError as error:
            raise refused(error) from None

    async def write(self, command: c.Command, request: c.Request | None = None) -> Any:
        """Have a command carried out; returns when it is durable."""
        told = trio.Event()
        outcome: list[Any] = []

        def done(result: Any, error: MailError | None) -> None:
            outcome[:] = [result, error]
            self._follow_up(command, result)
            told.set()

        try:
            self.store.submit(command, done, request)
        except MailError as error:
            raise refused(error) from None
        with trio.CancelScope(shield=True):
            # A caller that goes away loses its answer, not the mail: what was submitted is carried out.
            await told.wait()
        if outcome[1] is not None:
            if isinstance(outcome[1], MailUnusable):
                self._degraded["mail"] = f"no mail: {outcome[1]}"
            raise refused(outcome[1])
        return outcome[0]

    async def forget(self, instances: Iterable[str]) -> None:
        """Drop the kept results of clients that died long ago."""
        for instance in instances if self._store is not None else ():
            try:
                await self.write(c.Forget(instance))
            except Rejected as refusal:
                log.warning("kept results stay", extra={"why": refusal.message})

    def entropy(self) -> bytes:
        """Random bytes for an id."""
        return os.urandom(ENTROPY)

    def _follow_up(self, command: c.Command, result: Any) -> None:
        match result:
            case c.Sent():
                if isinstance(command, c.Send):
                    self._held |= {(role.project, role.role) for role in command.held}
                    if command.needs_reply:
                        self._involved |= {command.sender, *result.recipients}
                    if not result.duplicate:
                        for recipient in result.recipients:
                            self.on_arrival(recipient, result, command)
                self.wake(result.recipients)
            case c.Released() if isinstance(command, c.ReleaseHeld) and result.ids:
                self._involved.add(command.identity)
                self.wake([command.identity])
            case c.Noticed(id=str()):
                self.wake(list(self._waiting))  # rare; who waits looks for itself
            case _:
                return

    # -- waiting ---------------------------------------------------------------------------------------------

    def wake(self, identities: Iterable[int]) -> None:
        """Tell those who wait for mail of these."""
        for identity in identities:
            for event in self._waiting.get(identity, ()):
                event.set()

    async def wait(self, identity: int, until: float) -> bool:
        """Wait for mail of an identity, or that somebody else holds it, until this time of trio's clock."""
        event = trio.Event()
        waiting = self._waiting.setdefault(identity, set())
        waiting.add(event)
        try:
            with trio.move_on_at(until if until < math.inf else trio.current_time() + 3600) as scope:
                await event.wait()
            return not scope.cancelled_caught
        finally:
            waiting.discard(event)
            if not waiting:
                self._waiting.pop(identity, None)

    # -- following the registry ------------------------------------------------------------------------------

    def on_durable(self, seq: int, event: ev.Event) -> None:
        """Listener of the engine."""
        match event:
            case ev.Granted() | ev.RoleSet() | ev.HolderEnded() | ev.Released() | ev.Freed():
                self.wake([event.identity])
                if self._store is not None and (self._held or event.identity in self._involved):
                    self._todo.append((seq, event))
                    self._something.set()
            case _:
                return

    async def follow(self) -> None:
        """Do what grants and their ends ask of mail, for ever; first what a crash left undone."""
        try:
            await self._catch_up()
        except Rejected as refusal:
            log.warning("mail could not catch up with the registry", extra={"why": refusal.message})
        while True:
            await self._something.wait()
            self._something = trio.Event()
            while self._todo:
                seq, event = self._todo.popleft()
                try:
                    await self._react(seq, event)
                except Rejected as refusal:  # a full disk: the next start catches up
                    log.warning("mail could not follow the registry", extra={"why": refusal.message})

    async def _react(self, seq: int, event: ev.Event) -> None:
        match event:
            case ev.Granted() | ev.RoleSet():
                await self._give_held(event.identity)
                if isinstance(event, ev.Granted):
                    await self._announce(event.identity, event.epoch, event.session.client, seq, before=event.at)
            case ev.HolderEnded():
                await self._orphan(event.identity, event.epoch, event.reason, seq)
            case ev.Released():
                await self._orphan(event.identity, event.epoch, "released", seq)
            case ev.Freed():
                await self._orphan(event.identity, event.epoch - 1, "freed", seq)
            case _:
                return

    async def _catch_up(self) -> None:
        """Notices and held mail that a crash came before. Each is given once, however often this runs."""
        if self._store is None:
            return
        state = self._engine.state
        for request in await self.read(self._store.open_requests):
            identity = state.identities.get(request.recipient)
            if identity is None:
                continue
            if identity.hold is None and identity.past is not None and identity.past.ended >= request.sent_at:
                reason = identity.past.reason
                epoch = identity.epoch - (1 if reason == "freed" else 0)  # freeing raised it
                await self._orphan(identity.id, epoch, reason, self._engine.durable_seq)
            elif identity.hold is not None and identity.hold.since > request.sent_at:
                client, since = identity.hold.session.client, identity.hold.since
                await self._announce(identity.id, identity.epoch, client, self._engine.durable_seq, before=since)
        for identity, _ in list(state.holders()):
            await self._give_held(identity.id)

    async def _give_held(self, number: int) -> None:
        identity = self._engine.state.identities[number]
        if identity.role is None or identity.hold is None or (identity.project, identity.role) not in self._held:
            return
        await self.write(c.ReleaseHeld(identity.project, identity.role, number))
        self._held.discard((identity.project, identity.role))

    async def _orphan(self, number: int, epoch: int, reason: str, seq: int) -> None:
        name = self._engine.state.identities[number].name
        for request in await self._owed(number):
            body = (
                f"{name} has not answered {request.id} ({request.subject}) and nobody acts as {name} now ({reason}). "
                "The request waits in its mailbox for whoever claims it."
            )
            await self._notice("orphaned", request, epoch, f"No one to answer: {request.subject}", body, seq)

    async def _announce(self, number: int, epoch: int, client: str, seq: int, *, before: float) -> None:
        name = self._engine.state.identities[number].name
        for request in await self._owed(number):
            if request.sent_at >= before:
                continue  # the holder had it from the beginning
            body = f"{client} acts as {name} now and finds {request.id} ({request.subject}) among the requests it owes."
            await self._notice("successor", request, epoch, f"Somebody is there again: {request.subject}", body, seq)

    async def _owed(self, number: int) -> list[Open]:
        if number not in self._involved or self._store is None:
            return []
        return await self.read(self._store.owed, number, OWED_MAX)

    async def _notice(self, kind: str, request: Open, epoch: int, subject: str, body: str, seq: int) -> None:
        notice = c.Notice(
            kind, request.id, request.recipient, epoch, subject[:200], body, self._clock.wall(), self.entropy(), seq
        )
        await self.write(notice)


def names(state: State, identity: int) -> str:
    """The name that mail shows for an identity id."""
    if identity == c.OWNER:
        return "owner"
    if identity == c.SYSTEM:
        return "mbxd"
    found = state.identities.get(identity)
    return f"#{identity}" if found is None else found.name


def refused(error: MailError) -> Rejected:
    """Our refusal for the store's error. The only place that translates them."""
    match error:
        case MailRefused():
            return Rejected(Code(error.code), error.message, error.hint)
        case MailFull():
            return Rejected(Code.DISK_FULL, str(error), "Make room on the disk and repeat the call.", retryable=True)
        case MailBusy():
            return Rejected(Code.BUSY, str(error), "Try again in a moment.", retryable=True)
        case _:
            return Rejected(Code.MAIL_UNAVAILABLE, str(error), "Identities work without mail; see mbxctl status.")


def _call(fn: Callable[..., T], args: tuple[Any, ...], options: dict[str, Any]) -> T:
    return fn(*args, **options)


def _ignore(_recipient: int, _sent: c.Sent, _command: c.Send) -> None:
    return
