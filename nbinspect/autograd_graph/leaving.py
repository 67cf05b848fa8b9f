"""Numbers that leave torch for Python or NumPy, and how they are known when they come back."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any

import torch

from nbinspect import _torch
from nbinspect.tensors import is_tensor
from nbinspect.wrapping import wrap

ITEM = "aten::_local_scalar_dense"
TOLIST = "Tensor.tolist"
NUMPY = "Tensor.numpy"
LEAVING = frozenset({ITEM, TOLIST, NUMPY})

MOST_READ = 256  # numbers of one list, array or tensor
MOST_KEPT = 4096  # numbers that have left
MOST_PAIRS = 1 << 14  # of numbers that meet by chance, float32 has one pair in 2**23
ENOUGH = 3  # equal numbers that are no chance among more pairs
DIGITS = 4  # that a number has which is not likely to be written twice


def hear(undo: ExitStack, told: Callable[[str, Any, Any], None]) -> None:
    """Hear of what no operation is: ``tolist`` and ``numpy``.

    Args:
        undo: ends it.
        told: called with `TOLIST` or `NUMPY`, the tensor, and what it gave.

    Cost: 1 µs a call.
    """
    for op in (TOLIST, NUMPY):

        def around(original: Any, args: Any, kwargs: Any, op: str = op) -> Any:
            __tracebackhide__ = True
            result = original(*args, **kwargs)
            caller = sys._getframe(2).f_globals.get("__name__", "")
            if args and not _torch.is_tracing() and not caller.startswith("nbinspect."):
                told(op, args[0], result)
            return result

        name = op.partition(".")[2]
        wrap(undo, torch.Tensor, name, around)
        _torch.never_compile(around.__code__)
        _torch.never_compile(getattr(torch.Tensor, name).__code__)


class Left:
    """The numbers that have left, as far as they would be known again.

    Cost: 1 µs a number that leaves, 20 µs a tensor that may be made of them.
    Blind to: numbers that were computed with, or written with few digits, such as 0.5.
    """

    def __init__(self) -> None:
        self._events: dict[float, int] = {}

    def __bool__(self) -> bool:
        return bool(self._events)

    def note(self, numbers: Iterable[Any], event: int) -> None:
        """Note that an event gave numbers to Python."""
        for one in single(n for n in islice(numbers, MOST_READ) if type(n) is float):
            if _is_telling(one):
                self._events.pop(one, None)  # the newest come last
                self._events[one] = event
        while len(self._events) > MOST_KEPT:
            del self._events[next(iter(self._events))]

    def drop(self, known: Callable[[int], bool]) -> None:
        """Forget the numbers of events that are not known any more."""
        self._events = {number: one for number, one in self._events.items() if known(one)}

    def origin(self, number: float) -> int | None:
        """Give the event that a number left by, None if it is not known."""
        return self._events.get(next(single([number]), math.nan))

    def origins(self, tensor: Any) -> set[int]:
        """Give the events by which numbers of a new tensor left, as far as that is no chance."""
        numbers = read(tensor) if self._events else []
        found = [one for n in single(numbers) if (one := self._events.get(n)) is not None]
        is_enough = len(found) >= ENOUGH or len(numbers) * len(self._events) <= MOST_PAIRS
        return set(found) if is_enough else set()


def read(value: Any) -> list[float]:
    """Read the first numbers of an array or a tensor on the CPU, [] where that is not to be had."""
    try:
        if not is_tensor(value):
            return value.flat[:MOST_READ].tolist() if value.dtype.kind == "f" else []
        is_near = value.numel() <= MOST_READ or value.is_contiguous()
        if value.device.type != "cpu" or not is_near or _torch.is_zero_tensor(value):
            return []
        return list(map(float, value.detach().reshape(-1)[:MOST_READ].tolist()))
    except Exception:  # a dtype or layout that cannot be read so
        return []


def single(numbers: Iterable[float]) -> Iterator[float]:
    """Round to single precision, in which a tensor usually keeps them."""
    return iter(array("f", numbers))


def _is_telling(number: float) -> bool:
    """Say whether a number has so many digits that the same one is hardly met by chance."""
    if not math.isfinite(number):
        return False
    digits = f"{abs(number):.6e}".partition("e")[0].replace(".", "").rstrip("0")
    return len(digits) >= DIGITS
