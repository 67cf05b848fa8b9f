"""Python's own kinds of object that only stand between a name and a value: a view, an iterator."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import threading
import types
from collections.abc import Iterator
from typing import Any

from nbinspect import notebook
from nbinspect.heapgraph.labelling import Label, Step
from nbinspect.heapgraph.objects import isinstance_of, own_dict, referents
from nbinspect.tensors import class_dict, class_name

CURRENT = "context variables"
"""How the values of context variables begin that are set here and now."""
SUSPENDED = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
CONTAINERS = (list, tuple, dict, set, frozenset)
_MODULE: Any = vars(type)["__module__"]
MANAGED_BUFFER = type(gc.get_referents(memoryview(b""))[0])
_DICT = {"": 0}
VIEWS = tuple(map(type, (_DICT.keys(), _DICT.values(), _DICT.items())))
BUFFERS = {"itertools._tee_dataobject", "_queue.SimpleQueue"}  # they only hold elements
FUNCTIONS = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType),
    *(functools.partial, type),
)
WRAPPERS = (memoryview, MANAGED_BUFFER, staticmethod, classmethod, property)


def go_betweens(parent: Any, text: str) -> Iterator[tuple[Any, Step]]:
    """Yield what such an object holds; most of it is best called what the object is called."""
    if isinstance_of(parent, *WRAPPERS):
        yield from _all(parent, Label(text))
    elif isinstance_of(parent, types.MappingProxyType):
        yield from _all(parent, Label(text, "read-only"))
    elif isinstance_of(parent, *VIEWS):
        yield from _all(parent, Label(f"{text}.mapping", "read-only"))
    elif isinstance_of(parent, contextvars.Token):
        yield parent.old_value, Step("attribute", Label(f"{text}.old_value"))
    elif isinstance_of(parent, types.BuiltinMethodType):
        yield parent.__self__, Step("attribute", Label(f"{text}.__self__"))
    elif isinstance_of(parent, threading.local):
        yield from _all(parent, Label(text, "threads"))
    elif isinstance_of(parent, asyncio.Future):
        yield from _future_parts(parent, text)
    elif isinstance_of(parent, contextvars.Context) or _is_tree(parent):
        yield from _context_parts(parent, text)
    elif _is_iterator(parent):
        yield from _iterated(parent, text)


def _all(parent: Any, label: Label) -> Iterator[tuple[Any, Step]]:
    yield from ((part, Step("attribute", label)) for part in referents(parent))


def _future_parts(parent: Any, text: str) -> Iterator[tuple[Any, Step]]:
    """A task's coroutine goes on below its name; the rest of it is its result or its callbacks."""
    callbacks, own = class_dict(asyncio.Future).get("_callbacks"), own_dict(parent)
    for number, (call, _) in enumerate(callbacks.__get__(parent) or () if callbacks else ()):
        yield call, Step("attribute", Label(f"{text}._callbacks[{number}][0]"))
    for part in referents(parent):
        is_inner = isinstance_of(part, *SUSPENDED, contextvars.Context) or part is own
        what = "exception" if isinstance_of(part, BaseException) else "result"
        yield part, Step("attribute", Label(text if is_inner else f"{text}.{what}()"))


def _context_parts(parent: Any, text: str) -> Iterator[tuple[Any, Step]]:
    """A context's tree lists each value beside its variable; name it by that."""
    is_current = text == CURRENT
    parts = referents(parent)
    for value, variable in zip(parts, [*parts[1:], None], strict=True):
        is_tree = type(variable) is not contextvars.ContextVar or _is_tree(value)
        name = text if is_tree else _get(variable) if is_current else _inside(text, variable)
        yield value, Step("item", Label(name))


def _is_tree(value: Any) -> bool:
    return class_name(type(value)).startswith("hamt")


def _get(variable: Any) -> str:
    """Give the code that reads a context variable, if the user has a name for it."""
    name = _name(variable)
    return f"{name}.get()" if name else f"context variable {variable.name!r}"


def _inside(text: str, variable: Any) -> str:
    """Give the code that reads a variable's value in a context that was kept."""
    name = _name(variable)
    return f"{text}[{name}]" if name else f"{text}, context variable {variable.name!r}"


def _name(variable: Any) -> str:
    names = list(notebook.user_namespace().items())
    known = (name for name, value in names if value is variable and not notebook.is_out_name(name))
    return next(known, "")


def _is_iterator(value: Any) -> bool:
    kind = class_dict(type(value))
    if f"{_MODULE.__get__(type(value))}.{class_name(type(value))}" in BUFFERS:
        return True
    return "__next__" in kind and kind.get("__module__", "builtins") in {"builtins", "itertools"}


def _iterated(parent: Any, text: str) -> Iterator[tuple[Any, Step]]:
    for part in referents(parent):
        if isinstance_of(part, *FUNCTIONS):
            yield part, Step("attribute", Label(f"{text}, its function"))
        elif isinstance_of(part, *CONTAINERS) or _is_iterator(part):
            yield part, Step("attribute", Label(text, "elements"))
        else:
            yield part, Step("item", Label(f"{text}, an element"))
