"""The state of an identity from the evidence about its holder: the second table of docs/liveness.md.

Owns that table. Never probes anything: evidence comes in, with ages counted in time the machine was awake.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from mbx_wire.identity import Reason, State
from mbxd.core.state import Identity

Status = Literal["alive", "dead", "unknown"]


class Policy(NamedTuple):
    """What is configured: times in seconds of awake time, and whether agent names must look like names."""

    detach_grace: float = 60.0
    idle_after: float = 1800.0
    strict_names: bool = False


class Evidence(NamedTuple):
    """What is known of a holder now.

    host, host_reason: verdict on the host process. shims: alive when one that spoke for the session lives,
    dead when all are proven gone, unknown otherwise. connected: a connection of the session is open.
    loose_s: awake seconds since the session was last seen attached (or its evidence readable), 0 while it is.
    idle_s: awake seconds since the session's last call; sibling_s: since the last call of another
    conversation of the same host, None unless there is one that called after this session did.
    """

    host: Status
    host_reason: str
    shims: Status
    connected: bool
    loose_s: float = 0.0
    idle_s: float = 0.0
    sibling_s: float | None = None


UNSEEN = Evidence("unknown", "unverifiable", "unknown", connected=False)
"""Before any evidence was gathered: nothing is known, no time has passed."""


class Standing(NamedTuple):
    """State and reason; `free_in_s`: when time alone lets others claim, 0 for now, None for never."""

    state: State
    reason: Reason
    free_in_s: float | None


LIVE = Standing("live", "held", None)


def assess(identity: Identity, evidence: Evidence | None, policy: Policy) -> Standing:
    """Apply the table. `evidence` is None when nobody holds."""
    if identity.retired is not None:
        return Standing("retired", "swept" if identity.retired == "swept" else "retired", None)
    if identity.hold is None:
        return Standing("vacant", _past_reason(identity), 0.0)
    seen = UNSEEN if evidence is None else evidence
    if seen.host == "dead":
        return Standing("vacant", _gone(seen.host_reason), 0.0)
    if seen.host == "alive" and seen.shims == "alive":
        return _attached(seen, policy)
    if seen.host == "alive" and seen.shims == "dead":
        return _loose("detached", "detached", seen.loose_s, policy)
    if seen.connected:
        return LIVE
    return _loose("unknown", "unverifiable", seen.loose_s, policy)


def is_loose(host: Status, shims: Status, *, connected: bool) -> bool:
    """Whether this evidence lets the grace run: the session is detached or unknown (silence apart)."""
    if host == "dead" or (host == "alive" and shims == "alive"):
        return False
    return not connected or (host == "alive" and shims == "dead")


def _attached(seen: Evidence, policy: Policy) -> Standing:
    if seen.sibling_s is None:
        return LIVE
    silent = seen.idle_s - policy.idle_after
    # Silence counts only while other conversations of the same process go on: a quiet process is no evidence.
    if silent >= 0 and seen.sibling_s < policy.idle_after:
        return _loose("detached", "conversation-idle", silent, policy)
    return LIVE


def _loose(state: State, reason: Reason, since_s: float, policy: Policy) -> Standing:
    left = policy.detach_grace - since_s
    return Standing(state, reason, left) if left > 0 else Standing(state, "grace-over", 0.0)


def _past_reason(identity: Identity) -> Reason:
    if identity.past is None:
        return "freed" if identity.epoch else "never-held"
    return _gone(identity.past.reason)


def _gone(reason: str) -> Reason:
    match reason:
        case "released" | "freed" | "holder-exited" | "pid-reused" | "rebooted" | "grace-over":
            return reason
        case "conversation-idle" | "detached" | "unverifiable":
            return "grace-over"
        case _:
            return "holder-exited"
