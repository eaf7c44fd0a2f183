"""What the Git archive holds, as a pure function of the registry: paths, file contents, lines of commit messages.

Owns the layout below `projects/` and the shape of the files. Nothing here is secret or volatile: who holds a
mailbox and when it was last active are not archived. Never touches Git or the disk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias, TypeGuard

import msgspec
from msgspec.structs import replace

from mbxd.core import events as ev
from mbxd.core.state import Identity, Project, State
from mbxd.core.times import iso

NO_PROJECT_DIRECTORY = "_none"
NAME_MAX = 100
"""Characters of a directory's name; longer names are cut and told apart by the identity's id."""
LINES_MAX = 200
"""Changes that a commit message tells one by one."""

Change: TypeAlias = (
    ev.ProjectCreated | ev.IdentityRegistered | ev.RoleSet | ev.Retired | ev.Unretired | ev.Renamed | ev.ProfileUpdated
)
"""Events that change a file of the archive."""
CHANGES = frozenset(
    {
        ev.ProjectCreated,
        ev.IdentityRegistered,
        ev.RoleSet,
        ev.Retired,
        ev.Unretired,
        ev.Renamed,
        ev.ProfileUpdated,
    }
)

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
# Devices of Windows, with any extension: "Naming Files, Paths, and Namespaces", Microsoft.
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9]|conin\$|conout\$|clock\$)(\..*)?", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def is_change(event: ev.Event) -> TypeGuard[Change]:
    """Whether an event changes a file of the archive. By exact type, since every event passes by, mostly others."""
    return type(event) in CHANGES


class Entry(NamedTuple):
    """A change that the archive has to take up. `before`: the name until then, of a rename."""

    seq: int
    event: Change
    before: str | None = None

    @property
    def identity(self) -> int:
        """Which identity it changed; 0: none."""
        match self.event:
            case ev.ProjectCreated():
                return 0
            case ev.IdentityRegistered():
                return self.event.id
            case _:
                return self.event.identity


class Picture(NamedTuple):
    """The registry as of `seq`, or the part of it that changed.

    clashes: identities whose name without case is another's address in the same project. gone: directories that
    renamed identities had before (paths of their files). whole: this is everything there is.
    """

    seq: int
    identities: list[Identity]
    projects: dict[int, Project]
    clashes: frozenset[int]
    gone: tuple[str, ...] = ()
    whole: bool = False


class ProjectFile(msgspec.Struct, frozen=True):
    """`project.json`."""

    id: int
    slug: str
    key: str
    created_at: str


class ProfileProject(msgspec.Struct, frozen=True):
    """The project in a profile."""

    id: int
    slug: str
    key: str


class Profile(msgspec.Struct, frozen=True):
    """`profile.json`, in this order."""

    id: int
    name: str
    address: str
    role: str | None
    description: str | None
    project: ProfileProject | None
    program: str | None
    model: str | None
    task_description: str | None
    attachments_policy: str | None
    retired: str | None
    aliases: tuple[str, ...]
    created_at: str


def directory_name(name: str, number: int, *, clash: bool = False) -> str:
    """A directory's name for `name`, equal on no file system to that of another `number` or of other software.

    A plain name stays as it is. One that clashes with another's, is reserved somewhere (CON, a trailing dot, .git) or
    too long is cleaned and followed by `+` and the number, which no plain name holds.
    """
    plain = (
        not clash
        and len(name) <= NAME_MAX
        and _SAFE.fullmatch(name) is not None
        and not name.endswith(".")
        and _DEVICE.fullmatch(name) is None
    )
    if plain:
        return name
    return f"{_UNSAFE.sub('_', name)[: NAME_MAX - 20]}+{number}"


def project_directory(project: Project | None) -> str:
    """`projects/<slug>`."""
    name = NO_PROJECT_DIRECTORY if project is None else directory_name(project.slug, project.id)
    return f"projects/{name}"


def project_path(project: Project) -> str:
    """The file of a project."""
    return f"{project_directory(project)}/project.json"


def profile_path(name: str, number: int, project: Project | None, *, clash: bool = False) -> str:
    """The file of an identity that bears this name."""
    return _below(project_directory(project), name, number, clash=clash)


def _below(directory: str, name: str, number: int, *, clash: bool) -> str:
    return f"{directory}/agents/{directory_name(name, number, clash=clash)}/profile.json"


def path_of(state: State, identity: Identity) -> str:
    """The file of an identity as it is now."""
    clash = _clashes(identity, _owner(state, identity))
    return profile_path(identity.name, identity.id, state.projects.get(identity.project), clash=clash)


def paths_of(state: State, identity: Identity) -> tuple[str, ...]:
    """The file of an identity as it is now, and all that it may have had under its former names.

    None is ever another's: an address never changes its owner, and nobody is given a name that another agent of the
    project has or had.
    """
    former = (path_of(state, _named(identity, name)) for name in (*identity.aliases, *identity.former))
    return tuple(dict.fromkeys((path_of(state, identity), *former)))


def _named(identity: Identity, before: str) -> Identity:
    """The record under a name that it had: an agent's is no address."""
    return replace(identity, name=before, address=before if before in identity.aliases else "")


