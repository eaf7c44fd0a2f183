from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mail.support import Mail


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "mail.db")


@pytest.fixture
def mail(path: str) -> Iterator[Mail]:
    made = Mail(path)
    yield made
    made.close()
