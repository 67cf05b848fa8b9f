"""What is measured of gradients and weights, of each kind of tensor in the way that costs least.

All of these take dense tensors as `dense` gives them. What lies in the CPU's memory is read at once
(`near`). Of the rest, scalars stay on their device until one `read`: norms come from fused kernels;
sums, largest values and the like have none, and take a kernel for each parameter.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from nbinspect import _torch
from nbinspect.gradients import near, small
from nbinspect.gradients.numpy_kernels import Row
from nbinspect.gradients.step_records import Exponents

Scalar = torch.Tensor | float
Scalars = list[Scalar]
LOWEST = 127  # of float32: its exponent field is the power of two plus this
UNBOUND = 255  # the field of NaN and Inf, which are of no power of two
PLAIN = (nn.Parameter, torch.Tensor)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def dense(tensor: torch.Tensor) -> torch.Tensor | None:
    """Give the numbers of a tensor as a strided, real one; None if it has none to be read.

    Of a sparse gradient these are the values that it has, each place once; of a distributed one
    those of this process.
    """
    plain = type(tensor) in PLAIN and tensor.layout is torch.strided and tensor.dtype in FLOATS
    if plain and tensor.data_ptr() and not tensor.is_neg():  # nearly always
        return tensor
    if is_lazy(tensor):
        return None
    local = getattr(tensor, "to_local", None)
    tensor = (local() if local is not None else tensor).detach()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce().values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    tensor = _as_held(tensor)
    readable = tensor.is_floating_point() and not (tensor.is_meta or tensor.is_quantized)
    if not (readable and tensor.numel() and tensor.element_size() > 1):
        return None
    return tensor if not plain or tensor.data_ptr() else None  # else its memory has been let go


def _as_held(tensor: torch.Tensor) -> torch.Tensor:
    """Write out what torch has put off: a minus sign, or zeros without memory."""
    return tensor.clone() if _torch.is_zero_tensor(tensor) else tensor.resolve_neg()


def n_numbers(tensor: torch.Tensor) -> int:
    """Say how many numbers a tensor has; a complex one has two for each element."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


@np.errstate(all="ignore")  # Inf and NaN are what is looked for
def _each(
    tensors: Sequence[torch.Tensor],
    fewest_small: int,
    all_small: Callable[[small.Row], Sequence[Any]],
    one_near: Callable[[Row], Any],
    all_far: Callable[[list[torch.Tensor]], Sequence[Any]],
) -> list[Any]:
    """Measure small ones together if they are many, what is near one by one, and the rest together.

    The latest ones come first: what has just been written is in the cache.
    """
    found: list[Any] = [None] * len(tensors)
    tiny = _small_ones(tensors, fewest_small)
    far = []
    for n in reversed(range(len(tensors))):
        if n in tiny:
            continue
        if near.is_near(tensors[n]):
            found[n] = one_near(near.row(tensors[n]))
        else:
            far.append(n)
    if tiny:
        _put(found, tiny, all_small(small.Row.of([tensors[n] for n in tiny])))
    if far:
        _put(found, far, all_far([tensors[n] for n in far]))
    return found


def _small_ones(tensors: Sequence[torch.Tensor], fewest: int) -> dict[int, None]:
    """Give the places of those that are to be laid in a row, in order; none if they are few."""
    if len(tensors) < fewest:
        return {}
    found = {n: None for n, one in enumerate(tensors) if near.is_small(one)}
    return found if len(found) >= fewest else {}


def _put(found: list[Any], places: Iterable[int], some: Sequence[Any]) -> None:
    for n, one in zip(places, some, strict=True):
        found[n] = one


def final(gradients: Sequence[torch.Tensor], kernels: near.Kernels) -> list[tuple[Scalar, ...]]:
    """Measure gradients as backward left them: norm, sum, lowest, highest, number of nonzeros.

    The last is NaN for what is not near: `nonzeros` counts there, once it is clear what is written.

    Cost: one pass over them, 0.5 ms a million numbers on one core.
    """
    return _each(gradients, kernels.fewest_small, small.Row.final, kernels.final, _final)


