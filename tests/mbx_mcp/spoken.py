"""The rules of both eras, spoken to without a process."""

from __future__ import annotations

import json
from typing import Any

from mbx_mcp import shapes
from mbx_mcp.eras import Eras, load_tools
from tests.support.shim_process import initialize

MODERN = "2026-07-28"
VERSIONS = [*shapes.LEGACY, MODERN]


def opened(version: str) -> Eras:
    """Introduced, where the revision wants that."""
    eras = Eras(load_tools)
    if version != MODERN:
        assert one(eras, initialize(version))["result"]["protocolVersion"] == version
    return eras


def take(eras: Eras) -> list[Any]:
    """What it has to say."""
    lines = [json.loads(line) for line in eras.out]
    eras.out.clear()
    return lines


def say(eras: Eras, *messages: Any) -> list[Any]:
    """Its answers to messages, or to raw lines."""
    for message in messages:
        eras.receive(message if isinstance(message, bytes) else json.dumps(message).encode())
    return take(eras)


def one(eras: Eras, message: Any) -> Any:
    """Its only answer."""
    (answer,) = say(eras, message)
    return answer
