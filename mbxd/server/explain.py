"""Answers for people: status, why, stats, history.

Owns their wording. Reads the parts of the daemon, changes nothing.
"""

from __future__ import annotations

import math
import sys
from datetime import datetime
from typing import Any

from mbx_wire.admin import LogParams, LogResult, ProcessEvidence, StatsResult, StatusResult, WhyResult
from mbx_wire.envelope import PROTOCOL_MAX, PROTOCOL_MIN
from mbx_wire.errors import Code
from mbxd.core import admin, advice, view
from mbxd.core.context import Context
from mbxd.core.liveness import Evidence, Policy, Standing
from mbxd.core.rejected import Rejected
from mbxd.core.sessions import Acting, looking
from mbxd.core.state import Identity, State
from mbxd.core.times import iso
from mbxd.runtime import history as past
from mbxd.runtime.holders import Watched
from mbxd.server.services import Services

_LIVE = (
    "the host process lives and a process that spoke for the session lives "
    "(or a connection is open where the evidence can't be read): nobody displaces it"
)
_DETACHED = "the host process lives, but no process that spoke for the session does"
_UNKNOWN = "the evidence can't be read and no connection is open: unknown is never dead"


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
    state = services.engine.state
    identity = admin.lookup(state, name, ctx)
    stand = view.standing(identity, ctx)
    seat = services.holders.seat(identity.id)
    processes: list[ProcessEvidence] = []
    evidence = services.holders.evidence(identity.id)
    if seat is not None:
        processes.append(_process(services, "host", seat.host))
        processes += [_process(services, "shim", shim) for shim in seat.shims.values()]
    elif identity.past is not None:
        host = identity.past.session.host
        now = Watched(host, None, services.processes.probe(host, None), services.awake.now())
        processes.append(_process(services, "last host", now))
    called = view.called(state, identity, ctx)
    return WhyResult(
        name=called,
        state=stand.state,
        reason=stand.reason,
        rule=_rule(identity, stand, evidence, services.settings.policy),
        epoch=identity.epoch,
        processes=processes,
        attached=evidence is not None and evidence.shims == "alive",
        connections=0 if seat is None else services.holders.connections_of(seat),
        detached_s=None if seat is None or seat.loose_since is None or evidence is None else round(evidence.loose_s, 1),
        grace_s=services.settings.policy.detach_grace,
        last_call_age_s=None if seat is None else round(services.awake.now() - seat.last_call, 1),
        options=_options(state, identity, called, stand, ctx),
    )


def _rule(identity: Identity, stand: Standing, evidence: Evidence | None, policy: Policy) -> str:
    """The row of the table in `core.liveness` that was applied, in words."""
    over = f"; its grace of {_span(policy.detach_grace)} is over" if stand.reason == "grace-over" else ""
    match stand.state:
        case "vacant" if identity.hold is not None:
            return "its host process is proven gone"
        case "vacant" if identity.past is not None:
            return f"nobody holds it; {identity.past.session.client} did until {iso(identity.past.ended)}"
        case "vacant":
            return "nobody holds it"
        case "retired" if stand.reason == "swept":
            return "it was vacant, idle and without mail, and was swept away; a claim revives it"
        case "retired":
            return "it was put away"
        case "live":
            return _LIVE
        case "detached" if evidence is not None and evidence.shims == "alive":
            silence = _span(policy.idle_after)
            return f"the conversation was silent for {silence} while others of its process went on{over}"
        case "detached":
            return _DETACHED + over
        case _:
            return _UNKNOWN + over


def _span(seconds: float) -> str:
    return f"{seconds / 60:g} minutes" if seconds >= 120 and seconds % 60 == 0 else f"{seconds:g} s"


def _options(state: State, identity: Identity, name: str, stand: Standing, ctx: Context) -> list[str]:
    """What this caller can do, each so that it works as it stands. name: what leads to the identity from here."""
    who, _ = looking(state, ctx.caller)
    person = ctx.caller.host is None
    levers = "" if person else "for your user: "
    free = f'{levers}mbxctl free {name} --reason "..." makes it vacant at once; its holder is fenced and told'
    unretire = f"{levers}mbxctl unretire {name} brings it back"
    match stand.state:
        case _ if who is not None and who.holds is not None and who.holds.id == identity.id:
            return ['it is yours; mbx_identity {"action":"release"} lets it go', free]
        case "vacant":
            return [_claim(identity, name, who, ctx)]
        case "retired" if stand.reason == "swept":
            return [_claim(identity, name, who, ctx), unretire]
        case "retired":
            return [unretire]
        case "live" if person:
            return ["end the agent, or let it release", free]
        case "live":
            return ["wait until its agent ends or releases it, or register another name", free]
        case _ if stand.free_in_s:
            wait = math.ceil(stand.free_in_s)
            return [f"its session may come back at any time; others may claim it in {wait} s", free]
        case _:
            return [_claim(identity, name, who, ctx) + "; its own session may come back first", free]


def _claim(identity: Identity, name: str, who: Acting | None, ctx: Context) -> str:
    """How it is claimed: by the caller's session, or by any agent where the caller is none or can't be told."""
    role = advice.ANY_ROLE if view.obstacle(identity, who, ctx) == Code.ROLE_REQUIRED else None
    if who is None:
        return advice.claim_by_any(name, role)
    if who.holds is not None:
        first = 'mbx_identity {"action":"release"}'
        return f"any session that holds nothing may claim it; this one holds {who.holds.address}: {first} first"
    return f"any session may claim it: {advice.claim(name, role)}"


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
