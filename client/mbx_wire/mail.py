"""Params and results of the mail tools and the `mail.*` methods.

Owns shapes, their limits (the daemon's `core.mailrules` refuses what is beyond) and their documentation. Message ids
are strings that sort by time; a unique prefix of 8 characters is accepted wherever an id is. Times are ISO 8601 UTC
strings.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from mbx_wire.identity import Pending

SUBJECT_MAX = 200
BODY_MAX = 256 * 1024
"""Bytes of UTF-8."""
READ_MAX = 48 * 1024
"""Bytes of bodies in one result of read."""
NOTE_MAX = 500
RECIPIENTS_MAX = 20
READ_IDS_MAX = 20
ACK_IDS_MAX = 50
REFS_MAX = 20
REF_MAX = 64
LIMIT_DEFAULT = 30
LIMIT_MAX = 200
WAIT_MAX_S = 45
KEY_MAX = 128
QUERY_MAX = 500
PRUNE_MAX_S = 100 * 366 * 86_400

Kind = Literal["message", "request", "status", "decision", "alert", "task"]
Scope = Literal["mine", "received", "sent"]

MessageId = Annotated[str, msgspec.Meta(description="Id of a message, or its first 8 or more characters.")]
Limit = Annotated[
    int, msgspec.Meta(description="How many, 1 to 200.", extra_json_schema={"minimum": 1, "maximum": LIMIT_MAX})
]
Before = Annotated[str, msgspec.Meta(description="Cursor of the last page: `before` of its result.")]
Body = Annotated[str, msgspec.Meta(description="The text, at most 256 KiB.")]
KindField = Annotated[Kind, msgspec.Meta(description="What it is; message by default.")]
NeedsReply = Annotated[
    bool, msgspec.Meta(description="true: you wait for an answer, and are told if who owes it goes away.")
]


class WhoamiParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mail.whoami`: who this session is; also when it is nobody yet."""


class InboxParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mail.inbox`: headers, oldest first; looking changes nothing."""

    all: Annotated[bool, msgspec.Meta(description="true: acked ones too.")] | None = None
    limit: Limit | None = None
    before: Before | None = None
    wait_s: (
        Annotated[
            float,
            msgspec.Meta(
                description="Wait so long, at most 45 s, for something unread; 0: don't wait.",
                extra_json_schema={"minimum": 0, "maximum": WAIT_MAX_S},
            ),
        ]
        | None
    ) = None


class ReadParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mail.read`: bodies; reading changes nothing."""

    ids: Annotated[
        list[str],
        msgspec.Meta(
            description="Ids, or their first 8 or more characters.",
            extra_json_schema={"minItems": 1, "maxItems": READ_IDS_MAX},
        ),
    ]
    offset: (
        Annotated[
            int,
            msgspec.Meta(
                description="Where to go on: `next_offset` of the last result.", extra_json_schema={"minimum": 0}
            ),
        ]
        | None
    ) = None


class SendParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mail.send`."""

    to: Annotated[
        list[str],
        msgspec.Meta(
            description="Agent names or addresses, <project>/<name> for another project's; role:<role> (who has it "
            "now, else the next), * (all live), owner.",
            extra_json_schema={"minItems": 1, "maxItems": RECIPIENTS_MAX},
        ),
    ]
    subject: Annotated[
        str,
        msgspec.Meta(description="One line.", extra_json_schema={"minLength": 1, "maxLength": SUBJECT_MAX}),
    ]
    body: Body
    kind: KindField | None = None
    needs_reply: NeedsReply | None = None
    refs: (
        Annotated[list[str], msgspec.Meta(description="Ids it refers to.", extra_json_schema={"maxItems": REFS_MAX})]
        | None
    ) = None
    idempotency_key: (
        Annotated[
            str,
            msgspec.Meta(
                description="Your own key: the same key never sends twice.", extra_json_schema={"maxLength": KEY_MAX}
            ),
        ]
        | None
    ) = None


class ReplyParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mail.reply`: in the thread of a message."""

    id: MessageId
    body: Body
    kind: KindField | None = None
    needs_reply: NeedsReply | None = None
    all: (
        Annotated[bool, msgspec.Meta(description="true: to everybody of the message, not the sender alone.")] | None
    ) = None


class AckParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mail.ack`: done with these; each has its own result."""

    ids: Annotated[
        list[str],
        msgspec.Meta(
            description="Ids, or their first 8 or more characters.",
            extra_json_schema={"minItems": 1, "maxItems": ACK_IDS_MAX},
        ),
    ]
    note: (
        Annotated[
            str, msgspec.Meta(description="What came of it; the sender sees it. Beyond 500 characters it is cut.")
        ]
        | None
    ) = None


class SentParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mail.sent`: what I sent, newest first, with what became of it."""

    limit: Limit | None = None
    before: Before | None = None


class ThreadParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mail.thread`: the thread of a message, oldest first."""

    id: MessageId
    limit: Limit | None = None
    before: Before | None = None


class SearchParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mail.search`: words in subjects and bodies, newest first."""

    query: Annotated[
        str,
        msgspec.Meta(
            description="Words, or an FTS5 query.", extra_json_schema={"minLength": 1, "maxLength": QUERY_MAX}
        ),
    ]
    limit: Limit | None = None
    within: (
        Annotated[Scope, msgspec.Meta(description="mine: both, by default; or only what you received or sent.")] | None
    ) = msgspec.field(default=None, name="in")
    before: Before | None = None


class PeekParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mail.peek`: a person looks into a mailbox; nothing changes in it. `id`: that message's body alone."""

    name: str
    all: bool | None = None
    limit: int | None = None
    before: str | None = None
    id: str | None = None
    offset: int | None = None


class BackupParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mail.backup`: copy the mail file to an absolute path where nothing is yet."""

    path: str


class BackupResult(msgspec.Struct, frozen=True):
    """Where the copy is, and its size."""

    path: str
    bytes: int


class CheckResult(msgspec.Struct, frozen=True):
    """Outcome of `mail.check`; problems is empty when all is well."""

    ok: bool
    messages: int
    deliveries: int
    unread: int
    problems: list[str]


class PruneParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mail.prune`: delete threads that ended so long ago, all of it acked, nothing owed. dry_run: only count."""

    older_than_s: float
    dry_run: bool = False


class PruneResult(msgspec.Struct, frozen=True):
    """What went, or would go; bytes: of bodies."""

    threads: int
    messages: int
    bytes: int
    dry_run: bool


class Arrival(msgspec.Struct, frozen=True):
    """Params of the notification `events.mail`: a message reached a mailbox. unread: there, with it."""

    to: str
    from_: str = msgspec.field(name="from")
    subject: str
    kind: str
    id: str
    unread: int
    project: str | None


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message in a list. state: unread or acked for what came to you; for your own: the recipients' states."""

    id: str
    thread: str
    from_: str = msgspec.field(name="from")
    to: list[str]
    subject: str
    kind: str
    needs_reply: bool
    sent_at: str
    state: str
    body: str | None = None
    truncated: bool = False
    snippet: str | None = None
    recipients: list[Recipient] | None = None
    refs: list[str] | None = None


class Recipient(msgspec.Struct, frozen=True, omit_defaults=True):
    """One recipient. state of send: live, detached, unknown, vacant, retired, held, owner; of sent: unread, acked."""

    name: str
    state: str
    since: str | None
    detail: str | None
    note: str | None = None


class MessagesResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every list of mail. `before`: the cursor of the next page, null at the end. next_offset: read goes on there."""

    messages: list[Header]
    before: str | None
    warnings: list[str]
    next: str | None
    next_offset: int | None = None


class SendResult(msgspec.Struct, frozen=True):
    """What was sent and who can read it. duplicate: it was sent before under this key."""

    id: str
    thread: str
    recipients: list[Recipient]
    duplicate: bool
    warnings: list[str]
    next: str | None


class AckOne(msgspec.Struct, frozen=True, omit_defaults=True):
    """One id's result."""

    id: str
    ok: bool
    error: str | None = None


class AckResult(msgspec.Struct, frozen=True):
    """Per id."""

    results: list[AckOne]
    unread: int
    warnings: list[str]
    next: str | None


class Open(msgspec.Struct, frozen=True):
    """A request that waits for an answer: `who` owes it, or waits for it."""

    id: str
    subject: str
    who: str
    sent_at: str


class WhoamiResult(msgspec.Struct, frozen=True):
    """Who the session is. owed: requests it should answer; waited_for: requests of its own without an answer."""

    name: str | None
    address: str | None
    role: str | None
    project: str | None
    epoch: int | None
    unread: int
    owed: list[Open]
    waited_for: list[Open]
    pending: Pending | None
    warnings: list[str]
    next: str | None
