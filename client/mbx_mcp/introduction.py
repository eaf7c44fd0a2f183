"""What the shim says of itself in `hello`, and the projects of the directories that calls name.

Owns the look at this process's environment and directory. Imported when a daemon is first spoken to, not at
the start. Standard library only.
"""

from __future__ import annotations

import os
import sys

from mbx_client import __version__, paths, project
from mbx_mcp.jsonrpc import valid_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Introduction:
    """What `hello` says of this process. Computed when it is first needed; the directory is the one it starts in."""

    def __init__(self, agent: str | None) -> None:
        """`agent`: the name that the user wishes for, or None."""
        self._agent = None if agent is None else valid_text(agent)  # the command line may hold any bytes
        self._instance = os.urandom(8).hex()
        self._place: dict[str, Any] | None = None

    def params(self, label: str | None, handles: list[str]) -> dict[str, Any]:
        """Params of hello for a client of this name."""
        if self._place is None:
            self._place = _place()
        return {
            "protocol": {"min": 1, "max": 1},
            "client": {
                "name": "mbx-mcp",
                "version": __version__,
                "instance": self._instance,
                "label": label,
            },
            "cwd": self._place["cwd"],
            "project": self._place["project"],
            "hints": {
                "resume": _resume_hints(label),
                "agent": self._agent,
                "sessions": handles,
                "container": _container(),
            },
        }


def _place() -> dict[str, Any]:
    try:
        cwd = os.getcwd()
    except OSError:  # it was removed beneath us
        return {"cwd": None, "project": None}
    homes = project.home_directories(os.environ.get("HOME"), paths.account_home(os.getuid()))
    try:
        found = project.of_directory(cwd, homes)
    except project.BadProjectFile as bad:
        sys.stderr.write(f"mbx-mcp: {bad}\n")
        found = None
    ref = None if found is None else {"key": found.key, "slug": found.slug}
    return {"cwd": project.printable(cwd), "project": ref}


def named_projects(arguments: dict[str, Any]) -> dict[str, Any]:
    """The project of each directory that a call names: the daemon may not see it. None: it is none (a home, `/`)."""
    named = [v for k in ("project_key", "human_key") if isinstance(v := arguments.get(k), str) and v[:1] == "/"]
    if not named:
        return {}
    homes = project.home_directories(os.environ.get("HOME"), paths.account_home(os.getuid()))
    found: dict[str, Any] = {}
    for path in named:
        try:
            here = project.of_directory(path, homes)
            there = os.path.lexists(path)
        except (project.BadProjectFile, ValueError) as bad:  # ValueError: a NUL, which the daemon refuses in words
            sys.stderr.write(f"mbx-mcp: {bad}\n")
            continue
        if here is not None or there:
            found[path] = None if here is None else {"key": here.key, "slug": here.slug}
    return found


def _resume_hints(label: str | None) -> list[str]:
    """Session ids of the environment, believed only from the client that sets them: children inherit them."""
    variable = {"claude-code": "CLAUDE_CODE_SESSION_ID", "copilot-cli": "COPILOT_AGENT_SESSION_ID"}.get(label or "")
    value = os.environ.get(variable, "") if variable else ""
    return [f"{label}:{value}"] if 0 < len(value) <= 200 and value.isprintable() else []


def _container() -> str | None:
    if os.path.exists("/run/.containerenv"):
        return "podman"
    return "docker" if os.path.exists("/.dockerenv") else None
