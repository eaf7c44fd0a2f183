"""`mbxctl watch`: durable changes as they happen.

Owns the stream's shape on the screen: a line a change, or with --json one document a line, which is the one
documented exception to the rule of one document.
"""

from __future__ import annotations

from typing import Any

from mbxctl import link
from mbxctl.failure import Failure
from mbxctl.render import Output


def run_watch(out: Output, *, everything: bool) -> int:
    """Show changes until interrupted; Ctrl-C is its normal end. Fails when the stream ends by itself."""
    with link.connect() as daemon:
        whole_host = everything or daemon.project is None
        stream = daemon.changes(everything=whole_host)
        try:
            for change in stream:
                _show(out, change, whole_host=whole_host)
                out.flush()
        except KeyboardInterrupt:
            return 0
    raise Failure(
        "STREAM_ENDED",
        "the daemon ended the stream.",
        "Run it again; `mbxctl status` shows the daemon.",
        retryable=True,
    )


def _show(out: Output, change: dict[str, Any], *, whole_host: bool) -> None:
    if "subscribed" in change:
        out.talk(f"watching {'this host' if whole_host else 'this project'}; Ctrl-C ends it")
        return
    if out.json:
        out.line_document(change)
        return
    who = f" by {change['who']}" if change["who"] else ""
    reason = f" ({change['reason']})" if change["reason"] else ""
    project = f" in {change['project']}" if whole_host and change["project"] else ""
    out.data(
        f"{change['at']}  {change['name']}{project} {change['what']}{who}{reason}:"
        f" {change['state']}, epoch {change['epoch']}"
    )
