"""The registry in memory: records and the indexes over them.

Owns the shape of state. Records are immutable and replaced whole, so that a snapshot is a shallow copy that
is consistent however long it takes to write. Only `evolve` changes a State; everyone else reads.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from mbxd.core.events import SessionRef
from mbxd.ports import ProcessId

NO_PROJECT = 0
NOWHERE = "_"
"""In place of a slug for what has no project. No slug has a `_`."""
HINTS_KEPT = 65_536
LOST_KEPT = 1_024
REPLIES_KEPT = 256
SHIMS_KEPT = 16

SessionKey: TypeAlias = tuple[ProcessId, str]
"""(host process, handle): the identity of a session."""


class Project(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where agents work. `key` is what clients compute; `slug` is short and unique on the host."""

    id: int
    key: str
    slug: str
    created_at: float


class Hold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The grant in force."""

    session: SessionRef
    since: float
    shims: tuple[ProcessId, ...]
    provisional: bool = False

    @property
    def key(self) -> SessionKey:
        """Which session holds."""
        return (self.session.host, self.session.handle)


class PastHold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The grant before, and how it ended."""

    session: SessionRef
    ended: float
    reason: str

    @property
    def key(self) -> SessionKey:
        """Which session held."""
        return (self.session.host, self.session.handle)


