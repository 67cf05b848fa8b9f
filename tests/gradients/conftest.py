from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def same_numbers() -> Iterator[None]:
    """One seed, and one thread: models this small only wait for a second one."""
    torch.manual_seed(0)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)
