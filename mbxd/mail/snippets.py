"""Snippets: some of a body around the words that were looked for.

Owns how they are cut and marked. SQLite's own snippet() and highlight() take time by the square of the words found,
a minute for a body of one word repeated; this takes time by the body's length.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

LENGTH: Final = 120
"""Characters of a snippet, marks aside."""
LEAD: Final = 40
"""Characters before the first word found."""

_TOKEN: Final = re.compile(r"([^\W_]+)(\s*\*)?")
_OPERATORS: Final = frozenset({"AND", "OR", "NOT", "NEAR"})


class _Fold(dict[int, str]):
    """Each character as the index sees it, lower case and without accents; always one character for one."""

    def __missing__(self, code: int) -> str:
        self[code] = folded = unicodedata.normalize("NFD", chr(code))[0].lower()[:1]
        return folded


_FOLD: Final = _Fold()


def pattern(query: str) -> re.Pattern[str]:
    """What marks the words of a query in a folded text."""
    words = [_word(word.translate(_FOLD), star) for word, star in _TOKEN.findall(query) if word not in _OPERATORS]
    return re.compile(f"(?:{'|'.join(words)})(?![^\\W_])" if words else r"(?!)")


def _word(word: str, star: str) -> str:
    """One word from its beginning. What is before it comes after its first letter, by which a pattern is found."""
    first, rest = re.escape(word[0]), re.escape(word[1:])
    return f"{first}(?<![^\\W_]{first}){rest}" + ("[^\\W_]*" if star else "")


def snippet(text: str, words: re.Pattern[str]) -> str:
    """Some of the text around the first word found, all found there between `[` and `]`; else its beginning."""
    folded = text.lower() if text.isascii() else text.translate(_FOLD)  # the same, and far quicker
    first = words.search(folded)
    begin = max(first.start() - LEAD, 0) if first else 0
    end = min(begin + LENGTH, len(text))
    parts, done = ["…" if begin else ""], begin
    for found in words.finditer(folded, begin, end):
        parts += [text[done : found.start()], "[", text[found.start() : found.end()], "]"]
        done = found.end()
    return "".join([*parts, text[done:end], "…" if end < len(text) else ""])
