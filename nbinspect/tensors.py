"""Tensors and their storages, looked at without running any code of the user's or of autograd."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from nbinspect import _torch
from nbinspect.blocks import Unavailable

new = tuple.__new__  # a `NamedTuple` at half the price of calling its class, for the many


class Storage(NamedTuple):
    """Bytes that one or several tensors look into.

    Attributes:
        key: equal for two tensors if and only if they share these bytes.
        size_bytes: all of it, however little of it a tensor uses.
        device: ``str(torch.device)``.
        handle: what `_torch.handle` gives for it; of two over one array, each has its own.
    """

    key: tuple[str, int]
    size_bytes: int
    device: str
    handle: int


def is_tensor(value: object) -> bool:
    """Say whether `value` is a tensor, without `isinstance`, which calls properties."""
    kind = type(value)
    return kind is _TENSOR or issubclass(kind, _TENSOR)


_TENSOR = torch.Tensor


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors among an operation's arguments or results."""
    if is_tensor(value):
        yield value  # type: ignore[misc]  # `is_tensor` says so
    elif type(value) in {tuple, list}:
        for one in value:  # type: ignore[attr-defined]
            yield from tensors_in(one)
    elif type(value) is dict:
        for one in value.values():
            yield from tensors_in(one)


def is_node(value: object) -> bool:
    """Say whether `value` is a node of the autograd graph."""
    return _is_node_type(type(value))


def node_name(node: Any) -> str:
    """Name an autograd node as torch's documents do: ``AccumulateGrad``, with no C++ namespace."""
    return _without_namespace(node.name())


@lru_cache(maxsize=256)
def _without_namespace(name: str) -> str:
    return name.rpartition("::")[2]


def _holds_from_native(kind: type) -> bool:
    return issubclass(kind, torch.Tensor | _torch.script_module_type()) or _is_node_type(kind)


def _is_node_type(kind: type) -> bool:
    known = _BUILT_IN.get(id(kind))
    if known is not None:
        return known
    found = not issubclass(kind, torch.Tensor)
    found = found and any("next_functions" in class_dict(base) for base in mro(kind))
    if not _TYPE_SLOTS["__flags__"].__get__(kind) & MADE_WHILE_RUNNING:
        _BUILT_IN[id(kind)] = found
    return found


MADE_WHILE_RUNNING = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_BUILT_IN: dict[int, bool] = {}  # is it a node's type, by the id of a type that lives for ever


def tensors_of_python() -> list[Any]:
    """List the tensors that Python sees, by one pass over the heap at C's speed.

    An instance of a Python class refers to its class, so the classes' referrers are the tensors.
    Internal kinds of torch's own (fake, functional) are left out.
    """
    kinds, todo = [torch.Tensor], [torch.Tensor]
    while todo:
        for kind in type.__subclasses__(todo.pop()):
            todo.append(kind)
            if not kind.__module__.startswith("torch.") or kind is torch.nn.Parameter:
                kinds.append(kind)
    return [one for one in gc.get_referrers(*kinds) if is_tensor(one)]


def native_holders(objects: list[Any], types: NDArray[np.int64] | None = None) -> list[Any]:
    """Pick tensors, autograd nodes and TorchScript modules; one question per type, not per object.

    Args:
        objects: where to pick from.
        types: their `type_addresses`, if they are known already.
    """
    if types is None:
        types = type_addresses(objects)
    # By address: a metaclass may have a `__hash__` or `__eq__` of its own.
    distinct, places = np.unique(types, return_index=True)
    wanted = [_holds_from_native(type(objects[place])) for place in places.tolist()]
    chosen = np.flatnonzero(np.isin(types, distinct[wanted]))
    return [objects[place] for place in chosen.tolist()]


def addresses(values: Iterable[object], n: int) -> NDArray[np.int64]:
    """Give ``id`` of `n` values, at twice the speed of asking for each: it is where they lie."""
    lying = np.fromiter(values, object, n)
    return np.ndarray(n, np.int64, lying).copy()


def type_addresses(objects: list[Any]) -> NDArray[np.int64]:
    """Give the ``id`` of each object's type."""
    return addresses(map(type, objects), len(objects))


_TYPE_SLOTS = vars(type)


def mro(kind: type) -> tuple[type, ...]:
    """Give a class's bases, running no code of its metaclass."""
    bases: tuple[type, ...] = _TYPE_SLOTS["__mro__"].__get__(kind)
    return bases


def class_dict(kind: type) -> Mapping[str, Any]:
    """Give a class's own attributes, running no code of its metaclass."""
    own: Mapping[str, Any] = _TYPE_SLOTS["__dict__"].__get__(kind)
    return own


def class_name(kind: type) -> str:
    """Give a class's name, running no code of its metaclass."""
    name: str = _TYPE_SLOTS["__name__"].__get__(kind)
    return name


class _Looking:
    """See `looking`."""

    __slots__ = ("_guard", "_with_grad")

    def __enter__(self) -> None:
        self._guard = _torch.no_overrides()
        self._guard.__enter__()
        self._with_grad = torch.is_grad_enabled()
        torch.set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        torch.set_grad_enabled(self._with_grad)
        self._guard.__exit__(None, None, None)


