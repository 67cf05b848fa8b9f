"""Who refers to this? answered for thousands of objects at once, from one scan of the heap."""

from __future__ import annotations

import gc
from collections.abc import Container, Iterator
from itertools import compress, filterfalse
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nbinspect.tensors import addresses, type_addresses

BLOCK = 256  # objects that share an entry; asking for each alone takes twice as long
FILTER_BITS = 20
MOST_SCANS = 40  # together they take about as long as sorting


class HeapIndex:
    """All references between objects that Python's collector tracks, as two flat arrays.

    One scan costs about as much as three calls of ``gc.get_referrers``, and then every question
    costs milliseconds, however many objects it asks about. That pays for a census, which asks
    about all tensors and all that holds them. The scan notes what each block of objects refers
    to; which of them it is that does is asked again for the few blocks that matter.

    Attributes:
        objects: what was tracked when the index was made; it keeps them alive.
        types: the addresses of their types.
    """

    def __init__(self, objects: list[Any]) -> None:
        self.objects = objects
        children, types = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for start in range(0, len(objects), BLOCK):
            block = objects[start : start + BLOCK]
            referents = gc.get_referents(*block)
            children.append(addresses(referents, len(referents)))
            types.append(type_addresses(block))  # now, while they are in the processor's cache
        self.types = np.concatenate(types)
        self._children = np.concatenate(children)
        self._ends = np.cumsum([len(block) for block in children[1:]])
        self._hashes = _hash(self._children)
        self._marks = np.empty(len(self._children), np.bool_)
        self._n_asked = 0
        self._order: NDArray[np.int64] | None = None

    def holders(self, ids: NDArray[np.int64]) -> Iterator[tuple[Any, int]]:
        """Yield (holder, id of what it holds) for each reference to one of `ids`."""
        self._n_asked += 1
        places = self._scanned(ids) if self._n_asked <= MOST_SCANS else self._looked_up(ids)
        blocks = np.unique(np.searchsorted(self._ends, places, side="right"))
        asked = set(ids.tolist())
        for start in (blocks * BLOCK).tolist():
            for holder in self.objects[start : start + BLOCK]:
                for child in map(id, gc.get_referents(holder)):
                    if child in asked:
                        yield holder, child

    def _scanned(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the places of references to `ids` by a pass over all references."""
        wanted = np.sort(ids)
        may_be = np.zeros(1 << FILTER_BITS, np.bool_)
        may_be[_hash(wanted)] = True
        # Into memory that is there, and with no look at bounds: at half the time.
        np.take(may_be, self._hashes, out=self._marks, mode="clip")
        places = np.flatnonzero(self._marks)
        found = self._children[places]
        nearest = np.minimum(np.searchsorted(wanted, found), len(wanted) - 1)
        sure: NDArray[np.int64] = places[wanted[nearest] == found]
        return sure

    def _looked_up(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find them in sorted order, which pays once there are many questions: a deep structure."""
        if self._order is None:
            self._order = np.argsort(self._children, kind="stable")
            self._children = self._children[self._order]
        start = np.searchsorted(self._children, ids, side="left")
        end = np.searchsorted(self._children, ids, side="right")
        runs = [self._order[a:b] for a, b in zip(start.tolist(), end.tolist(), strict=True)]
        return np.concatenate([np.empty(0, np.int64), *runs])

    def untracked(self, *kinds: type, ids: Container[int] = ()) -> Untracked:
        """Find the values of these types that tracked objects hold, for types like ndarray.

        The collector does not track them, so they are seen only from their holders. Nor does it
        track a dictionary or tuple that holds nothing else: it is looked into as well.

        Args:
            kinds: the types.
            ids: of other objects whose untracked holders are wanted too.
        """
        seen: dict[int, Any] = {}
        wanted = _with_subclasses(kinds)
        loose: dict[int, Any] = {}
        for start in range(0, len(self.objects), BLOCK):
            referents = gc.get_referents(*self.objects[start : start + BLOCK])
            types = list(map(id, map(type, referents)))
            if not wanted.isdisjoint(types):
                found = compress(referents, map(wanted.__contains__, types))
                seen.update((id(value), value) for value in found)
            may_be_loose = compress(referents, map(LOOSE.__contains__, types))
            loose.update((id(value), value) for value in filterfalse(gc.is_tracked, may_be_loose))
        holders, todo = list[tuple[Any, Any]](), list(loose.values())
        while todo:
            holder = todo.pop()
            for value in gc.get_referents(holder):
                if id(type(value)) in wanted:
                    seen[id(value)] = value
                elif _is_loose(value) and id(value) not in loose:
                    loose[id(value)] = value
                    todo.append(value)
                if id(value) in seen or id(value) in loose or id(value) in ids:
                    holders.append((holder, value))
        return Untracked(list(seen.values()), holders)


LOOSE = frozenset(map(id, (dict, tuple)))  # by address: a metaclass may have an `__eq__` of its own


def _is_loose(value: Any) -> bool:
    return id(type(value)) in LOOSE and not gc.is_tracked(value)


class Untracked(NamedTuple):
    """Values that the collector does not track, and what of their holders it does not track either.

    Attributes:
        values: each once.
        holders: (dictionary or tuple, one of the values or another such holder).
    """

    values: list[Any]
    holders: list[tuple[Any, Any]]

    def above(self, keys: set[int], ours: Container[int] = ()) -> list[tuple[Any, int]]:
        """List the holders of some of the values, and theirs, with the id of what they hold.

        Args:
            keys: ids of the values.
            ours: ids of holders that are no part of the answer.
        """
        found, known = list[tuple[Any, int]](), set(keys)
        while True:
            new = [(a, id(b)) for a, b in self.holders if id(b) in known and id(a) not in known]
            new = [(holder, key) for holder, key in new if id(holder) not in ours]
            if not new:
                return found
            found += new
            known.update(id(holder) for holder, _ in new)


def _with_subclasses(kinds: tuple[type, ...]) -> set[int]:
    """Give the ids of types and of all that are made from them."""
    found, todo = set[int](), list(kinds)
    while todo:
        kind = todo.pop()
        found.add(id(kind))
        todo += type.__subclasses__(kind)
    return found


def _hash(ids: NDArray[np.int64]) -> NDArray[np.int32]:
    """Mix addresses, which are multiples of 16, into the filter's range."""
    mixed = (ids >> 4).astype(np.int32)
    mixed ^= mixed >> FILTER_BITS
    mixed &= (1 << FILTER_BITS) - 1
    return mixed
