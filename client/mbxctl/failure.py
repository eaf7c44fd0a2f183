"""How a command ends badly: one exception with the wire's error object and an exit code.

Owns the way from an error code to an exit code. Never prints; `main` is the one place that shows failures.
"""

from __future__ import annotations

from mbx_wire.errors import EXIT_BY_CODE, EXIT_FAILURE, error_body

TYPE_CHECKING = False  # the idiom without `import typing`
if TYPE_CHECKING:
    from typing import Any


class Failure(Exception):
    """A command's refusal or breakdown, told in full: what happened and what to do next.

    `body` is the error object {code, message, hint, retryable, data?}; `extra` are members that the JSON
    document has beside `error` (status says `running: false` there).
    """

    def __init__(
        self,
        code: str,
        message: str,
        hint: str = "",
        *,
        retryable: bool = False,
        data: dict[str, Any] | None = None,
        exit_code: int | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.body = error_body(code, message, hint, retryable=retryable, data=data)
        self.extra = extra or {}
        self.exit_code = EXIT_BY_CODE.get(code, EXIT_FAILURE) if exit_code is None else exit_code

    @property
    def code(self) -> str:
        """The error code, a stable word."""
        return str(self.body["code"])

    @property
    def document(self) -> dict[str, Any]:
        """What `--json` prints for it."""
        return {**self.extra, "error": self.body}
