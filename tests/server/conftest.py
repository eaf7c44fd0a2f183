from __future__ import annotations

import pytest

from tests.support.daemon import Place
from tests.support.fixtures import daemon, forest, place
from tests.support.office import Office
from tests.support.trees import Forest

__all__ = ["daemon", "forest", "place"]


@pytest.fixture(name="office")
def open_office(place: Place, forest: Forest) -> Office:
    return Office(place, forest)
