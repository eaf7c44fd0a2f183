"""State directories for tests of clients: short enough for sockets, and with no wish for a real daemon."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mbx_client import paths
from mbx_wire import places


@contextmanager
def short_state() -> Iterator[Path]:
    """A state directory as `mbxctl stop` leaves it: clients start nothing there."""
    root = Path(tempfile.mkdtemp(prefix="mbx"))
    state = root / "state"
    state.mkdir(mode=0o700)
    (state / places.STOPPED_NAME).write_text(paths.boot_id())
    try:
        yield state
    finally:
        shutil.rmtree(root)
