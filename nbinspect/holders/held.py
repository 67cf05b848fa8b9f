"""The census: every live storage once, with all who hold it, as plain values."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any, NamedTuple

from nbinspect import _torch
from nbinspect.blocks import Unavailable
from nbinspect.heapgraph.graph import HeapGraph, collector_paused
from nbinspect.heapgraph.labelling import Label
from nbinspect.heapgraph.labels import short_name
from nbinspect.heapgraph.native import UNPACK, Reference
from nbinspect.holders.search import HISTORY, UNREACHABLE, Arrival, Search, State
from nbinspect.holders.tags import KINDS
from nbinspect.holders.unreachable import UNCOLLECTABLE, spread_from_unreachable
from nbinspect.tensors import (
    Storage,
    describe,
    is_node,
    is_tensor,
    looking,
    new,
    storages,
    used_bytes,
)

MOST_CLAIMS = 9
ORDER = {kind: rank for rank, kind in enumerate(KINDS)}
# A gradient is best named after its tensor, and that after what the user calls it.
MAY_BE_GRADIENTS = frozenset(KINDS[: KINDS.index("GRADIENT") + 1])
BEST_NAMED = {"PARAMETER": -3, "BUFFER": -2, "VARIABLE": -1}
Rank = tuple[int, int, bool, int, int]


class Claim(NamedTuple):
    """One holder of a storage.

    Attributes:
        kind: the kind of holder, one of `KINDS`.
        owner: its name, read from the root.
        why: what saved it, or why it is in a cycle; "" if the kind says it all.
        container: what the owner is an item of, as `Label.container` says it.
        history: "OUT_HISTORY" or "TRACEBACK" if it is part of an old output, or of the last error.
    """

    kind: str
    owner: str
    why: str = ""
    container: str = ""
    history: str = ""


class HeldStorage(NamedTuple):
    """A live storage and who holds it.

    Attributes:
        size_bytes: its size.
        device: where it is.
        claims: its holders, the one it is charged to first.
        n_more_claims: holders that are not listed.
        used_bytes: the most of it that its tensors can reach.
        tensor: what it is, e.g. "64x256 float32".
        only: "OUT_HISTORY" or "TRACEBACK" if nothing but old outputs, or the last error, leads
            to it; else "".
        frozen_gradient: it is the gradient of a parameter that needs none.
        handles: what `_torch.handle` gives for it: its own for as long as it lives.
    """

    size_bytes: int
    device: str
    claims: tuple[Claim, ...]
    n_more_claims: int
    used_bytes: int
    tensor: str
    only: str
    frozen_gradient: bool
    handles: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Census:
    """All live storages that can be seen from Python.

    Attributes:
        storages: each once, the largest first.
        complete: nothing was left out for want of time, stack or a readable tensor.
        notes: what was left out, and why.
    """

    storages: tuple[HeldStorage, ...]
    complete: bool
    notes: tuple[str, ...]


def census(cap: int | None = None, meet: Callable[[Iterable[Any]], None] | None = None) -> Census:
    """Find every live storage and who holds it.

    Args:
        cap: how many autograd nodes to look at, None for as many as the stack allows.
        meet: called with all live tensors; it may keep weak references, no others.

    Cost: one scan of the heap, 0.1 to 0.5 s in a fresh notebook, up to 1 s per million objects;
    synchronises nothing, allocates nothing on a device, collects nothing, runs no hook and none of
    the user's code.
    Blind to: memory that no Python object leads to (library workspaces, DDP buckets, autocast's
    cache, constants of TorchScript, packed weights of quantized modules, DLPack), and values of a
    running expression that have no name yet.
    """
    with collector_paused(), looking():
        graph = HeapGraph(gc.get_objects(), cap)
        try:
            search = Search(graph)
            search.spread_from_roots()
            reasons = spread_from_unreachable(search)
            if meet is not None:
                meet(graph.tensors())
            return _Taker(search, reasons).take()
        finally:
            graph.close()


@dataclass(slots=True)
class _Shared:
    """The tensors that look into the same bytes, and the largest storage over these."""

    storage: Storage
    tensors: list[Any]
    handles: set[int]

    def add(self, storage: Storage, tensor: Any) -> None:
        self.tensors.append(tensor)
        self.handles.add(storage.handle)
        if storage.size_bytes > self.storage.size_bytes:
            self.storage = storage


class _Taker:
    """Turns a finished search into plain values."""

    def __init__(self, search: Search, reasons: dict[int, str]) -> None:
        self._search = search
        self._graph: HeapGraph = search.graph
        self._reasons = reasons
        self._of_nodes: dict[tuple[State, str, str, str | State], Claim] = {}

    @cached_property
    def _live(self) -> set[int]:
        return _reached_without_history(self._search)

    def take(self) -> Census:
        found: dict[tuple[str, int], _Shared] = {}
        unreadable: dict[str, int] = defaultdict(int)
        for tensor in self._graph.tensors():
            own = storages(tensor)
            if isinstance(own, Unavailable):
                unreadable[own.reason] += 1
                continue
            for storage in own:
                shared = found.get(storage.key)
                if shared is None:
                    found[storage.key] = _Shared(storage, [tensor], {storage.handle})
                else:
                    shared.add(storage, tensor)
        held = list(map(self._held, found.values()))
        held.sort(key=lambda one: (-one.size_bytes, one.claims[0].owner))
        complete = self._graph.complete and not unreadable and not gc.get_freeze_count()
        return Census(tuple(held), complete, self._notes(unreadable))

    def _notes(self, unreadable: dict[str, int]) -> tuple[str, ...]:
        notes = [f"{n} not counted: {why}" for why, n in sorted(unreadable.items())]
        if not self._graph.complete:
            notes.append("the autograd graph is larger than can be walked safely; not all was seen")
        if n_frozen := gc.get_freeze_count():
            notes.append(f"{n_frozen} objects that gc.freeze() hides were not seen")
        return tuple(notes)

    def _held(self, shared: _Shared) -> HeldStorage:
        storage, tensors = shared.storage, shared.tensors
        used = list(map(used_bytes, tensors))
        wholes = [(False, 0)]
        if len(tensors) > 1:  # its own tensor before its views, and larger ones before smaller ones
            wholes = [(_torch.is_view(one), -n) for one, n in zip(tensors, used, strict=True)]
        claims = self._claims(tensors, wholes)
        reach = sum(compress(used, map(self._is_held_itself, tensors)))
        return HeldStorage(
            storage.size_bytes,
            storage.device,
            tuple(claims[:MOST_CLAIMS]),
            max(0, len(claims) - MOST_CLAIMS),
            min(reach or storage.size_bytes, storage.size_bytes),
            describe(tensors[wholes.index(min(wholes))]),
            self._only(tensors, claims),
            claims[0].kind in MAY_BE_GRADIENTS and self._is_frozen_gradient(tensors),
            tuple(shared.handles),
        )

    def _claims(self, tensors: list[Any], wholes: list[tuple[bool, int]]) -> list[Claim]:
        """List who holds any of the tensors over one storage, the best name first."""
        inside = set(map(id, tensors))
        found: dict[Claim, Rank] = {}
        for tensor, whole in zip(tensors, wholes, strict=True):
            for reference in self._graph.parents.get(id(tensor), ()):
                if not (reference.slot == "base" and reference.parent in inside):
                    self._claim(reference, whole, found)
            if id(tensor) in self._reasons:
                self._claim_as_start(tensor, whole, found)
        if len(found) == 1:
            return list(found)
        named = [claim for claim in found if ", a key" not in claim.owner] or list(found)
        best = sorted(named, key=lambda claim: (*found[claim], *_plainness(claim.owner)))
        return best or [Claim("OTHER", short_name(tensors[0]), "no holder was found")]

    def _claim(
        self, reference: Reference, whole: tuple[bool, int], found: dict[Claim, Rank]
    ) -> None:
        search = self._search
        kinds = search.kinds.get(reference.parent, [])
        if len(kinds) > 1 and is_tensor(self._graph.objects.get(reference.parent)):
            kinds = sorted(kinds, key=_naming)[:1]  # a tensor's best name is enough
        for parent_kind in kinds:
            state = new(State, (reference.parent, parent_kind))
            kind = search.kind_after(state, reference)
            if kind == "HOOK" and State(reference.child, kind) not in search.arrivals:
                continue
            arrival = search.arrivals[state]
            claim = self._told(state, arrival, reference, kind)
            rank = (ORDER[kind], _naming(parent_kind), *whole, arrival.cost)
            known = found.get(claim)
            if known is None or rank < known:
                found[claim] = rank

    def _told(self, state: State, arrival: Arrival, reference: Reference, kind: str) -> Claim:
        """Name a holder; of what a large graph's nodes save few claims differ."""
        if not (arrival.anchor and reference.slot.startswith("saved ")):
            return self._told_anew(state, arrival, reference, kind)
        node = self._graph.objects[state.key]
        key = arrival.anchor, arrival.history, kind, node.name() if is_node(node) else state
        claim = self._of_nodes.get(key)
        if claim is None:
            claim = self._of_nodes[key] = self._told_anew(state, arrival, reference, kind)
        return claim

    def _told_anew(self, state: State, arrival: Arrival, reference: Reference, kind: str) -> Claim:
        label = self._owner(state, arrival, reference, kind)
        history = kind if kind in HISTORY else arrival.history
        return Claim(kind, label.text, self._why(state, reference), label.container, history)

    def _claim_as_start(
        self, tensor: Any, whole: tuple[bool, int], found: dict[Claim, Rank]
    ) -> None:
        """A tensor that is itself where an unreachable part begins has no holder to name."""
        for kind in ("CYCLE", "OTHER"):
            arrival = self._search.arrivals.get(State(id(tensor), kind))
            if arrival is not None and arrival.before is None:
                rank = (ORDER[kind], 0, *whole, arrival.cost)
                found[Claim(kind, short_name(tensor), self._reasons[id(tensor)])] = rank

    def _owner(self, state: State, arrival: Arrival, reference: Reference, kind: str) -> Label:
        search = self._search
        if kind == "SAVED_FOR_BACKWARD" and arrival.anchor is not None:
            return search.label(arrival.anchor)
        if kind == "CYCLE":
            start = search.start_of(state)
            if self._reasons.get(start.key) == UNCOLLECTABLE:
                return search.label(start)
        return search.label_after(state, reference)

    def _why(self, state: State, reference: Reference) -> str:
        search, slot = self._search, reference.slot
        if state.kind in UNREACHABLE:
            return self._reasons.get(search.start_of(state).key, "")
        if state.kind != "SAVED_FOR_BACKWARD" or slot == "grad":
            return ""
        if slot == "variable":
            return "a leaf of this graph"
        node, node_slot = search.nearest_node(state)
        if node_slot == UNPACK:
            return f"kept by a saved-tensor hook of {node}"
        if slot or node_slot.startswith("saved "):
            return f"saved by {node}"
        return f"attribute {search.label_after(state, reference).text.rpartition('.')[2]} of {node}"

    def _only(self, tensors: list[Any], claims: list[Claim]) -> str:
        if not (claims[0].history and all(claim.history for claim in claims)):
            return ""
        if any(id(tensor) in self._live for tensor in tensors):
            return ""
        kinds = {kind for tensor in tensors for kind in self._search.kinds.get(id(tensor), ())}
        if kinds & UNREACHABLE:
            return ""
        histories = {claim.history for claim in claims}
        return "TRACEBACK" if "TRACEBACK" in histories else "OUT_HISTORY"

    def _is_held_itself(self, tensor: Any) -> bool:
        """Say whether anything but a view of it holds a tensor."""
        for reference in self._graph.parents.get(id(tensor), ()):
            if reference.slot != "base":
                return True
        return False

    def _is_frozen_gradient(self, tensors: Iterable[Any]) -> bool:
        for tensor in tensors:
            for reference in self._graph.parents.get(id(tensor), ()):
                if reference.slot == "grad":
                    owner = self._graph.objects[reference.parent]
                    return is_tensor(owner) and owner.is_leaf and not owner.requires_grad
        return False


