"""Everything that leaves mbxctl passes here: text made harmless, columns, and the one JSON document.

Owns stdout (data) and stderr (talk). Never decides what to say. Text from elsewhere (names, roles,
descriptions, client labels) can hold escape sequences that repaint a terminal or forge a line, so every
line goes through `neutralise`; JSON keeps the characters and escapes them as JSON does.
"""

from __future__ import annotations

import sys

from mbxctl.failure import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TextIO

_JOINERS = "\u200c\u200d"
"""Zero-width (non-)joiners: Persian and emoji families need them, and they can't move a cursor."""


def neutralise(text: str) -> str:
    r"""The text as one harmless line: whatever is not printable becomes visible, as in `\x1b` or `\u2028`.

    Printable is Unicode's word (str.isprintable): it leaves out C0, DEL, C1, line and paragraph separators,
    bidirectional controls, other format characters, lone surrogates and unassigned code points.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _JOINERS else _visible(char) for char in text)


def _visible(char: str) -> str:
    point = ord(char)
    if point <= 0xFF:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"


def for_people(text: str) -> str:
    """The daemon's words with its MCP calls told as commands."""
    if "mbx_" not in text:
        return text
    from mbxctl import calls

    return calls.as_commands(text)


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Left-aligned columns, two spaces apart, the last one unpadded. An empty cell shows as `-`."""
    table = [list(header), *([neutralise(cell) or "-" for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def count(number: int, one: str, many: str) -> str:
    """A number with its noun."""
    return f"{number} {one if number == 1 else many}"


def duration(seconds: float) -> str:
    """A length of time for people: `0.2 s`, `12 s`, `3 min`, `5 h`, `2 d`."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172800 else f"{seconds / 86400:.0f} d"


def ago(stamp: str | None) -> str:
    """How long ago an ISO 8601 time of the daemon was; the text itself when it can't be read."""
    # datetime costs more to import than a plain `list` spends on everything else, which never comes here.
    from datetime import UTC, datetime

    if not stamp:
        return "-"
    try:
        then = datetime.fromisoformat(stamp)
    except ValueError:
        return stamp
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    age = (datetime.now(UTC) - then).total_seconds()
    return "just now" if age < 1 else f"{duration(age)} ago"


class Output:
    """The two streams of a command. `json`: stdout takes exactly one JSON document and nothing else."""

    def __init__(self, *, json: bool, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self.json = json
        # A parent may have closed a stream (`>&-`); Python then has None there.
        self._out = stdout or sys.stdout
        self._err = stderr or sys.stderr

    @property
    def is_terminal(self) -> bool:
        """Whether data goes to a person's terminal, where tables may be drawn."""
        return not self.json and self._out is not None and self._out.isatty()

    @property
    def can_ask(self) -> bool:
        """Whether a question can be shown and answered."""
        return sys.stdin is not None and sys.stdin.isatty() and self._err is not None and self._err.isatty()

    def data(self, line: str) -> None:
        """One line of the result. Dropped under `--json`, where the document says it."""
        if not self.json:
            self._write(self._out, neutralise(line) + "\n")

    def talk(self, line: str) -> None:
        """One line to the person: hints, warnings, progress. After the data before it, wherever both lead."""
        if self._out is not None:
            self._out.flush()
        self._write(self._err, neutralise(line) + "\n")

    def drawn(self, text: str) -> None:
        """Text with terminal sequences of our own making (rich), whose cells were neutralised before."""
        self._write(self._out, text)

    def document(self, document: Any) -> None:
        """The JSON document, on one line; indented on a terminal."""
        import json

        indent = 2 if self._out is not None and self._out.isatty() else None
        self._write(self._out, json.dumps(document, ensure_ascii=True, indent=indent) + "\n")

    def line_document(self, document: Any) -> None:
        """One of many JSON documents, always on one line: for streams."""
        import json

        self._write(self._out, json.dumps(document, ensure_ascii=True) + "\n")

    def ask(self, question: str) -> bool:
        """A yes-or-no question on stderr; anything but yes is no."""
        self._write(self._err, neutralise(question) + " [y/N] ")
        self.flush()
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    def warn(self, warnings: Sequence[str]) -> None:
        """The daemon's warnings, one a line."""
        for warning in warnings:
            self.talk(f"warning: {for_people(warning)}")

    def failure(self, failure: Failure) -> int:
        """Show a failure and return its exit code."""
        if self.json:
            self.document(failure.document)
            return failure.exit_code
        # Not through `talk`: it flushes stdout first, and stdout may be what failed.
        self._write(self._err, neutralise(f"error: {for_people(failure.body['message'])} [{failure.code}]") + "\n")
        if failure.body["hint"]:
            self._write(self._err, neutralise(f"hint: {for_people(failure.body['hint'])}") + "\n")
        return failure.exit_code

    def flush(self) -> None:
        """Push both streams out, so that a broken pipe shows here and not at the interpreter's exit."""
        for stream in (self._out, self._err):
            if stream is not None:
                stream.flush()

    @staticmethod
    def _write(stream: TextIO | None, text: str) -> None:
        if stream is not None:
            stream.write(text)
