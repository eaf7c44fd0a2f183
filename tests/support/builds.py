"""Installations of other versions: copies of this one with a few lines changed, as real programs.

newer = Build(place.root / "newer", "9.0.0", protocol=(1, 3))
daemon = place.start(PYTHONPATH=newer.path)
shim = ShimProcess(environment(place.state, PYTHONPATH=newer.path))
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from tests.support.daemon import ROOT

PACKAGES = ("mbxd", "client/mbx_wire", "client/mbx_client", "client/mbx_mcp", "client/mbxctl")
LATER = "what a later version adds"
TOOL = {"name": "mbx_later", "description": LATER, "inputSchema": {"type": "object"}}


class Build:
    """One installation. `path`: for PYTHONPATH."""

    def __init__(self, root: Path, version: str, *, protocol: tuple[int, int] = (1, 1)) -> None:
        self.root = root
        for package in PACKAGES:
            shutil.copytree(ROOT / package, root / Path(package).name, ignore=shutil.ignore_patterns("__pycache__"))
        self.path = os.pathsep.join([str(root), str(ROOT)])
        low, high = protocol
        self.edit("mbxd/__init__.py", '"0.1.0"', f'"{version}"')
        self.edit("mbx_client/__init__.py", '"0.1.0"', f'"{version}"')
        self.edit(
            "mbx_wire/envelope.py", "PROTOCOL_MIN = 1\nPROTOCOL_MAX = 1", f"PROTOCOL_MIN = {low}\nPROTOCOL_MAX = {high}"
        )
        for file in ("mbx_mcp/introduction.py", "mbx_client/blocking.py", "mbx_client/aio.py"):
            self.edit(file, '{"min": 1, "max": 1}', f'{{"min": {low}, "max": {high}}}')

    def edit(self, file: str, old: str, new: str) -> None:
        """Change one place in a file, which must be there once."""
        path = self.root / file
        text = path.read_text()
        assert text.count(old) == 1, (file, old, text.count(old))
        path.write_text(text.replace(old, new))

    def say_more(self) -> None:
        """The shim and mbxctl send members that other versions have never heard of, and offer a tool more."""
        for file in ("mbx_mcp/introduction.py", "mbx_client/blocking.py"):
            self.edit(file, '"hints": ', f'"later": {{"of": "{LATER}"}}, "hints": ')
        self.edit("mbx_mcp/introduction.py", '"resume": ', f'"later": "{LATER}", "resume": ')
        self.edit("mbx_mcp/introduction.py", '"name": "mbx-mcp",', f'"name": "mbx-mcp", "later": ["{LATER}"],')
        self.edit("mbx_mcp/bridge.py", '"method": "tool.call",', '"method": "tool.call", "later": [1],')
        self.edit(
            "mbx_mcp/bridge.py", '"params": params, "meta": meta}', '"params": params, "meta": {**meta, "later": 1}}'
        )
        tools = self.root / "mbx_mcp/tools.json"
        tools.write_text(json.dumps([*json.loads(tools.read_text()), TOOL]))

    def answer_more(self) -> None:
        """The daemon's `hello` and its results have members that other versions have never heard of."""
        later = f'    later: str = "{LATER}"\n'
        self.edit("mbx_wire/envelope.py", "    lock: LockInfo\n", f"    lock: LockInfo\n{later}")
        self.edit("mbx_wire/envelope.py", "    started_at: str\n", f"    started_at: str\n{later}")
        self.edit("mbx_wire/admin.py", "    host_label: str\n", f"    host_label: str\n{later}")
        self.edit("mbxd/server/tools.py", "    isError: bool", "    later: str\n    isError: bool")
        self.edit(
            "mbxd/server/tools.py",
            "msgspec.Raw(structured), isError=False",
            f'msgspec.Raw(structured), "{LATER}", isError=False',
        )
        self.edit(
            "mbxd/server/tools.py",
            "msgspec.Raw(structured), isError=True",
            f'msgspec.Raw(structured), "{LATER}", isError=True',
        )
