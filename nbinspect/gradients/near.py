"""Figures of tensors in the CPU's own memory: read at once, part by part, so that each is loaded once.

The kernels are bound by memory. A part that stays in the cache is loaded for the first of them, and
the others find it there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

PART = 1 << 17  # elements for each thread: half of a usual second-level cache
FEW_THREADS = 3  # up to here NumPy, which has one, looks for zeros and extremes faster than torch
TYPES = (torch.float32, torch.float64)


def is_near(tensor: torch.Tensor) -> bool:
    """Say whether a dense tensor can be read here."""
    return tensor.is_cpu and tensor.dtype in TYPES and tensor.is_contiguous()


def _parts(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Cut a tensor into parts that fit into the cache."""
    most = PART * torch.get_num_threads()
    flat = tensor.view(-1)
    return (flat,) if flat.numel() <= most else flat.split(most)


def final(gradient: torch.Tensor) -> tuple[float, float, float, float, float]:
    """Measure a gradient: norm, sum, lowest, highest, and how many elements are not 0."""
    squares, total, low, high, n_used = 0.0, 0.0, math.inf, -math.inf, 0
    for part in _parts(gradient):
        squares += torch.dot(part, part).item()
        total += part.sum().item()
        lowest, highest = _range(part)
        low = low if low <= lowest or math.isnan(low) else lowest  # once NaN, always NaN
        high = high if high >= highest or math.isnan(high) else highest
        n_used += _count_used(part)
    return _root(squares, gradient), total, low, high, float(n_used)


def nonzeros(gradient: torch.Tensor) -> float:
    """Count the elements that are not 0."""
    return float(sum(map(_count_used, _parts(gradient))))


def _range(part: torch.Tensor) -> tuple[float, float]:
    if torch.get_num_threads() > FEW_THREADS:
        low, high = torch.aminmax(part)
        return low.item(), high.item()
    numbers = part.numpy()
    return float(numbers.min()), float(numbers.max())


def _count_used(part: torch.Tensor) -> int:
    if torch.get_num_threads() > FEW_THREADS:
        return int(torch.count_nonzero(part))
    numbers = part.numpy()
    return int(np.count_nonzero(numbers != numbers.dtype.type(0)))


def norm(tensor: torch.Tensor) -> float:
    """Give the norm of a tensor."""
    squares = sum(torch.dot(part, part).item() for part in _parts(tensor))
    return _root(squares, tensor)


def _root(squares: float, tensor: torch.Tensor) -> float:
    """Give the norm; anew in double precision where single cannot hold the squares."""
    if 1e-30 < squares < math.inf:
        return math.sqrt(squares)
    if squares == 0 and not tensor.any():
        return 0.0
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