def looking() -> AbstractContextManager[None]:
    """Look at tensors: subclasses' own functions, active modes and autograd stay out of it.

    Cost: 4 µs.
    """
    return _Looking()


def storages(tensor: torch.Tensor) -> tuple[Storage, ...] | Unavailable:
    """Give the storages behind a tensor; call it inside `looking`.

    Returns:
        One storage for a strided tensor, several for a sparse one, none where there are no bytes
        (meta and fake tensors, freed storages, wrappers whose parts are tensors of their own), or
        the reason why they cannot be seen.
    """
    try:
        inner = _torch.unwrapped(tensor)
        if inner.layout is torch.strided:
            own = _storage(inner)
            return () if own is None else (own,)
        found = map(_storage, parts(inner))
        return tuple(one for one in found if one is not None)
    except Exception as error:  # a tensor may be half made, or its type's own code may raise
        return Unavailable(f"{class_name(type(tensor))}: {_first_line(error)[:120]}")


def _first_line(error: Exception) -> str:
    try:
        return str(error).splitlines()[0]
    except Exception:  # no text, or an error class that cannot even say what it is
        return class_name(type(error))


_SPARSE_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Give the tensors that a sparse one is made of, else the tensor itself."""
    names = _SPARSE_PARTS.get(tensor.layout)
    if names is None or is_wrapper(tensor):
        return (tensor,)
    return tuple(getattr(tensor, name)() for name in names)


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Say whether the type keeps its data in other tensors (DTensor, jagged, quantised weights)."""
    kind = type(tensor)
    return kind is not torch.Tensor and kind.__torch_dispatch__ is not _ORDINARY


_ORDINARY = torch.Tensor.__torch_dispatch__


def _has_no_address(tensor: torch.Tensor) -> bool:
    """Say whether a wrapper's own storage is none, its data being in other tensors."""
    try:
        storage = tensor.untyped_storage()
        return storage.device.type == "meta" or not storage.data_ptr()
    except (RuntimeError, NotImplementedError):
        return True


def _storage(tensor: torch.Tensor) -> Storage | None:
    """Give a tensor's own storage, None where it has no bytes."""
    if is_wrapper(tensor) and _has_no_address(tensor):
        return None
    storage = tensor.untyped_storage()
    size_bytes, device = storage.nbytes(), _device_name(storage.device)
    if not size_bytes or device.startswith("meta"):
        return None
    # Two storages over one NumPy array are the same bytes, so the address is the better key; but
    # asking a lazily copied tensor for its address makes the copy.
    address = 0 if _torch.is_copy_on_write(tensor) else storage.data_ptr()
    handle = _torch.handle(storage)
    return new(Storage, ((device, address or -handle), size_bytes, device, handle))


_device_name = lru_cache(maxsize=64)(str)


def storage_key(tensor: Any) -> Any:
    """Give what two tensors have in common if they share their bytes; None if they have none."""
    try:
        storage = tensor.untyped_storage()
        if _torch.is_copy_on_write(tensor):
            return tensor.device, -_torch.handle(storage)
        address = storage.data_ptr()
        return (tensor.device, address) if address else None
    except Exception:  # sparse, fake and wrapper tensors have no storage of their own
        return None


def storage_bytes(tensor: torch.Tensor) -> int | None:
    """Give the size of the storage behind a tensor, None where it has none of its own."""
    found = storages(tensor)
    return None if isinstance(found, Unavailable) else sum(one.size_bytes for one in found)


def used_bytes(tensor: torch.Tensor) -> int:
    """Count the bytes that a tensor can reach, once each; ``sys.maxsize`` where it cannot say."""
    try:
        if tensor.layout is not torch.strided:
            return sys.maxsize
        if tensor.is_contiguous():
            return tensor.numel() * tensor.element_size()
        numel = 1
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            numel *= size if stride else min(size, 1)  # an expanded dimension repeats its bytes
        return numel * tensor.element_size()
    except Exception:  # nested, or of a type whose own code raises
        return sys.maxsize


def describe(tensor: torch.Tensor) -> str:
    """Describe a tensor in a few words, e.g. ``64x256 float32``, reading no element."""
    try:
        shape, dtype = tensor.shape, tensor.dtype
        try:
            return _described(shape, dtype)
        except TypeError:  # a symbolic size has no hash
            return _described(tuple(map(int, shape)), dtype)
    except Exception:  # nested, or of a type whose own code raises
        kind = "nested" if tensor.is_nested else class_name(type(tensor))
        return f"{kind} {_dtype_name(tensor.dtype)}"


@lru_cache(maxsize=256)
def _described(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{'x'.join(map(str, shape)) or 'scalar'} {_dtype_name(dtype)}"


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def device_of(value: object) -> str:
    """Give ``str(torch.device)`` of a tensor, "" for anything else; call it inside `looking`."""
    try:
        return str(value.device) if is_tensor(value) else ""  # type: ignore[attr-defined]
    except Exception:  # of a type whose own code raises
        return ""
