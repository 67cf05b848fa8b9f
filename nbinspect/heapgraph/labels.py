"""How a path of references is read aloud: ``model.layers.2.weight``, not five dictionaries.

A `Label` is the text so far plus a context that says what the last object is to its holder: the
dictionary of an instance's attributes reads as ``.name``, any other dictionary as ``['name']``, a
function's tuple of cells as ``closure variable 'name'``.
"""

from __future__ import annotations

import builtins
import enum
import functools
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from nbinspect import _torch, notebook
from nbinspect.heapgraph.go_betweens import SUSPENDED
from nbinspect.heapgraph.labelling import Label, Step
from nbinspect.heapgraph.native import BYTES, HOOKS, SAME_BYTES, TENSOR_HOOKS
from nbinspect.heapgraph.objects import instance_dict, isinstance_of, own_dict, referents
from nbinspect.heapgraph.parts import attribute, class_attribute, parts
from nbinspect.tensors import (
    addresses,
    class_dict,
    class_name,
    describe,
    is_node,
    is_tensor,
    mro,
    node_name,
)

LONGEST_KEY = 60
PLAIN = (int, float, bool, bytes, complex, type(None), torch.dtype)
CONTAINERS = (dict, list, tuple, deque, set, frozenset)
LruCache = type(functools.lru_cache(len))
NAMESPACES = {
    "names",
    "locals",
    "members",
    "attributes",
    "module attributes",
    "class attributes",
    "a thread's attributes",
}
TELLING = (*SUSPENDED, types.FrameType, types.TracebackType, BaseException)


NameOf = Callable[[Any], str | None]
"""Names another object of the same picture, e.g. the parameter that is a dictionary's key."""


class Reader:
    """Reads references aloud; remembers where things stand in containers while it lives."""

    def __init__(self) -> None:
        self._places: dict[int, dict[int, Any]] = {}
        self._asked: set[int] = set()
        self._kinds: dict[int, str] = {}

    def step(self, label: Label, parent: Any, child: Any, slot: str, name_of: NameOf) -> Step:
        """Name `child`, which `parent` (named `label`) refers to.

        Args:
            label: the name of `parent`.
            parent: the holder; must stay alive as long as this reader.
            child: what it holds.
            slot: the C++ slot, "" for a reference that Python sees.
            name_of: names an object that is a dictionary's key, e.g. a parameter in an optimizer's
                state; None where it has no name.

        Cost: one pass over `parent`, once; runs no code of the user's.
        """
        if label.code:
            label = replace(label, text=label.code, code="")
        if slot:
            return _native_step(label, slot)
        if label.context == "unseen":
            return Step("attribute", Label(label.text) if isinstance_of(child, *TELLING) else label)
        try:
            if label.context == "closure":
                return _variable(label, parent, child)
            if isinstance_of(parent, *CONTAINERS):
                place = _field(parent, self.place(label, parent, child))
                found = _item_step(label, place, child, name_of)
                return Step(found.edge, replace(found.label, container=self._kind(parent)))
            if type(parent) is LruCache:
                return _cached(parent, child)
            for part, found in parts(parent, label):
                if part is child:
                    return found
        except Exception:  # changed meanwhile, an empty cell, a broken object: it has no good name
            pass
        if label.context == "inside":
            return Step("other", label)
        return Step("other", Label(f"{label.text}, inside", "inside"))

    def place(self, label: Label, parent: Any, child: Any) -> Any:
        """Give the key or index of `child` in a container, the one that the user would use.

        Raises:
            KeyError: it is not there any more.
        """
        places = self._places.get(id(parent))
        if places is None and isinstance_of(parent, list, tuple) and id(parent) not in self._asked:
            self._asked.add(id(parent))  # all places pay only for who asks again
            return _index(parent, child)
        if places is None:
            found = _places(parent)
            if label.context == "names":
                found = iter(sorted(found, key=lambda pair: _is_ipythons(pair[1]), reverse=True))
            places = self._places[id(parent)] = dict(found)
        return places[id(child)]

    def _kind(self, container: Any) -> str:
        """Say what a container is, and if anything but tensors is in it."""
        if id(container) not in self._kinds:
            kind = next(one for one in CONTAINERS if isinstance_of(container, one))
            items = kind.values(container) if kind is dict else kind.__iter__(container)
            mixed = "" if all(map(is_tensor, items)) else "mixed "
            self._kinds[id(container)] = f"{mixed}{kind.__name__}"
        return self._kinds[id(container)]


def _field(parent: Any, place: Any) -> Any:
    """Give the field that an index of a named tuple is, else the place as it is."""
    if not isinstance_of(parent, tuple) or type(place) is not int:
        return place
    fields = next(
        (own["_fields"] for own in map(class_dict, mro(type(parent))) if "_fields" in own), ()
    )
    is_named = type(fields) is tuple and all(type(one) is str for one in fields)
    return Field(fields[place]) if is_named and place < len(fields) else place


