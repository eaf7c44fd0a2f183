"""Answers for people: status, why, stats, history.

Owns their wording. Reads the parts of the daemon, changes nothing.
"""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

from mbx_wire.admin import LogParams, LogResult, ProcessEvidence, StatsResult, StatusResult, WhyResult
from mbx_wire.envelope import PROTOCOL_MAX, PROTOCOL_MIN
from mbx_wire.errors import Code
from mbxd.core import admin, view
from mbxd.core.context import Context
from mbxd.core.rejected import Rejected
from mbxd.core.state import Identity
from mbxd.runtime import history as past
from mbxd.runtime.holders import Watched
from mbxd.server.services import Services

_RULES = {
    ("vacant", None): "nobody holds it",
    ("retired", None): "it was put away",
    ("live", None): "the host process lives and a process that spoke for the session lives "
    "(or a connection is open where the evidence can't be read): nobody displaces it",
    ("detached", "conversation-idle"): "the conversation was silent for 30 minutes while others of its process went on",
    ("detached", None): "the host process lives, but no process that spoke for the session does",
    ("unknown", None): "the evidence can't be read and no connection is open: unknown is never dead",
}


def status(services: Services) -> StatusResult:
    """The frozen `status`."""
    engine, state = services.engine, services.engine.state
    started = datetime.fromisoformat(services.server.started_at).timestamp()
    facts: dict[str, Any] = dict(services.extra_status())
    return StatusResult(
        version=services.server.version,
        pid=services.server.pid,
        started_at=services.server.started_at,
        uptime_s=round(max(services.clock.wall() - started, 0.0), 1),
        protocol_min=PROTOCOL_MIN,
        protocol_max=PROTOCOL_MAX,
        executable=sys.executable,
        identities=len(state.identities),
        held=state.held_count(),
        sessions=len(state.by_host),
        connections=services.connections,
        journal_seq=engine.staged_seq,
        durable_seq=engine.durable_seq,
        liveness="pidfd" if services.processes.has_pidfd() else "sweep",
        config_error=services.settings.error,
        degraded=list(services.degraded.values()),
        host_label=services.host_label,
        **facts,
    )


def stats(services: Services) -> StatsResult:
    """Counters by part."""
    log = services.engine.log
    parts: dict[str, dict[str, Any]] = {
        "engine": services.engine.statistics(),
        "log": dict(log.statistics()),
        "holders": services.holders.statistics(),
        "instances": services.instances.statistics(),
        "fanout": services.fanout.statistics(),
        "lines": dict(services.lines.statistics()),
        "replies": dict(services.replies.statistics()),
        "mail": services.post.statistics(),
        "archive": services.archive.statistics(),
        "registry": {
            "identities": len(services.engine.state.identities),
            "projects": len(services.engine.state.projects),
            "held": services.engine.state.held_count(),
            "hints": len(services.engine.state.by_hint),
        },
    }
    return StatsResult(parts=parts)


def why(services: Services, name: str, ctx: Context) -> WhyResult:
    """The evidence behind a state."""
    identity = admin.lookup(services.engine.state, name, ctx)
    stand = view.standing(identity, ctx)
    seat = services.holders.seat(identity.id)
    processes: list[ProcessEvidence] = []
    evidence = services.holders.evidence(identity.id)
    if seat is not None:
        processes.append(_process(services, "host", seat.host))
        processes += [_process(services, "shim", shim) for shim in seat.shims.values()]
    rule = _RULES.get((stand.state, stand.reason)) or _RULES[stand.state, None]
    if stand.state == "vacant" and seat is not None:
        rule = "its host process is proven gone"
    return WhyResult(
        name=identity.address,
        state=stand.state,
        reason=stand.reason,
        rule=rule,
        epoch=identity.epoch,
        processes=processes,
        attached=evidence is not None and evidence.shims == "alive",
        connections=0 if seat is None else services.holders.connections_of(seat),
        detached_s=None if seat is None or seat.loose_since is None or evidence is None else round(evidence.loose_s, 1),
        grace_s=services.settings.policy.detach_grace,
        last_call_age_s=None if seat is None else round(services.awake.now() - seat.last_call, 1),
        options=_options(identity, stand.state, stand.free_in_s),
    )


def _options(identity: Identity, state: str, free_in_s: float | None) -> list[str]:
    name = identity.address
    free = f'mbxctl free {name} --reason "..." makes it vacant at once; its holder is fenced and told'
    match state:
        case "vacant":
            return [f'any session may claim it: mbx_identity {{"action":"claim","name":"{name}"}}']
        case "retired":
            return [f"mbxctl unretire {name} brings it back"]
        case "live":
            return ["end the agent, or let it release", free]
        case _ if free_in_s:
            return [f"its session may come back at any time; others may claim it in {free_in_s:.0f} s", free]
        case _:
            return ["any session may claim it now; its own session may come back first", free]


def _process(services: Services, role: str, watched: Watched) -> ProcessEvidence:
    alive = watched.verdict.status == "alive"
    return ProcessEvidence(
        role=role,
        pid=watched.identity.pid,
        verdict=watched.verdict.status,
        reason=watched.verdict.reason,
        means="pidfd" if watched.handle is not None else "sweep",
        # A pidfd tells at once: what it has not told is true now.
        age_s=0.0 if watched.handle is not None and alive else round(services.awake.now() - watched.seen_at, 1),
        description=services.processes.describe(watched.identity.pid) if alive and watched.identity.pid > 0 else None,
    )


async def history(services: Services, params: LogParams, ctx: Context) -> LogResult:
    """`admin.log`."""
    if not 1 <= params.limit <= past.LIMIT_MAX:
        raise Rejected(
            Code.PARAMETER_INVALID,
            f"`limit` is {params.limit}: it must be 1 to {past.LIMIT_MAX}.",
            "For example 50.",
            data={"parameter": "limit"},
        )
    engine = services.engine
    wanted = None if not params.name else admin.lookup(engine.state, params.name, ctx).id
    names = {identity.id: identity.address for identity in list(engine.state.identities.values())}
    return await services.run_sync(past.read, engine.log, engine.durable_seq, names, wanted, params.limit)
