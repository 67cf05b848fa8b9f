"""How many objects of each type there are, as objgraph counts them."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nbinspect.blocks import Code, Column, Table, Text, View
from nbinspect.records import Record
from nbinspect.render.format import count

MOST_ROWS = 10
OURS = "nbinspect."  # records of earlier counts would be the growth
OWN_WAYS = ("__getattribute__", "__name__")
_MRO = vars(type)["__mro__"]
_OWN = vars(type)["__dict__"]
_FLAGS = vars(type)["__flags__"]
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


@dataclass(frozen=True, slots=True)
class TypeCount:
    """How many objects of one type there are.

    Attributes:
        type_name: module and name, e.g. ``builtins.list``, ``__main__.Batch``.
        n_objects: live now.
        n_most: the most that any count of the series has found.
        n_more: how many more than in all counts before; 0 in the first one.
    """

    type_name: str
    n_objects: int
    n_most: int
    n_more: int = 0


@dataclass(frozen=True, slots=True)
class TypeCounts(Record):
    """How many objects of each type there are, and of which there are more than ever before.

    Attributes:
        types: every type but nbinspect's own, the one with the most objects first.
        is_growth: counted after another count, which it is compared with.
        n_rows: how many types to show.
    """

    types: tuple[TypeCount, ...]
    is_growth: bool
    n_rows: int = MOST_ROWS

    def view(self) -> View:
        """Show the most common types, or those that grew."""
        return _growth(self) if self.is_growth else _most_common(self)

    def as_common(self) -> TypeCounts:
        """Give the same count, to be shown as what there is instead of what has come."""
        return replace(self, is_growth=False)


def _most_common(counts: TypeCounts) -> View:
    total = sum(one.n_objects for one in counts.types)
    said = f"{count(total)} objects of {count(len(counts.types))} types are alive."
    rows = tuple((_short(one.type_name), one.n_objects) for one in counts.types[: counts.n_rows])
    columns = (Column("type", "name"), Column("objects", "count"))
    later = Text(("A later ", Code("%refchain --growth"), " says what has come since."), "note")
    table = Table(columns, rows)
    return (Text((said,), "headline"), table, *_left_out(counts.types, rows), later, _note())


def _growth(counts: TypeCounts) -> View:
    more = sorted(
        (one for one in counts.types if one.n_more), key=lambda one: one.n_more, reverse=True
    )
    if not more:
        return (Text(("Of no type are there more objects than before.",), "headline"), _note())
    total = sum(one.n_more for one in more)
    first = _short(more[0].type_name)
    most = "of" if len(more) == 1 else "most of them of"
    said = f"{_number(total, 'more object')} than before, {most} type {first}."
    rows = tuple(
        (_short(one.type_name), one.n_objects, one.n_more) for one in more[: counts.n_rows]
    )
    columns = (Column("type", "name"), Column("objects", "count"), Column("more", "count"))
    return (Text((said,), "headline"), Table(columns, rows), *_left_out(more, rows), _note())


def _left_out(types: Sequence[Any], rows: Sequence[Any]) -> tuple[Text, ...]:
    n_more = len(types) - len(rows)
    return (Text((f"{_number(n_more, 'more type')} not shown.",), "note"),) if n_more else ()


def _note() -> Text:
    said = "Counted by objgraph, as it stands: nothing was collected first, so garbage counts too."
    return Text((said,), "note")


def _number(n: int, noun: str) -> str:
    return f"{count(n)} {noun}{'s' * (n != 1)}"


def _short(name: str) -> str:
    """Leave out the module where everybody knows it."""
    return name.removeprefix("builtins.").removeprefix("__main__.")


def count_types(since: TypeCounts | None = None, *, n_rows: int = MOST_ROWS) -> TypeCounts:
    """Answer how many objects of each type there are, and how many more than before.

    Args:
        since: an earlier count. As in `objgraph.growth`, what it is compared with is the most that
            the counts before have found, so that what comes and goes is no growth.
        n_rows: how many types to show.

    Returns:
        A record of plain values; it holds none of your objects.

    Cost: about 0.5 µs an object. Unlike `objgraph.growth` it collects no garbage first; call
    ``gc.collect()`` yourself to leave garbage out.
    Blind to: objects that the collector does not track, e.g. numbers, strings and NumPy arrays;
    objects of a class whose metaclass has code of its own for attributes, which is not run.
    Source: `objgraph.most_common_types`.
    """
    before = {one.type_name: one.n_most for one in since.types} if since is not None else {}
    types = []
    for name, number in counted():
        most = max(number, before.get(name, 0))
        n_more = most - before.get(name, 0) if since is not None else 0
        types.append(TypeCount(name, number, most, n_more))
    gone = before.keys() - {one.type_name for one in types}
    types += [TypeCount(name, 0, before[name]) for name in sorted(gone)]
    return TypeCounts(tuple(types), since is not None, n_rows)


def counted() -> list[tuple[str, int]]:
    """Give the module and name of each type and how many objects of it there are, most first.

    Cost, Blind to, Source: those of `count_types`.
    """
    import objgraph

    from nbinspect.heapgraph.graph import collector_paused

    with collector_paused():
        objects = gc.get_objects()
        odd = _odd_types(objects)
        is_plain = (lambda one: id(type(one)) not in odd) if odd else None
        found: list[tuple[str, int]] = objgraph.most_common_types(
            limit=None, objects=objects, shortnames=False, filter=is_plain
        )
        del objects
    return [one for one in found if not one[0].startswith(OURS)]


def _odd_types(objects: list[Any]) -> set[int]:
    """Give the ids of types that code of the user's would answer for if asked for their names."""
    kinds = {id(kind): kind for kind in map(type, objects)}
    return {key for key, kind in kinds.items() if is_odd(kind)}


def is_odd(kind: type) -> bool:
    """Say whether code of the user's would answer if a type were asked for its names."""
    is_heap_type = _FLAGS.__get__(kind) & HEAP_TYPE  # others have their module in C
    if is_heap_type and type(_OWN.__get__(kind).get("__module__", "")) is not str:
        return True
    own = [
        _OWN.__get__(base)
        for base in _MRO.__get__(type(kind))
        if base is not type and base is not object
    ]
    return any(name in names for names in own for name in OWN_WAYS)
