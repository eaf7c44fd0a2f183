"""`claim`, `register` and `release`: for the agent session beneath which mbxctl runs.

The daemon finds that session from the peer's processes; nothing here claims to be anyone. A person holds
nothing: outside an agent CLI `register` makes a vacant mailbox and the other two explain.
"""

from __future__ import annotations

from typing import Any

from mbx_wire.errors import Code
from mbxctl import link
from mbxctl.failure import Failure
from mbxctl.inspecting import identity_line
from mbxctl.render import Output


def run_claim(out: Output, name: str | None, role: str | None, description: str | None) -> int:
    """Take a mailbox for this agent session; without a name the one it held last."""
    return _grant(out, "identity.claim", _params(name=name, role=role, description=description))


def run_register(out: Output, name: str, role: str | None, description: str | None) -> int:
    """Make a mailbox, and hold it when an agent session asks."""
    return _grant(out, "identity.register", _params(name=name, role=role, description=description))


def run_release(out: Output) -> int:
    """Let go what this agent session holds. Releasing nothing is no error. A stopped daemon is not started for it."""
    with link.connect() as daemon:
        result = daemon.call("identity.release", {})
    if out.json:
        out.document(result)
        return 0
    if result["released"] is None:
        out.talk("nothing was held")
    else:
        out.data(f"released {result['released']}")
    out.warn(result["warnings"])
    return 0


def _grant(out: Output, method: str, params: dict[str, Any]) -> int:
    with link.connect(start=True) as daemon:
        result = daemon.call(method, params)
    if out.json:
        out.document(result)
        return 0
    row = result["identity"]
    out.data(
        f"{_what_happened(method, result)} {identity_line(row)}, epoch {result['epoch']}, {result['unread']} unread"
    )
    before = result["predecessor"]
    if before is not None:
        out.talk(f"held before by {before['client']} until {before['ended']} ({before['reason']})")
    if row["holder"] is None:
        out.talk(f"it is vacant: the next agent may claim it (`mbx_identity` with action=claim, name={row['address']})")
    out.warn(result["warnings"])
    return 0


def _what_happened(method: str, result: dict[str, Any]) -> str:
    if result["identity"]["holder"] is None:
        return "registered" if result["created"] else "already there:"
    if result["created"]:
        return "registered and claimed"
    if method == "identity.register":
        return "already yours:"
    return "resumed" if result["resumed"] else "claimed"


def _params(**given: str | None) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


def run_free(out: Output, name: str, reason: str, *, yes: bool) -> int:
    """Take a mailbox from its holder, who is fenced and told; asks first on a terminal."""
    with link.connect() as daemon:
        if not yes:
            row = daemon.call("identity.show", {"name": name})["identity"]
            if row["holder"] is not None:  # nobody loses anything by freeing what is vacant
                _check_allowed(daemon, name)
                _confirm(out, row)
        result = daemon.call("admin.free", {"name": name, "reason": reason})
    return _changed(out, result, "freed", "was vacant already:")


def _check_allowed(daemon: link.Link, name: str) -> None:
    """Raise the refusal that no yes would change: NOT_ALLOWED, beneath an agent. A look under the same rule tells."""
    try:
        daemon.call("mail.peek", {"name": name, "limit": 1})
    except Failure as refusal:
        if refusal.code == Code.NOT_ALLOWED:
            raise


def _confirm(out: Output, row: dict[str, Any]) -> None:
    holder = row["holder"]
    held = f"held by {holder['client']} (pid {holder['pid']}) since {holder['since']}"
    if not out.can_ask:
        raise Failure(
            "CONFIRMATION_REQUIRED",
            f"{row['name']} is {held}; freeing it fences that session, and there is no terminal to ask on.",
            "Add --yes when you are sure.",
            exit_code=2,
        )
    if not out.ask(f"{row['name']} is {held}. Free it? That session loses the name at once."):
        raise Failure("NOT_CONFIRMED", f"{row['name']} was left as it is.", exit_code=1)


def run_retire(out: Output, name: str) -> int:
    """Put a mailbox away on purpose; only `unretire` brings it back."""
    return _admin(out, "admin.retire", {"name": name}, "retired", "was retired already:")


def run_unretire(out: Output, name: str) -> int:
    """Bring a retired mailbox back as vacant."""
    return _admin(out, "admin.unretire", {"name": name}, "brought back", "was not retired:")


def run_rename(out: Output, name: str, to: str) -> int:
    """Give a mailbox another name; the old address still leads to it."""
    return _admin(out, "admin.rename", {"name": name, "to": to}, f"renamed {name} to", "has that name already:")


def _admin(out: Output, method: str, params: dict[str, Any], done: str, nothing: str) -> int:
    with link.connect() as daemon:
        result = daemon.call(method, params)
    return _changed(out, result, done, nothing)


def _changed(out: Output, result: dict[str, Any], done: str, nothing: str) -> int:
    if out.json:
        out.document(result)
        return 0
    words = done if result["changed"] else nothing
    out.data(f"{words} {identity_line(result['identity'])}, {result['identity']['state']}, epoch {result['epoch']}")
    out.warn(result["warnings"])
    return 0
