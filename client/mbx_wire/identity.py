"""Params and results of `mbx_identity` and the `identity.*` methods.

Owns shapes and their documentation; the rules live in the daemon's core. Times are ISO 8601 UTC strings
with milliseconds and `Z`. Patterns stand in the JSON Schema for clients; the daemon checks with its own
full matches, since a regex `$` would let a trailing newline through.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

ADDRESS_PATTERN = "^[a-z0-9][a-z0-9-]{1,39}$"
KNOWN_PATTERN = "^([a-z0-9_-]+/)?[a-z0-9][a-z0-9-]{1,39}$"
"""An address, also with its project's slug before it (`_`: without a project)."""
ROLE_PATTERN = "^[a-z0-9][a-z0-9 _-]{0,39}$"
DESCRIPTION_MAX = 200

Action = Literal["list", "claim", "register", "release"]
State = Literal["vacant", "live", "detached", "unknown", "retired"]
Reason = Literal[
    "never-held",
    "released",
    "freed",
    "holder-exited",
    "pid-reused",
    "rebooted",
    "detached",
    "conversation-idle",
    "unverifiable",
    "grace-over",
    "held",
    "yours",
    "swept",
    "retired",
]

NameField = Annotated[
    str,
    msgspec.Meta(
        description="The mailbox's name (its address): 2 to 40 of a-z, 0-9 and -, for example shop-backend.",
        extra_json_schema={"pattern": ADDRESS_PATTERN},
    ),
]
KnownField = Annotated[
    str,
    msgspec.Meta(
        description="The mailbox's name (its address): 2 to 40 of a-z, 0-9 and -, for example shop-backend. claim also "
        "takes <project>/<name>.",
        extra_json_schema={"pattern": KNOWN_PATTERN},
    ),
]
RoleField = Annotated[
    str,
    msgspec.Meta(
        description="What the mailbox is for: up to 40 of a-z, 0-9, space, _ and -, for example backend.",
        extra_json_schema={"pattern": ROLE_PATTERN},
    ),
]
DescriptionField = Annotated[
    str,
    msgspec.Meta(
        description="One line about the mailbox, at most 200 characters.",
        extra_json_schema={"maxLength": DESCRIPTION_MAX},
    ),
]
AllField = Annotated[bool, msgspec.Meta(description="list only: true shows the whole host instead of this project.")]


class IdentityToolParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the MCP tool `mbx_identity`."""

    action: Annotated[
        Action,
        msgspec.Meta(description="list: look; claim: take a mailbox; register: make one; release: let go."),
    ]
    name: KnownField | None = None
    role: RoleField | None = None
    description: DescriptionField | None = None
    all: AllField | None = None


class ListParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`identity.list`: the identities of this project, or of the host."""

    all: AllField | None = None


class ClaimParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`identity.claim`: take a mailbox; without a name the pending one or the one held last."""

    name: KnownField | None = None
    role: RoleField | None = None
    description: DescriptionField | None = None


class RegisterParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`identity.register`: make a new mailbox and claim it."""

    name: NameField | None = None
    role: RoleField | None = None
    description: DescriptionField | None = None


class ReleaseParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`identity.release`: let the held mailbox go."""


class Holder(msgspec.Struct, frozen=True):
    """The session that holds an identity: the agent CLI's label, the conversation handle or null, the host pid."""

    client: str
    session: str | None
    pid: int
    since: str


class LastHolder(msgspec.Struct, frozen=True):
    """Who held it before, until when, and how that ended."""

    client: str
    pid: int
    ended: str
    reason: str


class Row(msgspec.Struct, frozen=True):
    """One identity as this caller sees it now. `project` is the slug."""

    id: int
    name: str
    address: str
    project: str | None
    role: str | None
    description: str | None
    state: State
    reason: Reason
    claimable: bool
    claim_error: str | None
    claimable_in_s: float | None
    unread: int
    holder: Holder | None
    last_holder: LastHolder | None
    program: str | None
    model: str | None
    task_description: str | None
    created_at: str
    last_active_at: str


class HostInfo(msgspec.Struct, frozen=True):
    """The machine's label (its host name, for people only) and the container it is seen from, if any."""

    label: str
    container: str | None


class ProjectInfo(msgspec.Struct, frozen=True):
    """A project; `id` is null until something is made in it."""

    id: int | None
    key: str
    slug: str


class You(msgspec.Struct, frozen=True):
    """What the caller holds."""

    name: str
    address: str
    role: str | None
    project: str | None
    epoch: int
    unread: int


class Pending(msgspec.Struct, frozen=True):
    """A name the session would take at its next call that needs one. why: wish or resume."""

    name: str
    why: str
    claimable: bool


class Lost(msgspec.Struct, frozen=True):
    """What the session lost: to whom (a client label or null), when, how."""

    name: str
    to: str | None
    at: str
    how: str


class ListResult(msgspec.Struct, frozen=True):
    """Result of list."""

    action: Literal["list"]
    host: HostInfo
    project: ProjectInfo | None
    you: You | None
    pending: Pending | None
    lost: Lost | None
    identities: list[msgspec.Raw | Row]
    truncated: bool
    warnings: list[str]
    next: str | None


class Predecessor(msgspec.Struct, frozen=True):
    """The holder before this grant, when it was another session; last_act_at: when it last spoke."""

    client: str
    ended: str
    reason: str
    task_description: str | None
    last_act_at: str | None = None


class ClaimResult(msgspec.Struct, frozen=True):
    """Result of claim and register.

    inbox: the first unread headers; owed, waited_for: ids of requests to answer, and of own ones without an answer.
    """

    action: Literal["claim", "register"]
    identity: Row
    epoch: int
    created: bool
    resumed: bool
    unread: int
    inbox: list[dict[str, Any]]
    predecessor: Predecessor | None
    warnings: list[str]
    next: str | None
    owed: list[str] = []
    waited_for: list[str] = []


class ReleaseResult(msgspec.Struct, frozen=True):
    """Result of release; `released` is null when nothing was held."""

    action: Literal["release"]
    released: str | None
    warnings: list[str]
    next: str | None
