"""What a successor must know: mail and requests in the result of a claim.

Owns the brief and its bound. The grant stands whatever becomes of the mail.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from mbx_wire import mail as wire
from mbx_wire.identity import ClaimResult
from mbxd.core.rejected import Rejected
from mbxd.core.state import NO_PROJECT
from mbxd.runtime.post import Post
from mbxd.server import letters
from mbxd.server.services import Services

OPEN_SHOWN = 20
HEADERS = 5
BYTES = 2048
TASK = 300
"""Characters of the predecessor's task."""

_claim = msgspec.json.Decoder(ClaimResult).decode


class Requests(NamedTuple):
    """Requests that somebody owes an answer to, and answers that it waits for: the oldest, and how many in all."""

    owed: list[wire.Open]
    waited_for: list[wire.Open]
    counts: tuple[int, int]

    def untold(self, shown: int, hint: str = "") -> list[str]:
        """A warning for each list that says less than all when the first `shown` are shown."""
        said = ("You owe {} answers", "You wait for {} answers")
        return [
            f"{words.format(count)}; only the oldest {shown} are listed here.{hint}"
            for words, count in zip(said, self.counts, strict=True)
            if count > shown
        ]


NO_REQUESTS = Requests([], [], (0, 0))


async def open_requests(post: Post, reader: letters.Reader) -> Requests:
    """Those of the reader, at most OPEN_SHOWN of each kind. Raises Rejected."""
    if not post.involved(reader.identity):
        return NO_REQUESTS
    owed = await post.read(post.store.owed, reader.identity, OPEN_SHOWN)
    waited = await post.read(post.store.waited_for, reader.identity, OPEN_SHOWN)
    counts = len(owed), len(waited)
    if OPEN_SHOWN in counts:  # there may be more
        counts = await post.read(post.store.open_counts, reader.identity)
    return Requests(
        [reader.request(one, one.sender) for one in owed],
        [reader.request(one, one.recipient) for one in waited],
        counts,
    )


async def briefed(services: Services, result: Any, identity: int, seq: int) -> ClaimResult:
    """The result of a claim with its brief, at most BYTES of it: the first unread headers, requests owed and waited
    for, what the predecessor did. Mail that is held for its role comes before that, once `seq` is durable.
    """
    claim: ClaimResult = _claim(result) if isinstance(result, msgspec.Raw) else result
    post, state = services.post, services.engine.state
    record = state.identities.get(identity)
    reader = letters.Reader(state, identity, NO_PROJECT if record is None else record.project)
    before = claim.predecessor
    if before is not None and len(before.task_description or "") > TASK:
        before = replace(before, task_description=(before.task_description or "")[:TASK] + "...")
    try:
        if record is not None and post.is_heir(record):
            await services.engine.wait_durable(seq)
            await post.give_held(identity)
        requests = await open_requests(post, reader)
        owed, waited = ([one.id for one in some[:HEADERS]] for some in (requests.owed, requests.waited_for))
        size = len(letters.compact([owed, waited, before]))
        inbox = await _headers(post, reader, BYTES - size)
    except Rejected as refusal:
        return replace(claim, warnings=[*claim.warnings, f"{refusal.code}: {refusal.message}"])
    unread = post.unread.get(identity, 0)
    following = claim.next or ("mbx_inbox {}" if unread else None)
    return replace(
        claim,
        inbox=inbox,
        unread=unread,
        owed=owed,
        waited_for=waited,
        predecessor=before,
        warnings=[*claim.warnings, *requests.untold(HEADERS, " More with mbx_whoami.")],
        next=following,
    )


async def _headers(post: Post, reader: letters.Reader, room: int) -> list[dict[str, Any]]:
    if not post.unread.get(reader.identity):
        return []
    page = await post.read(post.store.inbox, reader.identity, limit=HEADERS)
    shown: list[dict[str, Any]] = []
    for letter in page.letters:
        header: dict[str, Any] = msgspec.to_builtins(reader.received(letter))
        if len(header["to"]) > HEADERS:
            header["to"] = [*header["to"][:HEADERS], f"and {len(header['to']) - HEADERS} more"]
        header.pop("refs", None)
        room -= len(letters.compact(header)) + 1
        if room < 0:
            break
        shown.append(header)
    return shown
