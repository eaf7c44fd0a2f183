"""docs/testing.md names tests that exist, and has a row for every kind of failure; the run has a home of its own."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from mbxd import ground

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs/testing.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))
ROWS = {
    "CLM": "01 03 04 05 07 08 09 11 12 13",
    "DHA": "01 02 03 04 06 07 08 09 10 11",
    "DHD": "01 03 04 05 07 08 09 11 12 13 15",
    "RES": "01 02 03 04 05 06 07 08 09 10",
    "REL": "01 02 03 05 06 07",
    "NAM": "01 02 03 05 06 07",
    "WAL": "02 03 04 05 06 07 08 10 11 12 14 15 16 18 19 20",
    "SOK": "02 03 04 06 07 08 10 11 12 14 15 16 17 18",
    "SEC": "01 02 03 04 05 06 08",
    "MCP": "01 02 04 05 06 08 09 10 12 13 14",
    "SHM": "02 03 04 06 07 08 09 10 11 12 13 14 15 16 18 19",
    "CLI": "01 03 04 05 07 08",
    "MAL": "01 03 04 05 07",
    "VER": "01 02 03 04 05 06",
    "TIM": "02 03",
    "WCH": "01 03",
    "TST": "01 02",
}


def functions(path: str) -> frozenset[str]:
    """The tests of a file: functions at its top, and those of classes there."""
    tree = ast.parse((TESTS / path).read_text())
    found = [node for top in tree.body for node in (top.body if isinstance(top, ast.ClassDef) else [top])]
    return frozenset(node.name for node in found if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


@pytest.mark.parametrize("path", sorted({path for path, _ in NAMED}))
def test_named_tests_exist(path: str) -> None:
    assert (TESTS / path).exists(), path
    named = {name for file, name in NAMED if file == path}
    assert named <= functions(path), named - functions(path)
    assert all(name.startswith("test_") for name in named)


def test_every_row_is_there_once_and_says_something() -> None:
    wanted = [f"{family}-{number}" for family, numbers in ROWS.items() for number in numbers.split()]
    rows = re.findall(r"^\| ([A-Z]{3}-\d\d) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert sorted(row for row, _, _ in rows) == sorted(wanted)
    assert all(kind.strip() and cover.strip() for _, kind, cover in rows)


def test_nothing_in_a_row_looks_like_a_test_and_is_none() -> None:
    named = {f"{path}::{name}" for path, name in NAMED}
    assert set(re.findall(r"`([^`]*::[^`]*)`", PAGE)) == named


def test_a_place_that_nobody_names_is_temporary(nowhere: Path) -> None:
    for place in ground.find(os.environ):
        assert place.startswith(f"{nowhere}/")
    assert Path.home() == nowhere
    assert not [name for name in os.environ if name.startswith(("CLAUDE_", "COPILOT_")) or name == "MBX_SOCKET"]
