"""Tensors and storages, and who owns them in C++."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from nbinspect._torch.absent import never
from nbinspect._torch.allocators import accelerators, in_use


def use_count(tensor: torch.Tensor) -> int | None:
    """Count the C++ owners of a tensor, its Python wrapper being one; None if torch is silent."""
    count = getattr(tensor, "_use_count", None)
    try:
        return int(count()) if count is not None else None
    except (RuntimeError, TypeError):
        return None


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Give the tensor inside a wrapper: functorch's, or of a distributed tensor this process's part."""
    while _is_wrapped(tensor):
        tensor = _inside(tensor)
    distributed = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    if distributed is not None and issubclass(type(tensor), distributed):
        whole: Any = tensor
        part: torch.Tensor = whole._local_tensor
        return part
    return tensor


def wrapped_tensor(tensor: torch.Tensor) -> torch.Tensor | None:
    """Give the tensor right inside a wrapper of functorch's, None if it is no such wrapper."""
    return _inside(tensor) if _is_wrapped(tensor) else None


_functorch = getattr(torch._C, "_functorch", None)
_inside: Callable[[torch.Tensor], torch.Tensor] = getattr(_functorch, "get_unwrapped", None)  # type: ignore[assignment]  # unused then
_is_wrapped: Callable[[torch.Tensor], bool] = getattr(
    _functorch, "is_functorch_wrapped_tensor", never
)


def has_memory(tensor: torch.Tensor) -> bool:
    """Say whether the values are there: FSDP frees the storage of what it has to gather again.

    To read such a tensor ends the process.
    """
    try:
        return tensor.untyped_storage().nbytes() > 0 or not tensor.numel()
    except (RuntimeError, NotImplementedError):  # sparse, nested: it has no storage of its own
        return True


SCRIPT_MEMBERS = ("parameter ", "buffer ")
"""How the names begin that `script_tensors` gives."""


def script_module_type() -> type:
    """Give the type of TorchScript's modules, made by script, trace or load."""
    from torch.jit import ScriptModule

    return ScriptModule


def script_tensors(module: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield ("parameter weight", tensor) for what a TorchScript module itself holds in C++.

    A tensor that C++ alone holds gets a Python side by this, which goes when it is let go.
    """
    native = module.__dict__.get("_c")
    lists: tuple[Any, Any] = (torch._C.ParameterDict, torch._C.BufferDict)
    for prefix, members in zip(SCRIPT_MEMBERS, lists, strict=True):
        if isinstance(native, torch._C.ScriptModule):
            yield from ((prefix + name, tensor) for name, tensor in members(native).items())


def is_fake(tensor: torch.Tensor) -> bool:
    """Say whether a tensor is a fake one, which has a shape and no values."""
    kind = getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensor", None)
    return kind is not None and issubclass(type(tensor), kind)


handle: Callable[[torch.UntypedStorage], int] = operator.attrgetter("_cdata")
"""Gives a number that is a storage's own for as long as it lives."""


base = operator.attrgetter("_base")
"""Gives the tensor that a view is of, None if it is no view."""

grad = operator.attrgetter("_grad")
"""Gives a tensor's gradient or None, without ``Tensor.grad``'s warnings."""


def is_pinned(storage: torch.UntypedStorage) -> bool:
    """Say whether host memory is page-locked; asks nothing where no accelerator is in use."""
    name = next(iter(accelerators()), None)
    if name is None or not in_use(torch.device(name)):
        return False
    try:
        return bool(storage.is_pinned(None))  # for the accelerator; torch warns if it is named
    except (RuntimeError, TypeError):  # `TypeError`: a device that torch thinks cannot pin
        return False


def n_tensors_over(storage: torch.UntypedStorage) -> int | None:
    """Count the tensors that look into a storage; None if torch is silent."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    return int(count(storage._cdata)) - 1 if count is not None else None  # 1 is this object


def is_view(tensor: torch.Tensor) -> bool:
    """Say whether autograd knows the tensor as a view of another."""
    return bool(tensor._is_view())


is_zero_tensor: Callable[[torch.Tensor], bool] = getattr(torch.Tensor, "_is_zerotensor", never)
"""Says whether a tensor is torch's stand-in for zeros, which has no memory: reading it crashes."""


def is_copy_on_write(tensor: torch.Tensor) -> bool:
    """Say whether asking for the address would copy the data."""
    return _is_lazy(tensor)


_is_lazy: Callable[[torch.Tensor], bool] = getattr(torch._C, "_is_cow_tensor", never)


def version(tensor: torch.Tensor) -> int:
    """Count the in-place operations on a tensor's bytes; 0 where there is no count."""
    try:
        return int(tensor._version)
    except RuntimeError:  # made in inference mode
        return 0
