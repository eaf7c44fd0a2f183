"""Commands that the daemon gives itself: proposals of the watchers, decided like any other.

Owns their params and rules. A watcher never edits state: what it saw is bound to the epoch it saw it under,
and counts only while that epoch is in force.
"""

from __future__ import annotations

import msgspec

from mbxd.core import events as ev
from mbxd.core.context import Context
from mbxd.core.identity import Decision
from mbxd.core.state import State
from mbxd.ports import ProcessId


class HolderDied(msgspec.Struct, frozen=True):
    """The host process of the holder under `epoch` is proven gone. reason: a code of docs/liveness.md."""

    identity: int
    epoch: int
    reason: str


class AttachShim(msgspec.Struct, frozen=True):
    """Another shim spoke for the holder under `epoch`."""

    identity: int
    epoch: int
    shim: ProcessId


class ForgetInstances(msgspec.Struct, frozen=True):
    """These client instances died long enough ago."""

    instances: tuple[str, ...]


def holder_died(state: State, params: HolderDied, ctx: Context) -> Decision:
    """End the grant, if it is still the one that was seen."""
    identity = state.identities.get(params.identity)
    if identity is None or identity.hold is None or identity.epoch != params.epoch:
        return Decision([], None)
    active = ctx.active.get(identity.id, identity.last_active_at)
    return Decision([ev.HolderEnded(identity.id, identity.epoch, params.reason, ctx.now, active)], None)


def attach_shim(state: State, params: AttachShim, ctx: Context) -> Decision:
    """Note the shim, if it is new and the grant still the one that was seen."""
    identity = state.identities.get(params.identity)
    if identity is None or identity.hold is None or identity.epoch != params.epoch:
        return Decision([], None)
    if params.shim in identity.hold.shims:
        return Decision([], None)
    return Decision([ev.ShimAttached(identity.id, identity.epoch, params.shim, ctx.now)], None)


def forget_instances(state: State, params: ForgetInstances, _ctx: Context) -> Decision:
    """Drop what was kept for them."""
    known = tuple(i for i in params.instances if i in state.replies)
    return Decision([ev.InstancesForgotten(known)] if known else [], None)
