"""docs/architecture.md has every module of the daemon's layers on its map, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text()


@pytest.mark.parametrize("layer", ["core", "runtime", "server"])
def test_every_module_is_on_the_map(layer: str) -> None:
    section = PAGE.split(f"| `mbxd/{layer}/` | owns |\n|---|---|\n")[1].split("\n\n")[0]
    named = [name for line in section.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    there = [path.stem for path in (ROOT / "mbxd" / layer).glob("*.py") if path.stem != "__init__"]
    assert sorted(named) == sorted(there)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:client|mbxd|tests)/[\w/]+\.py)`", PAGE))))
def test_every_file_that_is_named_is_there(path: str) -> None:
    assert (ROOT / path).is_file()
