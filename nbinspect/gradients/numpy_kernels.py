"""NumPy's kernels, for where none could be compiled: `near` says what each gives.

They are bound by memory. A part that stays in the cache is loaded for the first of them, and the
others find it there. A call of NumPy's takes a third of one of torch's, which pays where several
threads share the work.
"""

from __future__ import annotations

import ctypes
import functools
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
N_TRACED = 16
Marks = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[Any]]
Row = tuple[int, int, bool]
"""Numbers that lie in memory one after the other: address, how many, and whether float64 or 32."""


def numbers(row: Row) -> Numbers:
    """Look at a row as an array, which does not hold it."""
    address, size, is_double = row
    dtype = np.dtype(np.float64 if is_double else np.float32)
    if address % dtype.itemsize:  # NumPy's fastest loops may not read it there
        return np.frombuffer(ctypes.string_at(address, size * dtype.itemsize), dtype).copy()
    found: Numbers = np.frombuffer(_array_type(size, is_double).from_address(address), dtype)
    return found


@functools.lru_cache(maxsize=4096)  # ctypes itself makes a type anew once it has been collected
def _array_type(size: int, is_double: bool) -> Any:
    return (ctypes.c_double if is_double else ctypes.c_float) * size


class NumpyKernels:
    """See `near.Kernels`. Intermediate results share room that is used again and again.

    Fresh memory of this size would be asked of the system, page by page, each time.
    """

    fewest_small = 4

    def __init__(self) -> None:
        self._marks: Marks = np.empty(0, np.bool_)
        self._room: Numbers = np.empty(0, np.float32)

    def final(self, gradient: Row, /) -> tuple[float, float, float, float, float]:
        """Measure a gradient: norm, sum, lowest, highest, and how many elements are not 0."""
        own, squares, total = numbers(gradient), 0.0, 0.0
        low, high, n_used = math.inf, -math.inf, 0
        for (part,) in _parts(own):
            squares += _dot(part, part)
            total += _sum(part)
            lowest, highest = float(np.minimum.reduce(part)), float(np.maximum.reduce(part))
            low = low if low <= lowest or math.isnan(low) else lowest  # once NaN, always NaN
            high = high if high >= highest or math.isnan(high) else highest
            n_used += self._count_used(part)
        if not math.isfinite(total) and math.isfinite(low) and math.isfinite(high):
            total = float(own.sum(dtype=np.float64))
        return _root(squares, own), total, low, high, float(n_used)

    def nonzeros(self, gradient: Row, /) -> float:
        """Count the elements that are not 0."""
        return float(sum(self._count_used(part) for (part,) in _parts(numbers(gradient))))

    def _count_used(self, part: Numbers) -> int:
        if len(self._marks) < part.size:
            self._marks = np.empty(part.size, np.bool_)
        used = np.not_equal(part, part.dtype.type(0), out=self._marks[: part.size])
        return int(np.count_nonzero(used))

    def norm(self, row: Row, /) -> float:
        """Give the norm of a row."""
        own = numbers(row)
        return _root(sum(_dot(part, part) for (part,) in _parts(own)), own)

    def product(self, some: Row, other: Row, /) -> tuple[float, float]:
        """Give the norm of a row, and its scalar product with another."""
        own, theirs, squares, products = numbers(some), numbers(other), 0.0, 0.0
        for part, beside in _parts(own, theirs):
            squares += _dot(part, part)
            products += _dot(part, beside)
        if not (LEAST < squares < MOST and LEAST < abs(products) < MOST):
            products = float(own.astype(np.float64).dot(theirs.astype(np.float64)))
        return _root(squares, own), products

    def copy(self, row: Row, room: Row, /) -> float:
        """Copy a row, and give its norm."""
        own, squares = numbers(row), 0.0
        for part, to in _parts(own, numbers(room)):
            squares += _dot(part, part)
            if _is_shared(part):
                torch.from_numpy(to).copy_(torch.from_numpy(part))
            else:
                np.copyto(to, part)
        return _root(squares, own)

    def difference(self, new: Row, old: Row, /) -> float:
        """Give the norm of the difference of two rows."""
        now, then, squares = numbers(new), numbers(old), 0.0
        for part, before in _parts(now, then):
            change = np.subtract(part, before, out=self._like(part))
            squares += _dot(change, change)
        return math.sqrt(squares) if LEAST < squares < MOST else _root(squares, now - then)

    def trace(self, row: Row, /) -> bytes:
        """Give a few of the numbers, evenly spread."""
        own = numbers(row)
        return own[:: own.size // N_TRACED + 1].tobytes()

    def _like(self, part: Numbers) -> Numbers:
        """Give room for as many numbers of the same type."""
        if len(self._room) < len(part) or self._room.dtype != part.dtype:
            self._room = np.empty(len(part), part.dtype)
        return self._room[: len(part)]

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
