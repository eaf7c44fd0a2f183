from __future__ import annotations

from tests.support.fixtures import daemon, forest, place

__all__ = ["daemon", "forest", "place"]
