"""The protocol page is made from the method table; it must not fall behind."""

from __future__ import annotations

import ast
from pathlib import Path

from mbx_wire import document
from mbx_wire.errors import Code

ROOT = Path(__file__).resolve().parents[2]


def test_the_protocol_page_is_current() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    assert page == document.page(), "run: python -m mbx_wire.document > docs/protocol.md"


def test_mbxctls_own_codes_are_those_of_its_sources() -> None:
    """A literal as the first argument of a failure is its code."""
    found = set()
    for path in [*(ROOT / "client/mbxctl").glob("*.py"), ROOT / "client/mbx_client/blocking.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Failure":
                code = node.args[0]
                if isinstance(code, ast.Constant):
                    found.add(code.value)
    assert found - set(Code) == set(document.OWN_CODES)
