"""The largest live objects of a type, with the chains that keep them."""

from __future__ import annotations

import gc
from typing import Any

from nbinspect.heapgraph.graph import collector_paused
from nbinspect.heapgraph.objects import own_bytes
from nbinspect.referrers.answer import refchain
from nbinspect.referrers.records import ReferenceReport, ReferenceSurvey
from nbinspect.tensors import class_name, describe, is_tensor, looking, mro, storage_bytes


def refchain_largest(type_name: str, n: int = 5) -> ReferenceSurvey:
    """Answer which objects of a type are the largest, and who keeps each alive.

    Args:
        type_name: the name of a type or of one of its bases, e.g. ``Tensor``, ``Module``, ``dict``.
        n: how many.

    Returns:
        A record with one report for each; tensors are ordered by the bytes of their storage.

    Raises:
        ValueError: no live object has such a type.

    Cost: one pass over the heap, then that of `refchain` for each.
    Blind to: objects that the collector does not track, e.g. numbers, strings and NumPy arrays.
    Source: ``gc.get_objects``.
    """
    with collector_paused(), looking():
        found = [one for one in gc.get_objects() if _is_a(one, type_name)]
        n_objects = len(found)
        found.sort(key=_size, reverse=True)
        del found[n:]
    if not n_objects:
        raise ValueError(f"no live object is a {type_name}")
    reports = []
    while found:
        reports.append(_report(found.pop(0)))
    return ReferenceSurvey(type_name, n_objects, tuple(reports))


def _is_a(value: Any, type_name: str) -> bool:
    return any(class_name(kind) == type_name for kind in mro(type(value)))


def _size(value: Any) -> int:
    """Give an object's own bytes, asking no method of the user's."""
    if is_tensor(value):
        return storage_bytes(value) or 0
    return own_bytes(value)


def _report(value: Any) -> ReferenceReport:
    name = describe(value) if is_tensor(value) else class_name(type(value))
    return refchain(value, name=name)
