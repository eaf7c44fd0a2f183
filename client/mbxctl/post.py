"""`whoami`, `inbox`, `sent`, `search` and `inbox --watch`: lists of mail. Looking changes nothing.

Owns a message's row on the screen. Beneath an agent CLI they are about that session's mailbox, elsewhere about
the person's own, `owner`; whose mailbox it is the daemon decides, never these commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mbx_wire.errors import EXIT_USAGE, Code
from mbxctl import link, render
from mbxctl.failure import Failure
from mbxctl.render import Output, ago

OWNER = "owner"
INBOX = ("ID", "AT", "FROM", "STATE", "KIND", "SUBJECT")
SENT = ("ID", "AT", "TO", "KIND", "SUBJECT")
FOUND = ("ID", "AT", "FROM", "STATE", "SUBJECT", "TEXT")


def run_whoami(out: Output) -> int:
    """Who this session, or this person, is; what it should answer and what it waits for."""
    with link.connect() as daemon:
        result = daemon.call("mail.whoami", {})
    if out.json:
        out.document(result)
        return 0
    out.data(_who(result))
    for label, requests in (("to answer", result["owed"]), ("waits for", result["waited_for"])):
        for one in requests:
            out.data(f"{label}: {one['id']}  {one['who']}: {one['subject']} ({ago(one['sent_at'])})")
    wish = result["pending"]
    if wish is not None:
        out.talk(f"{wish['name']} is to be taken back ({wish['why']}): mbxctl claim {wish['name']}")
    out.warn(result["warnings"])
    return 0


def _who(result: dict[str, Any]) -> str:
    if result["name"] is None:
        if any(warning.startswith(f"{Code.AMBIGUOUS_SESSION}: ") for warning in result["warnings"]):
            return "unclear: this process has several conversations"
        return "nobody: this session holds no mailbox"
    parts = [f"role {result['role']}" if result["role"] else "", f"in {result['project']}" if result["project"] else ""]
    parts += ["" if result["epoch"] is None else f"epoch {result['epoch']}", f"{result['unread']} unread"]
    address = "" if result["name"].lower() == result["address"] else f" (address {result['address']})"
    return f"{result['name']}{address}, {', '.join(part for part in parts if part)}"


def run_inbox(
    out: Output, *, everything: bool, limit: int, before: str | None, name: str | None, owner: bool, watch: bool
) -> int:
    """Headers, oldest first, of the own mailbox or, looking only, of another one."""
    if owner and name is not None:
        raise Failure(
            Code.PARAMETER_INVALID,
            "--owner and --as name two mailboxes.",
            "Leave one of them out.",
            exit_code=EXIT_USAGE,
        )
    looked_at = OWNER if owner else name
    with link.connect() as daemon:
        if watch:
            return _watch(out, daemon, looked_at)
        params: dict[str, Any] = {"all": everything, "limit": limit}
        if before is not None:
            params["before"] = before
        result = headers(daemon, looked_at, params)
    if out.json:
        out.document(result)
        return 0
    messages = result["messages"]
    rows(out, INBOX, messages, _received)
    if messages:
        shown = render.count(len(messages), "message", "messages")
        out.talk(f"{shown}; `mbxctl read ID` shows one, `mbxctl ack ID` is done with it")
    else:
        more = "" if everything else "; `mbxctl inbox --all` shows acked ones too"
        out.talk(f"nothing {'here' if everything else 'unread'}{more}")
    paging(out, result)
    out.warn(result["warnings"])
    return 0


def headers(daemon: link.Link, looked_at: str | None, params: dict[str, Any]) -> dict[str, Any]:
    """A page of an inbox: the own one, or the one that a person looks at."""
    if looked_at is None:
        return daemon.call("mail.inbox", params)
    return daemon.call("mail.peek", {"name": looked_at, **params})


def run_sent(out: Output, *, limit: int, before: str | None) -> int:
    """What was sent, newest first, with what became of it."""
    params: dict[str, Any] = {"limit": limit}
    if before is not None:
        params["before"] = before
    with link.connect() as daemon:
        result = daemon.call("mail.sent", params)
    if out.json:
        out.document(result)
        return 0
    rows(out, SENT, result["messages"], _sent)
    if not result["messages"]:
        out.talk("nothing was sent")
    paging(out, result)
    out.warn(result["warnings"])
    return 0


def run_search(out: Output, query: str, *, limit: int, within: str | None, before: str | None) -> int:
    """Words in the subjects and bodies that this mailbox sent or received, newest first."""
    params: dict[str, Any] = {"query": query, "limit": limit}
    if within is not None:
        params["in"] = within
    if before is not None:
        params["before"] = before
    with link.connect() as daemon:
        result = daemon.call("mail.search", params)
    if out.json:
        out.document(result)
        return 0
    rows(out, FOUND, result["messages"], _found)
    if not result["messages"]:
        out.talk("nothing found")
    paging(out, result)
    return 0


def rows(out: Output, header: tuple[str, ...], messages: list[dict[str, Any]], cells: Any) -> None:
    """Messages as columns: exact times for scripts, a table with ages on a terminal."""
    if not messages:
        return
    if out.is_terminal:
        from mbxctl import pretty

        out.drawn(pretty.lines(header, [cells(one, ago(one["sent_at"])) for one in messages]))
        return
    for line in render.columns(header, [cells(one, one["sent_at"]) for one in messages]):
        out.data(line)


def paging(out: Output, result: dict[str, Any]) -> None:
    """Where the next page is."""
    if result["before"] is not None:
        out.talk(f"there are more: --before {result['before']}")


def _received(one: dict[str, Any], at: str) -> tuple[str, ...]:
    state = f"{one['state']}, wants a reply" if one["needs_reply"] and one["state"] == "unread" else one["state"]
    return one["id"], at, one["from"], state, one["kind"], one["subject"]


def _sent(one: dict[str, Any], at: str) -> tuple[str, ...]:
    return one["id"], at, ", ".join(told(each) for each in one.get("recipients") or ()), one["kind"], one["subject"]


def _found(one: dict[str, Any], at: str) -> tuple[str, ...]:
    return one["id"], at, one["from"], one["state"], one["subject"], one.get("snippet") or ""


def told(recipient: dict[str, Any]) -> str:
    """A recipient with what became of the message there."""
    note = f": {recipient['note']}" if recipient.get("note") else ""
    return f"{recipient['name']} ({recipient['state']}{note})"


# -- watching -----------------------------------------------------------------------------------------------


def _watch(out: Output, daemon: link.Link, looked_at: str | None) -> int:
    """What is unread, then what arrives, until Ctrl-C; with --json one document a line."""
    mailbox = _Mailbox(daemon, looked_at)
    shown: set[str] = set()
    try:
        # Subscribed before the first look: what arrives in between is seen twice and shown once.
        for arrival in daemon.arrivals():
            if arrival is None:
                with link.connect() as looking:  # a call reconnects by itself, which would lose the subscription
                    for one in _unread(looking, looked_at):
                        shown.add(one["id"])
                        _arrived(out, one, one["sent_at"])
                out.talk("watching for mail; Ctrl-C ends it")
            elif arrival["id"] not in shown and mailbox.has(arrival):
                shown.add(arrival["id"])
                _arrived(out, arrival, "")
            out.flush()
    except KeyboardInterrupt:
        return 0
    raise Failure(
        "STREAM_ENDED",
        "the daemon ended the stream.",
        "Run it again; `mbxctl status` shows the daemon.",
        retryable=True,
    )


def _unread(daemon: link.Link, looked_at: str | None) -> Iterator[dict[str, Any]]:
    """All that is unread, page by page."""
    params: dict[str, Any] = {"limit": 200}
    while True:
        page = headers(daemon, looked_at, params)
        yield from page["messages"]
        if page["before"] is None:
            return
        params["before"] = page["before"]


class _Mailbox:
    """The mailbox that is watched, by its id: it may be called otherwise tomorrow, and arrivals have names.

    A name once given is never another's, so each name of the project that is not ours is asked about once.
    """

    def __init__(self, daemon: link.Link, looked_at: str | None) -> None:
        headers(daemon, looked_at, {"limit": 1})  # refuses what can't be watched, as `inbox` does
        self._id: int | None = None
        self._names, self._project = {OWNER}, None
        self._others: set[str] = set()
        if looked_at == OWNER:
            return
        found = daemon.call("mail.whoami", {}) if looked_at is None else _row(daemon, looked_at)
        if found["address"] == OWNER:
            return
        self._names, self._project = _names(found), found["project"]
        row = found if "id" in found else _row(daemon, found["address"])
        if row["address"] == found["address"]:
            self._id = row["id"]

    def has(self, arrival: dict[str, Any]) -> bool:
        """Whether that is where it went. Another project may have an agent of the same name."""
        to = str(arrival["to"]).lower()
        if arrival["project"] != self._project or to in self._others:
            return False
        if to not in self._names and self._id is not None:
            self._ask_again()
        if to not in self._names:
            self._others.add(to)
        return to in self._names

    def _ask_again(self) -> None:
        with link.connect() as daemon:  # as in `_watch`
            for name in sorted(self._names):
                found = _row(daemon, name)
                if found["id"] == self._id:  # a name that it had may lead to another one's from this directory
                    self._names |= _names(found)
                    return


def _row(daemon: link.Link, name: str) -> dict[str, Any]:
    """The identity of this name, found as mail finds it: as it is written, else without capitals."""
    try:
        found: dict[str, Any] = daemon.call("identity.show", {"name": name})["identity"]
    except Failure as unknown:
        if unknown.code != Code.UNKNOWN_IDENTITY or name == name.lower():
            raise
        found = daemon.call("identity.show", {"name": name.lower()})["identity"]
    return found


def _names(row: dict[str, Any]) -> set[str]:
    return {str(row[key]).lower() for key in ("name", "address")}


def _arrived(out: Output, one: dict[str, Any], at: str) -> None:
    if out.json:
        out.line_document(one)
        return
    out.data(f"{at or _now()}  {one['id']}  {one['kind']} from {one['from']}: {one['subject']}")


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
