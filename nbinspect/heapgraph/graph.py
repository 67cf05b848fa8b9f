"""Everything that leads to a live tensor, as one graph: built once, asked many times, then gone."""

from __future__ import annotations

import gc
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from nbinspect import _torch, notebook
from nbinspect.heapgraph.index import HeapIndex
from nbinspect.heapgraph.native import Reference, node_cap, walk
from nbinspect.heapgraph.objects import object_parts, own_dict
from nbinspect.heapgraph.roots import Root, roots
from nbinspect.tensors import class_dict, is_node, is_tensor, native_holders


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep automatic collection away: it would free what is being shown, and cost more than we."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Unexplained(NamedTuple):
    """References to an object whose holder is not known: seen by Python, and in C++."""

    python: int
    native: int


class HeapGraph:
    """Live tensors, autograd nodes and all Python objects that lead to them, up to the roots.

    Use it inside `collector_paused` and `tensors.looking`, and `close` it before returning: it
    holds every object that it names.

    Args:
        tracked: ``gc.get_objects()``, asked before there was a graph, which is no part of the answer.
        cap: how many autograd nodes to look at, None for as many as the stack allows.

    Attributes:
        objects: the graph's objects by id.
        children: references by the id of the holder.
        parents: references by the id of what is held.
        roots: where names begin, by id; running calls have negative ids.
        complete: False if the walk of the autograd graph was cut short.
    """

    def __init__(self, tracked: list[Any], cap: int | None = None) -> None:
        self.roots: dict[int, Root] = roots()
        self.objects: dict[int, Any] = {}
        self.children: dict[int, list[Reference]] = defaultdict(list)
        self.parents: dict[int, list[Reference]] = defaultdict(list)
        self._index = HeapIndex(tracked)
        self._in_index: set[int] = set()
        self.complete = self._add_tensors(node_cap() if cap is None else cap)
        self._frames = list(notebook.running_frames())
        self._add_frames()
        if self._has_unexplained():
            self._add_untracked()
            self._add_links()

    def _add_tensors(self, cap: int) -> bool:
        """Add tensors, autograd nodes and what leads to them; say whether that is all."""
        targets = native_holders(self._index.objects, self._index.types)
        self.objects.update((id(one), one) for one in targets)
        self._in_index.update(self.objects)
        native = walk(targets, cap)
        self.objects.update(native.found)
        objects, children, parents = self.objects, self.children, self.parents
        for reference in native.references:
            parent, child, _, _ = reference
            if child in objects:  # else it lies beyond the cap
                children[parent].append(reference)
                parents[child].append(reference)
        self._add_ancestors(targets)
        self._links = native.links
        self._add_links()
        return native.complete

    def _add_links(self) -> None:
        """Add what nodes hold of Python's objects, where that leads to a tensor."""
        known = [one for one in self._links if one[0].child in self.objects]
        self._links = [one for one in self._links if one[0].child not in self.objects]
        for reference, _ in known:
            self._add(reference)

    def close(self) -> None:
        """Let go of everything, even if an error's traceback still holds this graph."""
        for held in (self.objects, self.children, self.parents, self._frames, self._links):
            held.clear()
        self._index.objects.clear()
        # A dictionary that an earlier look left on a call was held here, so it was not emptied.
        deque(notebook.running_frames(), maxlen=0)

    def tensors(self) -> Iterator[Any]:
        """Yield every live tensor that was found, whoever holds it."""
        return (value for value in self.objects.values() if is_tensor(value))

    def frame_label(self, root: int) -> str:
        """Name the running call that a negative root id stands for."""
        return self._frames[-root - 1].label

    def frame_variable(self, reference: Reference) -> str:
        """Name the local variable that a reference out of a running call is."""
        values = self._frames[-reference.parent - 1].values
        return next(name for name, value in values.items() if id(value) == reference.child)

    def is_frame(self, root: int) -> bool:
        """Say whether a root id stands for a running call."""
        return root < 0

    def frame_ids(self) -> Iterable[int]:
        """Give the root ids of the running calls."""
        return range(-len(self._frames), 0)

    def _add(self, reference: Reference) -> None:
        self.children[reference.parent].append(reference)
        self.parents[reference.child].append(reference)

    def _add_ancestors(self, values: list[Any]) -> None:
        """Add all that leads to `values`, level by level, stopping at roots."""
        level = np.fromiter(map(id, values), np.int64, len(values))
        while len(level):
            found: dict[int, Any] = {}
            for holder, child in self._index.holders(level):
                if leads_nowhere(holder, self.objects[child]):
                    continue
                self._add(Reference(id(holder), child, "", False))
                if id(holder) not in self.objects:
                    found[id(holder)] = holder
            self.objects.update(found)
            self._in_index.update(found)
            rest = [one for one in found if one not in self.roots]
            level = np.fromiter(rest, np.int64, len(rest))

    def _has_unexplained(self) -> bool:
        objects = self.objects
        for key in objects:  # no value has a name here, which would be one more reference to it
            # Nodes apart: nobody keeps those in an array, and asking thousands takes its time.
            if not (key in self.roots or is_node(objects[key])):
                counts = self.unexplained(key)
                if counts.python > 0 or counts.native > 0:
                    return True
        return False

    def _add_untracked(self) -> None:
        """Add holders that the collector does not track: NumPy arrays and saved tensors.

        They are looked for only where something has a reference that nothing explains.
        """
        untracked = self._index.untracked(np.ndarray, _torch.saved_tensor_type())
        values = untracked.values
        arrays = self._add_arrays([one for one in values if issubclass(type(one), np.ndarray)])
        saved = [one for one in values if not issubclass(type(one), np.ndarray)]
        held = {id(one): one for one in saved if id(one.data) in self.objects}
        self.objects.update(held)
        for one in held.values():
            self._add(Reference(id(one), id(one.data), "saved tensor", one.unpack_hook is None))
        found = arrays | held
        for holder, key in untracked.above(set(found)):
            self._add(Reference(id(holder), key, "", False))
            self.objects[id(holder)] = found[id(holder)] = holder
        self._add_ancestors(list(found.values()))

    def _add_arrays(self, values: list[Any]) -> dict[int, Any]:
        """Add arrays over a tensor's bytes, and arrays of objects that lead to tensors."""
        arrays: dict[int, Any] = {}
        for array in values:
            chain = [array]
            while issubclass(type(chain[-1].base), np.ndarray):
                chain.append(chain[-1].base)
            if id(chain[-1].base) in self.objects:
                arrays.update((id(one), one) for one in chain)
            elif array.dtype.hasobject and self._elements(array):
                arrays[id(array)] = array
        self.objects.update(arrays)
        for key, array in arrays.items():
            for child in self._elements(array):
                self._add(Reference(key, child, "", False))
            if id(array.base) in self.objects:
                self._add(Reference(key, id(array.base), "array", False))
        return arrays

    def _elements(self, array: Any) -> list[int]:
        """List those objects of this graph that an array of objects holds itself."""
        if not array.flags.owndata:
            return []
        parts = (part for _, part in object_parts(array))
        return [key for part in parts for key in map(id, part.flat) if key in self.objects]

    def unexplained(self, key: int) -> Unexplained:
        """Count the references to an object of this graph that no holder was found for.

        A root's own holders were not looked for, so the answer means nothing for it.
        """
        value, held = self.objects[key], self.parents.get(key, ())
        ours = 3 + (key in self._in_index)  # `objects`, `value`, the argument below, the index
        python, counted = sys.getrefcount(value) - ours, 0
        for one in held:
            if one.counted:
                counted += 1
            else:
                python -= one.is_pythons
        if not is_tensor(value):
            return Unexplained(python - is_node(value), 0)  # torch keeps a node's wrapper
        owners = _torch.use_count(value)
        if owners is None:
            return Unexplained(python, 0)
        # A tensor with owners in C++ has one reference from there to its Python side.
        return Unexplained(python - (owners > 1), owners - 1 - counted)

    def _add_frames(self) -> None:
        for number, frame in enumerate(self._frames, start=1):
            for value in frame.values.values():
                if id(value) in self.objects:
                    self._add(Reference(-number, id(value), "", False))


def leads_nowhere(holder: Any, held: Any) -> bool:
    """Say whether a reference explains nothing: an instance's to its class, a class's to a base.

    It does where the class has no name of its own, being local to a function or redefined since.
    """
    if not issubclass(type(held), type) or not _has_name(held):
        return False
    return type(holder) is held or issubclass(type(holder), type | tuple)


def _has_name(kind: type) -> bool:
    """Say whether a class can be found where its module and qualified name say it is."""
    module = class_dict(kind).get("__module__", "builtins")
    names: Any = own_dict(sys.modules.get(module)) if type(module) is str else None
    found: Any = None
    for part in vars(type)["__qualname__"].__get__(kind).split("."):
        found = names.get(part) if names is not None else None
        names = class_dict(found) if issubclass(type(found), type) else None
    return found is kind
