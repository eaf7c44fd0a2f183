"""The post office: mail on the event loop's side.

Owns the open mail store and who waits for mail. A mail file that can't be used stops mail alone. Never decides who
gets a message; what the registry's changes ask of mail is `duties`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import trio

from mbx_wire.errors import Code
from mbxd.core import events as ev
from mbxd.core.rejected import Rejected
from mbxd.core.state import Identity
from mbxd.mail import commands as c
from mbxd.mail.errors import MailBusy, MailError, MailFull, MailRefused, MailUnusable
from mbxd.mail.store import READERS, MailStore
from mbxd.ports import Clock, RunSync
from mbxd.runtime.duties import Duties
from mbxd.runtime.engine import Engine
from mbxd.runtime.readers import Closed, Readers

log = logging.getLogger("mbxd.post")

T = TypeVar("T")
ENTROPY = 10
ENTROPY_POOL = 200
"""Ids whose random bytes are drawn at once."""
MEND_EVERY_S = 15.0
_NONE: Mapping[int, int] = {}

Arrived = Callable[[int, int, str, str, str, int], None]
"""Told of (recipient, sender, subject, kind, message id, unread at the recipient)."""


class _Order:
    """A command on its way through the store. taken: the store accepted it, and answers."""

    __slots__ = ("command", "error", "request", "result", "store", "taken", "told")

    def __init__(self, store: MailStore, command: c.Command, request: c.Request | None) -> None:
        self.store = store
        self.command = command
        self.request = request
        self.told = trio.Event()
        self.taken = False
        self.result: Any = None
        self.error: Exception | None = None


class Post:
    """Mail as the server sees it. Everything that touches the disk runs in the store's or a worker thread."""

    def __init__(self, engine: Engine, run_sync: RunSync, clock: Clock, degraded: dict[str, str]) -> None:
        """`open` makes it usable; until then every call is refused with MAIL_UNAVAILABLE."""
        self._run_sync = run_sync
        self._degraded = degraded
        self._store: MailStore | None = None
        self._duties = Duties(engine, self, clock)
        self._waiting: dict[int, set[trio.Event]] = {}
        self._readers = Readers(READERS)
        self._leaving: list[_Order] = []
        self._entropy = b""
        self.on_arrival: Arrived | None = None

    # -- life ------------------------------------------------------------------------------------------------

    def open(self, path: str) -> None:
        """Open the store, or say why there is no mail. Blocks: for the start, before anybody is served."""
        token = trio.lowlevel.current_trio_token()
        try:
            store = MailStore.open(path, post=token.run_sync_soon)
            self._duties.begin(store.held_roles(), store.open_requests())
            self._store = store
        except MailError as error:
            self._fail(error)

    def instances(self) -> list[str]:
        """Client instances whose results the store keeps. Blocks: for the start."""
        try:
            return [] if self._store is None else self._store.instances()
        except MailError as error:
            self._fail(error)
            return []

    async def mend(self, path: str) -> None:
        """Try again now and then while there is no mail, for ever: the disk may have room, the file be restored."""
        while True:
            await trio.sleep(MEND_EVERY_S)
            if self.trouble is not None:
                await self.reopen(path)

    async def reopen(self, path: str) -> None:
        """Open the store anew, in a worker thread; what the file says is believed, not what memory had."""
        token = trio.lowlevel.current_trio_token()
        old, self._store = self._store, None
        try:
            if old is not None:
                await self._run_sync(old.close)
            store = await self._run_sync(partial(MailStore.open, path, post=token.run_sync_soon))
            self._duties.begin(*await self._run_sync(lambda: (store.held_roles(), store.open_requests())))
        except MailError as error:
            self._fail(error)
            return
        self._store = store
        self._degraded.pop("mail", None)
        log.info("there is mail again")

    def close(self) -> None:
        """Finish what was queued. Blocks."""
        self._readers.close()
        if self._store is not None:
            store, self._store = self._store, None
            store.close()

    def _fail(self, error: MailError) -> None:
        if "mail" not in self._degraded:
            log.error("no mail", extra={"why": str(error)})
        self._degraded["mail"] = f"no mail: {error}"

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
    def usable(self) -> bool:
        """Whether there is mail."""
        return self._store is not None

    @property
    def trouble(self) -> str | None:
        """Why there is no mail, in words; None when all is well."""
        return self._degraded.get("mail")

    @property
    def unread(self) -> Mapping[int, int]:
        """Unacked messages by identity, live."""
        return _NONE if self._store is None else self._store.unread_counts

    def involved(self, identity: int) -> bool:
        """Whether it may owe or wait for an answer. May be true for one that no longer does."""
        return self._duties.involved(identity)

    def is_heir(self, identity: Identity) -> bool:
        """Whether mail may be held for the role of a claimed mailbox that it was not given yet."""
        return self._store is not None and self._duties.is_heir(identity)

    async def give_held(self, number: int) -> None:
        """Give a mailbox what is held for its role, now; its claim must be durable. Raises Rejected."""
        await self._duties.give_held(number)

    def statistics(self) -> dict[str, Any]:
        """The store's counters, and what waits here."""
        waiting = sum(len(events) for events in self._waiting.values())
        counts = {} if self._store is None else self._store.statistics()
        return {**counts, "open": self.usable, "waiting_readers": waiting, "to_follow": self._duties.backlog}

    # -- reading and writing ---------------------------------------------------------------------------------

    async def read(self, fn: Callable[..., T], *args: Any, **options: Any) -> T:
        """Ask the store in a thread. Raises Rejected."""
        question = partial(fn, *args, **options)
        try:
            try:
                return await self._readers.ask(question)
            except Closed:
                return await self._run_sync(question)  # the store says why there is no answer
        except MailError as error:
            if isinstance(error, MailUnusable) and self._store is not None:
                self._fail(error)
            raise refused(error) from None

    async def write(self, command: c.Command, request: c.Request | None = None) -> Any:
        """Have a command carried out; returns when it is durable. Raises Rejected.

        A caller that goes away meanwhile loses its answer, not the mail.
        """
        order = _Order(self.store, command, request)
        self._leaving.append(order)
        if len(self._leaving) == 1:
            # It waits one turn of the event loop and takes along what comes meanwhile: a writer that is woken for each
            # would want the interpreter back while the loop has the rest to do, and both pay for that.
            await trio.lowlevel.cancel_shielded_checkpoint()
            self._hand_over()
        await order.told.wait()
        error = order.error
        if error is None:
            return order.result
        if not isinstance(error, MailError):
            raise error
        if order.taken and isinstance(error, MailUnusable) and self._store is not None:
            self._fail(error)
        raise refused(error)

    def _hand_over(self) -> None:
        """Give the store what gathered, in order."""
        leaving, self._leaving = self._leaving, []
        for order in leaving:
            try:
                order.store.submit(order.command, partial(self._done, order), order.request)
                order.taken = True
            except Exception as error:  # each its own: nobody's may keep the others
                order.error = error
                order.told.set()

    async def forget(self, instances: Iterable[str]) -> None:
        """Drop the kept results of clients that died long ago."""
        for instance in instances if self._store is not None else ():
            try:
                await self.write(c.Forget(instance))
            except Rejected as refusal:
                log.warning("kept results stay", extra={"why": refusal.message})

    def entropy(self) -> bytes:
        """Random bytes for an id, never given twice."""
        if not self._entropy:
            # Many at once: the call lets go of the interpreter, which the event loop gets back late under load.
            self._entropy = os.urandom(ENTROPY * ENTROPY_POOL)
        drawn, self._entropy = self._entropy[:ENTROPY], self._entropy[ENTROPY:]
        return drawn

    def _done(self, order: _Order, result: Any, error: MailError | None) -> None:
        order.result, order.error = result, error
        command = order.command
        if isinstance(command, c.Send) and isinstance(result, c.Sent):
            self._duties.on_sent(command, result)
            if not result.duplicate:
                for recipient in result.recipients:
                    self.arrived(recipient, command.sender, result.subject, command.kind, result.id)
        order.told.set()

    # -- waiting ---------------------------------------------------------------------------------------------

    def arrived(self, recipient: int, sender: int, subject: str, kind: str, message: str) -> None:
        """Tell who waits, and who subscribed, of a message that is there and durable."""
        self.wake(recipient)
        if self.on_arrival is not None:
            self.on_arrival(recipient, sender, subject, kind, message, self.unread.get(recipient, 0))

    def wake(self, identity: int) -> None:
        """Have those who wait for mail of an identity look for themselves."""
        for event in self._waiting.get(identity, ()):
            event.set()

    def wake_all(self) -> None:
        """The same for everybody: the daemon stops, and each gets an answer."""
        for identity in self._waiting:
            self.wake(identity)

    async def wait(self, identity: int, until: float) -> bool:
        """Wait for mail of an identity, or a change of its holder, until this time of trio's clock; False at that."""
        event = trio.Event()
        waiting = self._waiting.setdefault(identity, set())
        waiting.add(event)
        try:
            with trio.move_on_at(until) as scope:
                await event.wait()
            return not scope.cancelled_caught
        finally:
            waiting.discard(event)
            if not waiting and self._waiting.get(identity) is waiting:
                del self._waiting[identity]

    # -- following the registry ------------------------------------------------------------------------------

    def on_durable(self, seq: int, event: ev.Event) -> None:
        """Listener of the engine."""
        match event:
            case ev.Granted() | ev.RoleSet() | ev.HolderEnded() | ev.Released() | ev.Freed():
                self.wake(event.identity)
                if self._store is not None:
                    self._duties.on_change(seq, event)
            case _:
                return

    async def follow(self) -> None:
        """Do for ever what the registry's changes ask of mail; whenever the store was opened, first what was missed."""
        await self._duties.follow()


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
