"""The protocol page is made from the method table; it must not fall behind."""

from __future__ import annotations

from pathlib import Path

from mbx_wire import document

ROOT = Path(__file__).resolve().parents[2]


def test_the_protocol_page_is_current() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    assert page == document.page(), "run: python -m mbx_wire.document > docs/protocol.md"
