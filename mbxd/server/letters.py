"""How a stored message looks to somebody: names for ids, states in words.

Owns the rendering of mail on the wire. Reads only.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mbx_wire import mail as wire
from mbxd.core import addressing
from mbxd.core.context import Context
from mbxd.core.state import State
from mbxd.core.times import iso
from mbxd.mail.records import Letter, Part, Receipt
from mbxd.runtime.post import names


def compact(value: Any) -> str:
    """JSON without spaces."""
    return msgspec.json.encode(value).decode()


def received(state: State, letter: Letter, identity: int) -> wire.Header:
    """A header in the inbox of this identity: unread until it is acked."""
    return _header(state, letter, _mine(letter.receipt(identity)))


def own(state: State, letter: Letter) -> wire.Header:
    """A header in the list of what was sent, with each recipient's state, time of its ack, and note."""
    recipients = [
        wire.Recipient(
            name=names(state, one.identity),
            state="acked" if one.state == "acked" else "unread",
            since=None if one.acked_at is None else iso(one.acked_at),
            detail="owes an answer" if one.owes_reply else None,
            note=one.note or None,
        )
        for one in letter.receipts
    ]
    recipients += [
        wire.Recipient(f"role:{role.role}", "held", None, "nobody with the role was live yet") for role in letter.held
    ]
    acked = all(one.state == "acked" for one in recipients)
    return msgspec.structs.replace(_header(state, letter, "acked" if acked else "unread"), recipients=recipients)


def seen(state: State, letter: Letter, identity: int) -> wire.Header:
    """A header for one who sent it, got it, or takes part in its thread."""
    if letter.sender == identity:
        return own(state, letter)
    return _header(state, letter, _mine(letter.receipt(identity)))


def opened(state: State, part: Part, identity: int) -> wire.Header:
    """A message with its body, or a part of it."""
    header = seen(state, part.letter, identity)
    whole = part.offset == 0 and part.next_offset is None
    return msgspec.structs.replace(header, body=part.text, truncated=not whole)


def recipient(state: State, identity: int, ctx: Context) -> addressing.Recipient:
    """A recipient by id: of a reply."""
    record = state.identities.get(identity)
    if record is None:
        return addressing.Recipient(identity, names(state, identity), "owner", None, "read with: mbxctl inbox --owner")
    return addressing.describe(record, ctx)


def _mine(receipt: Receipt | None) -> str:
    if receipt is None:
        return "seen"  # in a thread of mine, sent to others
    return "acked" if receipt.state == "acked" else "unread"


def _header(state: State, letter: Letter, mail_state: str) -> wire.Header:
    to = [names(state, one.identity) for one in letter.receipts] + [f"role:{role.role}" for role in letter.held]
    return wire.Header(
        id=letter.id,
        thread=letter.thread,
        from_=names(state, letter.sender),
        to=to,
        subject=letter.subject,
        kind=letter.kind,
        needs_reply=letter.needs_reply,
        sent_at=iso(letter.sent_at),
        state=mail_state,
        body=letter.text,
        truncated=letter.truncated,
        snippet=letter.snippet,
        refs=letter.refs or None,
    )
