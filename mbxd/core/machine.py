"""decide: from a command to events and a result. The front door of the core.

Owns the table from commands to rules and the rule about repeated requests: a request id that was answered
before gets the first answer, without a new event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import astuple

from mbx_wire import admin as wire_admin
from mbx_wire import agent as wire_agent
from mbx_wire import identity as wire_identity
from mbx_wire.errors import Code
from mbx_wire.methods import METHODS
from mbxd.core import admin, agents, binding, identity, internal, lists, projects, tokens
from mbxd.core import events as ev
from mbxd.core.context import Context
from mbxd.core.evolve import evolve, replay
from mbxd.core.identity import Decision
from mbxd.core.rejected import Rejected
from mbxd.core.state import State

__all__ = ["Decision", "decide", "evolve", "replay"]

Rule = Callable[[State, Any, Context], Decision]

RULES: dict[str, tuple[type[msgspec.Struct], Rule]] = {
    "identity.list": (wire_identity.ListParams, lists.list_),
    "identity.claim": (wire_identity.ClaimParams, identity.claim),
    "identity.register": (wire_identity.RegisterParams, identity.register),
    "identity.release": (wire_identity.ReleaseParams, identity.release),
    "identity.show": (wire_admin.ShowParams, admin.show),
    "admin.free": (wire_admin.FreeParams, admin.free),
    "admin.retire": (wire_admin.NameOnlyParams, admin.retire),
    "admin.unretire": (wire_admin.NameOnlyParams, admin.unretire),
    "admin.rename": (wire_admin.RenameParams, admin.rename),
    "agent.create": (wire_agent.CreateAgentParams, agents.create),
    "agent.register": (wire_agent.RegisterAgentParams, agents.register),
    "agent.whois": (wire_agent.WhoisParams, agents.whois),
    "agent.retire": (wire_agent.RetireAgentParams, agents.retire),
    "project.ensure": (wire_agent.EnsureProjectParams, projects.ensure),
    "admin.token": (wire_agent.TokenParams, agents.token),
    "admin.sweep": (wire_agent.SweepParams, agents.sweep),
    "internal.bind": (binding.Bind, binding.bind),
    "internal.holder_died": (internal.HolderDied, internal.holder_died),
    "internal.attach_shim": (internal.AttachShim, internal.attach_shim),
    "internal.forget_instances": (internal.ForgetInstances, internal.forget_instances),
}
"""Command name -> params type, rule. Names are those of the methods; `internal.` ones never come from a socket."""

IDENTITIES_MAX = 250_000
"""Identities of a host, for none is ever deleted: some 200 MB of memory. More are refused."""
PROJECTS_MAX = 100_000
"""The same for projects."""

_KEPT = frozenset(name for name, method in METHODS.items() if method.changes and name in RULES)
"""Commands whose result is kept also when nothing had to be changed: a repeat must not do it later."""
_NO_TEXTS = frozenset({"registration_token", "name", "name_hint", "agent_name", "to"})

_encode = msgspec.json.Encoder().encode


def decide(state: State, command: str, params: msgspec.Struct, ctx: Context) -> Decision:
    """Run the rule of a command. The result of a change is kept under its request id, so it comes encoded (Raw).

    Raises Rejected; then nothing happened and nothing is kept, so a repeat is decided anew.
    """
    _refuse_tokens(params)
    caller = ctx.caller
    rule = RULES[command][1]
    if not caller.request_id or not caller.instance:
        return _with_room(state, rule(state, params, ctx))
    kept = state.replies.get(caller.instance)
    known = None if kept is None else kept.get(caller.request_id)
    if known is not None:
        if known.digest != digest(command, params, caller.handle):
            raise Rejected(
                Code.REQUEST_ID_REUSED,
                f"The request id {caller.request_id[:64]!r} was used before, for something else.",
                "Use a new request id for every new request; repeat an id only to repeat the same request.",
            )
        return Decision([], msgspec.Raw(known.result))
    decision = _with_room(state, rule(state, params, ctx))
    if not decision.events and command not in _KEPT:
        return decision
    result = _encode(decision.result)
    mark = digest(command, params, caller.handle)
    decision.events.append(ev.Replied(caller.instance, caller.request_id, mark, result))
    return Decision(decision.events, msgspec.Raw(result))


def _refuse_tokens(params: msgspec.Struct) -> None:
    """Refuse a token in a text: texts are kept for good, and shown to everybody. Names have a rule of their own."""
    for name in _texts(type(params)):
        value = getattr(params, name)
        if isinstance(value, str) and tokens.inside(value):
            raise Rejected(
                Code.PARAMETER_INVALID,
                f"`{name}` has a registration token in it, which others would see.",
                "Leave it out: a token belongs into `registration_token` alone.",
            )


@cache
def _texts(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Fields that may be texts for others."""
    return tuple(name for name in kind.__struct_fields__ if name not in _NO_TEXTS)


def _with_room(state: State, decision: Decision) -> Decision:
    """The decision, unless it makes more than a host keeps."""
    if len(state.identities) < IDENTITIES_MAX and len(state.projects) < PROJECTS_MAX:
        return decision
    for event in decision.events:
        match event:
            case ev.IdentityRegistered() if len(state.identities) >= IDENTITIES_MAX:
                what, most = "identities", IDENTITIES_MAX
            case ev.ProjectCreated() if len(state.projects) >= PROJECTS_MAX:
                what, most = "projects", PROJECTS_MAX
            case _:
                continue
        raise Rejected(
            Code.NAMES_EXHAUSTED,
            f"This host has {most} {what}, and keeps no more.",
            'Claim a vacant identity instead: mbx_identity {"action":"list","all":true} shows them.',
        )
    return decision


def digest(command: str, params: msgspec.Struct, handle: str) -> bytes:
    """What makes two requests the same: the command, its params as understood, and the conversation.

    It is in the log, so that a repeat after an upgrade is known: params at their defaults are left out, since a
    newer build may have more of them.
    """
    pairs = zip(_defaults(type(params)), astuple(params), strict=True)
    given = {name: value for (name, default), value in pairs if value is not default and value != default}
    return hashlib.blake2b(_encode((command, given, handle)), digest_size=8).digest()


@cache
def _defaults(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    """Fields with their defaults; what has none stands at a value that nothing equals."""
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    return list(zip(names, [msgspec.NODEFAULT] * (len(names) - len(defaults)) + list(defaults), strict=True))
