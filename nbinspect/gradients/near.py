"""Figures of tensors in the CPU's own memory: read at once, part by part, so that each is loaded once.

The kernels are bound by memory. A part that stays in the cache is loaded for the first of them, and
the others find it there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from nbinspect.gradients import small

PART = 1 << 18  # elements for each thread: as many as a usual second-level cache holds
TYPES = (torch.float32, torch.float64)
LEAST, MOST = 1e-30, 1e38  # squares that single precision holds
Marks = np.ndarray[Any, np.dtype[np.bool_]]


def is_near(tensor: torch.Tensor) -> bool:
    """Say whether a dense tensor can be read here."""
    return tensor.is_cpu and tensor.dtype in TYPES and tensor.is_contiguous()


def is_small(tensor: torch.Tensor) -> bool:
    """Say whether a dense tensor is to be laid in a row with others."""
    return tensor.numel() <= small.MOST and tensor.is_cpu and tensor.dtype is torch.float32


class Desk:
    """Room for a part's intermediate results, which is used again and again.

    Fresh memory of this size would be asked of the system, page by page, each time.
    """

    def __init__(self) -> None:
        self._marks = np.empty(0, np.bool_)

    def marks(self, n: int) -> Marks:
        """Give room for as many truth values."""
        if len(self._marks) < n:
            self._marks = np.empty(n, np.bool_)
        return self._marks[:n]

    def clear(self) -> None:
        """Let go of the room."""
        self._marks = np.empty(0, np.bool_)


def _parts(*tensors: torch.Tensor) -> Iterable[Sequence[torch.Tensor]]:
    """Cut tensors of one size into parts of one size that fit into the cache."""
    flat = [one.view(-1) for one in tensors]
    n, most = tensors[0].numel(), PART * torch.get_num_threads()
    if n <= most:
        return (flat,)
    size = math.ceil(n / math.ceil(n / most))
    return [[one[at : at + size] for one in flat] for at in range(0, n, size)]


@np.errstate(all="ignore")  # Inf and NaN are what is looked for
def final(gradient: torch.Tensor, desk: Desk) -> tuple[float, float, float, float, float]:
    """Measure a gradient: norm, sum, lowest, highest, and how many elements are not 0."""
    squares, total, low, high, n_used = 0.0, 0.0, math.inf, -math.inf, 0
    for (part,) in _parts(gradient):
        squares += torch.dot(part, part).item()
        total += part.sum().item()
        numbers = part.numpy()  # whose kernels for these are the faster ones
        lowest, highest = float(numbers.min()), float(numbers.max())
        low = low if low <= lowest or math.isnan(low) else lowest  # once NaN, always NaN
        high = high if high >= highest or math.isnan(high) else highest
        n_used += _count_used(part, desk)
    return _root(squares, gradient), total, low, high, float(n_used)


def nonzeros(gradient: torch.Tensor, desk: Desk) -> float:
    """Count the elements that are not 0."""
    return float(sum(_count_used(part, desk) for (part,) in _parts(gradient)))


def _count_used(part: torch.Tensor, desk: Desk) -> int:
    numbers = part.numpy()
    used = np.not_equal(numbers, numbers.dtype.type(0), out=desk.marks(len(numbers)))
    return int(np.count_nonzero(used))


def norm(tensor: torch.Tensor) -> float:
    """Give the norm of a tensor."""
    return _root(sum(torch.dot(part, part).item() for (part,) in _parts(tensor)), tensor)


def _root(squares: float, tensor: torch.Tensor) -> float:
    """Give the norm; anew in double precision where single cannot hold the squares."""
    if LEAST < squares < MOST:
        return math.sqrt(squares)
    if squares == 0 and not tensor.any():
        return 0.0
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def product(some: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """Give the norm of a tensor, and its scalar product with another."""
    squares, products = 0.0, 0.0
    for part, beside in _parts(some, other):
        squares += torch.dot(part, part).item()
        products += torch.dot(part, beside).item()
    if not (LEAST < squares < MOST and LEAST < abs(products) < MOST):
        products = torch.dot(some.view(-1).double(), other.view(-1).double()).item()
    return _root(squares, some), products


def copy(tensor: torch.Tensor, room: torch.Tensor) -> float:
    """Copy a tensor, and give its norm."""
    squares = 0.0
    for part, to in _parts(tensor, room):
        squares += torch.dot(part, part).item()
        to.copy_(part)
    return _root(squares, tensor)


@np.errstate(all="ignore")
def difference(new: torch.Tensor, old: torch.Tensor) -> float:
    """Give the norm of the difference of two tensors, which takes the place of the second."""
    squares = 0.0
    for part, change in _parts(new, old):
        np.subtract(part.numpy(), change.numpy(), out=change.numpy())
        squares += torch.dot(change, change).item()
    return _root(squares, old)
