"""Judges the mail of a history: every acknowledged message is unread exactly once until it is acked. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

from tests.torture.history import Op

if TYPE_CHECKING:
    from tests.torture.model import Book


def judge_mail(book: Book) -> Iterator[str]:
    """Everything that is wrong with mail, in words."""
    sends: dict[str, list[Op]] = defaultdict(list)
    for op in book.history.ops:
        if op.what in {"send", "stale"} and (op.ok or not op.answered):
            sends[op.token].append(op)
    yield from _ids(sends)
    acks = [op for op in book.history.ops if op.what == "ack" and (op.ok or not op.answered)]
    looks: dict[str, list[Op]] = defaultdict(list)
    for op in book.history.ops:
        if op.ok and op.what in {"inbox", "peek"}:
            held = None if op.what == "peek" else book.certain(op)
            if op.what == "peek" or held is not None:
                looks[op.name if held is None else held.name].append(op)
    for name, seen in looks.items():
        mailbox = _Mailbox(book, name, sends, acks)
        for look in sorted(seen, key=lambda op: op.done):
            yield from mailbox.check(look)
    for op in book.history.ops:
        if op.ok and op.what == "everything":
            yield from _everything(op, sends)


def _ids(sends: dict[str, list[Op]]) -> Iterator[str]:
    """Ids rise, and one message has one id. A send without an answer may have made it already."""
    made: list[tuple[float, float, str, str]] = []
    for token, ops in sends.items():
        ids = {op.id for op in ops if op.ok}
        if len(ids) > 1:
            yield f"{token} was sent twice"
        begun = min(op.sent for op in ops)
        done = min(op.done for op in ops)
        made.extend((begun, done, one, token) for one in ids)
    for begun, _, one, token in made:
        if any(other >= one for _, done, other, _ in made if done < begun):
            yield f"the id of {token} is not behind that of a message that was sent before"


def _everything(op: Op, sends: dict[str, list[Op]]) -> Iterator[str]:
    """A mailbox with its acked mail: all that was acknowledged, once."""
    for token, times in Counter(op.tokens).items():
        if times > 1:
            yield f"{token} is {times} times in {op.name}"
    due = {t for t, ops in sends.items() for o in ops if o.ok and op.name in o.to and o.done < op.sent}
    if due - set(op.tokens):
        yield f"acknowledged mail of {op.name} is lost: {sorted(due - set(op.tokens))}"


class _Mailbox:
    """What the looks into one mailbox showed so far."""

    def __init__(self, book: Book, name: str, sends: dict[str, list[Op]], acks: list[Op]) -> None:
        self.name = name
        self._sends = {token: ops for token, ops in sends.items() if any(name in op.to for op in ops)}
        self._acked: dict[str, float] = {}
        self._maybe: dict[str, float] = {}
        for op in acks:
            held = book.certain(op)
            for token in op.tokens:
                if op.ok and held is not None and held.name == name:
                    self._acked[token] = min(op.done, self._acked.get(token, inf))
                if book.possible(op, session=op.session, name=name):
                    self._maybe[token] = min(op.sent, self._maybe.get(token, inf))
        self._seen: dict[str, float] = {}
        self._gone: dict[str, float] = {}

    def check(self, look: Op) -> Iterator[str]:
        for token, times in Counter(look.tokens).items():
            if times > 1:
                yield f"{token} is {times} times unread in {self.name}"
            if all(op.sent > look.done for op in self._sends.get(token, ())):
                yield f"{token} is unread in {self.name} and nobody sent it there"
            if min(self._acked.get(token, inf), self._gone.get(token, inf)) < look.sent:
                yield f"{token} is unread in {self.name} again"
        for token, ops in self._sends.items():
            there = min([self._seen.get(token, inf), *(op.done for op in ops if op.ok)])
            if token in look.tokens or there >= look.sent:
                continue
            self._gone.setdefault(token, look.done)
            if self._maybe.get(token, inf) > look.done:
                yield f"acknowledged mail {token} is missing in {self.name}"
        for token in look.tokens:
            self._seen.setdefault(token, look.done)
