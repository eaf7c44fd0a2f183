"""A life of a mail store that is full of promises, and what a later boot must find of them.

Every answer of the store is a promise: the command, its request and its result. `check` opens the files that a power
cut left and raises Lost when something acknowledged is gone, Damaged when what is there is not whole.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from mbxd.mail import commands as c
from mbxd.mail.errors import MailError
from mbxd.mail.store import MailStore
from tests.mail.tape import Tape

IDENTITIES = range(1, 7)
OLD, LIMIT, NEW = 1e9, 1.5e9, 1.6e9
"""Old mail may be pruned, new mail never."""
WORD = "everymail"
"""In every body, so that one look into the index tells what it holds."""
WAIT_S = 60


class Lost(AssertionError):
    """Something that was acknowledged is not there."""


class Damaged(AssertionError):
    """What is there is not whole."""


class Promise(NamedTuple):
    """What the store answered."""

    command: c.Command
    request: c.Request | None
    result: Any


class Life:
    """Uses a store for a while. The writer's thread alone marks promises, so that they stand in order with writes."""

    def __init__(self, store: MailStore, tape: Tape, seed: int, known: Sequence[Promise] = ()) -> None:
        self._store = store
        self._tape = tape
        self._name = f"life{seed}"
        self._draw = random.Random(seed)
        self._made = [promise.result.id for promise in known if isinstance(promise.command, c.Send)]
        self._requests: list[str] = []
        self._number = 0
        self._waiting = 0
        self._quiet = threading.Condition()

    def go_on(self, bursts: int) -> None:
        """Commands in bursts: those of one share a transaction, more or less."""
        for burst in range(bursts):
            for _ in range(self._draw.choice((1, 1, 2, 3, 8))):
                self._submit(self._next(), asked=self._draw.random() < 0.4)
            if burst % 20 == 19:
                self._submit(c.Prune(LIMIT, OLD + burst))
            with self._quiet:
                assert self._quiet.wait_for(lambda: self._waiting == 0, WAIT_S)

    def _next(self) -> c.Command:
        draw = self._draw
        kind = draw.random()
        someone = draw.choice(IDENTITIES)
        if kind < 0.62 or not self._made:
            return self._send()
        if kind < 0.86:
            count = min(len(self._made), draw.choice((1, 3, 30, 200)))
            return c.Ack(someone, tuple(draw.sample(self._made, count)), OLD, "noted" * draw.randrange(2))
        if kind < 0.92:
            return c.Deliver(someone, tuple(self._made[-5:]), OLD)
        if kind < 0.96 or not self._requests:
            return c.ReleaseHeld(1, "later", someone)
        asked = draw.choice(self._requests)
        return c.Notice("orphaned", asked, someone, draw.randrange(3), "gone", "gone", NEW, draw.randbytes(10), 7)

    def _send(self) -> c.Send:
        draw = self._draw
        self._number += 1
        key = f"{self._name}-{self._number}"
        body = f"{WORD} {key} " + f"{draw.randrange(10**9)} " * draw.choice((1, 10, 100, 800, 3000))
        old = draw.random() < 0.5
        return c.Send(
            draw.choice((0, *IDENTITIES)),
            tuple(draw.sample(IDENTITIES, draw.choice((1, 1, 2, 5)))),
            f"subject of {key}",
            body,
            (OLD if old else NEW) + self._number,
            draw.randbytes(10),
            self._number,
            kind=draw.choice(("message", "task")),
            needs_reply=draw.random() < 0.3,
            refs=("src/a.py",) * draw.randrange(2),
            reply_to="",
            held=(c.Role(1, "later"),) if draw.random() < 0.1 else (),
            key=key,
        )

    def _submit(self, command: c.Command, *, asked: bool = False) -> None:
        request = None
        if isinstance(command, c.Send):
            if self._made and self._draw.random() < 0.25:  # the owner may answer anything
                command = _answer(command, self._draw.choice(self._made[-20:]))
            if asked:
                request = c.Request(self._name, command.key or "", b"digest")
        with self._quiet:
            self._waiting += 1
        self._store.submit(command, partial(self._done, command, request), request)

    def _done(self, command: c.Command, request: c.Request | None, result: Any, error: MailError | None) -> None:
        """In the writer's thread, between its commit and its next write."""
        if error is None:
            self._tape.mark(Promise(command, request, result))
            if isinstance(command, c.Send):
                self._made.append(result.id)
                self._requests += [result.id] * command.needs_reply
        with self._quiet:
            self._waiting -= 1
            self._quiet.notify_all()


def _answer(command: c.Send, message: str) -> c.Send:
    fields = {name: getattr(command, name) for name in c.Send.__struct_fields__}
    return c.Send(**{**fields, "sender": c.OWNER, "reply_to": message})


class Found(NamedTuple):
    """What a file holds, read without the store."""

    messages: dict[str, Any]
    pruned: dict[str, str]
    deliveries: dict[int, dict[int, Any]]
    held: set[int]
    indexed: set[int]
    lonely: int
    unread: Counter[int]
    addressed: dict[int, set[int]]