def _variable(label: Label, parent: Any, child: Any) -> Step:
    name = dict(zip(map(id, parent), label.extra, strict=False)).get(id(child), "")
    return Step("cell", Label(f"{label.text}, closure variable {name!r}"))


def _item_step(label: Label, place: Any, child: Any, name_of: NameOf) -> Step:
    text, make = label.text, INNER_STEPS.get(label.context)
    if make is not None:
        return make(label, place, child)
    if isinstance(place, Loose):
        code = f"list({text})[{place.number}]"
        return Step("item", Label(f"{text}, {place.what}", code=code))
    if isinstance(place, Field):
        return Step("attribute", Label(f"{text}.{place.name}"))
    if label.context == "hooks":
        return Step("hook", Label(f"hook {_function_name(child)} on {text}", joint=", "))
    if not isinstance_of(place, str) or label.context not in NAMESPACES:
        return Step("item", Label(f"{text}[{key_text(place, name_of)}]"))
    if label.context == "names":
        return Step("item", Label(_notebook_name(place)))
    if label.context == "locals":
        return Step("frame", Label(f"{text}, variable {place}"))
    if label.context == "members":
        return Step("item", Label(f"{text}.{place}"))
    if label.context == "class attributes":
        return Step("attribute", class_attribute(text, place, child))
    return Step("attribute", attribute(label, place))


def _inherited(label: Label, _place: Any, _child: Any) -> Step:
    """What a class inherits reads like its own."""
    return Step("attribute", Label(label.text))


def _in_cache(label: Label, place: Any, _child: Any) -> Step:
    what = "key" if isinstance(place, Loose) else "result"
    return Step("item", Label(f"{label.text}, {what}"))


def _element(label: Label, _place: Any, child: Any) -> Step:
    """An iterator may go through others, or through several containers."""
    if isinstance_of(child, *CONTAINERS) or "__next__" in class_dict(type(child)):
        return Step("attribute", label)
    return Step("item", Label(f"{label.text}, an element"))


def _default(label: Label, place: Any, _child: Any) -> Step:
    name = place if isinstance_of(place, str) else label.extra[place]
    return Step("item", Label(f"{label.text}, default argument {name!r}"))


def _of_one_thread(label: Label, _place: Any, child: Any) -> Step:
    context = "a thread's attributes" if isinstance_of(child, dict) else ""
    return Step("attribute", Label(label.text, context))


def _annotation(label: Label, place: Any, _child: Any) -> Step:
    """Until somebody asks, they are a tuple of names and values in turn, from 3.14 on a function."""
    name = place if isinstance_of(place, str) else label.extra[place]
    return Step("item", Label(f"{label.text}[{name!r}]"))


INNER_STEPS: dict[str, Callable[[Label, Any, Any], Step]] = {
    "annotations": _annotation,
    "bases": _inherited,
    "cache": _in_cache,
    "elements": _element,
    "defaults": _default,
    "threads": _of_one_thread,
}
"""How items of the interpreter's own containers are named, by the container's context."""


def _notebook_name(name: str) -> str:
    """Read ``_4`` as ``Out[4]``, which is what the user saw."""
    return f"Out[{name[1:]}]" if name[:1] == "_" and name[1:].isdigit() else name


class Loose(NamedTuple):
    """A place in a container that no index or key leads to, but its number in the container."""

    what: str
    number: int


class Field(NamedTuple):
    """A place in a named tuple."""

    name: str


def _index(sequence: Any, child: Any) -> int:
    """Find the first place of an object in a list or tuple, by what it is and not by its value."""
    base: Any = list if isinstance_of(sequence, list) else tuple
    there = np.flatnonzero(addresses(base.__iter__(sequence), base.__len__(sequence)) == id(child))
    if not len(there):
        raise KeyError(id(child))
    return int(there[0])


def _places(container: Any) -> Iterator[tuple[int, Any]]:
    """Yield (id, key or index) for all that a container holds; the first place wins at the end."""
    if isinstance_of(container, dict):
        pairs = [(_plain(key), key, value) for key, value in dict.items(container)]
        yield from ((id(key), Loose("a key", n)) for n, (_, key, _) in enumerate(pairs))
        yield from ((id(value), plain) for plain, _, value in reversed(pairs))
    elif isinstance_of(container, set, frozenset):
        kind = set if isinstance_of(container, set) else frozenset
        numbered = enumerate(kind.__iter__(container))
        yield from ((id(value), Loose("an element", n)) for n, value in numbered)
    else:
        base = next(kind for kind in (list, tuple, deque) if isinstance_of(container, kind))
        elements = list(base.__iter__(container))
        yield from zip(map(id, reversed(elements)), range(len(elements) - 1, -1, -1), strict=True)


