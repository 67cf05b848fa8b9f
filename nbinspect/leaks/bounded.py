"""Containers that still fill but have a limit: they stop growing by themselves."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

from nbinspect.heapgraph.labels import LruCache
from nbinspect.heapgraph.objects import isinstance_of, own_dict
from nbinspect.heapgraph.resolving import resolved
from nbinspect.leaks.records import Growth
from nbinspect.memory.system import host_memory
from nbinspect.render.format import bytes_text, count

SMALL_CACHE = 32  # of a method: a larger one keeps instances that nothing else does
SMALL_FRACTION = 0.25  # of all memory; a limit beyond that is none


def filling(found: Iterable[Growth]) -> tuple[list[Growth], list[str]]:
    """Tell what grows without end from what fills up to a limit that the memory has room for.

    Returns:
        The first, and a sentence for each of the others that is not full yet.
    """
    endless, notes = list[Growth](), list[str]()
    total = host_memory().total_bytes
    for one in found:
        most, now, name = _limit(one)
        items = one.items_per_run or one.tensors_per_run
        size = round(one.bytes_per_run / items * most) if items and most else 0
        has_room = bool(size) and isinstance(total, int) and size <= SMALL_FRACTION * total
        if has_room and now < most:
            notes.append(
                f"`{one.holder}` still fills, by {bytes_text(one.bytes_per_run)} each run: it stops "
                f"at its `{name}` of {count(most)}, with about {bytes_text(size)}."
            )
        elif not has_room:
            endless.append(one)
    return endless, notes


def _limit(one: Growth) -> tuple[int, int, str]:
    """Give the most items of a holder, 0 if it has no limit, how many it has, and what sets that."""
    value = resolved(one.holder)
    if isinstance_of(value, deque):
        return vars(deque)["maxlen"].__get__(value) or 0, deque.__len__(value), "maxlen"
    if type(value) is LruCache:
        most = next(_most_results(value), 0)
        is_small = "." not in one.holder or most <= SMALL_CACHE
        return most if is_small else 0, value.cache_info().currsize, "maxsize"
    return 0, 0, ""


def _most_results(cache: Any) -> Iterator[int]:
    """Yield what `functools` was asked for, if it was given a limit."""
    asked: Any = (own_dict(cache) or {}).get("cache_parameters")
    if isinstance_of(asked, FunctionType) and asked.__module__ == functools.__name__:
        most = asked()["maxsize"]
        yield from [most] if isinstance(most, int) else []
