"""How the magnitudes of a tensor's values are spread over the powers of two."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nbinspect import _torch
from nbinspect.tensors import is_tensor, is_wrapper

LOWEST, HIGHEST = -150, 130  # exponents that are told apart; float32 has -149..127
_CHUNK = 1 << 22  # values at a time, so that temporary memory stays below 64 MiB
_SPARSE: dict[torch.layout, Callable[[Any], Any]] = {
    torch.sparse_coo: lambda tensor: tensor._values(),  # noqa: SLF001 - `values` wants coalesced
    **dict.fromkeys(
        (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc),
        lambda tensor: tensor.values(),
    ),
}


@dataclass(slots=True)
class Spread:
    """How many values lie between 2^e and 2^(e+1), for each exponent e.

    Attributes:
        counts: from `LOWEST` on; what lies outside is counted at the ends.
        largest: the largest finite magnitude.
        n_zero: values that are 0.
        n_nonfinite: values that are NaN or infinite.
    """

    counts: np.ndarray[Any, np.dtype[np.int64]] = field(
        default_factory=lambda: np.zeros(HIGHEST - LOWEST + 1, np.int64)
    )
    largest: float = 0.0
    n_zero: int = 0
    n_nonfinite: int = 0

    def add(self, other: Spread) -> None:
        """Take another's values in as well."""
        self.counts += other.counts
        self.largest = max(self.largest, other.largest)
        self.n_zero += other.n_zero
        self.n_nonfinite += other.n_nonfinite

    @property
    def n_nonzero(self) -> int:
        """How many values are finite and not 0."""
        return int(self.counts.sum())

    def n_between(self, first: int, last: int) -> int:
        """Count the values whose exponent is `first` to `last`, both included."""
        low, high = max(first, LOWEST), min(last, HIGHEST)
        return int(self.counts[low - LOWEST : high - LOWEST + 1].sum()) if low <= high else 0


def values_of(tensor: Any) -> tuple[Any, ...] | str:
    """Give the plain floating-point tensors that hold a tensor's values, or why there are none.

    Complex ones are given as pairs of real ones. Call it inside `tensors.looking`.
    """
    if tensor.is_meta:
        return "without data"
    if tensor.is_quantized:
        return "quantized"
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return "integer or bool"
    tensor = _torch.unwrapped(tensor)
    if is_wrapper(tensor):
        return _wrapped(tensor)
    if tensor.layout in _SPARSE:
        tensor = _SPARSE[tensor.layout](tensor)
    elif tensor.is_nested:
        tensor = tensor.values()
    elif tensor.layout != torch.strided:  # mkldnn's own
        tensor = tensor.to_dense()
    if _lacks_bytes(tensor):
        return "without data"
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return (tensor.detach().resolve_neg(),)


def _lacks_bytes(tensor: Any) -> bool:
    """Say whether there is nothing to read: a freed storage, or autograd's zeros without memory."""
    if not tensor.numel():
        return False
    storage = tensor.untyped_storage()
    return storage.nbytes() == 0 or _torch.is_zero_tensor(tensor)


def _wrapped(tensor: Any) -> tuple[Any, ...] | str:
    """Look inside a tensor that keeps its data in others: jagged, distributed, quantised weights."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return f"of type {type(tensor).__name__}"
    parts = [getattr(tensor, name) for name in flatten()[0]]
    found = [values_of(part) for part in parts if is_tensor(part)]
    return tuple(one for several in found if not isinstance(several, str) for one in several)


def spread(tensor: Any, below: float = math.inf) -> Spread:
    """Count the exponents of a plain tensor's values.

    Args:
        tensor: one that `values_of` gave.
        below: leave out magnitudes from here on, which somebody has put there on purpose.

    Cost: a few passes over the values, in pieces; reads one small tensor back from the device.
    """
    total: Spread | None = None
    for chunk in _chunks(tensor):
        if chunk.dtype not in (torch.float32, torch.float64):
            chunk = chunk.to(torch.float32)  # every narrower format fits into it exactly
        if below < math.inf:
            chunk = chunk[chunk.abs() < below]
        if chunk.numel():
            found = _chunk_spread(chunk)
            if total is None:
                total = found
            else:
                total.add(found)
    return total or Spread()


def _chunks(tensor: Any) -> Iterator[Any]:
    flat = tensor.reshape(-1)
    yield from flat.split(_CHUNK) if flat.numel() > _CHUNK else (flat,)


def _chunk_spread(chunk: Any) -> Spread:
    """Read the exponents out of the bits; code 0 is 0 and what is below the normal numbers."""
    is_double = chunk.dtype == torch.float64
    bits, shift, mask, bias = (
        (torch.int64, 52, 0x7FF, 1023) if is_double else (torch.int32, 23, 0xFF, 127)
    )
    codes = (chunk.view(bits) >> shift).bitwise_and_(mask)
    counts = torch.bincount(codes, minlength=mask + 1).cpu().numpy()
    n_zero = int(chunk.numel() - torch.count_nonzero(chunk)) if counts[0] else 0
    if counts[0] > n_zero and not is_double:  # subnormal numbers, which float64 has as normal ones
        return _chunk_spread(chunk.to(torch.float64))
    found = Spread(
        n_zero=n_zero, n_nonfinite=int(counts[mask]), largest=_largest(chunk, counts, mask)
    )
    first, last = max(1, LOWEST + bias), min(mask - 1, HIGHEST + bias)
    start = first - bias - LOWEST
    found.counts[start : start + last - first + 1] = counts[first : last + 1]
    found.counts[0] += counts[1:first].sum() + counts[0] - n_zero
    found.counts[-1] += counts[last + 1 : mask].sum()
    return found


def _largest(chunk: Any, counts: Any, mask: int) -> float:
    if counts[mask]:
        chunk = chunk[chunk.isfinite()]
        if not chunk.numel():
            return 0.0
    low, high = torch.aminmax(chunk)
    return max(-float(low), float(high), 0.0)
