"""Params and results of the methods for people: status, why, free, retire, rename, log, stats, events.

Owns shapes only. Times are ISO 8601 UTC strings with milliseconds and `Z`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mbx_wire.envelope import ProjectRef
from mbx_wire.identity import Row, State


class StatusResult(msgspec.Struct, frozen=True):
    """Answer of the frozen `status`; fields only grow.

    `journal_seq` is the newest event, `durable_seq` the newest on the disk; `degraded` lists reasons in words
    (disk full, configuration file bad).
    `executable` is the Python that runs the daemon; `socket_activated` says who owns the socket.
    """

    version: str
    pid: int
    started_at: str
    uptime_s: float
    protocol_min: int
    protocol_max: int
    socket: str
    state_dir: str
    executable: str
    socket_activated: bool
    identities: int
    held: int
    sessions: int
    connections: int
    journal_seq: int
    durable_seq: int
    liveness: str
    config_path: str
    config_error: str | None
    degraded: list[str]
    host_label: str


class StopParams(msgspec.Struct, frozen=True):
    """`stop`: end the daemon after it has drained. `reason` is for its log."""

    reason: str | None = None


class StopResult(msgspec.Struct, frozen=True):
    """The daemon is about to stop."""

    stopping: bool
    pid: int


class ShowParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`identity.show` and `identity.why`: one identity by name or address."""

    name: str


class ShowResult(msgspec.Struct, frozen=True):
    """One identity, with its epoch and the addresses that still lead to it."""

    identity: Row
    epoch: int
    aliases: list[str]
    warnings: list[str]


class ProcessEvidence(msgspec.Struct, frozen=True):
    """What is known of one process. verdict: alive, dead, unknown; means: pidfd, sweep, log."""

    role: str
    pid: int
    verdict: str
    reason: str
    means: str
    age_s: float
    description: str | None


class WhyResult(msgspec.Struct, frozen=True):
    """The evidence behind a state: the processes, the rule that was applied, what could be done."""

    name: str
    state: State
    reason: str
    rule: str
    epoch: int
    processes: list[ProcessEvidence]
    attached: bool
    connections: int
    detached_s: float | None
    grace_s: float
    last_call_age_s: float | None
    options: list[str]


class FreeParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`admin.free`: make a mailbox vacant; its holder is fenced and told. `reason` is kept in the log."""

    name: str
    reason: str


class NameOnlyParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`admin.retire` and `admin.unretire`."""

    name: str


class RenameParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`admin.rename`: another name; the old address stays as an alias."""

    name: str
    to: str


class AdminResult(msgspec.Struct, frozen=True):
    """The identity after the change."""

    identity: Row
    epoch: int
    changed: bool
    warnings: list[str]


class LogParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`admin.log`: history, newest first. `limit` 1 to 1000."""

    name: str | None = None
    limit: int = 50


class LogEntry(msgspec.Struct, frozen=True):
    """One line of history. what: registered, claimed, released, lost, freed, retired, unretired, renamed, ..."""

    seq: int
    at: str
    what: str
    name: str
    epoch: int | None
    who: str | None
    pid: int | None
    reason: str | None


class LogResult(msgspec.Struct, frozen=True):
    """History, newest first; `truncated` when older entries exist or were no longer kept."""

    entries: list[LogEntry]
    truncated: bool


class StatsResult(msgspec.Struct, frozen=True):
    """Counters and gauges of the daemon's parts, by part."""

    parts: dict[str, dict[str, Any]]


class SubscribeParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`events.subscribe`: changes as `events.change` notifications; `project` null means the whole host."""

    project: str | None = None


class SubscribeResult(msgspec.Struct, frozen=True):
    """Subscribed; changes after `seq` follow."""

    subscribed: bool
    seq: int


class Change(msgspec.Struct, frozen=True):
    """Params of the notification `events.change`: one durable change and the row after it (host-wide view).

    Params of `events.dropped` are `{queued}`: the subscriber was too slow, the stream ends.
    """

    seq: int
    at: str
    what: str
    name: str
    project: str | None
    state: str
    epoch: int
    who: str | None
    reason: str | None


class ToolCallParams(msgspec.Struct, frozen=True):
    """`tool.call`: an MCP `tools/call` whole. The result is a CallToolResult.

    projects: for absolute paths in the arguments, the project that the client found there; null: it is none.
    """

    name: str
    arguments: dict[str, Any] | None = None
    projects: dict[str, ProjectRef | None] = {}
