from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mbx_client import paths
from mbx_wire import places
from tests.support.stub_daemon import StubDaemon


@pytest.fixture
def state() -> Iterator[Path]:
    """A state directory with a path that is short enough for sockets, and no wish for a real daemon."""
    root = Path(tempfile.mkdtemp(prefix="mbx"))
    (root / "state").mkdir(mode=0o700)
    (root / "state" / places.STOPPED_NAME).write_text(paths.boot_id())
    yield root / "state"
    shutil.rmtree(root)


@pytest.fixture
def daemon(state: Path) -> Iterator[StubDaemon]:
    with StubDaemon(state) as stub:
        yield stub
