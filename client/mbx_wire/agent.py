"""Params and results of the agent tools: create_agent_identity, register_agent, ensure_project, whois, retire_agent.

Owns shapes and their documentation; the rules live in the daemon's core. Times are ISO 8601 UTC strings.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from mbx_wire.identity import Holder, Reason, State

AGENT_NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
LABEL_MAX = 128
TASK_MAX = 2000
PROJECT_KEY_MAX = 4096
COMMITS_MAX = 50

Format = Literal["json", "toon"]
AttachmentsPolicy = Literal["auto", "inline", "file"]

ProjectKey = Annotated[
    str,
    msgspec.Meta(
        description="The project: the absolute path of its directory (it need not exist), or its slug.",
        extra_json_schema={"maxLength": PROJECT_KEY_MAX},
    ),
]
Program = Annotated[
    str,
    msgspec.Meta(
        description="The agent CLI, for example claude-code.",
        extra_json_schema={"minLength": 1, "maxLength": LABEL_MAX},
    ),
]
Model = Annotated[
    str,
    msgspec.Meta(
        description="The model, for example opus-4.", extra_json_schema={"minLength": 1, "maxLength": LABEL_MAX}
    ),
]
NameHint = Annotated[
    str,
    msgspec.Meta(
        description="A wished name: one adjective and one noun of our lists, for example GreenCastle.",
        extra_json_schema={"maxLength": LABEL_MAX},
    ),
]
Task = Annotated[
    str,
    msgspec.Meta(description="What the agent works on.", extra_json_schema={"maxLength": TASK_MAX}),
]
Policy = Annotated[AttachmentsPolicy, msgspec.Meta(description="How it wants attachments; only stored.")]
ReturnToken = Annotated[
    bool, msgspec.Meta(description="false leaves the token out of the result, for your own identity.")
]
FormatField = Annotated[Format, msgspec.Meta(description="How the text block is written.")]
AgentName = Annotated[
    str,
    msgspec.Meta(
        description="The agent's name, for example GreenCastle.", extra_json_schema={"pattern": AGENT_NAME_PATTERN}
    ),
]
KnownAgent = Annotated[str, msgspec.Meta(description="The agent's name, for example GreenCastle, or its address.")]
Token = Annotated[str, msgspec.Meta(description="The token that came with the name.")]


class CreateAgentParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`agent.create`: always a new identity."""

    project_key: ProjectKey
    program: Program
    model: Model
    name_hint: NameHint | None = None
    task_description: Task | None = None
    attachments_policy: Policy | None = None
    return_registration_token: ReturnToken = True
    format: FormatField | None = None


class RegisterAgentParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`agent.register`: take or update an agent identity, or make one."""

    project_key: ProjectKey
    program: Program
    model: Model
    name: AgentName | None = None
    task_description: Task | None = None
    attachments_policy: Policy | None = None
    registration_token: Token | None = None
    format: FormatField | None = None


class EnsureProjectParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`project.ensure`: make a project explicitly."""

    human_key: ProjectKey


class WhoisParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`agent.whois`: the profile of an agent."""

    project_key: ProjectKey
    agent_name: KnownAgent
    include_recent_commits: Annotated[
        bool, msgspec.Meta(description="Whether to show the newest commits of its profile.")
    ] = True
    commit_limit: Annotated[
        int,
        msgspec.Meta(
            description="How many commits, 1 to 50.", extra_json_schema={"minimum": 1, "maximum": COMMITS_MAX}
        ),
    ] = 5


class RetireAgentParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`agent.retire`: put your own or a vacant identity away."""

    project_key: ProjectKey
    agent_name: KnownAgent


class AgentResult(msgspec.Struct, frozen=True):
    """Result of create and register. `registration_token` is there only when it was asked for, never in a log."""

    id: int
    name: str
    program: str
    model: str
    task_description: str
    inception_ts: str
    last_active_ts: str
    project_id: int
    address: str
    bound: bool
    epoch: int
    unread: int
    warnings: list[str]
    next: str | None
    registration_token: str | msgspec.UnsetType = msgspec.UNSET


class ProjectResult(msgspec.Struct, frozen=True):
    """Result of ensure_project."""

    id: int
    slug: str
    human_key: str
    created_at: str
    warnings: list[str]


class Commit(msgspec.Struct, frozen=True):
    """A commit of the archive that touched the profile."""

    hexsha: str
    summary: str
    authored_ts: str


class WhoisResult(msgspec.Struct, frozen=True):
    """Result of whois. `recent_commits` is null when not asked for or when the archive can't be read."""

    id: int
    name: str
    address: str
    program: str | None
    model: str | None
    role: str | None
    task_description: str
    attachments_policy: str
    inception_ts: str
    last_active_ts: str
    project_id: int
    state: State
    reason: Reason
    holder: Holder | None
    unread: int
    recent_commits: list[Commit] | None
    warnings: list[str]


class RetireResult(msgspec.Struct, frozen=True):
    """Result of retire_agent."""

    name: str
    address: str
    retired: bool
    warnings: list[str]
    next: str | None


class TokenParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`admin.token`: a person's look at an identity's token; `rotate` makes the old one invalid first."""

    name: str
    rotate: bool = False


class TokenResult(msgspec.Struct, frozen=True):
    """The token of the present generation."""

    id: int
    name: str
    generation: int
    warnings: list[str]
    registration_token: str | msgspec.UnsetType = msgspec.UNSET


class SweepParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`admin.sweep`: retire vacant identities without unread mail that were inactive for so many seconds."""

    older_than_s: float
    project: str | None = None
    dry_run: bool = False


class SweepResult(msgspec.Struct, frozen=True):
    """What was swept, or would be."""

    swept: list[str]
    dry_run: bool
    warnings: list[str]
