"""Names of agents: drawn, hinted, or chosen; and the addresses that follow from them.

Owns what an agent name may be. A name is unique in its project without case. Nothing here reads a clock or
draws randomness: entropy comes in.
"""

from __future__ import annotations

import math
import re

from mbx_wire.agent import AGENT_NAME_PATTERN
from mbx_wire.errors import Code
from mbxd.core import naming, tokens
from mbxd.core.rejected import Rejected
from mbxd.core.state import State
from mbxd.core.words import ADJECTIVES, NOUNS

BROADCAST = frozenset({"all", "everyone", "*", "@all", "@everyone", "@here", "here", "broadcast"})
PROGRAMS = frozenset(
    {"claude", "claude-code", "codex", "codex-cli", "opencode", "gemini", "gemini-cli", "copilot", "copilot-cli"}
    | {"cursor", "cursor-agent", "windsurf", "aider", "amp", "goose", "cline", "qwen-code", "kimi-cli"}
)
_MODEL = re.compile(
    r"(gpt|o[1-9]|claude|opus|sonnet|haiku|gemini|grok|llama|mistral|qwen|deepseek|kimi|glm)[-_. ]?[0-9].*"
)
_AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_EMAIL = re.compile(r"[^@\s/]+@[^@\s/]+")
_NOT_ADDRESS = re.compile(r"[^a-z0-9]+")
_ADJECTIVES = {word: word.capitalize() for word in ADJECTIVES}
_NOUNS = {word: word.capitalize() for word in NOUNS}

ACCEPTED = 'Accepted is a name like "GreenCastle", "worker-7" or "api.tests".'


def draw(state: State, project: int, entropy: bytes) -> str:
    """A free adjective+noun name. Walks the whole space once at the most; NAMES_EXHAUSTED when it is full."""
    total = len(ADJECTIVES) * len(NOUNS)
    place = int.from_bytes(entropy[:8], "big") % total
    stride = 1 + int.from_bytes(entropy[8:16], "big") % (total - 1)
    if math.gcd(stride, total) != 1:
        stride = 1
    for _ in range(total):
        adjective, noun = divmod(place, len(NOUNS))
        name = _ADJECTIVES[ADJECTIVES[adjective]] + _NOUNS[NOUNS[noun]]
        if taken(state, project, name) is None:
            return name
        place = (place + stride) % total
    raise Rejected(
        Code.NAMES_EXHAUSTED,
        f"All {total} generated names of this project are taken.",
        "Retire what is not needed, or register a name of your own with register_agent.",
    )


def taken(state: State, project: int, name: str) -> int | None:
    """The identity of this project that has this name, without case; None when it is free."""
    found = state.by_agent_name.get((project, name.lower()))
    if found is None:
        found = state.by_address.get(name.lower())
        if found is not None and state.identities[found].project != project:
            return None
    return found


def check_hint(hint: str) -> str:
    """The name that a hint stands for: one adjective and one noun of the lists, in any case."""
    bare = hint.lower().replace("-", "").replace("_", "").replace(" ", "")
    for cut in range(2, len(bare) - 1):
        if bare[:cut] in _ADJECTIVES and bare[cut:] in _NOUNS:
            return _ADJECTIVES[bare[:cut]] + _NOUNS[bare[cut:]]
    _refuse_kinds(hint, "", "")
    raise Rejected(
        Code.NAME_INVALID,
        f"`name_hint` {naming.shown(hint)} is not one adjective and one noun of our lists.",
        "Use for example GreenCastle, BlueLake or RedStone; or leave it out and a name is made.",
        data={"parameter": "name_hint"},
    )


def check_name(name: str, program: str, model: str, *, strict: bool) -> str:
    """An explicit agent id when it is valid; NAME_INVALID otherwise, each kind of mistake in its own words."""
    _refuse_kinds(name, program, model)
    if _AGENT.fullmatch(name) is None:
        raise _invalid(f"{naming.shown(name)} can't be an agent's name: it must match {AGENT_NAME_PATTERN}.")
    if strict and not _distinct(name):
        raise _invalid(
            f"{naming.shown(name)} describes a role: in strict naming a name must be an adjective and a noun of our "
            "lists, or contain a digit or one of . _ -"
        )
    return name


def _refuse_kinds(name: str, program: str, model: str) -> None:
    lower = name.lower().strip()
    if tokens.inside(name):  # it would be kept and shown to everybody: not even the refusal repeats it
        raise _invalid("This is a registration token, not a name: it belongs into `registration_token`.")
    if lower in BROADCAST:
        raise _invalid(f"{naming.shown(name)} is a word for everybody, not a name.")
    if lower in naming.RESERVED:
        raise _invalid(f"{naming.shown(name)} is a reserved word.")
    if _EMAIL.fullmatch(lower):
        raise _invalid(f"{naming.shown(name)} is an e-mail address, not an agent's name.")
    if "/" in name or "\\" in name:
        raise _invalid(f"{naming.shown(name)} is a path, not an agent's name.")
    if lower in PROGRAMS or (program and lower == program.lower().strip()):
        raise _invalid(f"{naming.shown(name)} is the name of a program: that belongs into `program`.")
    if _MODEL.fullmatch(lower) or (model and lower == model.lower().strip()):
        raise _invalid(f"{naming.shown(name)} is the name of a model: that belongs into `model`.")


def _invalid(message: str) -> Rejected:
    return Rejected(Code.NAME_INVALID, message, ACCEPTED + " Without a name one is made.", data={"parameter": "name"})


def _distinct(name: str) -> bool:
    if any(c in "0123456789._-" for c in name):
        return True
    lower = name.lower()
    return any(lower[:cut] in _ADJECTIVES and lower[cut:] in _NOUNS for cut in range(2, len(lower) - 1))


def address_for(state: State, name: str, slug: str | None) -> str:
    """A free address from a name: `GreenCastle` -> `greencastle`; on a clash `shop-greencastle`, then a number."""
    base = _NOT_ADDRESS.sub("-", name.lower()).strip("-")[:40].strip("-")
    if len(base) < 2 or base in naming.RESERVED:
        base = f"{base}-agent".strip("-")
    if base not in state.by_address:
        return base
    wanted = f"{slug}-{base}"[:40].strip("-") if slug else base
    return naming.free_variant(wanted, state.by_address)
