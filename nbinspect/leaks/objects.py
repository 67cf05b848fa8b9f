"""Growth of plain Python objects, as far as no tensor explains it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from nbinspect import notebook
from nbinspect.heapgraph.letting_go import is_assignable
from nbinspect.heapgraph.objects import own_dict
from nbinspect.leaks.counts import ObjectCounts
from nbinspect.leaks.owners import pieces
from nbinspect.leaks.records import Growth, ObjectGrowth
from nbinspect.referrers.answer import refchain
from nbinspect.tensors import class_dict, is_node, is_tensor, mro

MOST_TYPES = 5
LIBRARIES = ("builtins.", "collections.", "torch.", "functools.", "_thread.", "threading.")
WORTH_BYTES = 1 << 10  # per repetition; less is a log of numbers
WORTH_OBJECTS = 10


def object_growths(counts: ObjectCounts, first: int) -> tuple[ObjectGrowth, ...]:
    """List the types whose number rose with every repetition from number `first` on."""
    told, rows = counts.counts[first:], []
    for name in counts.rising(first):
        new = counts.new(name)
        if new and not is_tensor(new[0]) and not is_node(new[0]):
            rise = (told[-1][name] - told[0].get(name, 0)) / (len(told) - 1)
            size = round(rise * sum(map(_size, new)) / len(new))
            rows.append((ObjectGrowth(name, rise, size, told[-1][name], ""), new[:1]))
        del new
    rows.sort(key=lambda row: (row[0].type_name.startswith(LIBRARIES), -row[0].bytes_per_run))
    del rows[MOST_TYPES:]  # a search for each of the others would tell little
    return tuple([replace(one, holder=_chain(box, one.type_name)) for one, box in rows])


def _size(value: Any) -> int:
    """Give an object's own bytes and its dictionary's, running none of its code."""
    own = own_dict(value)
    return object.__sizeof__(value) + (sys.getsizeof(own) if own is not None else 0)


def _chain(box: list[Any], name: str) -> str:
    report = refchain(box.pop(), name=name)
    return str(report.chains[0]) if report.chains else report.verdict


def python_growths(objects: Iterable[ObjectGrowth], found: Iterable[Growth]) -> Iterator[Growth]:
    """Give those that one of the user's own names keeps and that no growth of tensors explains."""
    known = {_root(one.holder) for one in found}
    for one in objects:
        holder = pieces(one.holder)[0] if one.holder else ""
        root = _root(holder)
        is_much = one.bytes_per_run >= WORTH_BYTES or one.per_run >= WORTH_OBJECTS
        if root in known or not is_much or not _is_users(holder, root):
            continue
        known.add(root)
        yield _growth(one, holder.partition(" -> ")[0])


def _root(name: str) -> str:
    found = re.search(r"[^\W\d]\w*", name.removeprefix("lru_cache of "))
    return found[0] if found else ""


def _is_users(holder: str, root: str) -> bool:
    """Say whether a holder's name begins with a variable of the user's.

    An object without a name is called what its class is, which may well be a variable too.
    """
    value = notebook.user_namespace().get(root)
    if value is None or isinstance(value, type(sys)):
        return False
    first = re.match(r"\w+\.(\w+)", holder)
    return not isinstance(value, type) or first is None or first[1] in _all_names(value)


def _all_names(kind: type) -> set[str]:
    return {name for one in mro(kind) for name in class_dict(one)}


def _growth(one: ObjectGrowth, holder: str) -> Growth:
    code = f"del {holder}" if is_assignable(holder) else ""
    ending = f" `{code}` lets go of what there is." if code else ""
    kind = one.type_name.rpartition(".")[2]
    return Growth(
        bytes_per_run=one.bytes_per_run,
        tensors_per_run=0,
        items_per_run=one.per_run,
        holder=holder,
        container="",
        kind="OTHER",
        device="cpu",
        where=None,
        chain=one.holder,
        mend=f"`{holder}` keeps {one.per_run:g} more objects of type {kind} each time.{ending}",
        code=code,
        pattern="Python objects kept",
        state="live",
    )
