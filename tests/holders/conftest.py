"""One process for all that is planted, since importing torch takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from planting import Planter


@pytest.fixture(scope="session")
def planter() -> Iterator[Planter]:
    planter = Planter()
    yield planter
    planter.stop()
