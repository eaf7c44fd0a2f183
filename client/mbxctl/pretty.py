"""Tables for a person's terminal, drawn by rich. Imported only when stdout is a terminal.

Owns colours and widths. Never sees unneutralised text: cells pass `render.neutralise` here, and markup is off.
rich honours NO_COLOR and TERM=dumb by itself.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mbxctl.render import neutralise

STATE_STYLE = {
    "vacant": "green",
    "live": "bold cyan",
    "detached": "yellow",
    "unknown": "magenta",
    "retired": "dim",
}
CHECK_STYLE = {"ok": "green", "note": "cyan", "warn": "yellow", "fail": "bold red"}


def identities(header: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A table of identities; each row comes with its state, which colours the second cell."""
    return _table(
        header,
        [
            [Text(neutralise(cell) or "-", style=_style(i, state)) for i, cell in enumerate(cells)]
            for state, cells in rows
        ],
    )


def lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table."""
    return _table(header, [[Text(neutralise(cell) or "-") for cell in cells] for cells in rows])


def checks(rows: Sequence[tuple[str, str, str]]) -> str:
    """Doctor's findings: (level, check, words)."""
    body = [
        [Text(level, style=CHECK_STYLE[level]), Text(neutralise(name)), Text(neutralise(words))]
        for level, name, words in rows
    ]
    return _table(("", "CHECK", "FINDING"), body)


def _style(index: int, state: str) -> str:
    if index == 0:
        return "bold"
    return STATE_STYLE.get(state, "") if index == 1 else ""


def _table(header: Sequence[str], rows: Sequence[Sequence[Text]]) -> str:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for i, title in enumerate(header):
        # Names are typed back in: they may wrap nowhere, the rest folds in a narrow window.
        table.add_column(title, no_wrap=i == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    buffer = io.StringIO()
    width = shutil.get_terminal_size().columns
    # Drawn into a buffer so that everything leaves through one Output; the terminal is known to be one.
    Console(file=buffer, force_terminal=sys.stdout.isatty(), width=width, highlight=False).print(table)
    return buffer.getvalue()
