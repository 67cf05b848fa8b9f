"""One process for all that is made to grow, since importing torch takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from growing import Grower


@pytest.fixture(scope="session")
def grower() -> Iterator[Grower]:
    grower = Grower()
    yield grower
    grower.stop()
