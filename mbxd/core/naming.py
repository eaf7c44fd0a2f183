r"""Names: addresses, roles, slugs; what is valid, what is near, what is free.

Owns validation of everything that a client may choose. Checks are full matches over explicit ASCII classes:
`$` would accept a trailing newline and `\w` letters of any script.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterable
from itertools import islice

from mbx_wire.errors import Code
from mbx_wire.identity import ADDRESS_PATTERN, DESCRIPTION_MAX, ROLE_PATTERN
from mbxd.core import tokens
from mbxd.core.rejected import Rejected

RESERVED = frozenset({"owner", "mbxd", "all", "everyone", "me", "none", "null"})
"""Words that no mailbox may be called: who mail says it is from, and what a sender could mean by a word."""

_ADDRESS = re.compile(r"[a-z0-9][a-z0-9-]{1,39}")
_ROLE = re.compile(r"[a-z0-9][a-z0-9 _-]{0,39}")
_HEX_TAIL = re.compile(r"-(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{12,}\Z")
_NOT_SLUG = re.compile(r"[^a-z0-9]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
SLUG_MAX = 24
NEAR_CUTOFF = 0.8
NEAR_WHOLE_CUTOFF = 0.92
NEAR_SCANNED = 500


def is_address(name: str) -> bool:
    """Whether `check_address` would take it."""
    return _ADDRESS.fullmatch(name) is not None and name not in RESERVED and _HEX_TAIL.search(name) is None


def check_address(name: str) -> str:
    """The name when it may be an address; else NAME_INVALID with the rule and an example."""
    if _ADDRESS.fullmatch(name) is None:
        raise Rejected(
            Code.NAME_INVALID,
            f"{shown(name)} can't be a name: it must match {ADDRESS_PATTERN}.",
            f'Use 2 to 40 of a-z, 0-9 and -, for example "{suggest(name)}".',
        )
    if name in RESERVED:
        raise Rejected(
            Code.NAME_INVALID,
            f'"{name}" is a reserved word.',
            f'Choose another name, for example "{name}-agent".',
        )
    if _HEX_TAIL.search(name):
        raise Rejected(
            Code.NAME_INVALID,
            f'"{name}" ends in a long machine-made number, which nobody can tell from another.',
            "Choose a name that says what the mailbox is for, for example shop-backend.",
        )
    return name


def check_role(role: str) -> str:
    """The role when it is valid; else ROLE_INVALID, showing the form that would be accepted."""
    if _ROLE.fullmatch(role) is None:
        lower = re.sub(r"[^a-z0-9 _-]", "", role.lower()).lstrip(" _-")[:40] or "backend"
        raise Rejected(
            Code.ROLE_INVALID,
            f"{shown(role)} can't be a role: it must match {ROLE_PATTERN}.",
            f'Use up to 40 of a-z, 0-9, space, _ and -, for example "{lower}".',
        )
    return role


def check_description(text: str) -> str:
    """The description when it is one line of at most 200 characters."""
    if len(text) > DESCRIPTION_MAX or _CONTROL.search(text):
        what = f"{len(text)} characters" if len(text) > DESCRIPTION_MAX else "control characters or line ends"
        raise Rejected(
            Code.PARAMETER_INVALID,
            f"`description` has {what}: it must be one line of at most {DESCRIPTION_MAX} characters.",
            'For example "Owns the payment service".',
            data={"parameter": "description"},
        )
    return check_unicode(text, "description")


def check_unicode(text: str, parameter: str) -> str:
    """The text when it can be written as UTF-8: JSON can carry lone surrogates, nothing else can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Rejected(
            Code.PARAMETER_INVALID,
            f"`{parameter}` has a lone surrogate: it is not valid Unicode.",
            "Send valid Unicode text.",
            data={"parameter": parameter},
        ) from None
    return text


def shown(value: str) -> str:
    """A value quoted for a message: cut, with everything that is not printable ASCII escaped."""
    value = tokens.hidden(value)
    cut = value if len(value) <= 60 else value[:57] + "..."
    return '"' + cut.encode("ascii", "backslashreplace").decode().translate(_ESCAPES) + '"'


_ESCAPES = {i: f"\\x{i:02x}" for i in (*range(32), 127)}


def suggest(name: str) -> str:
    """A valid address near what was asked for."""
    slug = _NOT_SLUG.sub("-", tokens.hidden(name).lower()).strip("-")[:40].strip("-")
    return slug if is_address(slug) else "shop-backend"


def slug(text: str) -> str:
    """A short slug from any text; "project" when nothing is left of it."""
    return _NOT_SLUG.sub("-", text.lower()).strip("-")[:SLUG_MAX].strip("-") or "project"


def free_variant(wanted: str, taken: Container[str], limit: int = 40) -> str:
    """The wanted text, else with the smallest number that makes it free, never longer than `limit`."""
    if wanted not in taken:
        return wanted
    number = 2
    while True:
        tail = f"-{number}"
        candidate = wanted[: limit - len(tail)].rstrip("-") + tail
        if candidate not in taken:
            return candidate
        number += 1


def conventional(project_slug: str | None, role: str) -> str:
    """`<project>-<role>`, the conventional name of a role mailbox; always one that may be an address."""
    word = _NOT_SLUG.sub("-", role).strip("-")
    name = (f"{project_slug}-{word}" if project_slug else word)[:40].strip("-")
    return name if is_address(name) else f"{name[:32].strip('-')}-mailbox"  # one letter, reserved, a hex tail


def near(name: str, others: Iterable[str], project_slug: str | None) -> list[str]:
    """Up to three addresses so like the wanted one that it may be a slip of the pen; best first.

    The project's prefix is left out of the comparison, since it is the same for all and would make all look alike;
    whole names count only when nearly equal.
    """
    prefix = f"{project_slug}-" if project_slug else ""
    scanned = list(islice(others, NEAR_SCANNED))
    bare = {other.removeprefix(prefix): other for other in scanned}
    found = [bare[m] for m in difflib.get_close_matches(name.removeprefix(prefix), bare, n=3, cutoff=NEAR_CUTOFF)]
    whole = difflib.get_close_matches(name, scanned, n=3, cutoff=NEAR_WHOLE_CUTOFF)
    return list(dict.fromkeys([*found, *whole]))[:3]
