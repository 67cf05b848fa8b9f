"""How many Python objects there are and how long containers are, and what rises every time."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable
from itertools import compress, pairwise
from typing import Any

from nbinspect.heapgraph.graph import collector_paused
from nbinspect.leaks.lengths import Lengths
from nbinspect.tensors import class_name
from nbinspect.type_counts import OURS, is_odd

OWN = ("torch.storage.", "weakref.")
CONTAINERS = {"builtins.dict", "builtins.list", "builtins.tuple", "builtins.set", "builtins.cell"}
OURS_PER_COUNT = 5  # containers that a count leaves behind itself
MOST_NEW = 100
LEAST = 3  # counts that tell a trend
_MODULE: Any = vars(type)["__module__"]


class ObjectCounts:
    """Counts live objects by type, as often as asked.

    Attributes:
        counts: one for each time.
        lengths: which containers got longer between these.

    Cost: a pass over the heap, some 0.5 µs an object.
    Blind to: objects that the collector does not track: numbers, strings, NumPy arrays.
    Source: the numbers of `objgraph.most_common_types`, added up at C's speed. `objgraph.growth` is the
    same with ``gc.collect()`` before it, which would free what is to be told, and keeps the most ever
    instead of each count.
    """

    def __init__(self) -> None:
        self.counts: list[dict[str, int]] = []
        self.lengths = Lengths()
        self._ids: list[dict[str, set[int]]] = [{}, {}]

    def count(self) -> None:
        """Count now."""
        with collector_paused():
            objects = gc.get_objects()
            kinds = list(map(type, objects))
            # By id, since a metaclass may have an `__eq__` of its own.
            keys = list(map(id, kinds))
            distinct = dict(zip(keys, kinds, strict=True))
            self.counts.append(_by_name(keys, distinct))
            self._ids = [self._ids[1], self._ids_of(set(self.rising(0)), objects, keys, distinct)]
            self.lengths.note(objects, keys, distinct)
            del objects, kinds

    def _ids_of(
        self, names: set[str], objects: list[Any], keys: list[int], distinct: dict[int, type]
    ) -> dict[str, set[int]]:
        """Give the ids of all objects of some types, to tell later which are new."""
        named = {key: name for key, kind in distinct.items() if (name := type_name(kind)) in names}
        found: dict[str, set[int]] = {name: set() for name in names}
        chosen = list(map(named.__contains__, keys))
        for one, key in zip(compress(objects, chosen), compress(keys, chosen), strict=True):
            found[named[key]].add(id(one))
        return found

    def rising(self, first: int) -> list[str]:
        """Name the types whose number rose every time since count number `first`."""
        counts = self.counts[first:]
        if len(counts) < LEAST:
            return []
        pairs = list(pairwise(counts))
        return [
            name
            for name in counts[-1]
            if not name.startswith(OWN)
            and all(new.get(name, 0) - old.get(name, 0) > _expected(name) for old, new in pairs)
        ]

    def new(self, names: Iterable[str]) -> dict[str, list[Any]]:
        """List objects of these types that came between the last two counts, a few at most."""
        old, last = self._ids
        found: dict[str, list[Any]] = {name: [] for name in names}
        nothing = set[int]()
        new = {name: last.get(name, nothing) - old.get(name, nothing) for name in found}
        wanted = nothing.union(*new.values())
        objects = gc.get_objects()
        for one in compress(objects, [id(one) in wanted for one in objects]):
            name = type_name(type(one))
            if id(one) in new.get(name, nothing) and len(found[name]) < MOST_NEW:
                found[name].append(one)
        return found

    def close(self) -> None:
        """Forget all."""
        self.counts.clear()
        self.lengths = Lengths()
        self._ids = [{}, {}]


def _by_name(keys: list[int], distinct: dict[int, type]) -> dict[str, int]:
    """Count types by name: several may share one, as those of a cell that is run again do."""
    found = Counter[str]()
    for key, number in Counter(keys).items():
        if not is_odd(distinct[key]):
            found[type_name(distinct[key])] += number
    return {name: number for name, number in found.items() if not name.startswith(OURS)}


def _expected(name: str) -> int:
    return OURS_PER_COUNT if name in CONTAINERS else 0


def type_name(kind: type) -> str:
    """Spell a type with its module, running no code of its metaclass."""
    return f"{_MODULE.__get__(kind)}.{class_name(kind)}"
