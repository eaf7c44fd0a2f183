"""Registration tokens: derived, never kept.

Owns their form: `mbx_` and 43 characters of base64url, the HMAC-SHA-256 (RFC 2104) of identity and generation
under the host's key. A new generation makes all older tokens wrong. Whoever has the key has every token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

KEY_BYTES = 32
PREFIX = "mbx_"
_TOKEN = re.compile(re.escape(PREFIX) + "[A-Za-z0-9_-]{43}")


def mint(key: bytes, identity: int, generation: int) -> str:
    """The token of an identity's generation."""
    mac = hmac.new(key, b"mbx registration %d %d" % (identity, generation), hashlib.sha256).digest()
    return PREFIX + base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


def matches(key: bytes, identity: int, generation: int, token: str) -> bool:
    """Whether it is this identity's present token. Takes the same time whatever was sent."""
    right = hashlib.sha256(mint(key, identity, generation).encode()).digest()
    sent = hashlib.sha256(token.encode("utf-8", "replace")).digest()
    return hmac.compare_digest(right, sent)


def inside(text: str) -> bool:
    """Whether there is something like a token in a text."""
    return PREFIX in text and _TOKEN.search(text) is not None


def hidden(text: str) -> str:
    """The text without what looks like a token: it may be one, and the text is going to be shown."""
    return _TOKEN.sub(f"{PREFIX}...", text) if PREFIX in text else text
