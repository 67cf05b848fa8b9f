"""What would go together with an object: what only it, or only garbage, holds."""

from __future__ import annotations

import sys
import types
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from nbinspect import _torch
from nbinspect.heapgraph.native import owned
from nbinspect.heapgraph.objects import isinstance_of, referents
from nbinspect.referrers.backward import Backward
from nbinspect.tensors import is_node, is_tensor, storage_bytes

LIVING = (type, types.ModuleType, types.CodeType, types.BuiltinFunctionType)


def freed_with(search: Backward, keys: Iterable[int], most_objects: int) -> int | None:
    """Give the bytes of all storages that would be freed if some objects of a search went.

    Takes away, in thought, the references that they and all below them have to each other: what
    has none left would go, as in Python's own collector.

    Args:
        search: has walked the autograd graph, if there is a tensor in it.
        keys: ids of the objects.
        most_objects: how many below them to look at.

    Returns:
        Bytes, or None if too much lies below to look at.
    """
    below = _below(search, set(keys), most_objects)
    if below is None:
        return None
    kept = [key for key in below.objects if _is_held(search, below, key)]
    alive = _spread(below.objects, kept)
    dead = [one for key, one in below.objects.items() if key not in alive and is_tensor(one)]
    below.objects.clear()
    return _bytes_of(dead)


def goes_with(search: Backward, key: int, n_others: int, most_objects: int) -> bool | None:
    """Say whether the targets of a search would go if one reference to an object was taken away.

    Args:
        search: has walked the autograd graph, if there is a tensor in it.
        key: id of the object.
        n_others: how many references to it do not count besides.
        most_objects: how many below it to look at.

    Returns:
        None if that is not known: too much lies below, or the targets do not.
    """
    below = _below(search, {key}, most_objects)
    if below is None or not search.targets <= below.objects.keys():
        return None
    held = [
        one
        for one in below.objects
        if _n_outside(search, below, one) > (1 + n_others if one == key else 0)
    ]
    alive = _spread(below.objects, held)
    below.objects.clear()
    return not search.targets & alive


def collector_frees(search: Backward) -> bool:
    """Say whether ``gc.collect()`` would free the targets of a search that met no root.

    The collector takes what only it sees to be held, by what it takes too. What torch holds from C++
    stays, and all that hangs on that, unless its holder dies with what was taken.
    """
    is_seen: dict[tuple[int, int], bool] = {}
    for reference in (one for references in search.parents.values() for one in references):
        pair = reference.parent, reference.child
        is_seen[pair] = is_seen.get(pair, False) or not reference.slot
    seen, all_ = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    n_holders = Counter[int]()
    for (parent, child), is_python in is_seen.items():
        all_[parent].append(child)
        n_holders[child] += 1
        if is_python:
            seen[parent].append(child)
    kept = {child for (_, child), is_python in is_seen.items() if not is_python}
    todo = list(kept)
    while todo:
        new = [child for child in seen[todo.pop()] if child not in kept]
        kept.update(new)
        todo += new
    dead = search.objects.keys() - kept
    todo = list(dead)
    while todo:
        for child in all_[todo.pop()]:
            n_holders[child] -= 1
            if not n_holders[child] and child not in dead:
                dead.add(child)
                todo.append(child)
    return search.targets <= dead


def _bytes_of(tensors: list[Any]) -> int | None:
    """Sum the storages that no other tensors look into."""
    over = Counter[int]()
    sizes: dict[int, int] = {}
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
            n_all, key = _torch.n_tensors_over(storage), _torch.handle(storage)
        except (RuntimeError, NotImplementedError):  # sparse: its parts are its own
            sizes[-id(tensor)] = storage_bytes(tensor) or 0
            continue
        if n_all is None:
            return None
        over[key] += 1
        if over[key] == n_all:
            sizes[key] = storage_bytes(tensor) or 0
    return sum(sizes.values())


class _Below(NamedTuple):
    """Objects by id, and how many references from among them each has, in Python and in C++."""

    starts: set[int]
    objects: dict[int, Any]
    python: Counter[int]
    native: Counter[int]


def _held_by(value: Any) -> list[tuple[Any, bool, bool]]:
    """List what an object refers to: (object, adds to its Python count, adds to its use count)."""
    if not (is_tensor(value) or is_node(value)):
        return [(one, True, False) for one in referents(value)]
    native = list(owned(value))
    hidden = {id(one) for _, one, _ in native}
    found = [(one, True, False) for one in referents(value) if id(one) not in hidden]
    return found + [(one, not (counted or is_node(one)), counted) for _, one, counted in native]


def _below(search: Backward, starts: set[int], most_objects: int) -> _Below | None:
    """Give all that some objects lead to, short of the roots and of what lives anyway."""
    objects = {key: search.objects[key] for key in starts}
    below = _Below(starts, objects, Counter(), Counter())
    todo = list(objects.values())
    while todo:
        for child, is_python, is_counted in _held_by(todo.pop()):
            key = id(child)
            below.python[key] += is_python
            below.native[key] += is_counted
            if key in objects or key in search.roots or isinstance_of(child, *LIVING):
                continue
            objects[key] = child
            todo.append(child)
        if len(objects) > most_objects:
            objects.clear()
            return None
    return below


def _is_held(search: Backward, below: _Below, key: int) -> bool:
    """Say whether anything but these objects refers to one of them that it does not start from."""
    return key not in below.starts and _n_outside(search, below, key) > 0


def _n_outside(search: Backward, below: _Below, key: int) -> int:
    """Count the references to one of these objects from anything else."""
    value = below.objects[key]
    ours = 3 + (key in search.objects) + search.is_indexed(value)
    ours += search.native is not None and key in search.native.found
    python = sys.getrefcount(value) - ours - below.python[key]
    if not is_tensor(value):
        return max(0, python - is_node(value))
    owners = _torch.use_count(value) or 1
    return max(0, python - (owners > 1)) + max(0, owners - 1 - below.native[key])


def _spread(objects: dict[int, Any], keys: list[int]) -> set[int]:
    """Give the ids of these objects and of all that they lead to."""
    alive, todo = set(keys), list(keys)
    while todo:
        for child, _, _ in _held_by(objects[todo.pop()]):
            if id(child) in objects and id(child) not in alive:
                alive.add(id(child))
                todo.append(id(child))
    return alive
