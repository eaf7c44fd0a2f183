"""`mbxctl list`: the identities of this project or of the host, one row each.

Owns the row's shape on the screen. On the light path: imports nothing that a plain list does not need.
Looking never starts a daemon and writes nothing.
"""

from __future__ import annotations

from mbxctl import link, render
from mbxctl.render import Output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEADER = ("NAME", "STATE", "ROLE", "PROJECT", "HOLDER", "UNREAD", "LAST-ACTIVE")


def run_list(out: Output, *, everything: bool) -> int:
    """Show identities. Without a project (in $HOME or /) the whole host is shown, as with `everything`."""
    with link.connect() as daemon:
        whole_host = everything or daemon.project is None
        result = daemon.call("identity.list", {"all": True} if whole_host else {})
    if out.json:
        out.document(result)
        return 0
    rows = result["identities"]
    if rows and out.is_terminal:
        from mbxctl import pretty

        out.drawn(
            pretty.identities(
                HEADER,
                [(row["state"], (*cells(row)[:-1], render.ago(row["last_active_at"]))) for row in rows],
            )
        )
    elif rows:
        for line in render.columns(HEADER, [cells(row) for row in rows]):
            out.data(line)
    _hints(out, result, whole_host=whole_host, asked=everything)
    return 0


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row as text, in the order of HEADER. Times stay exact: scripts read this."""
    holder = row["holder"]
    return (
        typed_name(row),
        row["state"],
        row["role"] or "",
        row["project"] or "",
        f"{holder['client']}:{holder['pid']}" if holder else "",
        str(row["unread"]),
        row["last_active_at"],
    )


def typed_name(row: dict[str, Any]) -> str:
    """The word to type for an identity: its name, or its host-unique address where the two differ."""
    name, address = str(row["name"]), str(row["address"])
    return name if name.lower() == address else address


def _hints(out: Output, result: dict[str, Any], *, whole_host: bool, asked: bool) -> None:
    project = result["project"]
    rows = result["identities"]
    where = "on this host" if whole_host or project is None else f"in project {project['slug']}"
    # By state, as the column shows it: what this caller in particular may claim is another question.
    vacant = sum(1 for row in rows if row["state"] == "vacant")
    if whole_host and not asked:
        out.talk("no project here: showing the whole host")
    if result["you"]:
        out.talk(f"you are {result['you']['name']} (epoch {result['you']['epoch']})")
    if result["lost"]:
        lost = result["lost"]
        out.talk(f"you lost {lost['name']} at {lost['at']} ({lost['how']})")
    if rows:
        known = render.count(len(rows), "identity", "identities")
        out.talk(f"{known} {where}, {vacant} vacant; `mbxctl why NAME` tells the evidence behind a state")
    else:
        more = "" if whole_host else ", `mbxctl list --all` shows the whole host"
        out.talk(f"no identities {where}; `mbxctl register NAME --role ROLE` makes one{more}")
    if result["truncated"]:
        out.talk("not all are shown; `mbxctl show NAME` finds any of them")
    out.warn(result["warnings"])
