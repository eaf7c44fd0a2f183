"""What the writer can be told, what it answers, and what is refused before it reaches the writer.

Owns the shapes and the limits of size and form. Identities are integer ids, 0 is the owner (the person) and
SYSTEM the daemon itself. Time and entropy come with the command. Touches no database.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from mbxd.mail.errors import MailRefused

OWNER: Final = 0
SYSTEM: Final = -1

BODY_MAX: Final = 256 * 1024
"""Bytes of UTF-8; the same as mbx_wire.mail's."""
SUBJECT_MAX: Final = 1_000
"""Characters; wider than what the tools take, so that a reply's `Re: ` always fits."""
NOTE_MAX: Final = 500
KEY_MAX: Final = 128
REFS_MAX: Final = 64
RECIPIENTS_MAX: Final = 10_000
RELEASE_BATCH: Final = 100
"""Held messages delivered by one command, so that none holds the writer for long."""
REPLIES_KEPT: Final = 256
"""Results kept for each client instance, as in the registry."""
TOMBSTONES_KEPT_S: Final = 90 * 86_400.0
"""Seconds for which the ids and keys of pruned mail are kept: far longer than any retry."""

Kind = Literal["message", "request", "status", "decision", "alert", "task"]
KINDS: Final = frozenset(get_args(Kind))


class Role(msgspec.Struct, frozen=True):
    """The first identity of this role in this project (by id) to be claimed."""

    project: int
    role: str


class Request(msgspec.Struct, frozen=True):
    """Which request of which client instance this is; its result is kept and repeated. digest: of its params."""

    instance: str
    request_id: str
    digest: bytes


class Send(msgspec.Struct, frozen=True):
    """Send a message, or reply when `reply_to` is the full id of another one.

    now: Unix seconds; entropy: 10 bytes; registry_seq: the registry position that the sender saw, durable by now.
    held: roles that nobody has, for whom it is kept. An empty subject of a reply becomes `Re: ...`.
    A reply answers the request it replies to. One to something else of a thread answers the older requests in
    that thread which the replier owes to the author of that something. An ack is no answer.
    key: the sender's idempotency key; the same key and content again is the first message, never a second.
    named: the words that stood for the recipients. With a key they are compared instead of whom they reached, which
    may be others at a repeat.
    """

    sender: int
    recipients: tuple[int, ...]
    subject: str
    body: str
    now: float
    entropy: bytes
    registry_seq: int
    kind: str = "message"
    needs_reply: bool = False
    refs: tuple[str, ...] = ()
    reply_to: str = ""
    held: tuple[Role, ...] = ()
    key: str | None = None
    named: tuple[str, ...] = ()


class Ack(msgspec.Struct, frozen=True):
    """Be done with messages, by full id. The first ack and its note stay."""

    identity: int
    ids: tuple[str, ...]
    now: float
    note: str = ""


class Deliver(msgspec.Struct, frozen=True):
    """Note that a recipient's session was given these; they stay unread."""

    identity: int
    ids: tuple[str, ...]
    now: float


class ReleaseHeld(msgspec.Struct, frozen=True):
    """Deliver what others sent and is held for a role to the identity that has it now. before: only what was sent
    before that (Unix seconds): what came later waits for the next one.
    """

    project: int
    role: str
    identity: int
    before: float | None = None


class Notice(msgspec.Struct, frozen=True):
    """Tell the sender of an unanswered request something about who owes the answer, once.

    `(kind, request, recipient, epoch)` makes it the same notice; kind: a word of the caller's, as `orphaned`.
    recipient: the identity that owes the answer; epoch: of its holder that went or came.
    """

    kind: str
    request: str
    recipient: int
    epoch: int
    subject: str
    body: str
    now: float
    entropy: bytes
    registry_seq: int


class Prune(msgspec.Struct, frozen=True):
    """Delete threads whose newest message is older than `older_than` (Unix seconds) and which nobody needs:
    every delivery acked, no answer owed, nothing held. Looks at `limit` threads behind `after`, a thread's number.
    """

    older_than: float
    now: float
    after: int = 0
    limit: int = 200
    dry_run: bool = False


class Forget(msgspec.Struct, frozen=True):
    """Drop the kept results of a client instance that is gone."""

    instance: str


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    """The message, its thread (the id of the first message there), whom it reached, which requests it answered.

    duplicate: it was there already, under its key; recipients and held are then as they are now. subject: as it was
    stored, empty for a duplicate. held: the roles that it waits for.
    """

    id: str
    thread: str
    sent_at: float
    recipients: list[int]
    answered: list[str] = []
    duplicate: bool = False
    subject: str = ""
    held: list[Role] = []


