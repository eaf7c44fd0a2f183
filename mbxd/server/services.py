"""What a session needs of the rest of the daemon. Data only, put together by the composition root."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from mbx_wire.envelope import LockInfo, ServerInfo
from mbxd.core.liveness import Policy
from mbxd.ports import Clock, Processes, ProcessId, RunSync
from mbxd.runtime.archive import Archive
from mbxd.runtime.clock import AwakeTime
from mbxd.runtime.engine import Engine
from mbxd.runtime.fanout import Fanout
from mbxd.runtime.holders import Holders
from mbxd.runtime.instances import Instances
from mbxd.runtime.post import Post
from mbxd.server.holding import Held, unfinished_lines, untaken_replies

HANDLES_KEPT = 64


@dataclass(slots=True)
class Settings:
    """What the configuration says now; replaced as a whole when the file changes."""

    policy: Policy = field(default_factory=Policy)
    sweep_older_than_s: float | None = None
    error: str | None = None


@dataclass(slots=True)
class Services:
    """The daemon as its sessions see it.

    shims_of, handles_of: connected shims and heard handles by host process, for command lines that act for a session.
    key: the host's secret for tokens; it is shown nowhere.
    extra_status: facts for `status` that only the composition root knows.
    room: waits until the log can take changes again, or raises Rejected (DISK_FULL).
    attach: logs another shim of a holder (identity, epoch, shim).
    lines, replies: what all connections together make the daemon hold.
    """

    engine: Engine
    holders: Holders
    instances: Instances
    fanout: Fanout
    post: Post
    archive: Archive
    processes: Processes
    clock: Clock
    awake: AwakeTime
    run_sync: RunSync
    server: ServerInfo
    lock: LockInfo
    settings: Settings
    stop: trio.Event
    host_label: str
    key: bytes
    extra_status: Callable[[], dict[str, object]]
    room: Callable[[float], Awaitable[None]]
    attach: Callable[[int, int, ProcessId], None]
    shims_of: dict[ProcessId, dict[ProcessId, int]] = field(default_factory=dict)
    handles_of: dict[ProcessId, dict[str, None]] = field(default_factory=dict)
    degraded: dict[str, str] = field(default_factory=dict)
    lines: Held = field(default_factory=unfinished_lines)
    replies: Held = field(default_factory=untaken_replies)
    connections: int = 0
    stopping: bool = False

    def heard(self, host: ProcessId, handle: str) -> None:
        """A conversation of this host process spoke; the newest HANDLES_KEPT are remembered while it is connected."""
        handles = self.handles_of.setdefault(host, {})
        if handle not in handles:
            handles[handle] = None
            if len(handles) > HANDLES_KEPT:
                del handles[next(iter(handles))]
