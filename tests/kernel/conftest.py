"""A real kernel for each module, and nothing of nbinspect's may be left in it by any test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kerneldriver import Kernel, start_with_toys


@pytest.fixture(scope="module")
def module_kernel() -> Iterator[Kernel]:
    kernel = start_with_toys()
    yield kernel
    kernel.stop()


@pytest.fixture
def kernel(module_kernel: Kernel) -> Iterator[Kernel]:
    before = module_kernel.value("toys.traces()")
    module_kernel.ok("toys.LOG.clear()")
    yield module_kernel
    assert module_kernel.value("toys.traces()") == before
