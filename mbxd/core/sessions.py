"""Which session a caller acts as, what it holds, what it would take, what it lost.

Owns the rules about handles and hints. Reads only.
"""

from __future__ import annotations

from typing import NamedTuple

from mbx_wire.errors import Code
from mbxd.core.context import Caller
from mbxd.core.events import SessionRef
from mbxd.core.rejected import Rejected
from mbxd.core.state import Identity, SessionKey, State

_UNTOLD = "a command line doesn't say for which one it runs."
_ASK_ITSELF = "Let the conversation call the tools itself, mbx_whoami first: its calls say whose they are."
_SEND_HANDLE = 'Send the conversation\'s handle as `_meta` value "mbx/session".'


class Acting(NamedTuple):
    """The session a caller acts as, and the identity it holds, if any."""

    session: SessionRef
    key: SessionKey
    holds: Identity | None


class Wish(NamedTuple):
    """A name the session would take. why: wish (asked for at start) or resume (held last)."""

    name: str
    why: str
    identity: Identity | None


def acting(state: State, caller: Caller) -> Acting:
    """The caller's session; NOT_AN_AGENT for a person, AMBIGUOUS_SESSION when it can't be told."""
    if caller.host is None:
        raise Rejected(
            Code.NOT_AN_AGENT,
            "A person holds no mailbox: only an agent's session can.",
            "Run this beneath an agent CLI, or use list, show, free, retire or rename.",
        )
    handle = caller.handle
    if not handle:
        held = state.by_host.get(caller.host, ())
        if len(held) > 1:
            names = sorted(state.identities[i].address for i in held)
            raise Rejected(
                Code.AMBIGUOUS_SESSION,
                f"This process holds {len(held)} identities ({', '.join(names[:5])}) for different conversations, and "
                + (_UNTOLD if caller.beneath_agent else "this call doesn't say which conversation it belongs to."),
                _ASK_ITSELF if caller.beneath_agent else _SEND_HANDLE,
                data={"names": names[:20]},
            )
        for only in held:
            hold = state.identities[only].hold
            if hold is not None:
                return Acting(hold.session, hold.key, state.identities[only])
        if len(caller.conversations) > 1:
            raise Rejected(
                Code.AMBIGUOUS_SESSION,
                f"This agent CLI has {len(caller.conversations)} conversations, and {_UNTOLD}",
                _ASK_ITSELF,
            )
        # A mailbox held without the handle would be out of reach for the one conversation that there is.
        handle = next(iter(caller.conversations), "")
    session = caller.session(handle)
    key = (session.host, handle)
    holds = state.by_session.get(key)
    return Acting(session, key, None if holds is None else state.identities[holds])


def holding(state: State, caller: Caller) -> Identity | None:
    """What the caller's session holds, without working out anything else; None also where `acting` refuses."""
    host, handle = caller.host, caller.handle
    if host is None:
        return None
    if not handle:
        held = state.by_host.get(host, ())
        if len(held) > 1:
            return None
        for only in held:
            return state.identities[only]
    holds = state.by_session.get((host, handle))
    return None if holds is None else state.identities[holds]


def looking(state: State, caller: Caller) -> tuple[Acting | None, list[str]]:
    """Like `acting`, for calls that only look: no session is no error, an ambiguous one is a warning."""
    try:
        return acting(state, caller), []
    except Rejected as refusal:
        return None, [] if refusal.code == Code.NOT_AN_AGENT else [f"{refusal.code}: {refusal.message}"]


def held_last(state: State, session: SessionRef, project: int) -> Identity | None:
    """What this session or one of its hints held last, asked for in `project`."""
    last = _last(state, session, project)
    return state.identities[abs(last)] if last else None


def _last(state: State, session: SessionRef, project: int) -> int:
    """The id of what it held last, negative when it was let go on purpose, 0 for nothing."""
    for hint in session.hints:
        found = state.by_hint.get(hint)
        # A handle may be a plain word, which means somebody else in another project.
        if found is not None and (not session.handle or state.identities[abs(found)].project == project):
            return found
    return state.by_key.get((session.host, session.handle), 0)


def pending(state: State, caller: Caller, who: Acting, project: int) -> Wish | None:
    """What the session would take by itself at its next call that needs an identity.

    Nothing after it let go on purpose or lost what it held: it never grabs a name back.
    """
    if who.holds is not None or who.key in state.lost or state.by_key.get(who.key, 0) < 0:
        return None
    if caller.agent:
        return Wish(caller.agent, "wish", state.find(caller.agent, project))
    last = _last(state, who.session, project)
    if last <= 0:
        return None
    identity = state.identities[last]
    return Wish(state.called(identity, project), "resume", identity)