def _is_ipythons(name: Any) -> int:
    """Rank names: the user's own, then ``_4``, which reads as ``Out[4]``, then ``_`` and the like."""
    return notebook.is_out_name(name) and 1 + (not str(name)[1:].isdigit())


def _plain(key: Any) -> Any:
    """Give a key without the methods of a subclass of ``str``."""
    return str.__str__(key) if isinstance_of(key, str) else key


def _native_step(label: Label, slot: str) -> Step:
    text = label.text
    if slot == "grad":
        return Step("grad", Label(f"{text}.grad"))
    if slot == "base":
        return Step("base", Label(f"{text}._base"))
    if slot == "variable":
        return Step("variable", Label(f"(leaf of {text})"))
    if slot == "array":
        return Step("ndarray", Label(text))
    if slot in {BYTES, SAME_BYTES}:
        return Step("ndarray", Label(f"{text}, its bytes"))
    if slot == HOOKS:
        return Step("hook", Label(text, "hooks"))
    if slot == TENSOR_HOOKS:
        return Step("hook", Label(f"a tensor behind {text}", "hooks"))
    if slot.startswith(_torch.SCRIPT_MEMBERS):
        return Step("attribute", Label(f"{text}{label.joint}{slot.partition(' ')[2]}"))
    if slot.startswith("saved "):
        return Step("saved_tensor", Label(f"{text} saved {slot[6:]}"))
    return Step("other", Label(text))


def _cached(cache: Any, child: Any) -> Step:
    wrapped = own_dict(cache)["__wrapped__"]  # type: ignore[index]  # always set by functools
    name = getattr(wrapped, "__qualname__", "a function").rpartition("<locals>.")[2]
    if child is wrapped:
        return Step("attribute", Label(f"{name}.__wrapped__"))
    label = Label(f"lru_cache of {name}", "cache")
    results = next(part for part in referents(cache) if type(part) is dict)
    if child is results:
        return Step("item", label)
    is_key = id(child) in set(map(id, results))
    return _in_cache(label, Loose("a key", 0) if is_key else "", child)


def key_text(key: Any, name_of: NameOf) -> str:
    """Show a dictionary's key, running no ``__repr__`` but those of plain values."""
    if isinstance_of(key, weakref.ref):  # of a dictionary that keeps its keys weakly
        compares, key = type(key) is weakref.ref, weakref.ref.__call__(key)
        if compares and is_tensor(key):  # `==` of tensors says nothing, so no code finds it
            return f"<{name_of(key) or short_name(key)}>"
        if not is_tensor(key):  # what it holds may be all that leads to its key
            return _users_name(key) or f"<{short_name(key)}>"
    if isinstance_of(key, str):
        plain = str.__repr__(key)
    elif any(type(key) is kind for kind in PLAIN):  # no `in`: a metaclass may have an `__eq__`
        plain = repr(key)
    elif type(key) is torch.device:
        plain = f"torch.device({str(key)!r})"
    elif type(key) is tuple and len(key) < 5:
        items = [key_text(item, name_of) for item in key]
        plain = f"({', '.join(items)}{',' * (len(items) == 1)})"
    else:
        return name_of(key) or _users_name(key) or f"<{short_name(key)}>"
    return plain if len(plain) <= LONGEST_KEY else f"{plain[: LONGEST_KEY - 1]}…"


def _users_name(value: Any) -> str:
    """Give a name by which code can spell an object that is a key: a variable, a built-in type."""
    if isinstance_of(value, enum.Enum):
        own = instance_dict(value) or {}
        return f"{class_name(type(value))}.{own.get('_name_')}"
    if issubclass(type(value), type):
        name = class_name(value)
        if vars(builtins).get(name) is value:
            return name
    names = list(notebook.user_namespace().items())
    return next((n for n, one in names if one is value and not notebook.is_out_name(n)), "")


def _function_name(value: Any) -> str:
    while isinstance_of(value, functools.partial):
        value = value.func
    name = getattr(value, "__name__", None) if _is_callable_kind(value) else None
    return name if isinstance(name, str) else class_name(type(value))


def _is_callable_kind(value: Any) -> bool:
    kinds = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
    return isinstance_of(value, *kinds)


def short_name(value: Any) -> str:
    """Say what an object is where it has no name: a tensor's shape, a node's or type's name."""
    if is_tensor(value):
        return f"tensor {describe(value)}"
    if is_node(value):
        return node_name(value)
    if isinstance_of(value, types.FrameType):
        return notebook.frame_label(value)
    if isinstance_of(value, types.FunctionType):
        return f"function {value.__name__}"
    if isinstance_of(value, type):
        return f"class {class_name(value)}"
    return class_name(type(value))
