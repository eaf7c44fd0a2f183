"""What to say when the daemon does not know what a client means and their versions differ.

Owns those words. The socket protocol's own version is settled in `hello`; this is about what one version has beyond
another while both speak the same protocol: a method, a tool, a parameter.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mbx_wire.errors import Code, error_body
from mbx_wire.versions import order
from mbxd.core.rejected import Rejected

DAEMON_IS_OLDER = "The daemon is the older one. Run: mbxctl restart"


class Skew(NamedTuple):
    """A daemon and a client of two versions. command_line: the client is mbxctl, in a person's or an agent's shell."""

    daemon: str
    client: str
    command_line: bool = False

    @property
    def hint(self) -> str:
        """What brings them together. No client replaces a daemon by itself."""
        if order(self.client) > order(self.daemon):
            return DAEMON_IS_OLDER
        return client_is_older(self.daemon, command_line=self.command_line)

    def body(self, text: str) -> dict[str, Any]:
        """The error object for something that is not known here; `text` says what."""
        message = f"{text} The daemon is version {self.daemon}, its client {self.client}."
        data = {"daemon": self.daemon, "client": self.client}
        return error_body(Code.VERSION_SKEW, message, self.hint, retryable=False, data=data)

    def told(self, refusal: Rejected) -> Rejected:
        """A refusal with what to do about the versions, where they may be its reason."""
        if refusal.code != Code.PARAMETER_UNKNOWN:
            return refusal
        hint = f"{refusal.hint} Or the versions are the reason ({self.daemon}, {self.client}): {self.hint}"
        return Rejected(refusal.code, refusal.message, hint, retryable=refusal.retryable, data=refusal.data)


def client_is_older(daemon: str, *, command_line: bool) -> str:
    """What renews the client. A shim is started by its agent CLI; mbxctl runs anew at every command anyway."""
    if command_line:
        newer = f"the mbxctl of mbxd {daemon} (`mbxctl status` names its Python)"
        return f"This mbxctl is the older one: use {newer}, or update this one."
    return "The client is the older one: restart your agent CLI, so that it starts the mbx-mcp installed now."


def between(daemon: str, client: str, *, command_line: bool = False) -> Skew | None:
    """The difference, None when there is none or the client did not say its version."""
    return None if client in {"", daemon} else Skew(daemon, client, command_line)
