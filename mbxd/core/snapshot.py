"""A state as chunks of bytes, and back: the contents of a snapshot file.

Owns the chunk schema. A copy is of references, since records are immutable. Even so it takes milliseconds of a
large registry, so that it is made in steps, between which others change the state, and is that of the moment in
which it ends. The encoding runs elsewhere, in pieces short enough not to hold the interpreter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from mbxd.core import events as ev
from mbxd.core.state import Identity, Kept, Loss, Project, SessionKey, State

T = TypeVar("T")

CHUNK = 256
"""Records a chunk: about 0.1 ms of encoding."""
PIECES_A_STEP = 8
"""Pieces of CHUNK records, or replies of one client instance, which are 256 at most, that are copied at once."""


class Head(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """First chunk: what can't be derived from records."""

    next_project: int
    next_identity: int


class Projects(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Some projects."""

    items: list[Project]


class Identities(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Some identities."""

    items: list[Identity]


class Hints(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Some resume hints, oldest first."""

    items: list[tuple[str, int]]


class Keys(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Some sessions and what they held last, oldest first."""

    items: list[tuple[SessionKey, int]]


class Losses(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Some losses, oldest first."""

    items: list[tuple[SessionKey, Loss]]


class Replies(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Kept results of one client instance, oldest first."""

    instance: str
    items: list[tuple[str, Kept]]


Chunk = Head | Projects | Identities | Hints | Keys | Losses | Replies

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Chunk] = msgspec.msgpack.Decoder(Chunk)


class Frozen(NamedTuple):
    """A consistent copy of a state. `active` has the newest acts that no event carries yet."""

    head: Head
    projects: deque[list[Project | None]]
    identities: deque[list[Identity | None]]
    hints: dict[str, int]
    keys: dict[SessionKey, int]
    losses: dict[SessionKey, Loss]
    replies: dict[str, dict[str, Kept]]
    active: dict[int, float]


class Freezing:
    """A copy of a state in steps, consistent when it ends.

    Identities that change after they were copied are told to `on_staged`, and copied once more at the end. New ones
    join at the end, and so do new projects, which never change: numbers are given out in order and never taken back.
    """

    def __init__(self, state: State) -> None:
        """Nothing is copied yet."""
        self._state = state
        self._projects: deque[list[Project | None]] = deque()
        self._identities: deque[list[Identity | None]] = deque()
        self._replies: dict[str, dict[str, Kept]] = {}
        self._hints: dict[str, int] | None = None
        self._touched: set[int] = set()

    def on_staged(self, _seq: int, event: ev.Event) -> None:
        """Listener of the engine, from before the first step on."""
        self._hints = None  # it may have changed them
        number = getattr(event, "identity", None)
        if number is not None:
            self._touched.add(number)

    def steps(self) -> Iterator[None]:
        """Copy. Others may run after each step, which is of some 0.2 ms; that of the hints is of 2 ms at most."""
        yield from _now_and_then(self._full_pieces())
        yield from _now_and_then(self._copy_replies())
        self._hints = self._state.by_hint.copy()
        yield

    def end(self, active: Mapping[int, float]) -> Frozen:
        """The copy, as of now. `on_staged` need not be told any more."""
        state = self._state
        deque(self._full_pieces(), maxlen=0)
        for number in self._touched:
            piece, place = divmod(number - 1, CHUNK)
            if piece < len(self._identities):
                self._identities[piece][place] = state.identities[number]
        self._projects.append(_piece(state.projects, len(self._projects)))
        self._identities.append(_piece(state.identities, len(self._identities)))
        return Frozen(
            Head(state.next_project, state.next_identity),
            self._projects,
            self._identities,
            state.by_hint.copy() if self._hints is None else self._hints,
            state.by_key.copy(),
            state.lost.copy(),
            {instance: self._unchanged(instance, kept) or kept.copy() for instance, kept in state.replies.items()},
            dict(active),
        )

    def _full_pieces(self) -> Iterator[None]:
        state, projects, identities = self._state, self._projects, self._identities
        while (len(projects) + 1) * CHUNK < state.next_project:
            projects.append(_piece(state.projects, len(projects)))
            yield
        while (len(identities) + 1) * CHUNK < state.next_identity:
            identities.append(_piece(state.identities, len(identities)))
            yield

    def _copy_replies(self) -> Iterator[None]:
        for instance, kept in list(self._state.replies.items()):
            self._replies[instance] = kept.copy()
            yield

    def _unchanged(self, instance: str, kept: dict[str, Kept]) -> dict[str, Kept] | None:
        """The copy that was made of them, if it is still one: whatever changes them adds a new one at their end."""
        copied = self._replies.get(instance)
        if not copied or not kept or _newest(copied) is not _newest(kept):
            return None
        return copied


def freeze(state: State, active: Mapping[int, float]) -> Frozen:
    """The copy in one step."""
    return Freezing(state).end(active)


def encode(frozen: Frozen) -> Iterator[bytes]:
    """The chunks, in the order in which `load` wants them. Takes the copy apart, so that it goes bit by bit."""
    yield _encode(frozen.head)
    while frozen.projects:
        projects = [project for project in frozen.projects.popleft() if project is not None]
        if projects:
            yield _encode(Projects(projects))
    while frozen.identities:
        identities = [_touched(i, frozen.active) for i in frozen.identities.popleft() if i is not None]
        if identities:
            yield _encode(Identities(identities))
    for hints in _pieces(frozen.hints.items()):
        yield _encode(Hints(hints))
    frozen.hints.clear()
    for keys in _pieces(frozen.keys.items()):
        yield _encode(Keys(keys))
    frozen.keys.clear()
    for losses in _pieces(frozen.losses.items()):
        yield _encode(Losses(losses))
    for instance in list(frozen.replies):
        yield _encode(Replies(instance, list(frozen.replies.pop(instance).items())))


def load(chunks: Iterable[bytes]) -> State:
    """The state that `encode` was given; raises msgspec.ValidationError or DecodeError for foreign bytes."""
    state = State()
    for raw in chunks:
        match _decoder.decode(raw):
            case Head() as head:
                state.next_project, state.next_identity = head.next_project, head.next_identity
            case Projects(items=projects):
                for project in projects:
                    state.add_project(project)
            case Identities(items=identities):
                for identity in identities:
                    state.add(identity)
            case Hints(items=hints):
                state.by_hint.update(hints)
            case Keys(items=keys):
                state.by_key.update(keys)
            case Losses(items=losses):
                state.lost.update(losses)
            case Replies(instance=instance, items=kept):
                state.replies[instance] = dict(kept)
    return state


def _now_and_then(work: Iterable[None]) -> Iterator[None]:
    for count, _ in enumerate(work, 1):
        if count % PIECES_A_STEP == 0:
            yield


def _piece(records: Mapping[int, T], number: int) -> list[T | None]:
    """The records with the numbers of one piece."""
    first = number * CHUNK + 1
    return list(map(records.get, range(first, first + CHUNK)))


def _newest(kept: dict[str, Kept]) -> Kept:
    return next(reversed(kept.values()))


def _pieces(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while piece := list(islice(rest, CHUNK)):
        yield piece


def _touched(identity: Identity, active: Mapping[int, float]) -> Identity:
    at = active.get(identity.id)
    return identity if at is None or at <= identity.last_active_at else replace(identity, last_active_at=at)
