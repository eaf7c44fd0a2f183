"""Writes client/mbx_mcp/tools.json from the wire schema. The shim reads it instead of importing msgspec.

Run it after a change of mbx_wire: python tests/support/generate_tools.py
"""

from __future__ import annotations

import json
from pathlib import Path

from mbx_wire import tools

TARGET = Path(__file__).parents[2] / "client" / "mbx_mcp" / "tools.json"


def content() -> str:
    """What the file must hold now: one tool a line."""
    lines = [json.dumps(tool, ensure_ascii=False, separators=(",", ":")) for tool in tools.definitions()]
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    TARGET.write_text(content(), encoding="utf-8")
