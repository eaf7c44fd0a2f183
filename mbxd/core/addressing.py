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
    found: dict[tuple[int, str | None], Recipient] = {}
    for word in to:
        for recipient in _word(state, word.strip(), sender, ctx):
            found.setdefault((recipient.identity, recipient.held_role), recipient)
    return list(found.values())


def _word(state: State, word: str, sender: int, ctx: Context) -> list[Recipient]:
    if word == EVERYBODY:
        return _everybody(state, sender, ctx)
    if word.startswith("role:"):
        return _role(state, word.removeprefix("role:").strip(), sender, ctx)
    return [recipient(state, mailbox(state, word, ctx), ctx)]


def mailbox(state: State, word: str, ctx: Context) -> int:
    """The id behind one address, agent name of this project, or `owner`. Raises Rejected: UNKNOWN_IDENTITY."""
    if word == OWNER_NAME:
        return OWNER
    project = view.project_id(state, ctx)
    # An agent's name from before it was renamed lives on as an address, which has no capitals.
    identity = state.find(word, project) or state.find(word.lower(), project)
    if identity is None:
        raise _unknown(state, word, ctx)
    return identity.id


def name_of(state: State, identity: int, project: int) -> str:
    """What mail shows for an identity id to somebody in this project: a name that means it there."""
    if identity == OWNER:
        return OWNER_NAME
    found = state.identities.get(identity)
    if found is None:
        return "mbxd" if identity == SYSTEM else f"#{identity}"
    # Another project's agent name could be somebody else's here.
    return found.name if found.project == project else found.address


def recipient(state: State, identity: int, ctx: Context, *, detail: str | None = None) -> Recipient:
    """The mailbox and whether somebody reads it now."""
    found = state.identities.get(identity)
    name = name_of(state, identity, view.project_id(state, ctx))
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


def _everybody(state: State, sender: int, ctx: Context) -> list[Recipient]:
    project = _project(state, ctx)
    live = [
        recipient(state, number, ctx)
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


def _role(state: State, role: str, sender: int, ctx: Context) -> list[Recipient]:
    naming.check_role(role)
    project = _project(state, ctx)
    live = [
        recipient(state, number, ctx, detail=f"has the role {role}")
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


def _project(state: State, ctx: Context) -> int:
    project = view.project_id(state, ctx)
    if project == NO_PROJECT:
        raise Rejected(
            Code.NO_PROJECT,
            "Roles and * need a project, and this session has none that anything was made in.",
            "Send to a name.",
        )
    return project


def _unknown(state: State, word: str, ctx: Context) -> Rejected:
    project = view.project_id(state, ctx)
    roster = state.roster(project)
    near = naming.near(word.lower(), roster, state.slug(project))
    names = [state.identities[state.by_address[address]].name for address in near]
    return Rejected(
        Code.UNKNOWN_IDENTITY,
        f"There is no mailbox {naming.shown(word)}." + (f" Did you mean {' or '.join(names)}?" if names else ""),
        'See the names with mbx_identity {"action":"list"}.',
        data={"near": names, "vacant": []},
    )
