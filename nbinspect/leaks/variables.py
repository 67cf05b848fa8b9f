"""Variables whose one value gets larger: arrays and texts, which the collector does not follow."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from nbinspect import notebook
from nbinspect.heapgraph.objects import isinstance_of, own_size
from nbinspect.leaks.records import LEAST_RISES, Growth

LARGER = (np.ndarray, str, bytes, bytearray)
WORTH_BYTES = 64 << 10  # per repetition; less is a log
ARRAY_BYTES: Any = vars(np.ndarray)["nbytes"]


def sizes_of_variables() -> dict[str, int]:
    """Give the bytes of each variable of the notebook that is an array or a text."""
    names = list(notebook.user_namespace().items())
    return {name: _size(value) for name, value in names if isinstance_of(value, *LARGER)}


def _size(value: Any) -> int:
    if isinstance_of(value, np.ndarray):
        return int(ARRAY_BYTES.__get__(value))
    return own_size(value)


def larger_variables(told: list[dict[str, int]], known: set[str]) -> Iterator[Growth]:
    """Describe the variables that get larger with every repetition.

    Args:
        told: their sizes before the first repetition and after each.
        known: holders whose growth is told already.
    """
    for name in told[-1] if len(told) > LEAST_RISES else ():
        sizes = [one.get(name, 0) for one in told]
        rises = [new - old for old, new in pairwise(sizes)]
        size = round(sum(rises) / len(rises))
        if name not in known and min(rises) > 0 and size >= WORTH_BYTES:
            yield _growth(name, size)


def _growth(name: str, bytes_per_run: int) -> Growth:
    return Growth(
        bytes_per_run=bytes_per_run,
        tensors_per_run=0,
        items_per_run=0,
        holder=name,
        container="",
        kind="OTHER",
        device="cpu",
        where=None,
        chain=name,
        mend=(
            f"`{name}` is replaced by a larger value each time: keep only its end, or collect the "
            "parts in a list and join them once."
        ),
        code="",
        pattern="value that gets longer",
        state="live",
    )
