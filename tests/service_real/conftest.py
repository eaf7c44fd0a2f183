from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.service_real.manager import Unable, User


@pytest.fixture
def user() -> Iterator[User]:
    """A user with a running manager; skips, saying why, where that can't be had."""
    with ExitStack() as stack:
        try:
            made = stack.enter_context(User())
        except Unable as reason:
            pytest.skip(str(reason))
        yield made
