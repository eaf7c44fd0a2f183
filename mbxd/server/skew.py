"""What to say when the daemon does not know what a client means and their versions differ.

Owns those words. The socket protocol's own version is settled in `hello`; this is about what one version has beyond
another while both speak the same protocol: a method, a tool, a parameter.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from mbx_wire.errors import Code, error_body
from mbxd.core.rejected import Rejected

_NUMBERS = re.compile(r"\d+")


class Skew(NamedTuple):
    """A daemon and a client of two versions."""

    daemon: str
    client: str

    @property
    def hint(self) -> str:
        """What brings them together. No client replaces a daemon by itself."""
        if _order(self.client) > _order(self.daemon):
            return "The daemon is the older one. Run: mbxctl restart"
        return "The client is the older one: restart the agent CLI, so that it starts the mbx-mcp installed now."

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


def between(daemon: str, client: str) -> Skew | None:
    """The difference, None when there is none or the client did not say its version."""
    return None if client in {"", daemon} else Skew(daemon, client)


def _order(version: str) -> list[int]:
    return [int(number) for number in _NUMBERS.findall(version)[:4]]