def _naming(kind: str) -> int:
    return BEST_NAMED.get(kind, ORDER[kind])


def _plainness(owner: str) -> tuple[bool, int, str]:
    """Prefer names that the user knows: ``Out[4]`` to ``__``, then the shorter."""
    return owner.startswith("_"), len(owner), owner


def _reached_without_history(search: Search) -> set[int]:
    """Give the ids of all that is reached without old outputs and errors."""
    graph, reached, rest = search.graph, set[int](), set[int]()
    for state, arrival in search.arrivals.items():
        (rest if arrival.history or state.kind in UNREACHABLE else reached).add(state.key)
    rest -= reached
    held = {key: graph.parents.get(key, ()) for key in rest}
    todo = [key for key in rest if any(_leads_on(search, one, reached) for one in held[key])]
    while todo:  # to these another way than the best leads without history
        key = todo.pop()
        if key in rest:
            rest.remove(key)
            reached.add(key)
            below = (one for one in graph.children.get(key, ()) if one.child in rest)
            todo += [one.child for one in below if _leads_on(search, one, reached)]
    return reached


def _leads_on(search: Search, reference: Reference, reached: set[int]) -> bool:
    """Say whether a reference is from what is `reached` without history, and part of none itself."""
    if reference.parent not in reached:
        return False
    root = search.graph.roots.get(reference.parent)
    state = State(reference.parent, root.kind if root else "VARIABLE")
    return search.kind_after(state, reference) not in HISTORY
