"""Error codes: what can be refused, by name, and how a refusal looks on the wire. Standard library only."""

from __future__ import annotations

from enum import StrEnum

TYPE_CHECKING = False  # the idiom without `import typing`: every command and every shim imports this module
if TYPE_CHECKING:
    from typing import Any


class Code(StrEnum):
    """Codes of refusals. They are part of the contract: a code never changes its meaning."""

    AMBIGUOUS_SESSION = "AMBIGUOUS_SESSION"
    ARCHIVE_UNAVAILABLE = "ARCHIVE_UNAVAILABLE"
    BODY_TOO_LONG = "BODY_TOO_LONG"
    BUSY = "BUSY"
    DAEMON_DOWN = "DAEMON_DOWN"
    DAEMON_UNRESPONSIVE = "DAEMON_UNRESPONSIVE"
    DISK_FULL = "DISK_FULL"
    HOLDS_ANOTHER = "HOLDS_ANOTHER"
    IDENTITY_IN_USE = "IDENTITY_IN_USE"
    KEY_REUSED = "KEY_REUSED"
    LEASE_LOST = "LEASE_LOST"
    MAIL_UNAVAILABLE = "MAIL_UNAVAILABLE"
    MESSAGE_AMBIGUOUS = "MESSAGE_AMBIGUOUS"
    MESSAGE_PRUNED = "MESSAGE_PRUNED"
    NAMES_EXHAUSTED = "NAMES_EXHAUSTED"
    NAME_INVALID = "NAME_INVALID"
    NAME_REQUIRED = "NAME_REQUIRED"
    NAME_TAKEN = "NAME_TAKEN"
    NOT_ALLOWED = "NOT_ALLOWED"
    NOT_AN_AGENT = "NOT_AN_AGENT"
    NOT_BOUND = "NOT_BOUND"
    NOT_YOURS = "NOT_YOURS"
    NO_PROJECT = "NO_PROJECT"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    PARAMETER_INVALID = "PARAMETER_INVALID"
    PARAMETER_MISSING = "PARAMETER_MISSING"
    PARAMETER_UNKNOWN = "PARAMETER_UNKNOWN"
    PARAMETER_UNUSED = "PARAMETER_UNUSED"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    RETIRED = "RETIRED"
    ROLE_INVALID = "ROLE_INVALID"
    ROLE_MISMATCH = "ROLE_MISMATCH"
    ROLE_REQUIRED = "ROLE_REQUIRED"
    SANDBOXED = "SANDBOXED"
    STATUS_UNKNOWN = "STATUS_UNKNOWN"
    STOPPING = "STOPPING"
    TEXT_INVALID = "TEXT_INVALID"
    TOKEN_MISMATCH = "TOKEN_MISMATCH"  # noqa: S105 - a code, not a secret
    UNKNOWN_IDENTITY = "UNKNOWN_IDENTITY"
    UNKNOWN_MESSAGE = "UNKNOWN_MESSAGE"
    VERSION_SKEW = "VERSION_SKEW"


class RpcError:
    """JSON-RPC 2.0 error numbers, and ours from the server range (-32000 to -32099)."""

    PARSE = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL = -32603
    REFUSED = -32000
    """A refusal of the contract: `data` is the error object of `error_body`."""
    NOT_INTRODUCED = -32001
    """A request before `hello`."""
    VERSION_SKEW = -32002
    BUSY = -32003
    """A limit was reached: connections, requests in flight, or a slow reader's queue."""


EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_CONFLICT = 4
EXIT_UNKNOWN_OUTCOME = 5
EXIT_UNAVAILABLE = 69

EXIT_BY_CODE: dict[str, int] = {
    Code.UNKNOWN_IDENTITY: EXIT_NOT_FOUND,
    Code.NO_PROJECT: EXIT_NOT_FOUND,
    Code.UNKNOWN_MESSAGE: EXIT_NOT_FOUND,
    Code.MESSAGE_PRUNED: EXIT_NOT_FOUND,
    Code.MESSAGE_AMBIGUOUS: EXIT_USAGE,
    Code.BODY_TOO_LONG: EXIT_USAGE,
    Code.TEXT_INVALID: EXIT_USAGE,
    Code.KEY_REUSED: EXIT_CONFLICT,
    Code.MAIL_UNAVAILABLE: EXIT_UNAVAILABLE,
    Code.IDENTITY_IN_USE: EXIT_CONFLICT,
    Code.NAME_TAKEN: EXIT_CONFLICT,
    Code.HOLDS_ANOTHER: EXIT_CONFLICT,
    Code.RETIRED: EXIT_CONFLICT,
    Code.LEASE_LOST: EXIT_CONFLICT,
    Code.ROLE_MISMATCH: EXIT_CONFLICT,
    Code.TOKEN_MISMATCH: EXIT_CONFLICT,
    Code.AMBIGUOUS_SESSION: EXIT_CONFLICT,
    Code.NAMES_EXHAUSTED: EXIT_CONFLICT,
    Code.NAME_INVALID: EXIT_USAGE,
    Code.NAME_REQUIRED: EXIT_USAGE,
    Code.ROLE_INVALID: EXIT_USAGE,
    Code.ROLE_REQUIRED: EXIT_USAGE,
    Code.PARAMETER_INVALID: EXIT_USAGE,
    Code.PARAMETER_MISSING: EXIT_USAGE,
    Code.PARAMETER_UNKNOWN: EXIT_USAGE,
    Code.PARAMETER_UNUSED: EXIT_USAGE,
    Code.OUTCOME_UNKNOWN: EXIT_UNKNOWN_OUTCOME,
    Code.DAEMON_UNRESPONSIVE: EXIT_UNKNOWN_OUTCOME,
    Code.DAEMON_DOWN: EXIT_UNAVAILABLE,
    Code.SANDBOXED: EXIT_UNAVAILABLE,
    Code.VERSION_SKEW: EXIT_UNAVAILABLE,
    Code.STOPPING: EXIT_UNAVAILABLE,
}
"""Exit codes of mbxctl by error code; a code not named here exits 1."""


def error_body(
    code: str,
    message: str,
    hint: str = "",
    *,
    retryable: bool = False,
    data: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The error object that tools, methods and `mbxctl --json` share: {code, message, hint, retryable, data?}."""
    body: dict[str, Any] = {"code": str(code), "message": message, "hint": hint, "retryable": retryable}
    if data is not None:
        body["data"] = data
    return body
