"""What is in a container, and which containers get longer with every repetition."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import torch

from nbinspect.heapgraph.objects import isinstance_of
from nbinspect.heapgraph.resolving import resolved
from nbinspect.tensors import class_name, is_tensor

BASES = (list, dict, tuple, deque, set, frozenset)


class Filling(NamedTuple):
    """What a container is filled with.

    Attributes:
        container: its built-in type, "" if it is none or cannot be found.
        item: the type of its last item, "" if it has none.
        is_all_tensors: all of its items are tensors.
        is_nested: the last one is a container.
        is_of_model: it is a module, or a part of one.
    """

    container: str = ""
    item: str = ""
    is_all_tensors: bool = False
    is_nested: bool = False
    is_of_model: bool = False


def filling(name: str) -> Filling:
    """Say what the container of this name is filled with, running none of the user's code."""
    value = resolved(name)
    is_of_model = any(
        isinstance_of(resolved(part), torch.nn.Module) for part in (name, name.rpartition(".")[0])
    )
    base = base_of(value)
    if base is None:
        return Filling(is_of_model=is_of_model)
    items = items_of(value)
    return Filling(
        container=base.__name__,
        item=class_name(type(items[-1])) if items else "",
        is_all_tensors=bool(items) and all(map(is_tensor, items)),
        is_nested=bool(items) and base_of(items[-1]) is not None,
        is_of_model=is_of_model,
    )


def base_of(value: Any) -> Any:
    """Give the built-in type of a container; None if it is none."""
    return next((base for base in BASES if isinstance_of(value, base)), None)


def items_of(value: Any) -> list[Any]:
    """List a container's items, of a dictionary its values, through the built-in type's own way."""
    base = base_of(value)
    return list(dict.values(value) if base is dict else base.__iter__(value))


def container_name(value: Any) -> str:
    """Name the built-in type of a container; of other objects, such as `ModuleList`, their own."""
    base = base_of(value)
    return str(base.__name__) if base is not None else class_name(type(value))
