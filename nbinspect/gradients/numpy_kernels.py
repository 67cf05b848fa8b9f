"""NumPy's kernels, for where none could be compiled: `near` says what each gives.

They are bound by memory. A part that stays in the cache is loaded for the first of them, and the
others find it there. A call of NumPy's takes a third of one of torch's, which pays where several
threads share the work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

PART = (
    1 << 17
)  # elements for each thread: as many as a usual second-level cache holds of two tensors
SHARED = 1 << 15  # elements; torch's threads share what is larger
SUMMED = 1 << 15  # elements; of more, torch's sum is the faster one with one thread too
LEAST, MOST = 1e-30, 1e38  # squares that single precision holds
Marks = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[Any]]


class NumpyKernels:
    """See `near.Kernels`. Intermediate results share room that is used again and again.

    Fresh memory of this size would be asked of the system, page by page, each time.
    """

    fewest_small = 4

    def __init__(self) -> None:
        self._marks: Marks = np.empty(0, np.bool_)
        self._room: Numbers = np.empty(0, np.float32)

    def final(self, gradient: Numbers, /) -> tuple[float, float, float, float, float]:
        """Measure a gradient: norm, sum, lowest, highest, and how many elements are not 0."""
        squares, total, low, high, n_used = 0.0, 0.0, math.inf, -math.inf, 0
        for (part,) in _parts(gradient):
            squares += _dot(part, part)
            total += _sum(part)
            lowest, highest = float(np.minimum.reduce(part)), float(np.maximum.reduce(part))
            low = low if low <= lowest or math.isnan(low) else lowest  # once NaN, always NaN
            high = high if high >= highest or math.isnan(high) else highest
            n_used += self._count_used(part)
        if not math.isfinite(total) and math.isfinite(low) and math.isfinite(high):
            total = float(gradient.sum(dtype=np.float64))
        return _root(squares, gradient), total, low, high, float(n_used)

    def nonzeros(self, gradient: Numbers, /) -> float:
        """Count the elements that are not 0."""
        return float(sum(self._count_used(part) for (part,) in _parts(gradient)))

    def _count_used(self, part: Numbers) -> int:
        if len(self._marks) < part.size:
            self._marks = np.empty(part.size, np.bool_)
        used = np.not_equal(part, part.dtype.type(0), out=self._marks[: part.size])
        return int(np.count_nonzero(used))

    def norm(self, row: Numbers, /) -> float:
        """Give the norm of a row."""
        return _root(sum(_dot(part, part) for (part,) in _parts(row)), row)

    def product(self, some: Numbers, other: Numbers, /) -> tuple[float, float]:
        """Give the norm of a row, and its scalar product with another."""
        squares, products = 0.0, 0.0
        for part, beside in _parts(some, other):
            squares += _dot(part, part)
            products += _dot(part, beside)
        if not (LEAST < squares < MOST and LEAST < abs(products) < MOST):
            products = float(some.astype(np.float64).dot(other.astype(np.float64)))
        return _root(squares, some), products

    def copy(self, row: Numbers, room: Numbers, /) -> float:
        """Copy a row, and give its norm."""
        squares = 0.0
        for part, to in _parts(row, room):
            squares += _dot(part, part)
            if _is_shared(part):
                torch.from_numpy(to).copy_(torch.from_numpy(part))
            else:
                np.copyto(to, part)
        return _root(squares, row)

    def difference(self, new: Numbers, old: Numbers, /) -> float:
        """Give the norm of the difference of two rows."""
        squares = 0.0
        for part, before in _parts(new, old):
            change = np.subtract(part, before, out=self._like(part))
            squares += _dot(change, change)
        return math.sqrt(squares) if LEAST < squares < MOST else _root(squares, new - old)

    def _like(self, numbers: Numbers) -> Numbers:
        """Give room for as many numbers of the same type."""
        if len(self._room) < len(numbers) or self._room.dtype != numbers.dtype:
            self._room = np.empty(len(numbers), numbers.dtype)
        return self._room[: len(numbers)]

    def clear(self) -> None:
        """Let go of the room."""
        self._marks, self._room = self._marks[:0].copy(), self._room[:0].copy()


def _parts(*rows: Numbers) -> Iterable[Sequence[Numbers]]:
    """Cut rows of one size into parts of one size that fit into the cache."""
    n = rows[0].size
    if n <= PART:
        return (rows,)
    size = math.ceil(n / math.ceil(n / (PART * torch.get_num_threads())))
    return [[one[at : at + size] for one in rows] for at in range(0, n, size)]


def _is_shared(row: Numbers) -> bool:
    return row.size > SHARED and torch.get_num_threads() > 1


def _dot(some: Numbers, other: Numbers) -> float:
    if _is_shared(some):
        return torch.dot(torch.from_numpy(some), torch.from_numpy(other)).item()
    return float(some.dot(other))


def _sum(row: Numbers) -> float:
    if row.size > SUMMED:
        return torch.from_numpy(row).sum().item()
    return float(np.add.reduce(row))


def _root(squares: float, row: Numbers) -> float:
    """Give the norm; anew in parts of the largest where the type cannot hold the squares."""
    if LEAST < squares < MOST:
        return math.sqrt(squares)
    if math.isnan(squares):
        return squares
    largest = float(np.abs(row).max(initial=0))
    if largest == 0 or math.isinf(largest):
        return largest
    return largest * float(np.linalg.norm(row.astype(np.float64) / largest))
