"""Who gets a message: from the words of `to` to identities, with the truth about who can read it now.

Owns addressing, and the names that mail shows: what is shown is what one may send to. Reads the registry only;
never makes a mailbox, never stores mail.
"""

from __future__ import annotations

from typing import NamedTuple

from mbx_wire.errors import Code
from mbxd.core import naming, view
from mbxd.core.context import Context
from mbxd.core.rejected import Rejected
from mbxd.core.state import NO_PROJECT, Identity, State
from mbxd.core.times import iso

OWNER = 0
"""The person's mailbox. Identities count from 1."""
SYSTEM = -1
"""The daemon itself, as the sender of notices."""
OWNER_NAME = "owner"
OWNER_READS = "read with: mbxctl inbox"
EVERYBODY = "*"
BROADCAST_MAX = 200


class Recipient(NamedTuple):
    """One mailbox that a message goes to. identity: OWNER for the person; held_role: waits for that role instead.

    state, since, detail: who can read it, in words for the sender.
    """

    identity: int
    name: str
    state: str
    since: str | None
    detail: str | None
    held_role: str | None = None


def resolve(state: State, to: list[str], sender: int, ctx: Context) -> list[Recipient]:
    """Every mailbox named by `to`, each once, in order. Refuses the whole when one name is unknown."""
    project = home(state, sender, ctx)
    found: dict[tuple[int, str | None], Recipient] = {}
    for word in to:
        for one in _word(state, word.strip(), sender, project, ctx):
            found.setdefault((one.identity, one.held_role), one)
    return list(found.values())


def home(state: State, mailbox: int, ctx: Context) -> int:
    """The project in which a mailbox's mail means names, roles and `*`: its own; the caller's for the person's."""
    found = state.identities.get(mailbox)
    return view.project_id(state, ctx) if found is None else found.project


def _word(state: State, word: str, sender: int, project: int, ctx: Context) -> list[Recipient]:
    if word == EVERYBODY:
        return _everybody(state, sender, project, ctx)
    if word.startswith("role:"):
        return _role(state, word.removeprefix("role:").strip(), sender, project, ctx)
    return [recipient(state, mailbox(state, word, project), project, ctx)]


def mailbox(state: State, word: str, project: int) -> int:
    """The id behind a name, as it is meant in this project, or `owner`. Raises Rejected: UNKNOWN_IDENTITY."""
    if word == OWNER_NAME:
        return OWNER
    # An agent's name from before it was renamed lives on as an address, which has no capitals.
    identity = state.find(word, project) or state.find(word.lower(), project)
    if identity is None:
        raise _unknown(state, word, project)
    return identity.id


def name_of(state: State, identity: int, project: int | None) -> str:
    """What mail shows for an identity id to somebody in this project: a name that means it there; None: everywhere."""
    if identity == OWNER:
        return OWNER_NAME
    found = state.identities.get(identity)
    if found is None:
        return "mbxd" if identity == SYSTEM else f"#{identity}"
    return state.called(found, project, agent_name=True)


def recipient(state: State, identity: int, project: int, ctx: Context, *, detail: str | None = None) -> Recipient:
    """The mailbox, as it is called in this project, and whether somebody reads it now."""
    found = state.identities.get(identity)
    name = name_of(state, identity, project)
    if found is None:
        return Recipient(identity, name, OWNER_NAME, None, OWNER_READS)
    return _describe(found, name, ctx, detail)


def _describe(identity: Identity, name: str, ctx: Context, detail: str | None) -> Recipient:
    stand = view.standing(identity, ctx)
    since: float | None = None
    if stand.state == "vacant":
        since = identity.past.ended if identity.past is not None else identity.created_at
        since = ctx.now if identity.hold is not None else since
        detail = detail or f"nobody holds it ({stand.reason}); it is read when somebody claims it"
    elif stand.state == "retired":
        detail = detail or "put away; nobody reads it until it is brought back"
    elif identity.hold is not None:
        since = identity.hold.since
        if stand.state != "live":
            detail = detail or f"its session is {stand.state} ({stand.reason})"
    return Recipient(identity.id, name, stand.state, None if since is None else iso(since), detail)


def _everybody(state: State, sender: int, project: int, ctx: Context) -> list[Recipient]:
    _check_project(project)
    live = [
        recipient(state, number, project, ctx)
        for number in sorted(state.held.get(project, ()))
        if (identity := state.identities[number]).id != sender and view.standing(identity, ctx).state == "live"
    ]
    if not live:
        raise Rejected(
            Code.UNKNOWN_IDENTITY,
            "Nobody else is live in this project, so * reaches nobody.",
            "Send to a name: its mail waits there.",
            data={"near": [], "vacant": []},
        )
    if len(live) > BROADCAST_MAX:
        raise Rejected(
            Code.PARAMETER_INVALID,
            f"* would reach {len(live)} mailboxes, more than {BROADCAST_MAX}.",
            "Send to a role or to names.",
            data={"parameter": "to"},
        )
    return live


def _role(state: State, role: str, sender: int, project: int, ctx: Context) -> list[Recipient]:
    naming.check_role(role)
    _check_project(project)
    live = [
        recipient(state, number, project, ctx, detail=f"has the role {role}")
        for number in sorted(state.held.get(project, ()))
        if (identity := state.identities[number]).id != sender
        and identity.role == role
        and view.standing(identity, ctx).state == "live"
    ]
    if live:
        return live
    return [waiting(role)]


def waiting(role: str) -> Recipient:
    """Whoever has the role first."""
    waits = f"nobody with the role {role} is live: it goes to the first one that is claimed"
    return Recipient(-1, f"role:{role}", "held", None, waits, role)


def _check_project(project: int) -> None:
    if project == NO_PROJECT:
        raise Rejected(
            Code.NO_PROJECT,
            "Roles and * need a project: that of the mailbox, or of the person's directory when something was made "
            "in it. Here is none.",
            "Send to a name.",
        )


def _unknown(state: State, word: str, project: int) -> Rejected:
    near = [state.find(name, project) for name in view.near(state, word, project)]
    names = [state.called(one, project, agent_name=True) for one in near if one is not None]
    return Rejected(
        Code.UNKNOWN_IDENTITY,
        f"There is no mailbox {naming.shown(word)}." + (f" Did you mean {' or '.join(names)}?" if names else ""),
        'See the names with mbx_identity {"action":"list"}.',
        data={"near": names, "vacant": []},
    )
