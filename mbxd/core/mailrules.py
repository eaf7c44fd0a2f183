"""What a mail call may ask for, judged by its params alone.

Owns what is refused at the limits of counts, sizes and forms; the numbers are in `mbx_wire.mail`, and the bounds of
connections and requests in `server.limits`. Never looks at the registry or the
store: a call that can't be right is refused before anybody is bound by it.
"""

from __future__ import annotations

import re

import msgspec

from mbx_wire import mail as wire
from mbx_wire.errors import Code
from mbxd.core import naming
from mbxd.core.rejected import Rejected

_BREAK = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def check(params: msgspec.Struct) -> None:
    """Refuse params that no mailbox could take. Raises Rejected; anything but mail params passes."""
    match params:
        case wire.InboxParams() | wire.PeekParams():
            _inbox(params)
        case wire.ReadParams():
            _count("ids", params.ids, wire.READ_IDS_MAX)
            if (params.offset or 0) < 0:
                raise _invalid("offset", f"is {params.offset}: it counts from 0", "`next_offset` of the last result")
        case wire.SendParams():
            _send(params)
        case wire.ReplyParams():
            _body(params.body)
        case wire.AckParams():
            _count("ids", params.ids, wire.ACK_IDS_MAX)
            _text("note", params.note or "")
        case wire.SentParams() | wire.ThreadParams():
            _limit(params.limit)
        case wire.SearchParams():
            _limit(params.limit)
            _text("query", params.query)
            if not params.query.strip() or len(params.query) > wire.QUERY_MAX:
                raise _invalid("query", f"must have 1 to {wire.QUERY_MAX} characters", '"deploy failed"')
        case wire.PruneParams():
            if not 0 <= params.older_than_s <= wire.PRUNE_MAX_S:
                raise _invalid("older_than_s", f"must be 0 to {wire.PRUNE_MAX_S} seconds", "7776000 for 90 days")
        case _:
            return


def _inbox(params: wire.InboxParams | wire.PeekParams) -> None:
    _limit(params.limit)
    wait = (params.wait_s if isinstance(params, wire.InboxParams) else None) or 0.0
    if not 0 <= wait <= wire.WAIT_MAX_S:
        raise _invalid("wait_s", f"is {wait:g}: it must be 0 to {wire.WAIT_MAX_S} seconds", "30")


def _send(params: wire.SendParams) -> None:
    _count("to", params.to, wire.RECIPIENTS_MAX)
    for word in params.to:
        if not word.strip():
            raise _invalid("to", "has an empty entry", '["shop-backend"]')
    _text("subject", params.subject)
    if not params.subject.strip() or len(params.subject) > wire.SUBJECT_MAX or _BREAK.search(params.subject):
        raise _invalid("subject", f"must be one line of 1 to {wire.SUBJECT_MAX} characters", '"Deploy is done"')
    _body(params.body)
    refs = params.refs or []
    _count("refs", refs, wire.REFS_MAX, least=0)
    for ref in refs:
        _text("refs", ref)
        if len(ref) > wire.REF_MAX or _BREAK.search(ref):
            raise _invalid("refs", f"has an entry that is not one line of at most {wire.REF_MAX} characters", "an id")
    key = params.idempotency_key or ""
    _text("idempotency_key", key)
    if len(key) > wire.KEY_MAX:
        raise _invalid("idempotency_key", f"has {len(key)} characters, more than {wire.KEY_MAX}", '"deploy-42"')


def _body(body: str) -> None:
    _text("body", body)
    size = len(body.encode())
    if size > wire.BODY_MAX:
        raise Rejected(
            Code.BODY_TOO_LONG,
            f"The body has {size} bytes of UTF-8, at most {wire.BODY_MAX} (256 KiB) fit; nothing was sent.",
            "Put the long part into a file and send its path, or send it in parts.",
            data={"parameter": "body", "size": size, "limit": wire.BODY_MAX},
        )


def _text(name: str, text: str) -> None:
    """JSON can carry half of a surrogate pair; UTF-8, and so everything behind it, can't."""
    try:
        naming.check_unicode(text, name)
    except Rejected as refusal:
        raise Rejected(Code.TEXT_INVALID, refusal.message, refusal.hint, data={"parameter": name}) from None


def _limit(limit: int | None) -> None:
    if limit is not None and not 1 <= limit <= wire.LIMIT_MAX:
        raise _invalid("limit", f"is {limit}: it must be 1 to {wire.LIMIT_MAX}", "30")


def _count(name: str, items: list[str], most: int, *, least: int = 1) -> None:
    if not least <= len(items) <= most:
        raise _invalid(name, f"has {len(items)} entries: it takes {least} to {most}", "one or a few")


def _invalid(name: str, fault: str, example: str) -> Rejected:
    return Rejected(Code.PARAMETER_INVALID, f"`{name}` {fault}.", f"For example {example}.", data={"parameter": name})
