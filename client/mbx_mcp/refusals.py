"""What the shim itself refuses a call with: the contract's error objects, in words that say what to do.

Owns that wording alone; whether a call is refused the bridge decides. Imported when one is. Standard library only.
"""

from __future__ import annotations

import json

from mbx_wire.errors import Code, error_body
from mbx_wire.framing import MAX_LINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PAGED = frozenset({"mbx_inbox", "mbx_sent", "mbx_thread", "mbx_search"})
"""Tools that take a `limit` and change nothing."""


def body(code: str, message: str, hint: str) -> dict[str, Any]:
    """An error object for a daemon that can't be had; trying again may help, unless the versions differ."""
    return error_body(code, message, hint, retryable=code != Code.VERSION_SKEW)


def unknown_outcome(why: str) -> dict[str, Any]:
    """The call was with the daemon, and its answer is lost."""
    return body(
        Code.OUTCOME_UNKNOWN,
        f"{why} The call may have taken effect.",
        "Look with mbx_identity action=list before you repeat it.",
    )


def too_long(tool: str) -> dict[str, Any]:
    """The answer is longer than a line may be. tool: "" when it is not known whose answer it was."""
    text = f"The answer has more than {MAX_LINE} bytes, which is more than one can have."
    if tool in PAGED:
        hint = f"Call {tool} with a smaller `limit`, for example 5, and go on with its `before`."
        return error_body(Code.PARAMETER_INVALID, text, hint, data={"parameter": "limit"})
    if tool == "mbx_read":
        return error_body(Code.PARAMETER_INVALID, text, "Read fewer messages at once.", data={"parameter": "ids"})
    return unknown_outcome(text)


def too_much(size: int) -> dict[str, Any]:
    """The arguments are longer than a line may be."""
    text = f"The arguments have {size} bytes, at most {MAX_LINE} fit; nothing was done."
    return error_body(Code.PARAMETER_INVALID, text, "Put the long part into a file and send its path.")


def no_text(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments hold half of a surrogate pair, which JSON can carry and UTF-8, so the daemon, can't."""
    bad = next((name for name, value in arguments.items() if not _is_text(value)), "")
    where, data = (f"`{bad}`", {"parameter": bad}) if bad and _is_text(bad) else ("The name of an argument", None)
    text = f"{where} has half of a surrogate pair, which is not valid Unicode; nothing was done."
    return error_body(Code.TEXT_INVALID, text, "Send valid Unicode text.", data=data)


def bad_project_file(why: str) -> dict[str, Any]:
    """A `.mbx.toml` that can't be used: which project is meant is not guessed. why: with its path and line."""
    return error_body(Code.PARAMETER_INVALID, why, "Mend that file, or ask your user to; then call again.")


def _is_text(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
