"""From a request to its reply: the one error boundary.

Owns the order of checks (protocol, hello, method, params, rules) and the mapping of every kind of error to the
wire. Rejected is part of the contract; a malformed request is the peer's fault; anything else is a bug: it is
logged with its traceback, answered as an internal error, and the daemon goes on, since nothing was applied.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
import trio
from msgspec.structs import replace

from mbx_wire import admin as wire_admin
from mbx_wire import agent as wire_agent
from mbx_wire import identity as wire_identity
from mbx_wire.envelope import ProjectRef, Request
from mbx_wire.errors import Code, RpcError
from mbx_wire.methods import METHODS, Method, Pong
from mbxd.core import naming, sessions
from mbxd.core.context import Caller, Context
from mbxd.core.machine import RULES
from mbxd.core.rejected import Rejected
from mbxd.core.state import SHIMS_KEPT, Identity
from mbxd.runtime.engine import NoRoom, Outcome
from mbxd.server import archiving, explain, secrets, tools, wire
from mbxd.server.brief import briefed
from mbxd.server.callers import Introduced
from mbxd.server.limits import ROOM_WAIT_S
from mbxd.server.listing import Rows
from mbxd.server.mailroom import Mailroom
from mbxd.server.params import ParamsDecoder
from mbxd.server.services import Services
from mbxd.server.skew import Skew, between

log = logging.getLogger("mbxd.dispatch")


class Now(NamedTuple):
    """An answer that is ready; it may leave once `seq` is durable (0: at once)."""

    result: Any
    seq: int = 0


class Line(NamedTuple):
    """A whole failure line; a refusal may tell of a change, so it waits for `seq` like a result."""

    line: bytes
    seq: int = 0


class Later(NamedTuple):
    """An answer that needs waiting: a worker thread, or room in the log."""

    wait: Callable[[], Awaitable[Now]]


Answer = Now | Later

_DECODERS = {name: ParamsDecoder(method.params) for name, method in METHODS.items()}
_encode = msgspec.json.Encoder().encode
_DRAWS = frozenset({"tool.call", "agent.create", "agent.register"})
"""Methods that may make a name, for which they need entropy."""


class Dispatcher:
    """Answers requests of one daemon. Stateless between requests, but for the cache of encoded rows."""

    def __init__(self, services: Services) -> None:
        """`services`: the rest of the daemon."""
        self._services = services
        self._rows = Rows(services.engine.state)
        services.engine.on_staged.append(self._rows.on_staged)

    def answer(self, request: Request, who: Introduced | None) -> Answer | Line:
        """The answer to a request, or a whole failure line. Never raises."""
        try:
            return self._answer(request, who)
        except NoRoom:
            # Without the blanks of its line: many may have to wait.
            compact = msgspec.json.format(bytes(request.params) or b"{}", indent=-1)
            return Later(partial(self._with_room, replace(request, params=msgspec.Raw(compact)), who))
        except Rejected as refusal:
            return Line(failed(request, self._told(refusal, who)), self._undurable())
        except Exception as error:
            return Line(failed(request, error, self._skew(who)))

    def _skew(self, who: Introduced | None) -> Skew | None:
        if who is None:
            return None
        return between(self._services.server.version, who.version, command_line=who.command_line)

    def _told(self, refusal: Rejected, who: Introduced | None) -> Rejected:
        skew = self._skew(who)
        return refusal if skew is None else skew.told(refusal)

    def _answer(self, request: Request, who: Introduced | None) -> Answer:
        method = METHODS.get(request.method)
        if method is None or request.method == "hello":
            raise _NoMethod
        params = _DECODERS[method.name](bytes(request.params))
        if method.frozen:
            return self._frozen(method, params)
        if who is None:
            raise _NotIntroduced
        caller = who.caller(request.meta, self._services)
        projects = params.projects if isinstance(params, wire_admin.ToolCallParams) else {}
        ctx = self._context(caller, who, projects, draws=method.name in _DRAWS)
        if method.name == "tool.call":
            return self._tool(params, ctx, who)
        return self._run(method, params, ctx, who)

    # -- kinds of methods ------------------------------------------------------------------------------------

    def _frozen(self, method: Method, params: msgspec.Struct) -> Now:
        services = self._services
        if isinstance(params, wire_admin.StopParams):
            log.info("stop requested", extra={"reason": (params.reason or "")[:200]})
            services.stop.set()
            return Now(wire_admin.StopResult(stopping=True, pid=services.server.pid))
        if method.name == "status":
            return Now(explain.status(services))
        return Now(Pong(pong=True, pid=services.server.pid, version=services.server.version))

    def _run(self, method: Method, params: msgspec.Struct, ctx: Context, who: Introduced) -> Answer:
        services = self._services
        self._heard(ctx, who)  # before anything is refused or waited for: that it speaks is what keeps it attached
        match params:
            case wire_identity.ListParams():
                return self._list(params, ctx)
            case wire_admin.LogParams():
                return Later(partial(self._history, params, ctx))
            case wire_admin.ShowParams() if method.name == "identity.why":
                return Now(explain.why(services, params.name, ctx), self._undurable())
            case _ if method.name.startswith("mail."):
                return Later(partial(self._mail_call, method, params, ctx, who))
            case _ if method.name.startswith("archive."):
                return Later(partial(self._archive, method.name, params, ctx))
            case _ if method.name == "admin.stats":
                return Now(explain.stats(services))
            case _ if method.name not in RULES:
                raise _NoMethod
        if not method.changes:
            result = services.engine.look(method.name, params, ctx)
            if isinstance(params, wire_agent.WhoisParams) and params.include_recent_commits:
                return Later(partial(self._whois, result, params.commit_limit))
            shown = getattr(result, "identity", None)
            return Now(result, services.engine.newest_undurable([shown.id]) if shown else 0)
        if services.stopping:
            raise Rejected(Code.STOPPING, "The daemon is stopping.", "Try again in a moment.", retryable=True)
        self._check_lives(who)
        if method.name == "admin.sweep":
            _ = services.post.store  # without mail nobody knows what is unread: MAIL_UNAVAILABLE
        outcome = services.engine.stage(method.name, params, ctx)
        if isinstance(params, wire_identity.ClaimParams | wire_identity.RegisterParams):
            held = holding(services, ctx.caller)
            if held is not None and self._has_mail(held):
                return Later(partial(self._briefed, outcome, held.id))
        return Now(secrets.add(outcome.result, params, services), outcome.seq)

    def _has_mail(self, held: Identity) -> bool:
        post = self._services.post
        return bool(post.unread.get(held.id)) or post.involved(held.id) or post.is_heir(held)

    async def _briefed(self, outcome: Outcome, identity: int) -> Now:
        return Now(await briefed(self._services, outcome.result, identity, outcome.seq), outcome.seq)

    async def _mail_call(self, method: Method, params: msgspec.Struct, ctx: Context, who: Introduced) -> Now:
        if method.changes and self._services.stopping:
            raise Rejected(Code.STOPPING, "The daemon is stopping.", "Try again in a moment.", retryable=True)
        self._check_lives(who)  # also before it looks, for which it may take its name back
        result = await Mailroom(self._services, partial(self._check_lives, who)).answer(params, ctx)
        return Now(result, self._undurable())

    def _check_lives(self, who: Introduced) -> None:
        """Refuse a change over a connection that outlived its process: a child that inherited it is another's voice."""
        for watched in who.watched:
            self._services.holders.probe(watched)
            if watched.verdict.status == "dead":
                raise Rejected(
                    Code.NOT_ALLOWED,
                    f"The process that this connection speaks for (pid {watched.identity.pid}) has ended.",
                    "Connect anew from a process that lives.",
                )

    def _undurable(self) -> int:
        """The seq that everything staged so far waits for; 0 when all of it is on the disk."""
        engine = self._services.engine
        return engine.staged_seq if engine.staged_seq > engine.durable_seq else 0

    def _list(self, params: wire_identity.ListParams, ctx: Context) -> Now:
        result, ids = self._rows.list(params, ctx)
        return Now(result, self._services.engine.newest_undurable(ids))

    def _tool(self, params: msgspec.Struct, ctx: Context, who: Introduced) -> Answer:
        if not isinstance(params, wire_admin.ToolCallParams):
            raise _NoMethod
        try:
            call = tools.call(params.name, params.arguments)
            answer = self._run(METHODS[call.method], call.params, ctx, who)
        except Rejected as refusal:
            _let_stopping_through(refusal)
            return Now(tools.refusal(self._told(refusal, who), self._unread(ctx)), self._undurable())
        if isinstance(answer, Later):
            return Later(partial(self._as_tool_later, answer, ctx, toon=call.toon))
        return self._as_tool(answer, ctx, toon=call.toon)

    def _as_tool(self, answer: Now, ctx: Context, *, toon: bool) -> Now:
        raw = answer.result if isinstance(answer.result, msgspec.Raw) else _encode(answer.result)
        return Now(tools.result(bytes(raw), self._unread(ctx), toon=toon), answer.seq)

    async def _as_tool_later(self, answer: Later, ctx: Context, *, toon: bool) -> Now:
        try:
            return self._as_tool(await answer.wait(), ctx, toon=toon)
        except Rejected as refusal:
            _let_stopping_through(refusal)
            return Now(tools.refusal(refusal, self._unread(ctx)), self._undurable())

    def _unread(self, ctx: Context) -> int:
        held = holding(self._services, ctx.caller)
        return 0 if held is None else self._services.post.unread.get(held.id, 0)

    # -- pieces ----------------------------------------------------------------------------------------------

    def _context(
        self, caller: Caller, who: Introduced, projects: dict[str, ProjectRef | None], *, draws: bool
    ) -> Context:
        services = self._services
        return Context(
            caller,
            services.clock.wall(),
            services.settings.policy,
            services.holders.evidence,
            services.engine.active,
            services.post.unread,
            services.host_label,
            who.container,
            os.urandom(16) if draws else b"",
            services.key,
            projects,
        )

    def _heard(self, ctx: Context, who: Introduced) -> None:
        """Note that the session is alive and active; in the log, too, when a shim speaks for it for the first time."""
        services = self._services
        held = holding(services, ctx.caller)
        if held is None:
            return
        services.engine.active[held.id] = ctx.now
        if who.command_line or held.hold is None:
            return
        fresh = services.holders.spoke(held.id, who.shim)
        # When the log knows as many as it keeps, each is told to it once, and not in turns for ever.
        if who.shim not in held.hold.shims and (fresh or len(held.hold.shims) < SHIMS_KEPT):
            services.attach(held.id, held.epoch, who.shim)

    async def _archive(self, method: str, params: msgspec.Struct, ctx: Context) -> Now:
        return Now(await archiving.answer(self._services, method, params, ctx))

    async def _whois(self, result: wire_agent.WhoisResult, limit: int) -> Now:
        seq = self._services.engine.newest_undurable([result.id])
        return Now(await archiving.with_commits(self._services, result, limit), seq)

    async def _history(self, params: wire_admin.LogParams, ctx: Context) -> Now:
        return Now(await explain.history(self._services, params, ctx))

    async def _with_room(self, request: Request, who: Introduced | None) -> Now:
        """Wait for the log's next segment, then decide anew; DISK_FULL when there will be none."""
        deadline = trio.current_time() + ROOM_WAIT_S
        while True:
            try:
                await self._services.room(deadline)
                answer = self._answer(request, who)
            except NoRoom:
                continue  # others were quicker
            except Rejected as refusal:
                if request.method != "tool.call":
                    raise
                _let_stopping_through(refusal)
                return Now(tools.refusal(refusal), self._undurable())
            return answer if isinstance(answer, Now) else await answer.wait()


