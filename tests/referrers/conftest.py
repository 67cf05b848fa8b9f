"""One process for all that is planted, since importing torch takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from asking import Asker


@pytest.fixture(scope="session")
def asker() -> Iterator[Asker]:
    asker = Asker()
    yield asker
    asker.stop()
