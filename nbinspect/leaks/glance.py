"""A quick look at a new error, which decides whether a closer one is worth its time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any

from nbinspect import notebook
from nbinspect.blocks import Unavailable
from nbinspect.heapgraph.graph import collector_paused
from nbinspect.heapgraph.native import walk
from nbinspect.heapgraph.objects import isinstance_of, referents
from nbinspect.leaks.last_error import ErrorStores, held_by_error, steps
from nbinspect.leaks.out_of_memory import is_refusal
from nbinspect.tensors import class_dict, is_node, is_tensor, looking, storages

MOST_OBJECTS = 20_000
MOST_NODES = 2_000
AN_END = 100  # calls at either end of a runaway recursion
BUDGET_S = 0.1
LEAVES = (str, int, float, bytes, type, ModuleType, type(None))
CALLS = (FrameType, TracebackType, BaseException)


def worth_a_look(threshold_bytes: int) -> bool:
    """Say whether the last error may keep more than so many bytes alive.

    Cost: at most 0.2 s, mostly under 10 ms.
    Blind to: what lies deeper than some 20,000 objects.
    """
    stores = ErrorStores()
    try:
        if any(map(is_refusal, stores.errors)):
            return True
        calls = [step.tb_frame for one in stores.tracebacks for step in steps(one)]
        looked_at = calls if len(calls) <= 2 * AN_END else calls[:AN_END] + calls[-AN_END:]
        values = [value for frame in looked_at for value in _own(frame).values()]
        values += [value for error in stores.errors for value in held_by_error(error).values()]
        with collector_paused(), looking():
            there = _sizes(values)
            if sum(there.values()) < threshold_bytes:
                return False
            named = _sizes(notebook.user_namespace().values())
            return sum(size for key, size in there.items() if key not in named) >= threshold_bytes
    finally:
        stores.close()


def _own(frame: Any) -> dict[str, Any]:
    """Give a call's own variables; those of a module or cell are the notebook's."""
    return {} if frame.f_locals is frame.f_globals else notebook.frame_locals(frame)


def _sizes(values: Iterable[Any]) -> dict[tuple[str, int], int]:
    """Give the storages that some values lead to, as far as can be seen quickly."""
    tensors = _reached(values)
    found = dict[tuple[str, int], int]()
    for one in walk(tensors, MOST_NODES).found.values():
        parts = storages(one) if is_tensor(one) else ()
        if not isinstance(parts, Unavailable):
            found.update((part.key, part.size_bytes) for part in parts)
    return found


def _reached(values: Iterable[Any]) -> list[Any]:
    """Give the tensors and autograd nodes below some values, breadth first."""
    end, found, seen = time.monotonic() + BUDGET_S, list[Any](), set[int]()
    level = list(values)
    while level and len(seen) < MOST_OBJECTS and time.monotonic() < end:
        new = [one for one in {id(one): one for one in level}.values() if id(one) not in seen]
        seen.update(map(id, new))
        found += [one for one in new if is_tensor(one) or is_node(one)]
        inner = [one for one in new if not (isinstance_of(one, *LEAVES, *CALLS) or _is_shells(one))]
        level = [part for one in inner for part in _parts(one)]
    return found


def _is_shells(value: Any) -> bool:
    """Say whether a value is IPython's own: its shell leads back to the error."""
    if isinstance_of(value, MethodType):
        value = value.__self__
    module = class_dict(type(value)).get("__module__")
    return type(module) is str and module.partition(".")[0] in notebook.PLUMBING


def _parts(value: Any) -> list[Any]:
    """Give what a value refers to; of a function its variables, not the module it is from."""
    if isinstance_of(value, FunctionType):
        return [value.__closure__, value.__defaults__]
    return referents(value)
