"""Fixtures around a real daemon, for the conftest of whoever wants them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.daemon import DaemonProcess, Place
from tests.support.trees import Forest


@pytest.fixture
def place() -> Iterator[Place]:
    """A temporary state directory; the test fails when a process of it is left."""
    with Place() as made:
        yield made


@pytest.fixture
def daemon(place: Place) -> DaemonProcess:
    """A running daemon."""
    return place.start()


@pytest.fixture
def forest(place: Place) -> Iterator[Forest]:
    """Agents and shims; they end before the daemon does."""
    with Forest() as made:
        yield made
