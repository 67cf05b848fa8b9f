"""From an object up to the roots, level by level over the whole heap."""

from __future__ import annotations

import gc
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from nbinspect import _torch, notebook
from nbinspect.heapgraph.graph import Unexplained, leads_nowhere
from nbinspect.heapgraph.index import HeapIndex
from nbinspect.heapgraph.native import (
    NativeWalk,
    Reference,
    hooks_of_nodes,
    node_cap,
    tensors_over,
    walk,
)
from nbinspect.heapgraph.objects import address_of_bytes, is_hooks, object_parts
from nbinspect.heapgraph.roots import Root, roots
from nbinspect.render.format import count
from nbinspect.tensors import is_node, is_tensor, native_holders, tensors_of_python

KEY_COST = 4  # an optimizer's state is nearer to a parameter than the model is
WIDE = 24  # objects on one level; more are cheaper to find in an index of the whole heap
DEEP = 20  # levels; an index pays for more
FRAME_COST = 3
MOST_OBJECTS = 200_000


class RootHit(NamedTuple):
    """A root that leads to the object: the reference out of it, and what its name is worth."""

    reference: Reference
    cost: int


class Backward:
    """A breadth-first search over what holds what, from some objects up.

    Use it inside `collector_paused` and `tensors.looking`, and `close` it before returning.

    Args:
        targets: where to start; several where they share one storage. The list is emptied.
        every_root: go on after the nearest root, to the end of the heap.
        is_known: says of a reference out of a root that the user knows it already: it is what was
            typed. Such a root does not end the search.
        budget_s: stop after so many seconds.
        ours: ids of containers that are no part of the answer.
        namer_of: the search that this one only finds a name for: it shares what that one knows of
            autograd, proves nothing, and does not follow dictionaries to their keys.

    Attributes:
        objects: what was met, by id.
        parents: references by the id of what is held.
        toward: for each holder, its reference on a shortest way to a target.
        hits: references out of roots, the nearest first.
        root_objects: the roots that were met, by id.
        frames: the running calls; their root ids are negative.
        native: what torch holds from C++, None until it was asked.
        native_holders: the references of that, by the id of what is held.
        n_dull: references that explain nothing, by the id of what is held: instances to a class.
        notes: what was not searched, and why.
        ours: ids of this search's own containers, which are no part of the answer.
        finds_all: it was told to find every root.

    Cost: one pass over the heap a level, 36 ms at a million objects, or one index of it, about 1 s.
    """

    def __init__(
        self,
        targets: list[Any],
        *,
        every_root: bool,
        budget_s: float,
        is_known: Callable[[Backward, Reference], bool] | None = None,
        ours: Iterable[int] = (),
        namer_of: Backward | None = None,
    ) -> None:
        self.roots: dict[int, Root] = roots()
        self.objects: dict[int, Any] = {id(one): one for one in targets}
        self.targets = set(self.objects)
        targets.clear()
        self.parents: dict[int, list[Reference]] = defaultdict(list)
        self.toward: dict[int, Reference] = {}
        self.hits: list[RootHit] = []
        self.root_objects: dict[int, Any] = {}
        self.n_dull: dict[int, int] = defaultdict(int)
        self.notes: list[str] = []
        self.exhausted = False
        self.finds_all, self._deadline = every_root, time.monotonic() + budget_s
        self._is_known, self._is_namer = is_known, namer_of is not None
        self.native: NativeWalk | None = namer_of.native if namer_of else None
        self.native_holders: dict[int, list[Reference]] = (
            namer_of.native_holders if namer_of else defaultdict(list)
        )
        self._index: HeapIndex | None = None
        self._n_scans = 0
        self.ours = {id(self.objects), id(self.root_objects), *ours}
        self.ours.add(id(getattr(notebook.shell(), notebook.UNDO, None)))
        self.frames = list(notebook.running_frames())

    def search(self) -> None:
        """Go up until the nearest roots are found, or all of them."""
        self._search()
        lacks = not self._is_namer and not self.notes
        ends = self.targets if self.hits else self.objects
        if lacks and any(self.unexplained(key).native > 0 for key in ends):
            self._walk_native(from_nodes=True)
            self.parents.clear()
            self.n_dull.clear()
            self.toward.clear()
            self.hits.clear()
            self.objects = {key: self.objects[key] for key in self.targets}
            self.ours.add(id(self.objects))
            self._search()

    def _search(self) -> None:
        level, depth = list(self.objects.values()), 0
        while level and not self._is_done(depth):
            below = set(map(id, level))  # a list of them would be one more holder
            level = self._holders_of(level)
            if (depth == 0 or not (level or self.hits)) and self._has_unexplained(below):
                level += self._untracked(below)
            level += self._hooked(below) + self._made_over(below)
            depth += 1
        self.exhausted = not level
        self.hits.sort(key=lambda hit: hit.cost)

    def one_level(self) -> None:
        """Find the direct holders only."""
        self._holders_of(list(self.objects.values()))
        if self._has_unexplained(self.targets):
            self._untracked(self.targets)
        self._hooked(self.targets)
        self._made_over(self.targets)

    def close(self) -> None:
        """Let go of everything, even if an error's traceback still holds this search."""
        self.objects.clear()
        self.root_objects.clear()
        self.frames.clear()
        if self.native is not None and not self._is_namer:
            self.native.found.clear()
        if self._index is not None:
            self._index.objects.clear()

    def remaining_s(self) -> float:
        """Give how much of the budget is left."""
        return self._deadline - time.monotonic()

    def _is_done(self, depth: int) -> bool:
        if time.monotonic() > self._deadline:
            self.notes.append(f"the search stopped for want of time, {depth} references up")
            return True
        if len(self.objects) > MOST_OBJECTS:
            self.notes.append(f"the search stopped at {count(len(self.objects))} holders")
            return True
        # A root's name costs something too, so a better one may be a few references farther.
        return not self.finds_all and any(
            hit.cost <= depth and not self.is_known(hit.reference) for hit in self.hits
        )

    def is_known(self, reference: Reference) -> bool:
        """Say whether a reference out of a root is what the user typed."""
        return self._is_known is not None and self._is_known(self, reference)

    def _holders_of(self, level: list[Any]) -> list[Any]:
        """Note all that holds an object of one level; give those that are new and no roots."""
        found: dict[int, Any] = {}
        self.ours |= {id(level), id(found)}
        for holder, reference in self._references(level):
            if not self._note(reference):
                continue
            if id(holder) in self.roots:
                self.root_objects[id(holder)] = holder
            elif reference.parent >= 0:
                found[id(holder)] = holder
        self.objects.update(found)
        return list(found.values())

    def _note(self, reference: Reference) -> bool:
        """Keep a reference; say whether its holder is met for the first time."""
        parent = reference.parent
        self.parents[reference.child].append(reference)
        root = self.roots.get(parent)
        if root is not None or parent < 0:
            cost = self._distance(reference) + (root.cost if root else FRAME_COST)
            self.hits.append(RootHit(reference, cost))
            return True
        if parent in self.toward or parent in self.targets:
            return False
        self.toward[parent] = reference
        return True

    def _distance(self, reference: Reference) -> int:
        distance, at = 1, reference.child
        while at in self.toward:
            step = self.toward[at]
            distance += 1
            if is_tensor(self.objects.get(step.child)) and self._is_by_key(step):
                distance += KEY_COST
            at = step.child
        return distance

    def _is_by_key(self, reference: Reference) -> bool:
        """Say whether a dictionary's key is what leads on, which no name of the user's does."""
        holder, held = self.objects.get(reference.parent), self.objects.get(reference.child)
        return not reference.slot and _is_key(holder, held)

    def holder_of(self, start: Reference) -> int:
        """Give the id of what holds a target itself, on the way that begins with `start`."""
        while start.child in self.toward:
            start = self.toward[start.child]
        return start.parent

    def _references(self, level: list[Any]) -> Iterator[tuple[Any, Reference]]:
        if any(is_tensor(one) or is_node(one) for one in level):
            self._walk_native()
        wanted = {id(one): one for one in level}
        self.ours.add(id(wanted))
        # C++ first: Python's collector knows some of these too, but not what they are.
        for key in wanted:
            for reference in self.native_holders.get(key, ()):
                yield self._native_object(reference.parent), reference
        for holder, key in self._tracked_holders(level):
            if leads_nowhere(holder, wanted[key]):
                self.n_dull[key] += 1
            elif not (self._is_namer and _is_key(holder, wanted[key])):
                yield holder, Reference(id(holder), key, "", False)
        yield from self._frame_holders(wanted)

    def _tracked_holders(self, level: list[Any]) -> Iterator[tuple[Any, int]]:
        """Ask the collector: by a scan for few objects, by an index of the heap for many."""
        self._n_scans += 1
        if self._index is None and (len(level) > WIDE or self._n_scans > DEEP):
            self._index = HeapIndex(gc.get_objects())
            self.ours |= {id(self._index), id(self._index.objects), id(vars(self._index))}
        if self._index is not None:
            pairs = self._index.holders(np.fromiter(map(id, level), np.int64, len(level)))
            yield from ((holder, key) for holder, key in pairs if id(holder) not in self.ours)
            return
        wanted = set(map(id, level))
        for holder in gc.get_referrers(*level):
            if id(holder) not in self.ours:
                held = (key for key in map(id, gc.get_referents(holder)) if key in wanted)
                yield from ((holder, key) for key in held)

    def _walk_native(self, *, from_nodes: bool = False) -> None:
        """Learn what torch holds from C++, once, when the first tensor or node is met.

        Args:
            from_nodes: begin at autograd nodes too, for a graph that only a node's own name keeps;
                finding those takes far longer than finding tensors.
        """
        if self.native is not None and not from_nodes:
            return
        seeds = native_holders(gc.get_objects()) if from_nodes else tensors_of_python()
        native = self.native = walk(seeds, node_cap())
        self.ours |= {id(native.found), id(native.references), id(seeds)}
        links = [reference for reference, _ in native.links]
        native.links.clear()  # they would be holders too; what they hold, the nodes keep alive
        self.native_holders.clear()
        for reference in (*native.references, *links):
            self.native_holders[reference.child].append(reference)
        if not native.complete:
            self.notes.append("the autograd graph is larger than can be walked safely")

    def _native_object(self, key: int) -> Any:
        assert self.native is not None  # its references name only what it found
        return self.native.found[key]

    def _frame_holders(self, wanted: dict[int, Any]) -> Iterator[tuple[Any, Reference]]:
        for number, frame in enumerate(self.frames, start=1):
            for value in frame.values.values():
                if id(value) in wanted:
                    yield frame, Reference(-number, id(value), "", False)

    def _untracked(self, wanted: set[int]) -> list[Any]:
        """Find NumPy arrays over or of some objects, and saved tensors that Python code keeps.

        The collector does not track them, so all that tracked objects hold is looked through. On
        the way come those holders that ``gc.get_referrers`` misses: asyncio's tasks, to it, hold
        no result.
        """
        found, noted = dict[int, Any](), set[Reference]()
        index = HeapIndex(gc.get_objects())
        self.ours |= {id(found), id(index), id(vars(index)), id(index.objects)}
        found |= self._missed(index, wanted)
        kinds = (np.ndarray, _torch.saved_tensor_type())
        untracked = index.untracked(*kinds, ids=wanted)
        for value in untracked.values:
            steps = _steps_from(value, wanted)
            if not steps or steps[0][1].child not in wanted:
                continue
            for one, step in steps:
                if step not in noted and self._note(step):
                    found[id(one)] = one
                noted.add(step)
        for holder, key in untracked.above({*wanted, *found}, self.ours):
            if self._note(Reference(id(holder), key, "", False)):
                found[id(holder)] = holder
        self.objects.update(found)
        return list(found.values())

    def _missed(self, index: HeapIndex, wanted: set[int]) -> dict[int, Any]:
        """Note what an index knows to hold some objects and the collector did not tell of."""
        found: dict[int, Any] = {}
        known = {(one.parent, key) for key in wanted for one in self.parents.get(key, ())}
        for holder, key in list(index.holders(np.fromiter(wanted, np.int64, len(wanted)))):
            is_new = (id(holder), key) not in known and id(holder) not in self.ours
            if not is_new or leads_nowhere(holder, self.objects[key]):
                continue
            if not self._note(Reference(id(holder), key, "", False)):
                continue
            if id(holder) in self.roots:
                self.root_objects[id(holder)] = holder
            else:
                found[id(holder)] = holder
        return found

    def _hooked(self, keys: set[int]) -> list[Any]:
        """Find the autograd nodes that hold those of some objects that are dictionaries of hooks."""
        if self._is_namer:
            return []
        loose = {key for key in keys if is_hooks(self.objects[key])}
        if not (loose := {key for key in loose if self.unexplained(key).python > 0}):
            return []
        self._walk_native(from_nodes=True)
        assert self.native is not None  # it has just been walked
        ownerless = {key for key in loose if not self.parents.get(key)}
        references, n_graphs = hooks_of_nodes(self.native.found, loose, ownerless)
        if n_graphs > 1:
            self.notes.append(
                f"a hook is in one of {n_graphs} graphs, and torch does not tell which; "
                "what is shown is the nearest"
            )
        nodes = [self._native_object(one.parent) for one in references if self._note(one)]
        self.objects.update((id(one), one) for one in nodes)
        return nodes

    def _made_over(self, keys: set[int]) -> list[Any]:
        """Find the tensors that were made over those of some objects that are arrays or buffers."""
        if self._is_namer:
            return []
        arrays = defaultdict[int, list[int]](list)
        for key in keys:
            if (address := address_of_bytes(self.objects[key])) and self.unexplained(
                key
            ).python > 0:
                arrays[address].append(key)
        if not arrays:
            return []
        self._walk_native()
        assert self.native is not None  # it has been walked
        references = tensors_over(self.native.found, arrays)
        tensors = [self._native_object(one.parent) for one in references if self._note(one)]
        self.objects.update((id(one), one) for one in tensors)
        return tensors

    def _has_unexplained(self, keys: set[int]) -> bool:
        return not self._is_namer and any(
            count > 0 for key in keys for count in self.unexplained(key)
        )

    def unexplained(self, key: int) -> Unexplained:
        """Count the references to an object that no holder was found for."""
        held = self.parents.get(key, ())
        python, native = self.references(key)
        python -= sum(one.is_pythons for one in held) + self.n_dull[key]
        return Unexplained(python, native - sum(one.counted for one in held))

    def is_indexed(self, value: Any) -> bool:
        """Say whether this search's index of the heap refers to an object."""
        return self._index is not None and gc.is_tracked(value)

    def references(self, key: int) -> Unexplained:
        """Count the references to an object from Python and from C++, this search's left out."""
        value = self.objects[key]
        ours = 3  # `objects`, `value`, the argument below
        ours += self.native is not None and key in self.native.found
        ours += self.is_indexed(value)
        python = sys.getrefcount(value) - ours
        if not is_tensor(value):
            return Unexplained(python - is_node(value), 0)  # torch keeps a node's wrapper
        owners = _torch.use_count(value) or 1
        # A tensor with owners in C++ has one reference from there to its Python side.
        return Unexplained(python - (owners > 1), owners - 1)


