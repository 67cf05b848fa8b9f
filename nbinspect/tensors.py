"""Tensors and their storages, looked at without running any code of the user's or of autograd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from nbinspect import _torch
from nbinspect.blocks import Unavailable


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes that one or several tensors look into.

    Attributes:
        key: equal for two tensors if and only if they share these bytes.
        size_bytes: all of it, however little of it a tensor uses.
        device: ``str(torch.device)``.
    """

    key: tuple[str, int]
    size_bytes: int
    device: str


def is_tensor(value: object) -> bool:
    """Say whether `value` is a tensor, without `isinstance`, which calls properties."""
    return issubclass(type(value), torch.Tensor)


def is_node(value: object) -> bool:
    """Say whether `value` is a node of the autograd graph."""
    return _is_node_type(type(value))


def _is_node_type(kind: type) -> bool:
    return hasattr(kind, "next_functions") and not issubclass(kind, torch.Tensor)


def tensors_and_nodes(objects: list[Any]) -> list[Any]:
    """Pick the tensors and autograd nodes; one question per type, not per object."""
    kinds = {
        kind
        for kind in set(map(type, objects))
        if issubclass(kind, torch.Tensor) or _is_node_type(kind)
    }
    return [one for one in objects if type(one) in kinds]


@contextmanager
def looking() -> Iterator[None]:
    """Look at tensors: subclasses' own functions, active modes and autograd stay out of it."""
    with _torch.no_overrides(), torch.no_grad():
        yield


def storages(tensor: torch.Tensor) -> tuple[Storage, ...] | Unavailable:
    """Give the storages behind a tensor; call it inside `looking`.

    Returns:
        One storage for a strided tensor, several for a sparse one, none where there are no bytes
        (meta and fake tensors, freed storages, wrappers whose parts are tensors of their own), or
        the reason why they cannot be seen.
    """
    try:
        return tuple(_storage(part) for part in _parts(tensor) if _has_bytes(part))
    except Exception as error:  # a tensor may be half made, or its type's own code may raise
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Unavailable(f"{type(tensor).__name__}: {line[:120]}")


_SPARSE_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def _parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    names = _SPARSE_PARTS.get(tensor.layout)
    if names is None or is_wrapper(tensor):
        return (tensor,)
    return tuple(getattr(tensor, name)() for name in names)


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Say whether the type keeps its data in other tensors (DTensor, jagged, quantised weights)."""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _has_bytes(tensor: torch.Tensor) -> bool:
    if is_wrapper(tensor):
        return _address(tensor) is not None
    storage = tensor.untyped_storage()
    return storage.device.type != "meta" and storage.nbytes() > 0


def _address(tensor: torch.Tensor) -> int | None:
    """Give where the bytes lie; None for a storage that is none."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr() or None if storage.device.type != "meta" else None
    except (RuntimeError, NotImplementedError):
        return None


def _storage(tensor: torch.Tensor) -> Storage:
    storage = tensor.untyped_storage()
    device = str(storage.device)
    # Two storages over one NumPy array are the same bytes, so the address is the better key; but
    # asking a lazily copied tensor for its address makes the copy.
    address = 0 if _torch.is_copy_on_write(tensor) else storage.data_ptr()
    return Storage((device, address or -_torch.handle(storage)), storage.nbytes(), device)


def used_bytes(tensor: torch.Tensor) -> int:
    """Count the bytes that a strided tensor can reach, once each."""
    if tensor.layout is not torch.strided:
        return 0
    numel = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numel *= size if stride else min(size, 1)  # an expanded dimension repeats its bytes
    return numel * tensor.element_size()


def describe(tensor: torch.Tensor) -> str:
    """Describe a tensor in a few words, e.g. ``64x256 float32``, reading no element."""
    shape = "x".join(str(int(size)) for size in tensor.shape) or "scalar"
    return f"{shape} {str(tensor.dtype).removeprefix('torch.')}"
