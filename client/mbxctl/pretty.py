"""Tables for a person's terminal, drawn by rich. Imported only when stdout is a terminal.

Owns colours and widths. Never sees unneutralised text: cells pass `render.neutralise` here, and markup is off.
rich honours NO_COLOR and TERM=dumb by itself.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence

from rich.cells import cell_len
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
LEAST_NEEDED = tuple("LAST-ACTIVE SEQ PID KIND PROJECT EPOCH ROLE HOLDER AT STATE WHO FROM TO TEXT".split())  # noqa: SIM905
"""Columns that a narrow window goes without, the first of them first. `show`, `why` and `read` tell all of one."""
_GAP = 2
_WORD_MAX = 24
"""Cells; a longer word (a path, an address) is folded rather than that other columns go."""
_PROSE = 20
"""Cells; a line of a few words."""
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
    width = shutil.get_terminal_size().columns
    shown = _columns_that_fit(header, rows, width)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _GAP, 0, 0))
    for i, size in zip(shown, _sizes(header, rows, shown, width), strict=True):
        # Names are typed back in: they may wrap nowhere. The rest wraps between words.
        table.add_column(header[i], no_wrap=i == 0, overflow="fold", width=size)
    for row in rows:
        table.add_row(*(row[i] for i in shown))
    buffer = io.StringIO()
    # Drawn into a buffer so that everything leaves through one Output; the terminal is known to be one.
    console = Console(file=buffer, force_terminal=sys.stdout.isatty(), width=width, highlight=False)
    console.print(table)
    if len(shown) < len(header):
        missing = ", ".join(title for i, title in enumerate(header) if i not in shown)
        console.print(Text(f"a wider window also shows {missing}", style="dim"))
    return buffer.getvalue()


def _columns_that_fit(header: Sequence[str], rows: Sequence[Sequence[Text]], width: int) -> list[int]:
    """Which columns are shown: all, or without as many of the least needed as it takes to fold no word."""
    shown = list(range(len(header)))
    for title in LEAST_NEEDED:
        if sum(_needs(header, rows, shown)) + _GAP * (len(shown) - 1) <= width:
            break
        if title in header:
            shown.remove(header.index(title))
    return shown


def _sizes(header: Sequence[str], rows: Sequence[Sequence[Text]], shown: Sequence[int], width: int) -> list[int | None]:
    """Width of each shown column: its longest word, and from what is left, first come, its longest cell.

    Where even the words do not fit, None each: rich folds as it can.
    """
    sizes = _needs(header, rows, shown)
    spare = width - sum(sizes) - _GAP * (len(shown) - 1)
    if spare < 0:
        return [None] * len(sizes)
    for place, i in enumerate(shown):
        more = min(max(_longest(rows, i) - sizes[place], 0), spare)
        sizes[place] += more
        spare -= more
    return list(sizes)


def _needs(header: Sequence[str], rows: Sequence[Sequence[Text]], shown: Sequence[int]) -> list[int]:
    """Cells that each shown column has to have: its longest word, in the last one (prose) more.

    Behind the first column no word counts for more than a bound.
    """
    longest = [
        max(cell_len(word) for text in (header[i], *(row[i].plain for row in rows)) for word in text.split() or [""])
        for i in shown
    ]
    needs = [longest[0], *(min(one, _WORD_MAX) for one in longest[1:])]
    needs[-1] = max(needs[-1], min(_longest(rows, shown[-1]), _PROSE))
    return needs


def _longest(rows: Sequence[Sequence[Text]], column: int) -> int:
    return max(cell_len(row[column].plain) for row in rows)