def _is_key(holder: Any, held: Any) -> bool:
    """Say whether a dictionary has an object as a key, and not as a value too."""
    if not issubclass(type(holder), dict):
        return False
    values = any(one is held for one in dict.values(holder))
    return not values and any(one is held for one in dict.__iter__(holder))


def _steps_from(value: Any, wanted: set[int]) -> list[tuple[Any, Reference]]:
    """Give the references from a NumPy array or a saved tensor down to what it is over, or of.

    The last is the value's own: a part of an array may be all that keeps the whole one.
    """
    if not issubclass(type(value), np.ndarray):
        is_plain = value.unpack_hook is None
        return [(value, Reference(id(value), id(value.data), "saved tensor", is_plain))]
    chain = [value]
    while issubclass(type(chain[-1].base), np.ndarray) and id(chain[-1].base) not in wanted:
        chain.append(chain[-1].base)
    steps = [(one, Reference(id(one), id(one.base), "array", False)) for one in reversed(chain)]
    if (
        not chain[-1].dtype.hasobject or chain[-1].base is not None
    ):  # over a tensor, or another array
        return steps
    parts = (part for _, part in object_parts(chain[-1]))
    held = {key: None for part in parts for key in map(id, part.flat) if key in wanted}
    items = [(chain[-1], Reference(id(chain[-1]), key, "", False)) for key in held]
    return [*items, *steps[1:]]
