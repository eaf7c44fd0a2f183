"""What the tests with other people's programs share: node with its packages, and the programs as they are installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conformance import node
from tests.support.fixtures import daemon, place

__all__ = ["daemon", "place"]


@pytest.fixture(scope="session")
def programs(pytestconfig: pytest.Config) -> node.Node:
    return node.installed(pytestconfig.cache.mkdir("conformance"))


@pytest.fixture(scope="session")
def shim() -> str:
    """The installed `mbx-mcp`."""
    script = Path(sys.executable).parent / "mbx-mcp"
    assert script.exists(), "install the project first: pip install -e '.[dev]'"
    return str(script)
