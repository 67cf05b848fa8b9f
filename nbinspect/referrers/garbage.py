"""What a collection would free together with an object that only garbage holds."""

from __future__ import annotations

import sys
import types
from collections import Counter
from typing import Any

from nbinspect import _torch
from nbinspect.blocks import Unavailable
from nbinspect.heapgraph.native import owned
from nbinspect.heapgraph.objects import isinstance_of, referents
from nbinspect.referrers.backward import Backward
from nbinspect.tensors import is_node, is_tensor, storages

MOST_OBJECTS = 50_000
LIVING = (type, types.ModuleType, types.CodeType, types.BuiltinFunctionType)


def freed_bytes(search: Backward) -> int | None:
    """Give the bytes of all storages that only the objects of a search keep alive.

    Takes away, in thought, the references that these objects and all below them have to each
    other: what has none left would go, as in Python's own collector.

    Args:
        search: one that found no root and nothing invisible that holds any of its objects.

    Returns:
        Bytes, or None if too much lies below to look at.
    """
    below = _below(search)
    if below is None:
        return None
    objects, inner, counted = below
    kept = [key for key in objects if _is_held(search, objects, key, inner, counted)]
    alive = _spread(objects, kept)
    dead = {key: one for key, one in objects.items() if key not in alive and is_tensor(one)}
    native = search.native.found if search.native is not None else {}
    shared = {one for key, other in native.items() if key not in dead for one in _keys(other)}
    sizes = {one: size for tensor in dead.values() for one, size in _keys(tensor).items()}
    objects.clear()
    return sum(size for one, size in sizes.items() if one not in shared)


def _held_by(value: Any) -> list[tuple[Any, bool, bool]]:
    """List what an object refers to: (object, adds to its Python count, adds to its use count)."""
    if not (is_tensor(value) or is_node(value)):
        return [(one, True, False) for one in referents(value)]
    native = list(owned(value))
    hidden = {id(one) for _, one, _ in native}
    found = [(one, True, False) for one in referents(value) if id(one) not in hidden]
    return found + [(one, not (counted or is_node(one)), counted) for _, one, counted in native]


def _below(search: Backward) -> tuple[dict[int, Any], Counter[int], Counter[int]] | None:
    """Give all that the search's objects lead to, with the references that it has from inside."""
    objects, inner, counted = dict(search.objects), Counter[int](), Counter[int]()
    todo = list(objects.values())
    while todo:
        for child, is_python, is_counted in _held_by(todo.pop()):
            key = id(child)
            inner[key] += is_python
            counted[key] += is_counted
            if key in objects or key in search.roots or isinstance_of(child, *LIVING):
                continue
            objects[key] = child
            todo.append(child)
        if len(objects) > MOST_OBJECTS:
            objects.clear()
            return None
    return objects, inner, counted


def _is_held(
    search: Backward,
    objects: dict[int, Any],
    key: int,
    inner: Counter[int],
    counted: Counter[int],
) -> bool:
    """Say whether anything but these objects refers to one of them."""
    if key in search.objects:
        return False
    value = objects[key]
    ours = 3 + (search.native is not None and key in search.native.found)
    python = sys.getrefcount(value) - ours - inner[key] - search.is_indexed(value)
    if not is_tensor(value):
        return python - is_node(value) > 0
    owners = _torch.use_count(value) or 1
    return python - (owners > 1) > 0 or owners - 1 - counted[key] > 0


def _spread(objects: dict[int, Any], keys: list[int]) -> set[int]:
    """Give the ids of these objects and of all that they lead to."""
    alive, todo = set(keys), list(keys)
    while todo:
        for child, _, _ in _held_by(objects[todo.pop()]):
            if id(child) in objects and id(child) not in alive:
                alive.add(id(child))
                todo.append(id(child))
    return alive


def _keys(value: Any) -> dict[tuple[str, int], int]:
    """Give the storages of a tensor, each with its size; a node has none."""
    found = storages(value) if is_tensor(value) else ()
    return {} if isinstance(found, Unavailable) else {one.key: one.size_bytes for one in found}
