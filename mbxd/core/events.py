"""Events: what happened, as it stands in the log. Past tense, facts only, never re-decided.

Owns the durable schema. Structs are arrays in MessagePack with an integer tag in front. Fields only grow, at the end,
with a default and with a new version of the log's format (docs/wal-format.md, section 8); a tag is never reused.
Times (`at`) are Unix seconds of the wall clock and are for people: no rule compares them.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from mbxd.ports import ProcessId


class SessionRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One agent conversation: (host process, conversation handle), with what is kept to know it again.

    handle: "" when the client can't tell its conversations apart. client: label for people.
    hints: resume hints, namespaced by client; whoever brings one later may take the identity back.
    """

    host: ProcessId
    handle: str
    client: str
    hints: tuple[str, ...] = ()


class ProjectCreated(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """A project appeared: something was first made in it."""

    id: int
    key: str
    slug: str
    at: float


class IdentityRegistered(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """A mailbox was made. It is vacant until a grant follows. project 0: none."""

    id: int
    name: str
    address: str
    role: str | None
    description: str | None
    project: int
    at: float
    program: str | None = None
    model: str | None = None
    task_description: str | None = None
    attachments_policy: str | None = None


class Granted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """A session became the holder under a new epoch. shims: processes that spoke for it at the grant.

    provisional: it made the identity, perhaps for another: whoever brings the right token takes it.
    """

    identity: int
    epoch: int
    session: SessionRef
    shims: tuple[ProcessId, ...]
    at: float
    provisional: bool = False


class ShimAttached(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """Another shim spoke for the holder of this epoch for the first time."""

    identity: int
    epoch: int
    shim: ProcessId
    at: float


class Released(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=5):
    """The holder of this epoch let go on purpose."""

    identity: int
    epoch: int
    at: float
    active_at: float


class HolderEnded(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=6):
    """The holder of this epoch is proven gone, or gave way after its grace. to: who took it, if anyone."""

    identity: int
    epoch: int
    reason: str
    at: float
    active_at: float
    to: str | None = None


class Freed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=7):
    """A person made it vacant. `epoch` is the new one: the old holder is fenced."""

    identity: int
    epoch: int
    reason: str
    at: float
    active_at: float


class RoleSet(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=8):
    """A mailbox without a role got one."""

    identity: int
    role: str
    at: float


class Retired(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=9):
    """Put away. how: swept (a claim revives it) or retired (only a person brings it back)."""

    identity: int
    how: str
    at: float


class Unretired(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=10):
    """Brought back."""

    identity: int
    at: float


class Renamed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=11):
    """Another name and address; the old address stays as an alias."""

    identity: int
    name: str
    address: str
    at: float


class Replied(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=12):
    """The result of a change, kept so that a repeat of the request returns it. digest: of method and params."""

    instance: str
    request_id: str
    digest: bytes
    result: bytes


class InstancesForgotten(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=13):
    """Clients that died more than ten minutes ago: their kept results are dropped."""

    instances: tuple[str, ...]


class ProfileUpdated(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=14):
    """The agent profile became this. None leaves a field as it was."""

    identity: int
    program: str | None
    model: str | None
    task_description: str | None
    attachments_policy: str | None
    at: float


class TokenRotated(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=15):
    """Tokens of older generations are wrong from now on."""

    identity: int
    generation: int
    at: float


class Confirmed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=16):
    """The holder of a provisional grant acted under it: it is the holder like any other."""

    identity: int
    epoch: int
    at: float


Event: TypeAlias = (
    ProjectCreated
    | IdentityRegistered
    | Granted
    | ShimAttached
    | Released
    | HolderEnded
    | Freed
    | RoleSet
    | Retired
    | Unretired
    | Renamed
    | Replied
    | InstancesForgotten
    | ProfileUpdated
    | TokenRotated
    | Confirmed
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode(event: Event) -> bytes:
    """One record of the log."""
    return _encoder.encode(event)


def decode(record: bytes) -> Event:
    """An event from a record; raises msgspec.ValidationError or DecodeError for what this build can't read."""
    return _decoder.decode(record)
