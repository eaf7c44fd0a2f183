"""Refusals: part of the contract, each with a code. Anything else that is raised in the core is a bug."""

from __future__ import annotations

from typing import Any

from mbx_wire.errors import Code, error_body
from mbxd.core import tokens


class Rejected(Exception):
    """A request that the rules refuse. Nothing was changed.

    code: what was refused; message: who, since when; hint: what to do next; data: facts for programs. What was asked
    for is often in them, and a token may have been sent in place of anything: it is not repeated.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        hint: str = "",
        *,
        retryable: bool = False,
        data: dict[str, Any] | None = None,
    ) -> None:
        """Keep the parts; the text of the exception is the message."""
        super().__init__(tokens.hidden(message))
        self.code = code
        self.message = tokens.hidden(message)
        self.hint = tokens.hidden(hint)
        self.retryable = retryable
        self.data = None if data is None else {name: _hidden(value) for name, value in data.items()}

    def body(self) -> dict[str, Any]:
        """The error object of the wire."""
        return error_body(self.code, self.message, self.hint, retryable=self.retryable, data=self.data)


def _hidden(value: Any) -> Any:
    return tokens.hidden(value) if isinstance(value, str) else value
