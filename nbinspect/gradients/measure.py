"""What is measured of gradients and weights: scalars that stay on their device until one read.

All of these take dense tensors as `dense` gives them. Norms come from fused kernels; sums, largest
values and the like have none, and take a kernel for each parameter.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from nbinspect import _torch
from nbinspect.gradients.records import Exponents

Scalars = list[torch.Tensor]
LOWEST = 127  # of float32: its exponent field is the power of two plus this


def dense(tensor: torch.Tensor) -> torch.Tensor | None:
    """Give the numbers of a tensor as a strided, real one; None if it has none to be read.

    Of a sparse gradient these are the values that it has, each place once; of a distributed one
    those of this process.
    """
    local = getattr(tensor, "to_local", None)
    tensor = (local() if local is not None else tensor).detach()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce().values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    readable = tensor.is_floating_point() and not (tensor.is_meta or tensor.is_quantized)
    return tensor if readable and tensor.numel() and tensor.element_size() > 1 else None


def final(gradients: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """Measure gradients as backward left them: norm, sum, lowest and highest of each.

    Cost: four passes over them, 0.3 ms a million numbers on one core.
    """
    sums = [_sum(one) for one in gradients]
    ranges = [torch.aminmax(one) for one in gradients]
    return [
        (norm, total, low, high)
        for norm, total, (low, high) in zip(
            _torch.fused_norms(gradients), sums, ranges, strict=True
        )
    ]


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.sum(dtype=torch.float32 if tensor.dtype in _torch.HALVES else None)


def nonzeros(gradients: list[torch.Tensor]) -> Scalars:
    """Count the elements of each that are not exactly 0."""
    return [torch.count_nonzero(one) for one in gradients]


def products(some: list[torch.Tensor], others: list[torch.Tensor]) -> Scalars:
    """Give the scalar product of each pair."""
    return [_product(a, b) for a, b in zip(some, others, strict=True)]


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dtype in _torch.HALVES:
        return (a.float() * b.float()).sum()
    if a.is_contiguous() and b.is_contiguous():
        return torch.dot(a.view(-1), b.view(-1))
    return (a * b).sum()


def exponents(gradients: Sequence[torch.Tensor], rows: Sequence[int]) -> tuple[Exponents, ...]:
    """Count the powers of two in each gradient.

    Cost: some 2 ms a million numbers, and one more device read.
    """
    if not gradients:
        return ()
    counted = [
        torch.bincount(
            (one.float().contiguous().view(torch.int32) >> 23).bitwise_and_(255).view(-1),
            minlength=256,
        )
        for one in gradients
    ]
    found = []
    for row, counts in zip(rows, _read_counts(counted), strict=True):
        used = [place for place in range(1, 256) if counts[place]]
        first, last = (used[0], used[-1]) if used else (LOWEST, LOWEST - 1)
        found.append(
            Exponents(
                row,
                first - LOWEST,
                struct.pack(f"<{last + 1 - first}I", *counts[first : last + 1]),
                counts[0],
            ),
        )
    return tuple(found)


def _read_counts(counted: list[torch.Tensor]) -> list[list[int]]:
    home = counted[0].device
    counts: list[list[int]] = torch.stack([one.to(home) for one in counted]).tolist()
    return counts


def count_bad(gradient: torch.Tensor) -> tuple[int, int]:
    """Count the NaNs and the infinite values."""
    return int(gradient.isnan().sum()), int(gradient.isinf().sum())


def read(scalars: Sequence[torch.Tensor]) -> list[float]:
    """Read scalars of any devices and types: one transfer for each device.

    Cost: waits for each device once.
    """
    values: list[float] = [0.0] * len(scalars)
    for numbers in _by_device(scalars).values():
        some = [scalars[n] for n in numbers]
        kinds = {one.dtype for one in some}
        # float32 is what every device has; what it cannot hold is infinite there, and counts as bad
        packed = torch.stack(some if len(kinds) == 1 else [one.float() for one in some])
        for number, value in zip(numbers, packed.tolist(), strict=True):
            values[number] = value
    return values


def _by_device(scalars: Sequence[torch.Tensor]) -> dict[torch.device, list[int]]:
    places: dict[torch.device, list[int]] = {}
    for number, one in enumerate(scalars):
        places.setdefault(one.device, []).append(number)
    return places


def wide_norm(gradient: torch.Tensor) -> float:
    """Give the norm of a gradient whose squares its own type cannot hold."""
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
