"""Many small tensors of the CPU's memory at once: laid in one row, in double precision.

A call for each of them would take longer than what it reads; so all of them share a few. Where
there are fewer tensors than these calls are worth, each is measured by itself (`near`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Self

import numpy as np
import torch

from nbinspect import _torch

MOST = 1 << 10  # elements
Numbers = np.ndarray[Any, np.dtype[np.float64]]


class Row:
    """Tensors of one type laid beside each other; every figure is a list of one for each.

    Use it where NumPy ignores Inf and NaN, which are what is looked for.

    Args:
        sizes: how many elements each has, at least one.
        numbers: all of them.
    """

    def __init__(self, sizes: list[int], numbers: Numbers) -> None:
        self.sizes = sizes
        self._starts = [0, *accumulate(sizes[:-1])]
        self._numbers = numbers

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> Self:
        """Lay float32 tensors beside each other."""
        row = _torch.in_a_row(list(tensors)).numpy().astype(np.float64)
        return cls([one.numel() for one in tensors], row)

    def halves(self) -> tuple[Row, Row]:
        """Give a row of the first half of the tensors, and one of the others, without a copy."""
        n = len(self.sizes) // 2
        start = self._starts[n]
        first, second = self._numbers[:start], self._numbers[start:]
        return Row(self.sizes[:n], first), Row(self.sizes[n:], second)

    def _sums(self, numbers: Numbers) -> list[float]:
        found: list[float] = np.add.reduceat(numbers, self._starts).tolist()
        return found

    def norms(self) -> list[float]:
        """Give the norms."""
        return list(map(math.sqrt, self._sums(self._numbers * self._numbers)))

    def final(self) -> list[tuple[float, float, float, float, float]]:
        """Give norm, sum, lowest, highest and how many elements are not 0."""
        own, starts = self._numbers, self._starts
        low, high = np.minimum.reduceat(own, starts), np.maximum.reduceat(own, starts)
        n_used = self._sums((own != 0).astype(np.float64))
        sums = self._sums(own)
        return list(zip(self.norms(), sums, low.tolist(), high.tolist(), n_used, strict=True))

    def nonzeros(self) -> list[float]:
        """Count the elements that are not 0."""
        return self._sums((self._numbers != 0).astype(np.float64))

    def products(self, other: Row) -> list[float]:
        """Give the scalar products with the tensors of another row of the same sizes."""
        return self._sums(self._numbers * other._numbers)

    def product(self, at: int, other: Row, there: int) -> float:
        """Give the scalar product of one tensor with one of the same size in another row."""
        return float(self._piece(at) @ other._piece(there))

    def _piece(self, at: int) -> Numbers:
        start = self._starts[at]
        return self._numbers[start : start + self.sizes[at]]

    def differences(self, other: Row) -> list[float]:
        """Give the norms of the differences from the tensors of another row of the same sizes."""
        changes = self._numbers - other._numbers
        return list(map(math.sqrt, self._sums(changes * changes)))
