"""How a stored message looks to somebody: names for ids, states in words.

Owns the rendering of mail on the wire. Reads only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from mbx_wire import mail as wire
from mbx_wire.errors import Code
from mbxd.core import naming
from mbxd.core.addressing import Recipient, name_of
from mbxd.core.state import State
from mbxd.core.times import iso
from mbxd.mail.commands import Role, Sent
from mbxd.mail.errors import MailRefused
from mbxd.mail.records import Letter, Open, Part, Receipt

PAGE_BYTES = 512 * 1024
"""Of the encoded messages of one page. A line takes 4 MiB; in a tool's result they are there twice, once as a text with
all of its quotes and backslashes escaped.
"""
RECIPIENTS_SHOWN = 200
"""Of one message, whose notes alone may have 3 KB each."""


def compact(value: Any) -> str:
    """JSON without spaces."""
    return msgspec.json.encode(value).decode()


class Reader(NamedTuple):
    """Who looks: the mailbox (an identity id), and the project in which names are meant."""

    state: State
    identity: int
    project: int

    def name(self, identity: int) -> str:
        """The name of an identity id for this reader."""
        return name_of(self.state, identity, self.project)

    def received(self, letter: Letter) -> wire.Header:
        """A header in the reader's inbox: unread until it is acked."""
        return self._header(letter, _mine(letter.receipt(self.identity)))

    def own(self, letter: Letter) -> wire.Header:
        """A header in the list of what was sent, with each recipient's state, time of its ack, and note."""
        recipients = [
            wire.Recipient(
                name=self.name(one.identity),
                state="acked" if one.state == "acked" else "unread",
                since=None if one.acked_at is None else iso(one.acked_at),
                detail="owes an answer" if one.owes_reply else None,
                note=one.note or None,
            )
            for one in letter.receipts
        ]
        waits = "waits for the first one of the role to be claimed"
        recipients += [wire.Recipient(f"role:{role.role}", "held", None, waits) for role in letter.held]
        acked = all(one.state == "acked" for one in recipients)
        if len(recipients) > RECIPIENTS_SHOWN:
            rest = recipients[RECIPIENTS_SHOWN:]
            done = sum(one.state == "acked" for one in rest)
            more = wire.Recipient(_more(len(rest)), "acked" if done == len(rest) else "unread", None, f"{done} acked")
            recipients[RECIPIENTS_SHOWN:] = [more]
        return msgspec.structs.replace(self._header(letter, "acked" if acked else "unread"), recipients=recipients)

    def seen(self, letter: Letter) -> wire.Header:
        """A header for one who sent it, got it, or takes part in its thread."""
        if letter.sender == self.identity:
            return self.own(letter)
        return self.received(letter)

    def opened(self, part: Part) -> wire.Header:
        """A message with its body, or a part of it."""
        whole = part.offset == 0 and part.next_offset is None
        return msgspec.structs.replace(self.seen(part.letter), body=part.text, truncated=not whole)

    def request(self, request: Open, who: int) -> wire.Open:
        """An open request, with the one at its other end."""
        return wire.Open(request.id, request.subject, self.name(who), iso(request.sent_at))

    def _header(self, letter: Letter, mail_state: str) -> wire.Header:
        to = [self.name(one.identity) for one in letter.receipts]
        if letter.held:
            to += [f"role:{role.role}" for role in letter.held]
        if len(to) > RECIPIENTS_SHOWN:
            to[RECIPIENTS_SHOWN:] = [_more(len(to) - RECIPIENTS_SHOWN)]
        return wire.Header(
            id=letter.id,
            thread=letter.thread,
            from_=self.name(letter.sender),
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


def _mine(receipt: Receipt | None) -> str:
    if receipt is None:
        return "seen"  # in a thread of mine, sent to others
    return "acked" if receipt.state == "acked" else "unread"


def _more(count: int) -> str:
    return f"and {count} more"


def fitting(shown: list[wire.Header]) -> int:
    """How many of these, from the first, go into one reply; one does."""
    if len(msgspec.json.encode(shown)) <= PAGE_BYTES:
        return len(shown)
    room = PAGE_BYTES
    for count, header in enumerate(shown):
        room -= len(msgspec.json.encode(header)) + 1
        if room < 0:
            return max(count, 1)
    return len(shown)


def listed(
    shown: list[wire.Header],
    cursor: str | None,
    *warnings: str,
    following: str | None = None,
    newest_last: bool = False,
) -> wire.MessagesResult:
    """A page of a list, or as much of it as fits: the cursor goes on behind that. following: what to call next;
    newest_last: it goes on before the first.
    """
    ordered = shown[::-1] if newest_last else shown
    fit = fitting(ordered)
    if fit < len(shown):
        ordered, cursor = ordered[:fit], ordered[fit - 1].id
        shown = ordered[::-1] if newest_last else ordered
    return wire.MessagesResult(messages=shown, before=cursor, warnings=list(warnings), next=following)


_ABSENT = frozenset({"vacant", "retired"})


def strange_roles(state: State, held: list[Role]) -> list[str]:
    """Warnings about roles that mail waits for and no mailbox of their project has: they may be slips of the pen."""
    warnings, everyone = [], state.identities.values()
    for project, role in ((one.project, one.role) for one in held):
        if any(one.role == role and one.project == project for one in everyone):
            continue
        roles = {one.role for one in everyone if one.role and one.project == project}
        near = " or ".join(f"role:{one}" for one in naming.near(role, sorted(roles), None))
        meant = f" Did you mean {near}?" if near else ""
        warnings.append(f"No mailbox here has the role {role}, not even a vacant one.{meant}")
    return warnings


def posted(sent: Sent, whom: list[Recipient], warnings: list[str], *, needs_reply: bool) -> wire.SendResult:
    """What became of a send, and who can read it."""
    absent = [one.name for one in whom if one.state in _ABSENT]
    # Whoever comes later is told of it, and so is the sender: only for one who is there it is worth to wait.
    waits = needs_reply and any(one.state not in {*_ABSENT, "held"} for one in whom)
    return wire.SendResult(
        id=sent.id,
        thread=sent.thread,
        recipients=[wire.Recipient(one.name, one.state, one.since, one.detail) for one in whom],
        duplicate=sent.duplicate,
        warnings=[*([f"Nobody reads {', '.join(absent)} now; the mail waits there."] if absent else []), *warnings],
        next='mbx_inbox {"wait_s":45}' if waits else None,
    )


def acked(asked: str, full: str | None, error: MailRefused | None, found: dict[str, str]) -> wire.AckOne:
    """What became of the ack of one id. full: the whole id; found: the store's results by whole id."""
    if full is None:
        why = f"{error.code}: {error.message}" if error is not None else None
        return wire.AckOne(id=asked[: wire.REF_MAX], ok=False, error=why)
    if found.get(full) == "unknown":
        return wire.AckOne(id=full, ok=False, error=f"{Code.UNKNOWN_MESSAGE}: it is not in this mailbox.")
    return wire.AckOne(id=full, ok=True)
