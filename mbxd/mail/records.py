"""What reading gives: messages as records, pages of them, and what became of them.

Owns shapes alone. Times are Unix seconds, identities integer ids, sizes and offsets bytes of UTF-8.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mbxd.mail.commands import Role
from mbxd.mail.errors import MailRefused

State = Literal["pending", "delivered", "acked"]


class Receipt(msgspec.Struct, frozen=True):
    """What became of a message at one recipient. pending: no session was given it yet; delivered: one was."""

    identity: int
    state: State
    delivered_at: float | None
    acked_at: float | None
    note: str
    owes_reply: bool


class Letter(msgspec.Struct, frozen=True):
    """A message. thread: the id of its thread's first message; size: of the whole body.

    receipts: by recipient id; held: roles that it still waits for; text: the body or its beginning when asked for,
    else null; truncated: the text is not the whole body; snippet: the found words between `[` and `]`.
    """

    id: str
    thread: str
    sender: int
    kind: str
    needs_reply: bool
    subject: str
    size: int
    refs: list[str]
    reply_to: str | None
    sent_at: float
    registry_seq: int
    receipts: list[Receipt]
    held: list[Role]
    text: str | None = None
    truncated: bool = False
    snippet: str | None = None

    def receipt(self, identity: int) -> Receipt | None:
        """What became of it at this recipient; None when it is none."""
        for one in self.receipts:
            if one.identity == identity:
                return one
        return None


class Page(msgspec.Struct, frozen=True):
    """Some messages and the cursor to go on with, null at the end. Cursors are message ids."""

    letters: list[Letter]
    cursor: str | None


class Part(msgspec.Struct, frozen=True):
    """A body from `offset`. next_offset: where it goes on, null at its end."""

    letter: Letter
    text: str
    offset: int
    next_offset: int | None


class Reading(msgspec.Struct, frozen=True):
    """Bodies as far as they fit. left: ids for the next call; refused: why others are not among them."""

    parts: list[Part]
    left: list[str]
    refused: list[MailRefused] = []


class Open(msgspec.Struct, frozen=True):
    """A request without an answer: who asked, who owes it."""

    id: str
    subject: str
    sender: int
    recipient: int
    sent_at: float


class Report(msgspec.Struct, frozen=True):
    """Outcome of a check; problems is empty when all is well."""

    messages: int
    deliveries: int
    unread: int
    problems: list[str]
