"""Kernels that take many tensors at once."""

from __future__ import annotations

import torch


def norms(tensors: list[torch.Tensor]) -> list[float]:
    """Give the 2-norm of each of some tensors of one device and dtype, by one read."""
    dense = [one._values() if one.layout is torch.sparse_coo else one for one in tensors]
    found: list[float] = torch.stack([n.float() for n in torch._foreach_norm(dense)]).tolist()
    return found


_flatten = getattr(torch._C._nn, "flatten_dense_tensors", None)


def in_a_row(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Copy the values of tensors of one kind into one row."""
    if _flatten is None or len(tensors) == 1:  # of a single one it gives a view
        return torch.cat([one.reshape(-1) for one in tensors])
    row: torch.Tensor = _flatten(tensors)
    return row


HALVES = (torch.float16, torch.bfloat16)


def fused_norms(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Give the 2-norm of each tensor, by fused kernels; of half-precision ones in float32."""
    fused = getattr(torch, "_foreach_norm", None)
    if fused is None or not tensors:
        wide = (torch.float32 if t.dtype in HALVES else None for t in tensors)
        return [torch.linalg.vector_norm(t, dtype=d) for t, d in zip(tensors, wide, strict=True)]
    if not any(t.dtype in HALVES for t in tensors):
        return list(fused(tensors))
    found: dict[int, torch.Tensor] = {}
    for dtype, numbers in _by_half(tensors).items():
        some = fused([tensors[n] for n in numbers], 2, dtype)
        found.update(zip(numbers, some, strict=True))
    return [found[n] for n in range(len(tensors))]


def _by_half(tensors: list[torch.Tensor]) -> dict[torch.dtype | None, list[int]]:
    kinds: dict[torch.dtype | None, list[int]] = {}
    for number, tensor in enumerate(tensors):
        dtype = torch.float32 if tensor.dtype in HALVES else None
        kinds.setdefault(dtype, []).append(number)
    return kinds


def copy_all(to: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
    """Copy tensors into others of the same kind, by fused kernels."""
    if tensors:
        torch._foreach_copy_(to, tensors)


def subtract_all(of: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
    """Subtract tensors from others in place, by fused kernels."""
    if tensors:
        torch._foreach_sub_(of, tensors)
