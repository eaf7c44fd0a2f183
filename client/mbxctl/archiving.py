"""`archive status`, `verify`, `rebuild` and `log`: the Git archive of profiles.

Owns their words. The daemon alone touches the archive; nothing here runs git.
"""

from __future__ import annotations

from typing import Any

from mbx_wire.errors import EXIT_FAILURE
from mbxctl import link, render
from mbxctl.render import Output, duration

LONG_S = 600.0
"""Seconds that comparing or remaking a large archive may take."""


def run_status(out: Output) -> int:
    """How far the archive is behind the log, and what keeps it."""
    with link.connect() as daemon:
        result = daemon.call("archive.status", {})
    if out.json:
        out.document(result)
        return 0
    for label, value in _facts(result):
        out.data(f"{label + ':':<9} {value}")
    return 0


def _facts(result: dict[str, Any]) -> list[tuple[str, str]]:
    seq = "nothing yet" if result["seq"] is None else f"event {result['seq']}"
    lag = "" if not result["lag_s"] else f", the oldest for {duration(result['lag_s'])}"
    behind = "unknown" if result["behind"] is None else render.count(result["behind"], "change", "changes") + lag
    again = "" if result["retry_in_s"] is None else f" (tried again in {duration(result['retry_in_s'])})"
    facts = [
        ("path", result["path"]),
        ("head", result["head"] or "none"),
        ("commits", str(result["commits"])),
        ("archived", f"{seq} of {result['durable_seq']}"),
        ("behind", behind),
        ("error", f"{result['error']}{again}" if result["error"] else ""),
        ("files", f"older than the newest commit: {result['checkout_error']}" if result["checkout_error"] else ""),
    ]
    return [(label, value) for label, value in facts if value]


def run_verify(out: Output) -> int:
    """Compare the archive with the registry; exits with 1 when they differ."""
    with link.connect() as daemon:
        result = daemon.call("archive.verify", {}, timeout=LONG_S)
    if out.json:
        out.document(result)
        return 0 if result["ok"] else EXIT_FAILURE
    for kind in ("missing", "differing", "unexpected"):
        for path in result[kind]:
            out.data(f"{kind} {path}")
    for problem in result["problems"]:
        out.data(f"problem: {problem}")
    checked = render.count(result["checked"], "file", "files")
    pending = f", {result['pending']} left out since they changed meanwhile" if result["pending"] else ""
    verdict = "the archive agrees with the registry" if result["ok"] else "the archive differs from the registry"
    out.talk(f"{verdict}: {checked} compared as of event {result['seq']}{pending}")
    if not result["ok"]:
        out.talk("`mbxctl archive rebuild` makes it anew and keeps the old one aside")
    return 0 if result["ok"] else EXIT_FAILURE


def run_rebuild(out: Output) -> int:
    """Make the archive anew; the old one is set aside."""
    with link.connect() as daemon:
        result = daemon.call("archive.rebuild", {}, timeout=LONG_S)
    if out.json:
        out.document(result)
        return 0
    out.data(f"made anew: {render.count(result['commits'], 'commit', 'commits')}, head {result['head'] or 'none'}")
    if result["set_aside"]:
        out.talk(f"the old one is in {result['set_aside']}")
    out.warn(result["warnings"])
    return 0


def run_log(out: Output, name: str | None, limit: int) -> int:
    """Commits of one identity's profile, or all, newest first."""
    params: dict[str, Any] = {"limit": limit} | ({} if name is None else {"name": name})
    with link.connect() as daemon:
        result = daemon.call("archive.log", params)
    if out.json:
        out.document(result)
        return 0
    for commit in result["commits"]:
        out.data(f"{commit['hexsha'][:12]}  {commit['authored_ts']}  {commit['summary']}")
    if not result["commits"]:
        out.talk(f"no commits{f' of {name}' if name else ''} yet")
    return 0