def is_ours(path: str) -> bool:
    """Whether a path of the archive is one that only the daemon writes; others are a person's and left alone."""
    parts = path.split("/")
    if parts[0] != "projects":
        return False
    return (len(parts) == 3 and parts[2] == "project.json") or (
        len(parts) == 5 and parts[2] == "agents" and parts[4] == "profile.json"
    )


def files(picture: Picture) -> Iterator[tuple[str, bytes]]:
    """(path, contents) of everything in a picture."""
    directories = {0: project_directory(None)}
    for project in picture.projects.values():
        directories[project.id] = project_directory(project)
        yield project_path(project), _json(ProjectFile(project.id, project.slug, project.key, iso(project.created_at)))
    for identity in picture.identities:
        project_of = picture.projects.get(identity.project)
        directory = directories[0 if project_of is None else project_of.id]
        path = _below(directory, identity.name, identity.id, clash=identity.id in picture.clashes)
        yield path, _json(_profile(identity, project_of))


def _profile(i: Identity, project: Project | None) -> Profile:
    return Profile(
        id=i.id,
        name=i.name,
        address=i.address,
        role=i.role,
        description=i.description,
        project=None if project is None else ProfileProject(project.id, project.slug, project.key),
        program=i.program,
        model=i.model,
        task_description=i.task_description,
        attachments_policy=i.attachments_policy,
        retired=i.retired,
        aliases=i.aliases,
        created_at=iso(i.created_at),
    )


def _json(value: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _clashes(identity: Identity, owner: Identity | None) -> bool:
    """Whether another of its project has its name as an address or alias: the two differ by case alone.

    owner: of the address that its name is without case. An address never changes its owner, so the answer is the
    same for as long as the name is.
    """
    return (
        owner is not None
        and owner.id != identity.id
        and owner.project == identity.project
        and identity.name != identity.address
    )


def part(state: State, entries: Iterable[Entry], seq: int) -> Picture:
    """What these changes touched, as `state` has it now, at `seq`."""
    identities: dict[int, Identity] = {}
    projects: dict[int, Project] = {}
    gone: list[str] = []
    clashing = set()
    for entry in entries:
        if isinstance(entry.event, ev.ProjectCreated):
            projects[entry.event.id] = state.projects[entry.event.id]
            continue
        identity = identities[entry.identity] = state.identities[entry.identity]
        project = state.projects.get(identity.project)
        if project is not None:
            projects[project.id] = project
        if entry.before is not None:
            gone.append(path_of(state, _named(identity, entry.before)))
    for identity in identities.values():
        if identity.name != identity.address and _clashes(identity, _owner(state, identity)):
            clashing.add(identity.id)
    return Picture(seq, list(identities.values()), projects, frozenset(clashing), tuple(gone))


def _owner(state: State, identity: Identity) -> Identity | None:
    return state.identities.get(state.by_address.get(identity.name.lower(), 0))


def everything(identities: list[Identity], projects: dict[int, Project], seq: int) -> Picture:
    """The whole registry from copies of its records; runs in any thread."""
    owners = {address: i for i in identities for address in (i.address, *i.aliases)}
    clashing = frozenset(i.id for i in identities if _clashes(i, owners.get(i.name.lower())))
    return Picture(seq, identities, projects, clashing, whole=True)


def message(entries: list[Entry], picture: Picture, reason: str | None = None) -> str:
    """The text of a commit, without its trailers. `reason`: why it compares the whole, for people."""
    names = {i.id: i for i in picture.identities}
    told = [_line(entry, names, picture.projects) for entry in entries[:LINES_MAX]]
    if reason is not None:
        summary = f"compare with the registry: {reason}"
    elif len(entries) == 1:
        return told[0]
    else:
        summary = f"{len(entries)} changes: {told[0]}, ..." if told else "changes"
    lines = [f"#{entry.seq} {line}" for entry, line in zip(entries, told, strict=False)]
    if len(entries) > LINES_MAX:
        lines.append(f"... and {len(entries) - LINES_MAX} more")
    return summary if not lines else summary + "\n\n" + "\n".join(lines)


def _line(entry: Entry, identities: Mapping[int, Identity], projects: Mapping[int, Project]) -> str:
    event = entry.event
    if isinstance(event, ev.ProjectCreated):
        return _clean(f"project {event.slug}")
    identity = identities.get(entry.identity)
    name = f"#{entry.identity}" if identity is None else identity.name
    match event:
        case ev.IdentityRegistered():
            said = f"register {event.name}"
        case ev.Renamed():
            said = f"rename {entry.before or f'#{event.identity}'} to {event.name}"
        case ev.RoleSet():
            said = f"role of {name}: {event.role}"
        case ev.Retired():
            said = f"{'sweep' if event.how == 'swept' else 'retire'} {name}"
        case ev.Unretired():
            said = f"unretire {name}"
        case ev.ProfileUpdated():
            said = f"update {name}"
    project = None if identity is None else projects.get(identity.project)
    return _clean(said if project is None else f"{said} ({project.slug})")


def _clean(text: str) -> str:
    return _CONTROL.sub("?", text)[:300]
