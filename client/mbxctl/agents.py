"""`whois`, `create`, `token` and `sweep`: agent identities, as people and scripts handle them.

Owns the way from `--project` to a project. A token is printed only by the commands that are asked for it, on
stdout alone; the daemon refuses `token` and `sweep` beneath an agent CLI.
"""

from __future__ import annotations

import os
import re
from typing import Any

from mbx_wire.errors import EXIT_USAGE, Code
from mbxctl import link, render
from mbxctl.failure import Failure
from mbxctl.render import Output, ago

_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(s|min|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """`90s`, `30m`, `24h` or `7d` as seconds."""
    found = _AGE.fullmatch(text.strip().lower())
    if found is None:
        raise Failure(
            Code.PARAMETER_INVALID,
            f"{text!r} is no length of time.",
            "Use a number with s, m, h or d, for example 24h.",
            exit_code=EXIT_USAGE,
        )
    return float(found[1]) * _SECONDS[found[2]]


def open_project(given: str | None, *, start: bool = False) -> tuple[link.Link, str]:
    """A connection, and the key of the project that `--project` names: a slug or a directory; by default this one."""
    directory = "." if given is None else os.path.expanduser(given) if _is_path(given) else None
    daemon = link.connect(start=start, at=directory or ".")
    if directory is None:
        return daemon, str(given)
    if daemon.project is not None:
        return daemon, daemon.project["key"]
    daemon.close()
    where = "this directory" if given is None else given
    if given is not None and not os.path.isdir(directory):
        raise Failure(Code.NO_PROJECT, f"there is no directory {where}.", "Name one that exists, or a project's slug.")
    raise Failure(Code.NO_PROJECT, f"{where} is no project.", "Name one with --project: a directory or a slug.")


def _is_path(given: str) -> bool:
    return given in {".", "..", "~"} or "/" in given


def run_whois(out: Output, name: str, project: str | None) -> int:
    """The profile of an agent: program, model, task, state and holder."""
    daemon, key = open_project(project)
    with daemon:
        result = daemon.call("agent.whois", {"project_key": key, "agent_name": name})
    if out.json:
        out.document(result)
        return 0
    for label, value in _profile(result):
        out.data(f"{label + ':':<13} {value}")
    out.warn(result["warnings"])
    return 0


def _profile(result: dict[str, Any]) -> list[tuple[str, str]]:
    holder = result["holder"]
    held = f"{holder['client']}, pid {holder['pid']}, since {holder['since']}" if holder else "nobody"
    facts = [
        ("name", result["name"]),
        ("address", result["address"]),
        ("id", str(result["id"])),
        ("program", result["program"]),
        ("model", result["model"]),
        ("role", result["role"]),
        ("task", result["task_description"]),
        ("attachments", result["attachments_policy"]),
        ("state", f"{result['state']} ({result['reason']})"),
        ("holder", held),
        ("unread", str(result["unread"])),
        ("created", f"{result['inception_ts']} ({ago(result['inception_ts'])})"),
        ("last active", f"{result['last_active_ts']} ({ago(result['last_active_ts'])})"),
    ]
    facts += [("commit", f"{each['hexsha'][:12]} {each['summary']}") for each in result["recent_commits"] or ()]
    return [(label, value) for label, value in facts if value]


def run_create(
    out: Output, program: str, model: str, hint: str | None, task: str | None, project: str | None, *, token: bool
) -> int:
    """Make an agent identity for a worker. Its token is printed only with `token`."""
    daemon, key = open_project(project, start=True)
    params = {"project_key": key, "program": program, "model": model, "return_registration_token": token}
    params |= {k: v for k, v in (("name_hint", hint), ("task_description", task)) if v is not None}
    with daemon:
        result = daemon.call("agent.create", params)
    if out.json:
        out.document(result)
        return 0
    held = "held by this session until its worker takes it" if result["bound"] else "vacant"
    out.data(f"created {result['name']} (address {result['address']}), {held}")
    if token:
        out.data(f"token: {result['registration_token']}")
    else:
        out.talk(f"`mbxctl token show {result['address']}` shows its token")
    if result["next"]:
        out.talk(f"its worker takes it with: {result['next']}")
    out.warn(result["warnings"])
    return 0


def run_token(out: Output, name: str, *, rotate: bool) -> int:
    """Print the token of an agent identity, and nothing else on stdout; `rotate` makes the old one invalid first."""
    with link.connect() as daemon:
        result = daemon.call("admin.token", {"name": name, "rotate": rotate})
    if out.json:
        out.document(result)
        return 0
    out.data(result["registration_token"])
    out.talk(f"token of {result['name']}" + ("; older ones are no longer valid" if rotate else ""))
    out.warn(result["warnings"])
    return 0


def run_sweep(out: Output, older_than: str, project: str | None, *, dry_run: bool) -> int:
    """Retire vacant identities without unread mail that were inactive for so long; a claim revives each."""
    params: dict[str, Any] = {"older_than_s": seconds(older_than), "dry_run": dry_run}
    if project is None:
        daemon = link.connect()
    else:
        daemon, params["project"] = open_project(project)
    with daemon:
        result = daemon.call("admin.sweep", params)
    if out.json:
        out.document(result)
        return 0
    for name in result["swept"]:
        out.data(name)
    swept = render.count(len(result["swept"]), "identity", "identities")
    out.talk(f"{swept} would be retired" if dry_run else f"{swept} retired; a claim brings each back")
    out.warn(result["warnings"])
    return 0
