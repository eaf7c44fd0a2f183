"""JSON-RPC 2.0 messages as they stand on the daemon's socket (https://www.jsonrpc.org/specification).

Owns the shape of a request, its `meta`, a reply and a notification. Never interprets params.
"""

from __future__ import annotations

import msgspec

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
"""Versions of the socket protocol that this build speaks."""


class Meta(msgspec.Struct, frozen=True):
    """What goes with a request beside its params.

    request_id: chosen by the client, unique within its instance; a repeat returns the first result.
    session: conversation handle, absent when the client can't tell conversations apart.
    epoch: the epoch the caller believes it holds; an act under an older one is refused.
    """

    request_id: str | None = None
    session: str | None = None
    epoch: int | None = None


NO_META = Meta()


class Request(msgspec.Struct, frozen=True):
    """One request or notification; `id` is UNSET for a notification. Ids are integers or strings."""

    method: str
    jsonrpc: str = ""
    id: int | str | msgspec.UnsetType | None = msgspec.UNSET
    params: msgspec.Raw = msgspec.Raw(b"")
    meta: Meta = NO_META


class ProtocolRange(msgspec.Struct, frozen=True):
    """Lowest and highest socket protocol a side speaks."""

    min: int
    max: int


class ClientInfo(msgspec.Struct, frozen=True):
    """Who connects. `name`: mbx-mcp, mbxctl, or a program's own; `instance`: random, one per process.

    `label` is the agent CLI's own name as it introduced itself to the shim (claude-code, codex-mcp-client).
    """

    name: str
    version: str
    instance: str
    label: str | None = None


class ProjectRef(msgspec.Struct, frozen=True):
    """A project as the client computed it: `key` is unique, `slug` is what it would like to be called."""

    key: str
    slug: str


class Hints(msgspec.Struct, frozen=True):
    """Wishes, never authority.

    resume: resume hints of the whole process (an environment session id, already namespaced by client).
    agent: the name to take when it is claimable (`--agent`, MBX_AGENT).
    sessions: handles this process has spoken for before a reconnect; "" is the session without one.
    host_label, container: how the client's machine looks from inside.
    """

    resume: tuple[str, ...] = ()
    agent: str | None = None
    sessions: tuple[str, ...] = ()
    container: str | None = None


class HelloParams(msgspec.Struct, frozen=True):
    """Introduces a connection."""

    protocol: ProtocolRange
    client: ClientInfo
    cwd: str | None = None
    project: ProjectRef | None = None
    hints: Hints = Hints()


class ServerInfo(msgspec.Struct, frozen=True):
    """Who answers. `started_at` is ISO 8601 UTC."""

    version: str
    pid: int
    started_at: str


class LockInfo(msgspec.Struct, frozen=True):
    """The daemon's lock file, so that a client can tell whether it reached the daemon of its state directory."""

    path: str
    device: int
    inode: int


class HelloResult(msgspec.Struct, frozen=True):
    """The version both sides now speak, and the daemon behind it."""

    protocol: int
    server: ServerInfo
    lock: LockInfo
