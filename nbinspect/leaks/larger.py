"""Growth of arrays, texts and buffers, by the place below the user's names that holds them."""

from __future__ import annotations

import array
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from nbinspect.heapgraph.letting_go import is_assignable
from nbinspect.heapgraph.objects import isinstance_of, own_dict
from nbinspect.heapgraph.resolving import as_code, is_of_library
from nbinspect.leaks.bulk import BULK, is_small_view
from nbinspect.leaks.containers import base_of, items_of
from nbinspect.leaks.owners import MOST_PARTS
from nbinspect.leaks.patterns import (
    CACHE,
    CLEARED,
    LAST_FEW,
    Pattern,
    cache_pattern,
    sentence,
    without_frame,
)
from nbinspect.leaks.places import Place, Places, Tree, tree
from nbinspect.leaks.records import LEAST_RISES, Growth
from nbinspect.render.format import plain_number
from nbinspect.tensors import class_name

WORTH_BYTES = 64 << 10  # per repetition; less is a log
MOST_TOLD = 20
MOST_LOOKED_AT = 100
BUFFERS = {
    bytearray: "{0}.clear()",
    array.array: "del {0}[:]",
    io.BytesIO: "{0}.seek(0); {0}.truncate()",
    io.StringIO: "{0}.seek(0); {0}.truncate()",
}
"""What empties each kind."""
LONGER = "value that gets longer"


class _More(NamedTuple):
    """What a place has more of each time: bytes, and items if it is a container."""

    number: int
    bytes_per_run: int
    items_per_run: float


def larger_places(places: Places, n_times: int) -> list[Growth]:
    """Describe the places under which more arrays, texts and buffers lie after each repetition.

    Ask before any reference is searched for: a search may give instances dictionaries, and so other
    places to what they hold.

    Args:
        places: as they were noted.
        n_times: the repetitions that are compared.
    """
    rises = places.per_run(n_times) if n_times >= LEAST_RISES else {}
    if not rises:
        return []
    seen = tree()
    told = _worth(seen, rises)[:MOST_TOLD]
    return [_growth(seen.name(one.number), seen.values[one.number], one) for one in told]


def with_larger(found: Iterable[Growth], larger: Iterable[Growth]) -> Iterator[Growth]:
    """Put together what is told already and what places keep, each holder once."""
    new = {one.holder: one for one in larger}
    for one in found:
        same = new.pop(one.holder, None)
        if same is not None and one.tensors_per_run:  # else the arrays are counted with its items
            more = one.bytes_per_run + same.bytes_per_run
            yield replace(one, bytes_per_run=more)
        else:
            yield one
    yield from new.values()


def _worth(seen: Tree, rises: dict[Place, tuple[int, float]]) -> list[_More]:
    """Give the deepest places that grow, the most bytes first; of many in one place that place."""
    below: list[list[_More]] = [[] for _ in seen.values]
    found = list[_More]()
    for number in range(len(seen.values) - 1, -1, -1):
        inner = below[number]
        rise, items = rises.get(seen.places[number], (0, 0.0))
        rest = rise - sum(one.bytes_per_run for one in inner)
        if rise and len(inner) > MOST_PARTS and _is_container(seen, number):
            inner = [_More(number, rise, 0)]
        elif rest >= WORTH_BYTES:
            inner = [*inner, _More(number, rest, items)]
        (below[seen.above[number]] if seen.above[number] >= 0 else found).extend(inner)
    return sorted(found, key=lambda one: -one.bytes_per_run)


def _is_container(seen: Tree, number: int) -> bool:
    """Say whether an object is a container of the user's, not the dictionary of an object's attributes."""
    value, above = seen.values[number], seen.above[number]
    is_own = above >= 0 and type(value) is dict and own_dict(seen.values[above]) is value
    return base_of(value) is not None and not is_own


def _growth(name: str, value: Any, more: _More) -> Growth:
    base = base_of(value)
    pattern = _pattern(name, value, more.items_per_run)
    cache = CACHE.match(name)
    container = "lru_cache" if cache else base.__name__ if base is not None else ""
    return Growth(
        bytes_per_run=more.bytes_per_run,
        tensors_per_run=0,
        items_per_run=more.items_per_run if base is not tuple else 0,
        holder=cache[1] if cache else name,
        container=container,
        kind="OTHER",
        device="cpu",
        where=None,
        chain=name,
        mend=sentence(pattern),
        code=pattern.code,
        pattern=pattern.name,
        state="live",
        item=item_type(items_of(value)) if base is not None else class_name(type(value)),
    )


def _pattern(name: str, value: Any, items_per_run: float) -> Pattern:
    """Say what the mistake is, what to write from now on, and what lets go of what there is."""
    short = without_frame(name)
    if CACHE.match(name):
        return cache_pattern(name)
    empties = next((line for kind, line in BUFFERS.items() if isinstance_of(value, kind)), "")
    if empties:
        advice = (
            f"`{short}` is added to each time: write it to a file, or empty it when it is used."
        )
        return Pattern("buffer that gets longer", advice, _code(name, empties))
    base = base_of(value)
    if base is None or base is tuple or not items_per_run:
        is_one = isinstance_of(value, *BULK)
        how = "is replaced by a larger value" if is_one else "gets larger"
        advice = (
            f"`{short}` {how} each time: keep only its end, or collect the parts in a list and join "
            "them once."
        )
        return Pattern(LONGER, advice)
    items = items_of(value)
    if all_small_views(items):
        return views_pattern(name, base.__name__, items)
    number, kind = plain_number(round(items_per_run, 1)), item_type(items)
    advice = (
        f"`{short}` keeps {number} more object{'s' * (items_per_run != 1)} of type {kind} each "
        f"time: {LAST_FEW}."
    )
    clears = base.__name__ in CLEARED and not is_of_library(name)
    return Pattern("Python objects kept", advice, _code(name, "{0}.clear()") if clears else "")


def item_type(items: list[Any]) -> str:
    """Name the type of most of the last items."""
    found = Counter(class_name(type(one)) for one in items[-MOST_LOOKED_AT:])
    return found.most_common(1)[0][0] if found else "object"


def all_small_views(items: list[Any]) -> bool:
    """Say whether the items are arrays that keep much larger ones whole."""
    return bool(items) and all(map(is_small_view, islice(items, MOST_LOOKED_AT)))


def views_pattern(name: str, container: str, items: list[Any]) -> Pattern:
    """Say how to keep parts of arrays without the whole."""
    advice = (
        f"What `{without_frame(name)}` holds are views that keep larger arrays whole: append "
        "`.copy()`."
    )
    code = ""
    if all(isinstance_of(one, np.ndarray) for one in items):
        lines = {
            "list": "{0}[:] = [one.copy() for one in {0}]",
            "dict": "{0}.update({{key: one.copy() for key, one in {0}.items()}})",
        }
        code = _code(name, lines.get(container, ""))
    return Pattern("views that keep whole arrays", advice, code)


def _code(name: str, line: str) -> str:
    place = as_code(re.sub(r"^lru_cache of ", "", name))
    return line.format(place) if is_assignable(place) else ""