class Identity(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A mailbox. `id` never changes; `epoch` rises at every grant and free."""

    id: int
    name: str
    address: str
    role: str | None
    description: str | None
    project: int
    created_at: float
    last_active_at: float
    epoch: int = 0
    hold: Hold | None = None
    past: PastHold | None = None
    retired: str | None = None
    aliases: tuple[str, ...] = ()
    program: str | None = None
    model: str | None = None
    task_description: str | None = None
    attachments_policy: str | None = None
    generation: int = 0
    former: tuple[str, ...] = ()


class Loss(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a session lost while it thought it held it."""

    identity: int
    to: str | None
    at: float
    how: str


class Kept(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The kept result of one request."""

    digest: bytes
    result: bytes


class Roster:
    """The addresses of one project, in order when read.

    Additions wait until somebody looks: a replay of many thousands sorts once, a single one is inserted.
    """

    __slots__ = ("_fresh", "_ordered")

    def __init__(self) -> None:
        """An empty roster."""
        self._ordered: list[str] = []
        self._fresh: list[str] = []

    def add(self, address: str) -> None:
        """Enter an address that is not in yet."""
        self._fresh.append(address)

    def discard(self, address: str) -> None:
        """Take an address out."""
        ordered = self.ordered()
        place = bisect_left(ordered, address)
        if place < len(ordered) and ordered[place] == address:
            del ordered[place]

    def ordered(self) -> list[str]:
        """All addresses in order; not to be changed by the caller."""
        if self._fresh:
            if len(self._fresh) < 32:
                for address in self._fresh:
                    insort(self._ordered, address)
            else:
                self._ordered += self._fresh
                self._ordered.sort()
            self._fresh.clear()
        return self._ordered


class State:
    """The registry. Dictionaries are the indexes; every one can be rebuilt from the records."""

    __slots__ = (
        "by_address",
        "by_agent_name",
        "by_hint",
        "by_host",
        "by_key",
        "by_session",
        "held",
        "identities",
        "lost",
        "next_identity",
        "next_project",
        "project_by_key",
        "projects",
        "replies",
        "rosters",
        "slugs",
    )

    def __init__(self) -> None:
        """An empty registry."""
        self.projects: dict[int, Project] = {}
        self.identities: dict[int, Identity] = {}
        self.next_project = 1
        self.next_identity = 1
        # Indexes over projects and identities.
        self.project_by_key: dict[str, int] = {}
        self.slugs: dict[str, int] = {}
        self.by_address: dict[str, int] = {}  # aliases too
        self.by_agent_name: dict[tuple[int, str], int] = {}
        self.rosters: dict[int, Roster] = {}
        # Indexes over the grants in force.
        self.held: dict[int, set[int]] = {}  # project -> identities
        self.by_session: dict[SessionKey, int] = {}
        self.by_host: dict[ProcessId, set[int]] = {}
        # Memories with a bound; the oldest go first. What a hint or a session held last: the identity, or its
        # negative when it was let go on purpose (released, freed), so that nobody takes it back by itself.
        self.by_hint: dict[str, int] = {}
        self.by_key: dict[SessionKey, int] = {}
        self.lost: dict[SessionKey, Loss] = {}
        self.replies: dict[str, dict[str, Kept]] = {}

    def put(self, identity: Identity) -> None:
        """Store a record whose address, name, project and hold have not changed."""
        self.identities[identity.id] = identity

    def add_project(self, project: Project) -> None:
        """Enter a project with its indexes."""
        self.projects[project.id] = project
        self.project_by_key[project.key] = project.id
        self.slugs[project.slug] = project.id
        self.next_project = max(self.next_project, project.id + 1)

    def add(self, identity: Identity) -> None:
        """Enter a record with all its indexes."""
        self.identities[identity.id] = identity
        self.next_identity = max(self.next_identity, identity.id + 1)
        self.index_names(identity)
        if identity.hold is not None:
            self.index_hold(identity, identity.hold.key)

    def index_names(self, identity: Identity) -> None:
        """Enter the address, the aliases, the agent name and the roster line."""
        self.by_address[identity.address] = identity.id
        for alias in identity.aliases:
            self.by_address[alias] = identity.id
        if identity.name != identity.address:
            self.by_agent_name[identity.project, identity.name.lower()] = identity.id
        for name in identity.former:
            self.by_agent_name[identity.project, name.lower()] = identity.id
        roster = self.rosters.get(identity.project)
        if roster is None:
            roster = self.rosters[identity.project] = Roster()
        roster.add(identity.address)

    def drop_names(self, identity: Identity) -> None:
        """Take the roster line out; addresses and agent names stay, they lead to the renamed one."""
        self.rosters[identity.project].discard(identity.address)

    def roster(self, project: int) -> list[str]:
        """Addresses of a project in order; not to be changed."""
        roster = self.rosters.get(project)
        return [] if roster is None else roster.ordered()

    def index_hold(self, identity: Identity, key: SessionKey) -> None:
        """Enter a grant to the session."""
        number = identity.id
        self.by_session[key] = number
        siblings = self.by_host.get(key[0])
        if siblings is None:
            self.by_host[key[0]] = {number}
        else:
            siblings.add(number)
        held = self.held.get(identity.project)
        if held is None:
            self.held[identity.project] = {number}
        else:
            held.add(number)

    def drop_hold(self, identity: Identity, key: SessionKey) -> None:
        """Take a grant to the session out."""
        self.by_session.pop(key, None)
        host = key[0]
        siblings = self.by_host[host]
        if len(siblings) > 1:
            siblings.discard(identity.id)
        else:
            del self.by_host[host]
        self.held[identity.project].discard(identity.id)

    def find(self, name: str, project: int) -> Identity | None:
        """The identity that a name means to somebody in this project.

        A bare name: this project's agent name without case first, else the address or an alias. `<slug>/<name>`: the
        one that has this address, alias or agent name in exactly that project; NOWHERE is the slug of those without.
        """
        if "/" in name:
            return self._find_qualified(name)
        found = self.by_agent_name.get((project, name.lower()))
        if found is None or self.identities[found].name.lower() != name.lower():  # a former name gives way
            found = self.by_address.get(name, found)
        return None if found is None else self.identities[found]

    def _find_qualified(self, name: str) -> Identity | None:
        slug, _, bare = name.partition("/")
        project = NO_PROJECT if slug == NOWHERE else self.slugs.get(slug)
        if project is None:
            return None
        # The address first: there is one on the host, so that what `called` gives leads back whatever else there is.
        found = self.by_address.get(bare)
        if found is None or self.identities[found].project != project:
            found = self.by_agent_name.get((project, bare.lower()))
        return None if found is None else self.identities[found]

    def called(self, identity: Identity, project: int | None, *, agent_name: bool = False) -> str:
        """The shortest name by which `find` leads back to this identity from that project; None: from every project.

        agent_name: rather the agent's name than the address, where it is one. A name that means another one there
        is qualified.
        """
        if agent_name and project == identity.project:
            found = self.find(identity.name, project)
            if found is not None and found.id == identity.id:
                return identity.name
        for place in (NO_PROJECT, *self.projects) if project is None else (project,):
            found = self.find(identity.address, place)
            if found is None or found.id != identity.id:
                return f"{self.slug(identity.project) or NOWHERE}/{identity.address}"
        return identity.address

    def slug(self, project: int) -> str | None:
        """The project's slug, None for none."""
        record = self.projects.get(project)
        return None if record is None else record.slug

    def holders(self) -> Iterator[tuple[Identity, Hold]]:
        """Every identity that has a grant in force."""
        for ids in self.held.values():
            for key in ids:
                identity = self.identities[key]
                if identity.hold is not None:
                    yield identity, identity.hold

    def held_count(self) -> int:
        """How many identities have a grant in force."""
        return len(self.by_session)
