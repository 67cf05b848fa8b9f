"""From the roots down: the shortest path to every object, once for each kind of holder."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from nbinspect import _torch, notebook
from nbinspect.heapgraph.graph import HeapGraph
from nbinspect.heapgraph.labelling import Label
from nbinspect.heapgraph.labels import Reader
from nbinspect.heapgraph.native import Reference
from nbinspect.heapgraph.objects import has_dict, isinstance_of
from nbinspect.holders.tags import module_parts, tags
from nbinspect.tensors import is_node, is_tensor, is_wrapper, new, node_name

TRANSPARENT = (dict, list, tuple, set, frozenset)
UNREACHABLE = frozenset({"CYCLE", "OTHER"})
HISTORY = frozenset({"OUT_HISTORY", "TRACEBACK"})
FRAME_COST = 3
LONGEST_NAME = 400
PART_COST = 20  # for a name of a module that is part of another: `block`, left over from a loop


class State(NamedTuple):
    """An object as held by one kind of holder."""

    key: int
    kind: str


class Arrival(NamedTuple):
    """How a state was reached first.

    Attributes:
        cost: length of the path, plus the cost of its root.
        before: the state it was reached from, None for a root.
        reference: the last link, None for a root.
        anchor: for what a graph saves, the tensor whose graph that is.
        history: "OUT_HISTORY" or "TRACEBACK" if the way leads through an old output, or the last error.
    """

    cost: int
    before: State | None
    reference: Reference | None
    anchor: State | None
    history: str


Queue = list[tuple[int, int, State]]


class Start(NamedTuple):
    """Where a search begins."""

    cost: int
    state: State
    label: Label


class Search:
    """Shortest paths through a `HeapGraph`, and their names.

    Attributes:
        arrivals: the best way to each state that can be reached.
        kinds: the kinds of holder that reach an object, by its id.
    """

    def __init__(self, graph: HeapGraph) -> None:
        self.graph = graph
        self.tags = tags(graph.objects)
        self.arrivals: dict[State, Arrival] = {}
        self.kinds: dict[int, list[str]] = {}
        self._labels: dict[State, Label] = {}
        self._reader = Reader()
        self._members, self._parts = module_parts(graph.objects)
        self._hooks = {
            key for key, tag in self.tags.items() if tag == "HOOK" and key in graph.parents
        }
        self._closed = set(graph.roots)  # named already, and better
        self._n_noted = 0
        self._through_hooks = False

    def spread_from_roots(self) -> None:
        """Reach all that the user's names lead to; hooks last, see `_may_enter`."""
        starts = [
            Start(root.cost, State(key, root.kind), root.label)
            for key, root in self.graph.roots.items()
            if key in self.graph.children
        ]
        starts += [
            Start(FRAME_COST, State(key, "FRAME"), Label(self.graph.frame_label(key)))
            for key in self.graph.frame_ids()
        ]
        self.spread(starts)
        self._through_hooks = True
        parents, hooks, todo = self.graph.parents, self._hooks, Queue()
        owners = {one.parent for key in hooks for one in parents[key] if one.parent >= 0}
        for state in [one for one in self.arrivals if one.key in owners and self._is_named(one)]:
            for reference in self.graph.children[state.key]:
                if reference.child in hooks:
                    self._arrive(state, self.arrivals[state], reference, "HOOK", todo)
        self._run(todo)
        self._through_hooks = False

    def _is_named(self, state: State) -> bool:
        """Say whether a hook's owner is not better known as a parameter of a model."""
        return state.kind != "OPTIMIZER_STATE" or "PARAMETER" not in self.kinds[state.key]

    def spread(self, starts: Iterable[Start]) -> None:
        """Reach all that `starts` lead to and that was not reached at less cost."""
        todo: Queue = []
        for start in starts:
            self._labels[start.state] = start.label
            history = start.state.kind if start.state.kind in HISTORY else ""
            self._note(start.state, Arrival(start.cost, None, None, None, history), todo)
        self._run(todo)

    def _run(self, todo: Queue) -> None:
        children = self.graph.children
        through_hooks = self._through_hooks
        closed = self._closed if through_hooks else self._closed | self._hooks
        while todo:
            cost, _, state = heapq.heappop(todo)
            arrival = self.arrivals[state]
            if cost > arrival.cost or state.key not in children:
                continue
            for reference in children[state.key]:
                if reference.child in closed:
                    continue
                kind = self.kind_after(state, reference)
                if not through_hooks or self._may_enter(reference, kind):
                    self._arrive(state, arrival, reference, kind, todo)

    def _arrive(
        self, state: State, arrival: Arrival, reference: Reference, kind: str, todo: Queue
    ) -> None:
        reached, cost = new(State, (reference.child, kind)), arrival.cost + 1
        if reference.child in self._parts and reference.parent not in self._members:
            cost += PART_COST
        anchor, history = arrival.anchor, arrival.history
        if kind != state.kind:
            history = kind if kind in HISTORY else history
            anchor = state if self._slot(reference) == "grad_fn" else anchor
        arrival = new(Arrival, (cost, state, reference, anchor, history))
        self._note(reached, arrival, todo)

    def _note(self, state: State, arrival: Arrival, todo: Queue) -> None:
        """Take a way to `state`, if it is the best so far."""
        known = self.arrivals.get(state)
        if known is None:
            self.kinds.setdefault(state.key, []).append(state.kind)
        elif known.cost <= arrival.cost:
            return
        self.arrivals[state] = arrival
        self._n_noted += 1  # of two ways of one length the first wins, whatever the addresses
        heapq.heappush(todo, (arrival.cost, self._n_noted, state))

    def kind_after(self, state: State, reference: Reference) -> str:
        """Give the kind of holder that `reference` makes of `state` for what it leads to."""
        kind = state.kind
        if kind in UNREACHABLE:
            return kind
        if slot := reference.slot or self._slot(reference):
            return _native_kind(slot) or kind
        tag = self.tags.get(reference.child, "")
        if tag and not (tag == "FRAME" and kind == "TRACEBACK"):
            return tag
        if kind == "VARIABLE" and state.key in self.graph.roots:
            return self._kind_of_name(self.graph.roots[state.key].label, reference)
        parent = self.graph.objects.get(state.key)
        if kind in {"PARAMETER", "BUFFER", "GRADIENT"} and is_tensor(parent):
            return kind if parent is not None and is_wrapper(parent) else "VARIABLE"
        return kind

    def _slot(self, reference: Reference) -> str:
        """Give a reference's C++ slot; Python's collector sees some tensors' `grad_fn` too."""
        if reference.slot or not is_tensor(self.graph.objects.get(reference.parent)):
            return reference.slot
        return "grad_fn" if is_node(self.graph.objects.get(reference.child)) else ""

    def _kind_of_name(self, root: Label, reference: Reference) -> str:
        """Tell a user's own name from one for a displayed value or the last error."""
        if root.context != "names" and root.text != "sys":
            return "VARIABLE"
        objects = self.graph.objects
        name = self._reader.place(root, objects[reference.parent], objects[reference.child])
        if root.context == "names":
            return "OUT_HISTORY" if notebook.is_out_name(name) else "VARIABLE"
        return "TRACEBACK" if name in notebook.LAST_ERROR else "VARIABLE"

    def _may_enter(self, reference: Reference, kind: str) -> bool:
        """Keep hooks apart: a hook that is a bound method does not make its object a hook's.

        So what other names lead to is entered from a hook only if it is a container or a tensor.
        """
        child = self.graph.objects[reference.child]
        if kind != "HOOK" or isinstance_of(child, *TRANSPARENT) or is_tensor(child):
            return True
        return reference.child not in self.kinds or not has_dict(child)

    def label(self, state: State) -> Label:
        """Name an object as reached through one kind of holder, from the root down."""
        path: list[State] = []
        at: State | None = state
        while at is not None and at not in self._labels:
            path.append(at)
            at = self.arrivals[at].before
        for one in reversed(path):
            self._labels[one] = self._extended(one)
        return self._labels[state]

    def _extended(self, state: State) -> Label:
        arrival = self.arrivals[state]
        if arrival.before is None or arrival.reference is None:
            return Label("")
        return self.label_after(arrival.before, arrival.reference)

    def label_after(self, state: State, reference: Reference) -> Label:
        """Name what `reference` leads to from `state`, whether or not that is the best way."""
        objects, label = self.graph.objects, self._labels.get(state)
        if label is None:
            label = self.label(state)
        if self.graph.is_frame(state.key):
            name = self.graph.frame_variable(reference)
            return Label(f"{label.text}, variable {name}")
        parent, child = objects[state.key], objects[reference.child]
        found = self._reader.step(label, parent, child, self._slot(reference), self._name_of).label
        return found if len(found.text) <= LONGEST_NAME else replace(found, text=_cut(found.text))

    def start_of(self, state: State) -> State:
        """Follow the best way back to where it begins."""
        before = self.arrivals[state].before
        while before is not None:
            state, before = before, self.arrivals[before].before
        return state

    def nearest_node(self, state: State) -> tuple[str, str]:
        """Name the autograd node that the best way to `state` came through last, and its slot."""
        at: State | None = state
        slot = ""
        while at is not None:
            value: Any = self.graph.objects.get(at.key)
            if is_node(value):
                return node_name(value), slot
            arrival = self.arrivals[at]
            at, slot = arrival.before, arrival.reference.slot if arrival.reference else ""
        return "a node", ""

    def _name_of(self, value: Any) -> str | None:
        """Name an object that is a dictionary's key, if it is a tensor or module with a name."""
        for kind in ("PARAMETER", "BUFFER", "VARIABLE"):
            state = State(id(value), kind)
            if state in self.arrivals:
                name = self.label(state).text
                return None if name.endswith(", a key") else name
        return None


def _cut(name: str) -> str:
    """Shorten a name in the middle, since both its ends tell where to look."""
    kept = LONGEST_NAME // 2 - 1
    return f"{name[:kept]}…{name[-kept:]}"


@lru_cache(maxsize=256)
def _native_kind(slot: str) -> str:
    """Give the kind of holder that a C++ reference makes, "" if what leads to it decides."""
    if slot == "grad":
        return "GRADIENT"
    if slot.startswith(_torch.SCRIPT_MEMBERS):
        return slot.partition(" ")[0].upper()
    return "" if slot in {"base", "array"} else "SAVED_FOR_BACKWARD"
