"""Objects that decide what kind of holder everything below them is."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from nbinspect.heapgraph.objects import instance_dict, isinstance_of, own_dict
from nbinspect.tensors import is_tensor

KINDS = (
    "PARAMETER",
    "BUFFER",
    "GRADIENT",
    "OPTIMIZER_STATE",
    "SAVED_FOR_BACKWARD",
    "HOOK",
    "DATALOADER",
    "VARIABLE",
    "OUT_HISTORY",
    "TRACEBACK",
    "FRAME",
    "CYCLE",
    "OTHER",
)
"""Holder kinds, the first to claim a storage wins."""

TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
SUSPENDED = (
    types.FrameType,
    types.GeneratorType,
    types.CoroutineType,
    types.AsyncGeneratorType,
)


def tags(objects: dict[int, Any]) -> dict[int, str]:
    """Give the holder kind that an object lends to what it holds, by the object's id."""
    found = {id(hooks): "HOOK" for hooks in _hooks_of_all()}
    of_types: dict[int, tuple[str, Parts | None]] = {}  # a graph of thousands of nodes has few
    for key, value in objects.items():
        of_type = of_types.get(id(type(value)))
        if of_type is None:
            of_type = of_types[id(type(value))] = _own_kind(value), _parts_of(value)
        kind, parts = of_type
        if kind:
            found[key] = kind
        if parts is not None:
            for part, part_kind in parts(value):
                found[id(part)] = part_kind
    return found


Parts = Callable[[Any], Iterable[tuple[Any, str]]]


def module_parts(objects: dict[int, Any]) -> tuple[set[int], set[int]]:
    """Find what is named best as part of something larger.

    A module around a single other one (``DataParallel``, a compiled module) is only a wrapper.

    Returns:
        Ids of the ``_modules`` dictionaries, and ids of the modules in them.
    """
    members, parts = set[int](), set[int]()
    for value in objects.values():
        own = instance_dict(value) if isinstance_of(value, torch.nn.Module) else None
        inner = own.get("_modules") if own else None
        if own and type(inner) is dict:
            members.add(id(inner))
            if len(inner) > 1 or own.get("_parameters"):
                parts.update(map(id, inner.values()))
    return members, parts


def _own_kind(value: Any) -> str:
    if isinstance_of(value, torch.optim.Optimizer):
        return "OPTIMIZER_STATE"
    if isinstance_of(value, types.TracebackType):
        return "TRACEBACK"
    if isinstance_of(value, *SUSPENDED):
        return "FRAME"
    return "DATALOADER" if isinstance_of(value, *_loader_types()) else ""


def _loader_types() -> tuple[type, ...]:
    from torch.utils.data import DataLoader, dataloader

    return (DataLoader, dataloader._BaseDataLoaderIter)  # noqa: SLF001 - it has no public base


def _parts_of(value: Any) -> Parts | None:
    """Give what yields those dictionaries of a module or tensor that have a meaning of their own."""
    if is_tensor(value):
        return _hooks_of_tensor
    is_owner = isinstance_of(value, torch.nn.Module, torch.optim.Optimizer)
    return _tagged_attributes if is_owner else None


def _hooks_of_tensor(tensor: Any) -> list[tuple[Any, str]]:
    both = (getattr(tensor, name, None) for name in TENSOR_HOOKS)
    return [(hooks, "HOOK") for hooks in both if hooks is not None]


def _tagged_attributes(owner: Any) -> Iterator[tuple[Any, str]]:
    own: dict[Any, Any] = instance_dict(owner) or {}
    for name, part in list(own.items()):
        if type(name) is not str:
            continue
        if name == "_parameters":
            yield part, "PARAMETER"
        elif name == "_buffers":
            yield part, "BUFFER"
        elif "hooks" in name:
            yield part, "HOOK"


def _hooks_of_all() -> Iterator[Any]:
    """Yield the dictionaries of hooks that every module or optimizer calls."""
    for place in ("torch.nn.modules.module", "torch.optim.optimizer"):
        for name, value in list((own_dict(sys.modules.get(place)) or {}).items()):
            if "hooks" in name and isinstance_of(value, dict):
                yield value
