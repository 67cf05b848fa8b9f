"""The pytest fixture `assert_no_growth`; pytest finds it where nbinspect is installed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest


@pytest.fixture
def assert_no_growth() -> Callable[..., AbstractContextManager[None]]:
    """Give the context manager, to be called: what its block leaves behind fails the test."""
    from nbinspect.leaks import assertion  # torch is imported when a test asks for it

    return assertion.assert_no_growth
