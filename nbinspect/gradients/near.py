"""Figures of tensors in the CPU's own memory, which are read at once.

Two sets of kernels give the same. The compiled ones go through memory once for all figures. Where
none could be compiled, as without a compiler, NumPy takes one pass for each.
"""

from __future__ import annotations

from types import ModuleType
from typing import Protocol

import numpy as np
import torch

from nbinspect.gradients import small
from nbinspect.gradients.numpy_kernels import Numbers, NumpyKernels, Row

TYPES = (torch.float32, torch.float64)


def is_near(tensor: torch.Tensor) -> bool:
    """Say whether a dense tensor can be read here."""
    return tensor.is_cpu and tensor.dtype in TYPES and tensor.is_contiguous()


def is_small(tensor: torch.Tensor) -> bool:
    """Say whether a dense tensor can be laid in a row with others."""
    return tensor.numel() <= small.MOST and tensor.is_cpu and tensor.dtype is torch.float32


def row(tensor: torch.Tensor) -> Row:
    """Say where the elements of a tensor that is near are, for as long as the tensor is held.

    ``Tensor.numpy`` is not asked: it forbids for ever that the storage be resized.
    """
    return tensor.data_ptr(), tensor.numel(), tensor.dtype is torch.float64


class Room:
    """Memory for a copy of a row.

    Args:
        like: the row.

    Attributes:
        row: where the copy is, for as long as this is held.
    """

    __slots__ = ("_numbers", "row")

    def __init__(self, like: Row) -> None:
        _, size, is_double = like
        self._numbers: Numbers = np.empty(size, np.float64 if is_double else np.float32)
        self.row: Row = (self._numbers.ctypes.data, size, is_double)


def is_like(some: Row, other: Row) -> bool:
    """Say whether two rows are of one type and size."""
    return some[1:] == other[1:]


class Kernels(Protocol):
    """What reads rows of numbers of one type, float32 or float64.

    Norms are right where a row's own type cannot hold the squares. Two rows are of one type and
    size. Whoever calls sees to it that what a row says is there.

    Attributes:
        fewest_small: from how many small tensors on it pays to lay them in a row.
    """

    fewest_small: int

    def final(self, gradient: Row, /) -> tuple[float, float, float, float, float]:
        """Measure a gradient: norm, sum, lowest, highest, and how many elements are not 0."""

    def nonzeros(self, gradient: Row, /) -> float:
        """Count the elements that are not 0."""

    def norm(self, row: Row, /) -> float:
        """Give the norm of a row."""

    def product(self, some: Row, other: Row, /) -> tuple[float, float]:
        """Give the norm of a row, and its scalar product with another."""

    def copy(self, row: Row, room: Row, /) -> float:
        """Copy a row, and give its norm."""

    def difference(self, new: Row, old: Row, /) -> float:
        """Give the norm of the difference of two rows."""

    def trace(self, row: Row, /) -> bytes:
        """Give a few of the numbers, evenly spread, by which it shows that a row was changed."""

    def clear(self) -> None:
        """Let go of what was kept from one call to the next."""


class CompiledKernels:
    """See `Kernels`; a call of these takes so little that a row is laid of many tensors alone."""

    fewest_small = 32

    def __init__(self, own: ModuleType) -> None:
        self.final, self.nonzeros, self.norm = own.final, own.nonzeros, own.norm
        self.product, self.copy, self.difference = own.product, own.copy, own.difference
        self.trace = own.trace

    def clear(self) -> None:
        """Nothing is kept."""


def kernels() -> Kernels:
    """Give the fastest that there are, for one thread at a time."""
    try:
        from nbinspect.gradients import _kernels
    except ImportError:
        return NumpyKernels()
    return CompiledKernels(_kernels)