class _NoMethod(Exception):
    pass


class _NotIntroduced(Exception):
    pass


def _let_stopping_through(refusal: Rejected) -> None:
    """STOPPING is no answer to a tool call: as a JSON-RPC error it makes the shim ask the next daemon."""
    if refusal.code == Code.STOPPING:
        raise refusal


def holding(services: Services, caller: Caller) -> Identity | None:
    """What the caller's session holds."""
    return sessions.holding(services.engine.state, caller)


def failed(request: Request, error: Exception, skew: Skew | None = None) -> bytes:
    """The failure line of an error. The only place where errors become messages. skew: of the versions, if any."""
    number = request.id if request.id is not msgspec.UNSET else None
    match error:
        case Rejected():
            parameter = error.code.startswith("PARAMETER_")
            code = RpcError.INVALID_PARAMS if parameter else RpcError.REFUSED
            return wire.failure(number, code, error.message, error.body())
        case _NoMethod():
            text = f"There is no method {naming.shown(request.method)}."
            return wire.failure(number, RpcError.METHOD_NOT_FOUND, text, skew.body(text) if skew else None)
        case _NotIntroduced():
            return wire.failure(number, RpcError.NOT_INTRODUCED, "Say hello first.")
        case tools.UnknownTool():
            text = f"Unknown tool: {naming.shown(str(error))}"
            return wire.failure(number, RpcError.INVALID_PARAMS, text, skew.body(f"{text}.") if skew else None)
        case _:
            log.error("internal error", exc_info=error, extra={"method": request.method[:60]})
            return wire.failure(number, RpcError.INTERNAL, "Internal error; the daemon's log has the details.")