class Acked(msgspec.Struct, frozen=True, tag="acked"):
    """Per id: acked, already (acked before), or unknown (no message of this identity's inbox)."""

    results: dict[str, str]


class Delivered(msgspec.Struct, frozen=True, tag="delivered"):
    """How many were given for the first time."""

    count: int


class Released(msgspec.Struct, frozen=True, tag="released"):
    """The ids that came into the inbox, oldest first. more: there may be others, release again."""

    ids: list[str]
    more: bool = False


class Noticed(msgspec.Struct, frozen=True, tag="noticed"):
    """id: of the notice's message; null when it was given before, or nothing is owed any more."""

    id: str | None


class Pruned(msgspec.Struct, frozen=True, tag="pruned"):
    """What went, or would go. after: where to go on, null when all threads were looked at."""

    threads: int
    messages: int
    bytes: int
    after: int | None


class Forgotten(msgspec.Struct, frozen=True, tag="forgotten"):
    """How many results were dropped."""

    count: int


Command: TypeAlias = Send | Ack | Deliver | ReleaseHeld | Notice | Prune | Forget
Result: TypeAlias = Sent | Acked | Delivered | Released | Noticed | Pruned | Forgotten


def validate(command: Command, request: Request | None = None) -> None:
    """Raise MailRefused when a command can't be stored, whatever the database holds."""
    if request is not None and "\0" in request.instance + request.request_id:
        _refuse("The request id holds a NUL.", "Use printable characters.")
    if request is not None:
        _text(request.instance + request.request_id, "request id")
    match command:
        case Send():
            _send(command)
        case Ack():
            _text(command.note, "note")
            if len(command.note) > NOTE_MAX:
                _refuse(f"The note has {len(command.note)} characters, at most {NOTE_MAX} fit.", "Shorten it.")
        case Notice():
            _text(command.kind, "kind")
            _letter(command.subject, command.body)
        case ReleaseHeld():
            _text(command.role, "role")
        case Deliver() | Prune() | Forget():
            pass


def content_digest(command: Send) -> str:
    """What makes two sends under one key the same: all that a recipient would see."""
    c = command
    whom = (c.recipients, c.held) if not c.named else c.named
    seen = (whom, c.kind, c.needs_reply, c.subject, c.body, c.refs, c.reply_to)
    return hashlib.blake2b(msgspec.msgpack.encode(seen), digest_size=8).hexdigest()


def _send(command: Send) -> None:
    _letter(command.subject, command.body)
    if command.kind not in KINDS:
        _refuse(f"The kind {command.kind[:40]!r} is unknown.", f"Use one of {', '.join(sorted(KINDS))}.")
    if len(command.recipients) + len(command.held) > RECIPIENTS_MAX:
        _refuse(f"The message has more than {RECIPIENTS_MAX} recipients.", "Send to fewer at once.")
    if len(command.refs) > REFS_MAX:
        _refuse(f"The message has {len(command.refs)} refs, at most {REFS_MAX} fit.", "Name the main ones.")
    for text in (*command.refs, command.reply_to, *(role.role for role in command.held)):
        _text(text, "reference")
    numbers = (command.sender, command.registry_seq, *command.recipients, *(role.project for role in command.held))
    if not (min(numbers) >= SYSTEM and max(numbers) < 1 << 63 and math.isfinite(command.now)):
        _refuse("An identity, position or time is out of range.", "This is a bug of the caller: report it.")
    if command.key is not None:
        _text(command.key, "idempotency key")
        if not 0 < len(command.key) <= KEY_MAX:
            _refuse(f"The idempotency key needs 1 to {KEY_MAX} characters.", "Use a short key of your own.")


def _letter(subject: str, body: str) -> None:
    _text(subject, "subject")
    if len(subject) > SUBJECT_MAX:
        _refuse(f"The subject has {len(subject)} characters, at most {SUBJECT_MAX} fit.", "Move text to the body.")
    size = _text(body, "body")
    if size > BODY_MAX:
        raise MailRefused(
            "BODY_TOO_LONG",
            f"The body has {size} bytes of UTF-8, at most {BODY_MAX} (256 KiB) fit.",
            "Put the long part into a file and send its path, or send it in parts.",
        )


def _text(text: str, what: str) -> int:
    """Bytes of UTF-8. Every character is kept as it is, but half of a surrogate pair is none."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise MailRefused(
            "TEXT_INVALID",
            f"The {what} holds half of a surrogate pair at character {error.start}; that is no Unicode text.",
            "Send whole characters: decode the text anew, with errors replaced.",
        ) from None


def _refuse(message: str, hint: str) -> None:
    raise MailRefused("PARAMETER_INVALID", message, hint)
