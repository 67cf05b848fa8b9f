"""Reads what an operation was given and returned, while it is still there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from nbinspect import _torch
from nbinspect.blocks import Unavailable
from nbinspect.numerics.check import can_be_bad, dense_parts
from nbinspect.numerics.records import Operand
from nbinspect.tensors import describe, is_tensor, tensors_in

Index = tuple[int, ...]
_OVERWRITTEN = Unavailable("overwritten by the operation itself")
_AROUND = 3
_MOST = 8


def first_bad(tensor: torch.Tensor) -> tuple[Index | None, int]:
    """Give the first index that holds a NaN or Inf, and how many do.

    Returns:
        None as the index where values have no index of their own (sparse, nested).
    """
    parts = list(dense_parts(tensor))
    bad = [~part.isfinite() for part in parts]
    n_bad = int(sum(int(one.sum()) for one in bad))
    if len(parts) != 1 or parts[0].shape != tensor.shape or not n_bad:
        return None, n_bad
    flat = int(bad[0].reshape(-1).to(torch.uint8).argmax())
    return unravel(flat, tuple(tensor.shape)), n_bad


def unravel(flat: int, shape: Index) -> Index:
    """Turn a position into an index."""
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def operands(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: set[int], index: Index | None
) -> tuple[Operand, ...]:
    """Describe the arguments of an operation that has just run.

    Args:
        func: the operation.
        args: its arguments.
        kwargs: its keyword arguments.
        written: ids of the tensors that it wrote to, whose values before are gone.
        index: first bad index of its result.

    Cost: a few passes over each tensor.
    """
    found = []
    for name, value in _named(func, args, kwargs):
        if is_tensor(value):
            one = _gone(name, value) if id(value) in written else operand(name, value, index)
            found.append(one)
        elif isinstance(value, int | float | complex) and not isinstance(value, bool):
            found.append(Operand(name, f"{value:g}" if isinstance(value, float) else str(value)))
        elif isinstance(value, list | tuple) and any(map(is_tensor, value)):
            found += [operand(f"{name}[{i}]", t, None) for i, t in enumerate(tensors_in(value))]
        if len(found) >= _MOST:
            break
    return tuple(found[:_MOST])


def _named(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    names = [one.name for one in func._schema.arguments]  # noqa: SLF001 - torch's own schema
    yield from zip(names, args, strict=False)
    yield from kwargs.items()


def _gone(name: str, value: torch.Tensor) -> Operand:
    return Operand(name, describe(value), missing=_OVERWRITTEN)


def operand(name: str, tensor: torch.Tensor, index: Index | None) -> Operand:
    """Describe the values of a tensor around `index`, which belongs to a shape it is broadcast to."""
    if not _torch.has_memory(_torch.unwrapped(tensor)):
        return Operand(name, describe(tensor), missing=Unavailable("its memory was freed"))
    try:
        return _operand(name, tensor, index)
    except Exception as error:  # a type of the user's, whose own code may raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return Operand(name, describe(tensor), missing=Unavailable(reason[:80]))


def _operand(name: str, tensor: torch.Tensor, index: Index | None) -> Operand:
    values = torch.cat([_real(part) for part in dense_parts(tensor)])
    finite = values[values.isfinite()]
    low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (None, None)
    own = _own_index(tensor, index)
    excerpt, at_excerpt = _excerpt(tensor, own)
    return Operand(
        name=name,
        what=describe(tensor),
        at=None if own is None else float(_real(tensor[own]).item()),
        low=low,
        high=high,
        n_values=values.numel(),
        n_zero=int((values == 0).sum()),
        n_nan=int(values.isnan().sum()) if can_be_bad(tensor) else 0,
        n_inf=int(values.isinf().sum()) if can_be_bad(tensor) else 0,
        excerpt=excerpt,
        at_excerpt=at_excerpt,
    )


def _real(part: torch.Tensor) -> torch.Tensor:
    """Give the values in a row, as numbers that can be compared; of complex ones the size."""
    flat = part.reshape(-1)
    return flat.abs() if flat.is_complex() else flat


def _own_index(tensor: torch.Tensor, index: Index | None) -> Index | None:
    """Give the index into `tensor` that `index` of the result reads, if it is broadcast to it."""
    if index is None or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    shape = tuple(tensor.shape)
    if len(shape) > len(index):
        return None
    tail = index[len(index) - len(shape) :]
    own = tuple(0 if size == 1 else at for size, at in zip(shape, tail, strict=True))
    return own if all(at < size for at, size in zip(own, shape, strict=True)) else None


def _excerpt(tensor: torch.Tensor, own: Index | None) -> tuple[tuple[float, ...], int]:
    if not own:
        return (), 0
    row = _real(tensor[own[:-1]])
    first = max(0, min(own[-1] - _AROUND, row.numel() - 2 * _AROUND - 1))
    return tuple(map(float, row[first : first + 2 * _AROUND + 1].tolist())), own[-1] - first
