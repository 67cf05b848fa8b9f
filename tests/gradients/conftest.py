from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from nbinspect.gradients import near
from nbinspect.gradients.numpy_kernels import NumpyKernels


@pytest.fixture(autouse=True)
def same_numbers() -> Iterator[None]:
    """One seed, and one thread: models this small only wait for a second one."""
    torch.manual_seed(0)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture(params=["compiled", "NumPy"])
def either_kernels(request, monkeypatch) -> str:
    """Run once with the compiled kernels, and once as where there was no compiler."""
    if request.param == "NumPy":
        monkeypatch.setattr(near, "kernels", NumpyKernels)
    else:
        pytest.importorskip("nbinspect.gradients._kernels", reason="it was not compiled")
    return str(request.param)
