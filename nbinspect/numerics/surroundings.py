"""The user's objects around a step: put back as they were, after the step has run again.

A step counts itself, appends to a history, sets an attribute: in the user's sight that must happen
once. What the names in sight hold is walked: containers, objects' attributes, closures. Values
inside tensors are not looked at; what a step writes into those is its parameters and buffers.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

from torch.optim import Optimizer

from nbinspect import notebook
from nbinspect.tensors import is_tensor

_CONTAINERS = (list, dict, OrderedDict, set, deque)
_MOST = 20_000  # objects; each takes a microsecond or two
_LONGEST = 100_000  # container whose items are kept
_DEEPEST_ITEMS = 1000  # container whose items are looked into
_DEPTH = 6


class Surroundings:
    """What the names in sight hold now.

    Args:
        optimizers: looked into as well.

    Cost: a few milliseconds; shallow copies of containers and attributes.
    Blind to: what has no name in the notebook or in a running function, and objects that keep
    their state in C.
    """

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self._copies: list[tuple[Any, Any]] = []
        self._cells: list[tuple[CellType, Any]] = []
        seen: set[int] = set()
        todo = [(one, 0) for one in (*optimizers, *_in_sight())]
        while todo and len(seen) < _MOST:
            value, depth = todo.pop()
            if id(value) in seen or depth > _DEPTH:
                continue
            seen.add(id(value))
            todo += [(part, depth + 1) for part in self._keep(value)]

    def _keep(self, value: Any) -> Iterator[Any]:
        """Keep one object's state, and give what may be inside."""
        if type(value) in _CONTAINERS:
            if len(value) <= _LONGEST:
                self._copies.append((value, value.copy()))
            if len(value) <= _DEEPEST_ITEMS:
                yield from value.values() if isinstance(value, dict) else value
        elif type(value) is FunctionType:
            for cell in value.__closure__ or ():
                yield from self._keep_cell(cell)
        elif not isinstance(value, type | ModuleType | CellType) and not is_tensor(value):
            attributes = getattr(value, "__dict__", None)
            if type(attributes) is dict:
                yield attributes
            yield getattr(value, "__self__", None)  # of a bound method

    def _keep_cell(self, cell: CellType) -> Iterator[Any]:
        try:
            content = cell.cell_contents
        except ValueError:  # not bound yet
            return
        self._cells.append((cell, content))
        yield content

    def restore(self) -> None:
        """Put back what has changed since."""
        for cell, content in self._cells:
            cell.cell_contents = content
        for value, kept in self._copies:
            if not _is_same(value, kept):
                _put_back(value, kept)


def _in_sight() -> Iterator[Any]:
    """Yield what the notebook and the running functions know, and the globals they may rebind."""
    yield from list(notebook.user_namespace().values())
    frame = notebook.user_frame(sys._getframe(1))
    while frame is not None:
        yield frame.f_globals
        yield from notebook.frame_locals(frame).values()
        frame = notebook.user_frame(frame.f_back)


def _is_same(value: Any, kept: Any) -> bool:
    if len(value) != len(kept):
        return False
    if isinstance(value, set):
        return bool(value == kept)
    if isinstance(value, dict):
        return all(
            a is b and c is d for (a, c), (b, d) in zip(value.items(), kept.items(), strict=True)
        )
    return all(a is b for a, b in zip(value, kept, strict=True))


def _put_back(value: Any, kept: Any) -> None:
    if isinstance(value, dict):  # never empty for a moment: it may be a namespace
        for key in [key for key in value if key not in kept]:
            del value[key]
        value.update(kept)
        return
    value.clear()
    value.update(kept) if isinstance(value, set) else value.extend(kept)