def _final(gradients: list[torch.Tensor]) -> list[tuple[Scalar, ...]]:
    norms = _torch.fused_norms(gradients)
    return [
        (norm, _sum(one), *torch.aminmax(one), math.nan)
        for norm, one in zip(norms, gradients, strict=True)
    ]


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.sum(dtype=torch.float32 if tensor.dtype in _torch.HALVES else None)


def nonzeros(gradients: Sequence[torch.Tensor], kernels: near.Kernels) -> Scalars:
    """Count the elements of each that are not exactly 0."""
    return _each(
        gradients,
        kernels.fewest_small,
        small.Row.nonzeros,
        kernels.nonzeros,
        lambda far: [torch.count_nonzero(one) for one in far],
    )


def norms(tensors: Sequence[torch.Tensor], kernels: near.Kernels) -> Scalars:
    """Give the norm of each."""
    fewest = kernels.fewest_small
    return _each(tensors, fewest, small.Row.norms, kernels.norm, _torch.fused_norms)


def products(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> Scalars:
    """Give the scalar product of each pair of contiguous tensors."""
    return [_product(a.view(-1), b.view(-1)) for a, b in zip(some, others, strict=True)]


def updates(
    rooms: list[torch.Tensor], samples: list[torch.Tensor], kernels: near.Kernels
) -> Scalars:
    """Give the norm of the difference of each pair; uses the first ones up."""
    _torch.subtract_all(rooms, samples)
    return norms(rooms, kernels)


def _product(a: torch.Tensor, b: torch.Tensor) -> Scalar:
    if a.dtype in _torch.HALVES:
        return (a.float() * b.float()).sum()
    return torch.dot(a, b).item() if a.is_cpu else torch.dot(a, b)


def exponents(gradients: Sequence[torch.Tensor], rows: Sequence[int]) -> tuple[Exponents, ...]:
    """Count the powers of two in each gradient; NaN and Inf are of none.

    Cost: some 2 ms a million numbers, and one more device read.
    """
    if not gradients:
        return ()
    counted = [_exponent_counts(one) for one in gradients]
    found = []
    for row, counts in zip(rows, _read_counts(counted), strict=True):
        used = [place for place in range(1, UNBOUND) if counts[place]]
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


def _exponent_counts(gradient: torch.Tensor) -> torch.Tensor:
    """Count how often each of float32's 256 exponents occurs, without waiting for the device."""
    fields = (gradient.float().contiguous().view(torch.int32) >> 23).bitwise_and_(255).view(-1)
    if fields.is_cpu:
        return torch.bincount(fields, minlength=256)
    # There `bincount` reads the smallest and the largest value before it counts.
    counts = torch.zeros(256, dtype=torch.int64, device=fields.device)
    return counts.index_add_(0, fields, counts.new_ones(()).expand(len(fields)))


def _read_counts(counted: list[torch.Tensor]) -> list[list[int]]:
    home = counted[0].device
    counts: list[list[int]] = torch.stack([one.to(home) for one in counted]).tolist()
    return counts


def count_bad(gradient: torch.Tensor) -> tuple[int, int]:
    """Count the NaNs and the infinite values."""
    return int(gradient.isnan().sum()), int(gradient.isinf().sum())


def read(scalars: Sequence[Scalar]) -> list[float]:
    """Read scalars of any devices and types: one transfer for each device.

    Cost: waits for each device once.
    """
    values: list[Any] = list(scalars)
    places: dict[torch.device, list[int]] = {}
    for number, one in enumerate(values):
        if type(one) is not float:
            places.setdefault(one.device, []).append(number)
    for numbers in places.values():
        some = [values[n] for n in numbers]
        kinds = {one.dtype for one in some}
        # float32 is what every device has; what it cannot hold is infinite there, and counts as bad
        packed = torch.stack(some if len(kinds) == 1 else [one.float() for one in some])
        for number, value in zip(numbers, packed.tolist(), strict=True):
            values[number] = value
    return values


def loss(tensor: torch.Tensor) -> Scalar:
    """Take down what a loss is now: read at once where that costs no wait for a device."""
    return float(tensor.item()) if tensor.is_cpu else tensor.detach().clone().reshape(())


def wide_norm(gradient: torch.Tensor) -> float:
    """Give the norm of a gradient whose squares its own type cannot hold."""
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
