"""Whether tensors hold a NaN or an Inf: a cheap filter that misses none, and what confirms it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch

from nbinspect import _torch
from nbinspect.tensors import is_wrapper

# A sum overflows on healthy values in these, so the filter adds them up in float32.
WIDE = frozenset({torch.float32, torch.float64})
_NARROW = frozenset({torch.float16, torch.bfloat16})
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_FLOAT8 = frozenset(
    getattr(torch, name)
    for name in dir(torch)
    if name.startswith("float8_") and isinstance(getattr(torch, name), torch.dtype)
)

_ODD = _FLOAT8 | {torch.complex32}  # torch cannot add them up


def can_be_bad(tensor: torch.Tensor) -> bool:
    """Say whether a tensor could hold a NaN or Inf at all and its values can be read.

    Integers cannot; quantised, meta, fake and empty tensors have no values to look at, nor have
    those that stand for zeros and those whose memory was freed.
    """
    dtype = tensor.dtype
    if not (dtype.is_floating_point or dtype.is_complex) or tensor.is_meta:
        return False
    if _torch.is_zero_tensor(tensor):
        return False
    if type(tensor) in PLAIN:
        return _torch.has_memory(tensor)
    if not _torch.has_memory(_torch.unwrapped(tensor)):
        return False
    return not (tensor.is_quantized or _torch.is_fake(tensor))


def is_bad(tensor: torch.Tensor) -> bool:
    """Say whether a tensor holds a NaN or an Inf.

    A sum cannot miss one: what is added to an Inf or NaN never becomes finite again.

    Cost: one pass and one synchronisation; another where the sum is not finite. Copies nothing
    of a strided tensor while all is well.
    """
    plain = type(tensor) in PLAIN and tensor.dtype in WIDE and tensor.layout is torch.strided
    if plain and not (tensor.is_meta or tensor.is_nested or _torch.is_zero_tensor(tensor)):
        return not math.isfinite(tensor.sum().item()) and any(_extremes(tensor))
    try:
        return can_be_bad(tensor) and any(_is_bad(part) for part in dense_parts(tensor))
    except (RuntimeError, NotImplementedError, TypeError):
        return False  # a type that cannot be added up


def _is_bad(part: torch.Tensor) -> bool:
    total = part.sum()
    if _is_finite_number(total):
        return False
    if part.dtype in _NARROW and _is_finite_number(part.sum(dtype=torch.float32)):
        return False
    return any(_extremes(part))


def _extremes(part: torch.Tensor) -> tuple[bool, bool]:
    """Say exactly whether there is a NaN, and whether there is an Inf.

    The smallest and the largest value tell, which takes a twentieth of the time of `isfinite`.
    """
    if part.is_complex():
        return bool(part.isnan().any()), bool(part.isinf().any())
    low, high = (one.item() for one in torch.aminmax(part))
    if math.isnan(low) or math.isnan(high):
        return True, bool(part.isinf().any())  # behind a NaN no infinity shows
    return False, math.isinf(low) or math.isinf(high)


def _is_finite_number(total: torch.Tensor) -> bool:
    value = total.item()
    return math.isfinite(value) if not isinstance(value, complex) else _is_finite_complex(value)


def _is_finite_complex(value: complex) -> bool:
    return math.isfinite(value.real) and math.isfinite(value.imag)


def dense_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield strided tensors that hold the values, of types that torch can add up."""
    tensor = _torch.unwrapped(tensor)
    if tensor.layout is torch.strided:
        if _torch.is_zero_tensor(tensor):
            yield torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        elif tensor.is_nested:
            yield tensor.values()
        elif tensor.dtype in _FLOAT8:
            yield tensor.float()
        elif tensor.dtype is torch.complex32:
            yield torch.view_as_real(tensor.resolve_conj())
        else:
            yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield tensor._values()  # noqa: SLF001 - `values` refuses where duplicates are not yet summed
    elif tensor.layout is torch.jagged:
        yield tensor.values()
    else:
        yield tensor.values()


def flags(tensor: torch.Tensor) -> tuple[bool, bool]:
    """Say whether a tensor holds a NaN, and whether it holds an Inf."""
    try:
        if not can_be_bad(tensor) or not tensor.numel():
            return False, False
        found = [_extremes(part) for part in dense_parts(tensor) if part.numel()]
    except (RuntimeError, NotImplementedError, TypeError):
        return False, False
    return any(nan for nan, _ in found), any(inf for _, inf in found)


def bad_ones(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Give those that hold a NaN or Inf.

    Cost: one pass over all, and one synchronisation a device and dtype while all is well.
    """
    elsewhere: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = defaultdict(list)
    small: list[torch.Tensor] = []
    found = []
    for tensor in tensors:
        if not _torch.has_memory(tensor):
            continue
        if tensor.is_cpu:
            if tensor.dtype is torch.float32 and type(tensor) in PLAIN and _is_small(tensor):
                small.append(tensor)
            elif is_bad(tensor):
                found.append(tensor)
        elif _adds_up(tensor):
            elsewhere[tensor.device, tensor.dtype].append(tensor)
        elif is_bad(tensor):
            found.append(tensor)
    for first in range(0, len(small), _MANY):
        found += _bad_small(small[first : first + _MANY])
    for group in elsewhere.values():
        if not all(map(math.isfinite, _torch.norms(group))):
            found += [one for one in group if is_bad(one)]
    return found


_SMALL = 4096  # elements; of larger ones a copy costs more than a call
_MANY = 64


def _is_small(tensor: torch.Tensor) -> bool:
    dense = tensor.layout is torch.strided and not tensor.is_nested
    return dense and tensor.numel() <= _SMALL and not _torch.is_zero_tensor(tensor)


def _bad_small(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Look at small tensors all at once; a call takes longer than adding them up."""
    if math.isfinite(_torch.in_a_row(tensors).sum().item()):
        return []
    return [one for one in tensors if is_bad(one)]


def _adds_up(tensor: torch.Tensor) -> bool:
    """Say whether a fused kernel can take the norm of a tensor."""
    dense = tensor.layout is torch.strided and not (is_wrapper(tensor) or tensor.is_nested)
    return dense and tensor.dtype not in _ODD and can_be_bad(tensor) and tensor.numel() > 0
