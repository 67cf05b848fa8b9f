"""Figures of tensors in the CPU's own memory, which are read at once.

Two sets of kernels give the same. The compiled ones go through memory once for all figures. Where
none could be compiled, as without a compiler, NumPy takes one pass for each.
"""

from __future__ import annotations

import ctypes
import functools
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch

from nbinspect.gradients import small
from nbinspect.gradients.numpy_kernels import Numbers, NumpyKernels

TYPES: dict[torch.dtype, tuple[Any, Any]] = {
    torch.float32: (ctypes.c_float, np.float32),
    torch.float64: (ctypes.c_double, np.float64),
}


def is_near(tensor: torch.Tensor) -> bool:
    """Say whether a dense tensor can be read here."""
    return tensor.is_cpu and tensor.dtype in TYPES and tensor.is_contiguous()


def is_small(tensor: torch.Tensor) -> bool:
    """Say whether a dense tensor can be laid in a row with others."""
    return tensor.numel() <= small.MOST and tensor.is_cpu and tensor.dtype is torch.float32


def numbers(tensor: torch.Tensor) -> Numbers:
    """Look at the elements of a tensor that is near, in a row, for as long as the tensor is held.

    ``Tensor.numpy`` is not asked: it forbids for ever that the storage be resized.
    """
    address, size = tensor.data_ptr(), tensor.numel()
    if address % tensor.itemsize:  # no kernel may read it there
        return tensor.detach().clone().view(-1).numpy()
    number, dtype = TYPES[tensor.dtype]
    row: Numbers = np.frombuffer(_array_type(number, size).from_address(address), dtype)
    return row


@functools.lru_cache(maxsize=4096)  # ctypes itself makes a type anew once it has been collected
def _array_type(number: Any, size: int) -> Any:
    return number * size


class Kernels(Protocol):
    """What reads rows of numbers of one type, float32 or float64.

    Norms are right where a row's own type cannot hold the squares.

    Attributes:
        fewest_small: from how many small tensors on it pays to lay them in a row.
    """

    fewest_small: int

    def final(self, gradient: Numbers, /) -> tuple[float, float, float, float, float]:
        """Measure a gradient: norm, sum, lowest, highest, and how many elements are not 0."""

    def nonzeros(self, gradient: Numbers, /) -> float:
        """Count the elements that are not 0."""

    def norm(self, row: Numbers, /) -> float:
        """Give the norm of a row."""

    def product(self, some: Numbers, other: Numbers, /) -> tuple[float, float]:
        """Give the norm of a row, and its scalar product with another."""

    def copy(self, row: Numbers, room: Numbers, /) -> float:
        """Copy a row, and give its norm."""

    def difference(self, new: Numbers, old: Numbers, /) -> float:
        """Give the norm of the difference of two rows."""

    def clear(self) -> None:
        """Let go of what was kept from one call to the next."""


class CompiledKernels:
    """See `Kernels`; a call of these takes so little that a row is laid of many tensors alone."""

    fewest_small = 32

    def __init__(self, own: ModuleType) -> None:
        self.final, self.nonzeros, self.norm = own.final, own.nonzeros, own.norm
        self.product, self.copy, self.difference = own.product, own.copy, own.difference

    def clear(self) -> None:
        """Nothing is kept."""


def kernels() -> Kernels:
    """Give the fastest that there are, for one thread at a time."""
    try:
        from nbinspect.gradients import _kernels
    except ImportError:
        return NumpyKernels()
    return CompiledKernels(_kernels)
