"""Containers that get longer with every repetition, and how much their new items take."""

from __future__ import annotations

import gc
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import compress, islice
from typing import Any, NamedTuple

import numpy as np

from nbinspect.heapgraph.objects import isinstance_of, own_size
from nbinspect.tensors import is_node, is_tensor

BASES: tuple[Any, ...] = (list, dict, set, deque)
MOST_ITEMS = 1000  # that are looked at, of all the new ones
MOST_OBJECTS = 20_000
SHARED = (type, types.ModuleType, types.FunctionType, types.CodeType, types.BuiltinFunctionType)
_BOX = [object()]
ALONE = sys.getrefcount(_BOX[0])  # of what one list holds, as seen from here


class Longer(NamedTuple):
    """A container that got longer every time.

    Attributes:
        container: itself.
        sizes: its lengths.
    """

    container: Any
    sizes: list[int]


class Lengths:
    """Follows how long the containers of the program are, without holding them."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._rising: dict[int, list[int]] = {}

    def note(self, objects: list[Any], kinds: list[int], distinct: dict[int, type]) -> None:
        """Note how long each container is now.

        Args:
            objects: all that the collector tracks.
            kinds: the ids of their types.
            distinct: these types by their ids.
        """
        plain = set(map(id, BASES))
        found = list(compress(objects, map(plain.__contains__, kinds)))
        now = dict(zip(map(id, found), map(len, found), strict=True))
        own = {key for key, kind in distinct.items() if issubclass(kind, BASES)} - plain
        found = list(compress(objects, map(own.__contains__, kinds)))
        now.update((id(one), base_of(one).__len__(one)) for one in found)  # not the user's `len`
        del found
        before, rising = self._before, self._rising
        self._rising = {
            key: [*rising.get(key, (before[key],)), size]
            for key, size in now.items()
            if size > before.get(key, size)
        }
        self._before = now

    def longer(self, n_times: int, but: set[int]) -> list[Longer]:
        """List the containers that got longer at each of the last times.

        Args:
            n_times: how many.
            but: ids of containers that do not count.
        """
        sizes = {
            key: found[-n_times - 1 :]
            for key, found in self._rising.items()
            if len(found) > n_times and key not in but
        }
        objects = gc.get_objects()
        found = compress(objects, [id(one) in sizes for one in objects])
        return [Longer(one, sizes[id(one)]) for one in found if isinstance_of(one, *BASES)]


def base_of(value: Any) -> Any:
    """Give the built-in type that a container is of."""
    return next(base for base in BASES if isinstance_of(value, base))


def new_items(one: Longer) -> list[Any]:
    """List what a container has got, or a part of it where that is much."""
    value, first = one.container, one.sizes[0]
    if isinstance_of(value, dict):
        pairs = islice(dict.items(value), first, first + MOST_ITEMS)
        return [part for pair in pairs for part in pair]
    base = base_of(value)
    start = 0 if base is set else first
    return list(islice(base.__iter__(value), start, start + MOST_ITEMS))


def bytes_per_run(one: Longer) -> int:
    """Estimate what the new items of a container take that nothing else holds.

    Blind to: tensors, and what several objects hold.
    """
    items = new_items(one)
    n_new, n_seen = one.sizes[-1] - one.sizes[0], len(items)
    if isinstance_of(one.container, dict):
        n_seen //= 2
    size = sum(map(own_size, _with_own(items)))
    return round((size / max(1, n_seen) + 8) * n_new / (len(one.sizes) - 1))


def _with_own(items: list[Any]) -> Iterator[Any]:
    """Yield some objects and what only they hold, each once."""
    level, n_seen = items, 0
    while level and n_seen < MOST_OBJECTS:
        # The container holds each item, as does this list.
        own = [level[at] for at in range(len(level)) if sys.getrefcount(level[at]) <= ALONE + 1]
        own = [one for one in own if not (isinstance_of(one, *SHARED) or is_tensor(one))]
        own = [one for one in own if not is_node(one)]
        n_seen += len(own)
        level = []  # of these, before theirs are counted
        yield from own
        level = _parts(own)
        del own


def _parts(values: Iterable[Any]) -> list[Any]:
    parts = gc.get_referents(*values)
    arrays = (one for one in values if isinstance_of(one, np.ndarray))
    return parts + [one.base for one in arrays if one.base is not None]
