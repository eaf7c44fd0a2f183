from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.places import short_state
from tests.support.stub_daemon import StubDaemon


@pytest.fixture
def state() -> Iterator[Path]:
    with short_state() as directory:
        yield directory


@pytest.fixture
def daemon(state: Path) -> Iterator[StubDaemon]:
    with StubDaemon(state) as stub:
        yield stub
