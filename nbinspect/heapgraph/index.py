"""Who refers to this? answered for thousands of objects at once, from one scan of the heap."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 20_000  # objects whose referents are in memory at once
FILTER_BITS = 20


class HeapIndex:
    """All references between objects that Python's collector tracks, as two flat arrays.

    One scan costs about as much as six calls of ``gc.get_referrers``, and then every question
    costs milliseconds, however many objects it asks about. That pays for a census, which asks
    about all tensors and all that holds them.

    Attributes:
        objects: what was tracked when the index was made; it keeps them alive.
    """

    def __init__(self, objects: list[Any]) -> None:
        self.objects = objects
        counts: list[NDArray[np.int64]] = []
        children: list[NDArray[np.int64]] = []
        for start in range(0, len(objects), CHUNK):
            referents = [gc.get_referents(one) for one in objects[start : start + CHUNK]]
            counts.append(np.fromiter(map(len, referents), np.int64, len(referents)))
            total = int(counts[-1].sum())
            flat = np.fromiter(map(id, chain.from_iterable(referents)), np.int64, total)
            children.append(flat)
        self._children = np.concatenate([np.empty(0, np.int64), *children])
        self._ends = np.cumsum(np.concatenate([np.empty(0, np.int64), *counts]))
        self._hashes = _hash(self._children)

    def holders(self, ids: NDArray[np.int64]) -> Iterator[tuple[Any, int]]:
        """Yield (holder, id of what it holds) for each reference to one of `ids`."""
        wanted = np.sort(ids)
        if not len(wanted):
            return
        may_be = np.zeros(1 << FILTER_BITS, np.bool_)
        may_be[_hash(wanted)] = True
        places = np.flatnonzero(may_be[self._hashes])
        found = self._children[places]
        nearest = np.minimum(np.searchsorted(wanted, found), len(wanted) - 1)
        sure = wanted[nearest] == found
        rows = np.searchsorted(self._ends, places[sure], side="right")
        for row, child in zip(rows.tolist(), found[sure].tolist(), strict=True):
            yield self.objects[row], child

    def untracked(self, kind: type) -> list[Any]:
        """List the values of this type that tracked objects hold, for types like ndarray.

        The collector does not track them, so they are seen only from their holders.
        """
        seen: dict[int, Any] = {}
        for start in range(0, len(self.objects), CHUNK):
            for value in gc.get_referents(*self.objects[start : start + CHUNK]):
                if issubclass(type(value), kind):
                    seen[id(value)] = value
        return list(seen.values())


def _hash(ids: NDArray[np.int64]) -> NDArray[np.int32]:
    """Mix addresses, which are multiples of 16, into the filter's range."""
    mixed = (ids >> 4) ^ (ids >> (4 + FILTER_BITS))
    return (mixed & ((1 << FILTER_BITS) - 1)).astype(np.int32)
