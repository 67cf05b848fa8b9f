"""How many Python objects of each type there are, and whose number rises every time."""

from __future__ import annotations

import gc
from collections import Counter
from itertools import pairwise
from typing import Any

from nbinspect.heapgraph.graph import collector_paused
from nbinspect.tensors import class_name

OWN = ("nbinspect.", "torch.storage.", "weakref.")
CONTAINERS = {"builtins.dict", "builtins.list", "builtins.tuple", "builtins.set", "builtins.cell"}
OURS_PER_COUNT = 5  # containers that a count leaves behind itself
MOST_NEW = 100
LEAST = 3  # counts that tell a trend
_MODULE: Any = vars(type)["__module__"]


class ObjectCounts:
    """Counts live objects by type, as often as asked.

    Blind to: objects that the collector does not track: numbers, strings, NumPy arrays.
    Source: ``gc.get_objects``. The same counts as ``objgraph.typestats`` at a tenth of its time.
    """

    def __init__(self) -> None:
        self.counts: list[dict[str, int]] = []
        self._ids: list[dict[str, set[int]]] = [{}, {}]

    def count(self) -> None:
        """Count now."""
        with collector_paused():
            objects = gc.get_objects()
            kinds = list(map(type, objects))
            # By id, since a metaclass may have an `__eq__` of its own.
            distinct = dict(zip(map(id, kinds), kinds, strict=True))
            counts: dict[str, int] = {}
            for key, number in Counter(map(id, kinds)).items():
                name = type_name(distinct[key])
                counts[name] = counts.get(name, 0) + number
            self.counts.append(counts)
            self._note_ids(objects, kinds, distinct)
            del objects, kinds

    def _note_ids(self, objects: list[Any], kinds: list[type], distinct: dict[int, type]) -> None:
        """Remember which objects of the rising types there are, to tell later which are new."""
        rising = set(self.rising(0))
        if not rising:
            self._ids = [self._ids[1], {}]
            return
        named = {key: name for key, kind in distinct.items() if (name := type_name(kind)) in rising}
        found: dict[str, set[int]] = {name: set() for name in rising}
        for one, key in zip(objects, map(id, kinds), strict=True):
            if key in named:
                found[named[key]].add(id(one))
        self._ids = [self._ids[1], found]

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

    def new(self, name: str) -> list[Any]:
        """List objects of this type that came between the last two counts, a few at most."""
        old, last = self._ids
        wanted = last.get(name, set()) - old.get(name, set())
        found = []
        for one in gc.get_objects():
            if id(one) in wanted and type_name(type(one)) == name:
                found.append(one)
                if len(found) == MOST_NEW:
                    break
        return found

    def close(self) -> None:
        """Forget all."""
        self.counts.clear()
        self._ids = [{}, {}]


def _expected(name: str) -> int:
    return OURS_PER_COUNT if name in CONTAINERS else 0


def type_name(kind: type) -> str:
    """Spell a type with its module, running no code of its metaclass."""
    return f"{_MODULE.__get__(kind)}.{class_name(kind)}"