def look(path: str) -> Found:
    """Read a file through its tables, never through an index."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        messages = conn.execute(
            "SELECT key, n, id, sender, subject, body, needs_reply, sent_at FROM messages NOT INDEXED WHERE key NOTNULL"
        ).fetchall()
        written = dict(conn.execute("SELECT n, who FROM messages NOT INDEXED"))
        deliveries: dict[int, dict[int, Any]] = {n: {} for n in written}
        unread: Counter[int] = Counter()
        for recipient, message, acked_at in conn.execute("SELECT recipient, message, acked_at FROM deliveries"):
            if message not in deliveries:
                raise Damaged(f"a delivery to {recipient} without its message")
            deliveries[message][recipient] = acked_at
            unread[recipient] += acked_at is None
        return Found(
            {row[0]: row for row in messages},
            dict(conn.execute("SELECT key, id FROM pruned WHERE key NOTNULL")),
            deliveries,
            {n for (n,) in conn.execute("SELECT message FROM held")},
            {n for (n,) in conn.execute("SELECT rowid FROM words WHERE words MATCH ?", (WORD,))},
            len(written) - len(messages),
            +unread,
            {n: {int(word[1:]) for word in who.split() if word[0] == "r"} for n, who in written.items()},
        )


def check(path: str, promises: Iterable[Promise]) -> None:
    """Open what a power cut left, compare it with what was promised, and repeat every send."""
    try:
        with contextlib.closing(MailStore.open(path, sync=False)) as store:  # the power stays on from here
            _check(store, list(promises))
    except (MailError, sqlite3.Error) as error:
        raise Damaged(str(error)) from error


def _check(store: MailStore, promises: Sequence[Promise]) -> None:
    problems = store.check().problems
    if problems:
        raise Damaged(str(problems))
    found = look(store.path)
    if dict(store.unread_counts) != dict(found.unread):
        raise Damaged(f"unread: {store.unread_counts} counted, {found.unread} there")
    _whole(found)
    _kept(found, promises)
    _repeated(store, [promise for promise in promises if isinstance(promise.command, c.Send)])
    if look(store.path) != found:
        raise Damaged("repeats changed something")


def _whole(found: Found) -> None:
    """No half of a message, acknowledged or not."""
    if len(found.messages) != len(found.indexed) or any(row[1] not in found.indexed for row in found.messages.values()):
        raise Damaged("the word index does not have what the messages have")
    for key, row in found.messages.items():
        if key in found.pruned:
            raise Damaged(f"{key} is there and pruned")
        if not row[5].startswith(f"{WORD} {key} "):
            raise Damaged(f"{key} has another body")
    for n, recipients in found.addressed.items():
        if found.deliveries[n].keys() != recipients:
            raise Damaged(f"message {n} went to {recipients} and is at {[*found.deliveries[n]]}")
    alone = [n for n, recipients in found.deliveries.items() if not recipients and n not in found.held]
    if alone:
        raise Damaged(f"messages {alone} reach nobody")


def _kept(found: Found, promises: Sequence[Promise]) -> None:
    """Everything acknowledged is there, whole, and as acknowledged."""
    places = {row[2]: row[1] for row in found.messages.values()}
    reached: dict[str, set[int]] = {}
    gone, noticed = 0, 0
    for command, _request, result in promises:
        if isinstance(command, c.Send) and command.key is not None:
            row = found.messages.get(command.key)
            reached[result.id] = set(command.recipients)
            if row is None and (command.now > LIMIT or found.pruned.get(command.key) != result.id):
                raise Lost(f"{command.key} was acknowledged and is not there")
            if row is not None and row[2:6] != (result.id, command.sender, result.subject, command.body):
                raise Damaged(f"{command.key} is not what was sent")
        elif isinstance(command, c.ReleaseHeld):
            for message in result.ids:
                reached.setdefault(message, set()).add(command.identity)  # it may be there without its answer
        elif isinstance(command, c.Ack):
            for message, outcome in result.results.items():
                there = found.deliveries.get(places.get(message, 0), {command.identity: OLD})  # or it was pruned
                if outcome != "unknown" and there.get(command.identity) is None:
                    raise Lost(f"{command.identity}'s ack of {message} was acknowledged and is not there")
        elif isinstance(command, c.Prune):
            gone += result.messages
        elif isinstance(command, c.Notice):
            noticed += result.id is not None
    for message, recipients in reached.items():
        if message in places and not recipients <= found.deliveries[places[message]].keys():
            raise Lost(f"{message} was delivered to {recipients}, {found.deliveries[places[message]]} are there")
    if gone > len(found.pruned) or (gone == len(found.pruned) and noticed > found.lonely):
        raise Lost(
            f"{gone} were pruned, {len(found.pruned)} are known as that; {noticed} notices, {found.lonely} there"
        )


def _repeated(store: MailStore, promises: Sequence[Promise]) -> None:
    """Sends again what was acknowledged, all at once: nothing may be doubled."""
    answers: list[tuple[Promise, Any]] = []
    there = threading.Semaphore(0)

    def done(promise: Promise, result: Any, error: MailError | None) -> None:
        answers.append((promise, error or result))
        there.release()

    for promise in promises:
        store.submit(promise.command, partial(done, promise), promise.request)
    for _ in promises:
        assert there.acquire(timeout=WAIT_S)
    for (command, request, first), again in answers:
        assert isinstance(command, c.Send)
        same = again == first if request is not None else getattr(again, "id", "") == first.id and again.duplicate
        if not same:
            raise Lost(f"the repeat of {command.key} came to {again}, not to {first}")
