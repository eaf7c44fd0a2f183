"""What the shim says of itself in `hello`, and the projects of the directories that calls name.

Owns the look at this process's environment and directory. Imported when a daemon is first spoken to or a
call comes, not at the start. Standard library only.
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
    """What `hello` says of this process. Computed when it is first needed; the directory is the one it starts in.

    While a `.mbx.toml` is bad no call is taken: what an agent registered or claimed would be in another project than
    its user means. The daemon is introduced to all the same, so that the session stays attached.
    """

    def __init__(self, agent: str | None) -> None:
        """`agent`: the name that the user wishes for, or None."""
        self._agent = None if agent is None else valid_text(agent)  # the command line may hold any bytes
        self._instance = os.urandom(8).hex()
        self._place: dict[str, Any] | None = None
        self._bad: str | None = None

    def settle(self) -> bool:
        """To be called before every call. BadProjectFile while it is bad; True when it was mended: say hello anew."""
        if self._place is not None and self._bad is None:
            return False
        introduced = self._place is not None
        self._look()
        if self._bad is not None:
            raise project.BadProjectFile(self._bad)
        return introduced

    def _look(self) -> None:
        before, self._bad = self._bad, None
        self._place = {"cwd": None, "project": None}
        try:
            cwd = os.getcwd()
        except OSError:  # it was removed beneath us
            return
        self._place["cwd"] = project.printable(cwd)
        try:
            found = project.of_directory(cwd, _homes())
        except project.BadProjectFile as bad:
            self._bad = str(bad)
            if self._bad != before:
                sys.stderr.write(f"mbx-mcp: {bad}\n")
            return
        self._place["project"] = None if found is None else {"key": found.key, "slug": found.slug}

    def params(self, label: str | None, handles: list[str]) -> dict[str, Any]:
        """Params of hello for a client of this name."""
        if self._place is None or self._bad is not None:
            self._look()
        place = self._place or {}
        return {
            "protocol": {"min": 1, "max": 1},
            "client": {
                "name": "mbx-mcp",
                "version": __version__,
                "instance": self._instance,
                "label": label,
            },
            "cwd": place["cwd"],
            "project": place["project"],
            "hints": {
                "resume": _resume_hints(label),
                "agent": self._agent,
                "sessions": handles,
                "container": _container(),
            },
        }


def _homes() -> frozenset[str]:
    return project.home_directories(os.environ.get("HOME"), paths.account_home(os.getuid()))


def named_projects(arguments: dict[str, Any]) -> dict[str, Any]:
    """The project of each directory that a call names: the daemon may not see it. None: it is none (a home, `/`).

    Raises BadProjectFile.
    """
    named = [v for k in ("project_key", "human_key") if isinstance(v := arguments.get(k), str) and v[:1] == "/"]
    if not named:
        return {}
    homes = _homes()
    found: dict[str, Any] = {}
    for path in named:
        try:
            here = project.of_directory(path, homes)
        except project.BadProjectFile:
            raise
        except ValueError:  # no path at all, for a NUL in it: it is refused in words later on
            continue
        if here is not None or os.path.exists(path):
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
