"""`mail backup`, `mail check` and `mail prune`: care of the daemon's mail file. The daemon does the work."""

from __future__ import annotations

import os
from typing import Any

from mbx_wire.errors import EXIT_FAILURE
from mbxctl import link, render
from mbxctl.agents import seconds
from mbxctl.render import Output

_LONG_S = 600.0
"""Copying or checking a big file takes its time."""


def run_backup(out: Output, file: str) -> int:
    """Copy all mail, as it is now, to a file that does not exist yet."""
    path = os.path.abspath(os.path.expanduser(file))  # the daemon has another working directory
    with link.connect() as daemon:
        result = daemon.call("mail.backup", {"path": path}, timeout=_LONG_S)
    if out.json:
        out.document(result)
        return 0
    out.data(f"copied to {result['path']}, {result['bytes']} bytes")
    return 0


def run_check(out: Output) -> int:
    """Check the mail file; exits with 1 when it has problems."""
    with link.connect() as daemon:
        result = daemon.call("mail.check", {}, timeout=_LONG_S)
    code = 0 if result["ok"] else EXIT_FAILURE
    if out.json:
        out.document(result)
        return code
    for problem in result["problems"]:
        out.data(f"problem: {problem}")
    held = f"{render.count(result['messages'], 'message', 'messages')}, {result['unread']} unread"
    out.data(f"{'ok' if result['ok'] else 'damaged'}: {held}")
    return code


def run_prune(out: Output, older_than: str, *, dry_run: bool) -> int:
    """Delete threads that ended so long ago; unread mail and open requests stay."""
    params: dict[str, Any] = {"older_than_s": seconds(older_than), "dry_run": dry_run}
    with link.connect() as daemon:
        result = daemon.call("mail.prune", params, timeout=_LONG_S)
    if out.json:
        out.document(result)
        return 0
    what = f"{render.count(result['threads'], 'thread', 'threads')} with {result['messages']} messages"
    out.data(f"{what} ({result['bytes']} bytes) {'would go' if result['dry_run'] else 'are gone'}")
    return 0
