"""MCP calls in the daemon's hints, told as the commands that do the same.

Owns that wording. The daemon speaks to agents; whoever types at a shell, person or agent, has `mbxctl`. Text that
names no call, or a call without a command, stays as it is. Never changes `--json` documents.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

_CALL = re.compile(r"(mbx_(?:identity|inbox|read)) (\{[^{}]*\})")


def as_commands(text: str) -> str:
    """The text with each call as a command: `mbx_identity {"action":"release"}` -> `mbxctl release`."""
    return _CALL.sub(lambda found: _command(found.group(1), found.group(2)) or found.group(0), text)


def _command(tool: str, arguments: str) -> str | None:
    try:
        given: dict[str, Any] = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    if tool == "mbx_inbox":
        return "mbxctl inbox --watch" if given.get("wait_s") else "mbxctl inbox"
    if tool == "mbx_read":
        return " ".join(["mbxctl read", *(shlex.quote(str(one)) for one in given.get("ids") or ["ID"])])
    words = ["mbxctl"]
    match given:
        case {"action": "list"}:
            words += ["list", *(["--all"] if given.get("all") else [])]
        case {"action": "claim" | "register" as action}:
            words += [action, *([shlex.quote(str(given["name"]))] if "name" in given else [])]
            for option in ("role", "description"):
                if option in given:
                    words += [f"--{option}", shlex.quote(str(given[option]))]
        case {"action": "release"}:
            words.append("release")
        case _:
            return None
    return " ".join(words)
