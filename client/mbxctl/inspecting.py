"""`show`, `why`, `log` and `stats`: looking closer. Nothing here changes anything or starts a daemon."""

from __future__ import annotations

from typing import Any

from mbxctl import link, render
from mbxctl.listing import typed_name
from mbxctl.render import Output, ago, duration

LOG_HEADER = ("SEQ", "AT", "WHAT", "NAME", "EPOCH", "WHO", "PID", "REASON")


def run_show(out: Output, name: str) -> int:
    """One identity, every field on its own line as `key: value`."""
    with link.connect() as daemon:
        result = daemon.call("identity.show", {"name": name})
    if out.json:
        out.document(result)
        return 0
    for key, value in _facts(result):
        out.data(f"{key + ':':<13} {value}")
    out.warn(result["warnings"])
    return 0


def _facts(result: dict[str, Any]) -> list[tuple[str, str]]:
    row = result["identity"]
    facts = [
        ("name", row["name"]),
        ("address", row["address"]),
        ("aliases", ", ".join(result["aliases"])),
        ("id", str(row["id"])),
        ("project", row["project"]),
        ("role", row["role"]),
        ("description", row["description"]),
        ("state", f"{row['state']} ({row['reason']})"),
        ("epoch", str(result["epoch"])),
        ("holder", _holder(row["holder"])),
        ("last holder", _last_holder(row["last_holder"])),
        ("claimable", _claimable(row)),
        ("unread", str(row["unread"])),
        ("program", row["program"]),
        ("model", row["model"]),
        ("task", row["task_description"]),
        ("created", f"{row['created_at']} ({ago(row['created_at'])})"),
        ("last active", f"{row['last_active_at']} ({ago(row['last_active_at'])})"),
    ]
    return [(key, value) for key, value in facts if value]


def _holder(holder: dict[str, Any] | None) -> str:
    if holder is None:
        return "nobody"
    session = f", session {holder['session']}" if holder["session"] else ""
    return f"{holder['client']}, pid {holder['pid']}{session}, since {holder['since']} ({ago(holder['since'])})"


def _last_holder(last: dict[str, Any] | None) -> str:
    if last is None:
        return ""
    return f"{last['client']}, pid {last['pid']}, until {last['ended']} ({last['reason']}, {ago(last['ended'])})"


def _claimable(row: dict[str, Any]) -> str:
    if row["claimable"]:
        return "yes"
    wait = row["claimable_in_s"]
    later = f", in {duration(wait)} unless its session comes back" if wait is not None else ""
    return f"no ({row['claim_error'] or 'held'}){later}"


def run_why(out: Output, name: str) -> int:
    """The evidence behind an identity's state, its age, the rule applied, and what could be done."""
    with link.connect() as daemon:
        result = daemon.call("identity.why", {"name": name})
    if out.json:
        out.document(result)
        return 0
    out.data(f"{result['name']} is {result['state']} ({result['reason']}), epoch {result['epoch']}")
    out.data(f"rule: {result['rule']}")
    out.data("evidence:" if result["processes"] else "evidence: no process has held it, or none is remembered")
    for process in result["processes"]:
        out.data("  " + _process(process))
    attached = "attached" if result["attached"] else "not attached"
    out.data(f"session: {attached}, {result['connections']} open connection{'s' if result['connections'] != 1 else ''}")
    if result["last_call_age_s"] is not None:
        out.data(f"last call: {duration(result['last_call_age_s'])} ago")
    if result["detached_s"] is not None:
        out.data(f"detached for: {duration(result['detached_s'])} of {duration(result['grace_s'])} grace")
    for i, option in enumerate(result["options"]):
        out.data(f"{'you can: ' if i == 0 else '         '}{render.for_people(option)}")
    return 0


def _process(process: dict[str, Any]) -> str:
    what = f" {process['description']}" if process["description"] else ""
    return (
        f"{process['role']} pid {process['pid']}{what}: {process['verdict']} ({process['reason']}),"
        f" by {process['means']}, {duration(process['age_s'])} old"
    )


def run_log(out: Output, name: str | None, limit: int) -> int:
    """Who claimed, lost, released what, when and why; newest first."""
    params: dict[str, Any] = {"limit": limit}
    if name is not None:
        params["name"] = name
    with link.connect() as daemon:
        result = daemon.call("admin.log", params)
    if out.json:
        out.document(result)
        return 0
    rows = [_log_cells(entry) for entry in result["entries"]]
    if rows and out.is_terminal:
        from mbxctl import pretty

        out.drawn(pretty.lines(LOG_HEADER, rows))
    elif rows:
        for line in render.columns(LOG_HEADER, rows):
            out.data(line)
    else:
        out.talk(f"no history{f' of {name}' if name else ''} yet")
    if result["truncated"]:
        out.talk(f"older entries exist or were no longer kept; `--limit` (now {limit}) shows more")
    return 0


def _log_cells(entry: dict[str, Any]) -> tuple[str, ...]:
    keys = ("seq", "at", "what", "name", "epoch", "who", "pid", "reason")
    return tuple("" if entry[key] is None else str(entry[key]) for key in keys)


def run_stats(out: Output) -> int:
    """Counters and gauges of the daemon's parts, one a line as `part.key value`."""
    with link.connect() as daemon:
        result = daemon.call("admin.stats", {})
    if out.json:
        out.document(result)
        return 0
    for part, figures in result["parts"].items():
        for key, value in figures.items():
            out.data(f"{part}.{key} {value}")
    return 0


def identity_line(row: dict[str, Any]) -> str:
    """An identity in half a line: name, role, project, state."""
    role = f" ({row['role']})" if row["role"] else ""
    project = f" in {row['project']}" if row["project"] else ""
    return f"{typed_name(row)}{role}{project}"
