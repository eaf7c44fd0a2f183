"""Refusals: part of the contract, each with a code. Anything else that is raised in the core is a bug."""

from __future__ import annotations

from typing import Any

from mbx_wire.errors import Code, error_body


class Rejected(Exception):
    """A request that the rules refuse. Nothing was changed.

    code: what was refused; message: who, since when; hint: what to do next; data: facts for programs.
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
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.retryable = retryable
        self.data = data

    def body(self) -> dict[str, Any]:
        """The error object of the wire."""
        return error_body(self.code, self.message, self.hint, retryable=self.retryable, data=self.data)
