"""How a path of references is read aloud: ``model.layers.2.weight``, not five dictionaries.

A `Label` is the text so far plus a context that says what the last object is to its holder: the
dictionary of an instance's attributes reads as ``.name``, any other dictionary as ``['name']``, a
function's tuple of cells as ``closure variable 'name'``.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from nbinspect import notebook
from nbinspect.tensors import class_dict, class_name, describe, is_node, is_tensor, mro

MEMBER_DICTS = ("_parameters", "_buffers", "_modules")
LONGEST_KEY = 60
CONTAINERS = (dict, list, tuple, deque, set, frozenset)
LruCache = type(functools.lru_cache(len))
DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)


@dataclass(frozen=True, slots=True)
class Label:
    """The name of an object, as reached along one path.

    Attributes:
        text: what is read.
        context: how its own parts are named: "" by its type; ``names``: a namespace;
            ``attributes``: an instance's dictionary; ``module attributes``: that of an
            ``nn.Module``; ``members``: its ``_parameters`` and the like; ``hooks``: a dictionary
            of hooks; ``closure``: a function's cells.
        extra: names of a closure's cells.
        joint: what stands before the name of an attribute.
        container: the built-in type of the container that it is an item of, "" if of none.
    """

    text: str
    context: str = ""
    extra: tuple[str, ...] = ()
    joint: str = "."
    container: str = ""


class Step(NamedTuple):
    """How one reference is read: the kind of edge, and the label of the object it leads to."""

    edge: str
    label: Label


NameOf = Callable[[Any], str | None]
"""Names another object of the same picture, e.g. the parameter that is a dictionary's key."""


class Reader:
    """Reads references aloud; remembers where things stand in containers while it lives."""

    def __init__(self) -> None:
        self._places: dict[int, dict[int, Any]] = {}

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
        if slot:
            return _native_step(label, slot)
        try:
            if label.context == "closure":
                return _variable(label, parent, child)
            if isinstance_of(parent, *CONTAINERS):
                found = _item_step(label, self.place(label, parent, child), child, name_of)
                kind = next(one for one in CONTAINERS if isinstance_of(parent, one))
                return Step(found.edge, replace(found.label, container=kind.__name__))
            if type(parent) is LruCache:
                return _cached(parent, child)
            for part, found in _parts(parent, label):
                if part is child:
                    return found
        except Exception:  # changed meanwhile, an empty cell, a broken object: it has no good name
            pass
        return Step("other", Label(f"{label.text} ({class_name(type(parent))})"))

    def place(self, label: Label, parent: Any, child: Any) -> Any:
        """Give the key or index of `child` in a container, the one that the user would use.

        Raises:
            KeyError: it is not there any more.
        """
        places = self._places.get(id(parent))
        if places is None:
            found = _places(parent)
            if label.context == "names":
                found = iter(sorted(found, key=lambda pair: _is_ipythons(pair[1]), reverse=True))
            places = self._places[id(parent)] = dict(found)
        return places[id(child)]


def _variable(label: Label, parent: Any, child: Any) -> Step:
    name = dict(zip(map(id, parent), label.extra, strict=False)).get(id(child), "")
    return Step("cell", Label(f"{label.text}, closure variable {name!r}"))


def _item_step(label: Label, place: Any, child: Any, name_of: NameOf) -> Step:
    text = label.text
    if label.context == "bases":  # what a class inherits reads like its own
        return Step("attribute", Label(text))
    if label.context == "cache":
        return Step("item", Label(f"{text}, {'key' if isinstance(place, Loose) else 'result'}"))
    if isinstance(place, Loose):
        return Step("item", Label(f"{text}, {place.what}"))
    if label.context == "hooks":
        return Step("hook", Label(f"hook {_function_name(child)} on {text}", joint=", "))
    if not isinstance_of(place, str) or not label.context:
        return Step("item", Label(f"{text}[{key_text(place, name_of)}]"))
    if label.context == "names":
        return Step("item", Label(_notebook_name(place)))
    if label.context == "locals":
        return Step("frame", Label(f"{text}, variable {place}"))
    if label.context == "members":
        return Step("item", Label(f"{text}.{place}"))
    return Step("attribute", _attribute(label, place))


def _notebook_name(name: str) -> str:
    """Read ``_4`` as ``Out[4]``, which is what the user saw."""
    return f"Out[{name[1:]}]" if name[:1] == "_" and name[1:].isdigit() else name


class Loose(NamedTuple):
    """A place in a container that no index or key leads to."""

    what: str


def _places(container: Any) -> Iterator[tuple[int, Any]]:
    """Yield (id, key or index) for all that a container holds; the first place wins at the end."""
    if isinstance_of(container, dict):
        pairs = [(_plain(key), key, value) for key, value in dict.items(container)]
        yield from ((id(key), Loose("a key")) for _, key, _ in pairs)
        yield from ((id(value), plain) for plain, _, value in reversed(pairs))
    elif isinstance_of(container, set, frozenset):
        yield from ((id(value), Loose("an element")) for value in set().union(container))
    else:
        base = next(kind for kind in (list, tuple, deque) if isinstance_of(container, kind))
        elements = list(base.__iter__(container))
        yield from ((id(elements[i]), i) for i in reversed(range(len(elements))))


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
    if slot.startswith("saved "):
        return Step("saved_tensor", Label(f"{text} saved {slot[6:]}"))
    return Step("other", Label(text))


def _attribute(holder: Label, key: str) -> Label:
    if holder.context == "module attributes" and key in MEMBER_DICTS:
        return Label(holder.text, "members")
    if "hooks" in key:
        return Label(holder.text, "hooks")
    return Label(f"{holder.text}{holder.joint}{key}")


def _parts(parent: Any, label: Label) -> Iterator[tuple[Any, Step]]:
    """Yield what a holder that is no container holds, each with its step."""
    yield from _special_parts(parent, label.text, label.text + label.joint)
    yield from _attributes(parent, label)


def isinstance_of(value: object, *kinds: type) -> bool:
    """Like ``isinstance``, but asks the type alone: ``__class__`` may be the user's code."""
    return issubclass(type(value), kinds)


def _special_parts(parent: Any, text: str, dotted: str) -> Iterator[tuple[Any, Step]]:
    """Name the parts of the interpreter's own kinds of object."""
    if isinstance_of(parent, types.FunctionType):
        names = parent.__code__.co_freevars
        yield parent.__closure__, Step("cell", Label(text, "closure", names))
        yield parent.__defaults__, Step("item", Label(f"{text}, default argument"))
        yield parent.__kwdefaults__, Step("item", Label(f"{text}, default argument"))
    elif isinstance_of(parent, types.CellType):
        yield parent.cell_contents, Step("cell", Label(text))
    elif isinstance_of(parent, types.MethodType):
        yield parent.__self__, Step("attribute", Label(f"{dotted}__self__"))
        yield parent.__func__, Step("attribute", Label(text))
    elif isinstance_of(parent, np.ndarray):  # of objects
        for index, value in zip(np.ndindex(parent.shape), parent.flat, strict=True):
            yield value, Step("item", Label(f"{text}[{', '.join(map(str, index))}]"))
    elif isinstance_of(parent, functools.partial):
        yield parent.func, Step("attribute", Label(f"{dotted}func"))
        yield parent.args, Step("item", Label(f"{dotted}args"))
        yield parent.keywords, Step("item", Label(f"{dotted}keywords"))
    elif isinstance_of(parent, BaseException, types.TracebackType, types.FrameType):
        yield from _error_parts(parent, text)
    elif isinstance_of(parent, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType):
        yield from _suspended_parts(parent, text)


def _error_parts(parent: Any, text: str) -> Iterator[tuple[Any, Step]]:
    if isinstance_of(parent, BaseException):
        for name in ("__traceback__", "__cause__", "__context__", "args"):
            shown = text if name == "__traceback__" else f"{text}.{name}"
            yield getattr(parent, name), Step("exception", Label(shown))
    elif isinstance_of(parent, types.TracebackType):
        where = notebook.source_line(parent.tb_frame.f_code, parent.tb_lineno).label
        shown = f"{text}, frame {parent.tb_frame.f_code.co_name}() {where}"
        yield parent.tb_frame, Step("frame", Label(shown))
        yield parent.tb_next, Step("frame", Label(text))
    else:
        yield from _locals(parent, text, "frame")
        if parent.f_back is not None:
            yield parent.f_back, Step("frame", Label(notebook.frame_label(parent.f_back)))
        # A debugger or a traceback's printer may have left a dictionary of the same variables.
        names = (part for part in _referents(parent) if type(part) is dict)
        yield from ((part, Step("frame", Label(text, "locals"))) for part in names)


def _suspended_parts(parent: Any, text: str) -> Iterator[tuple[Any, Step]]:
    prefix = {types.GeneratorType: "gi", types.CoroutineType: "cr"}.get(type(parent), "ag")
    frame = getattr(parent, f"{prefix}_frame")
    if frame is not None:
        kind = {"gi": "generator", "cr": "coroutine", "ag": "async generator"}[prefix]
        where = notebook.source_line(frame.f_code, frame.f_lineno).label
        shown = f"{text}, {kind} {frame.f_code.co_name}() {where}"
        yield from _locals(frame, shown, "generator")
        yield frame, Step("generator", Label(shown))
        inner = {"gi": "gi_yieldfrom", "cr": "cr_await", "ag": "ag_await"}[prefix]
        yield getattr(parent, inner), Step("generator", Label(text))


def _locals(frame: types.FrameType, text: str, edge: str) -> Iterator[tuple[Any, Step]]:
    for name, value in notebook.frame_locals(frame).items():
        yield value, Step(edge, Label(f"{text}, variable {name}"))


def _attributes(parent: Any, label: Label) -> Iterator[tuple[Any, Step]]:
    """Name what instances and classes hold in their dictionary and slots."""
    text = label.text
    is_module = isinstance_of(parent, torch.nn.Module)
    own = instance_dict(parent)
    context = "module attributes" if is_module else "attributes"
    holder = Label(text, context, joint=label.joint)
    if own is not None:
        yield own, Step("attribute", holder)
        for key, value in list(own.items()):  # values kept inline, with no dictionary of their own
            if isinstance(key, str):
                yield value, Step("attribute", _attribute(holder, key))
    if isinstance_of(parent, type):
        yield from _class_parts(parent, text)
    for name, value in _slots(parent):
        yield value, Step("attribute", _attribute(holder, name))
    yield type(parent), Step("attribute", Label(f"type({text})"))


def _class_parts(parent: type, text: str) -> Iterator[tuple[Any, Step]]:
    for name, value in list(class_dict(parent).items()):
        yield value, Step("attribute", Label(f"{text}.{name}"))
    for base in mro(parent)[1:]:
        yield base, Step("attribute", Label(text))
    for name in ("__mro__", "__bases__"):
        yield vars(type)[name].__get__(parent), Step("attribute", Label(text, "bases"))
    # A class's dictionary cannot be asked for, only met; nothing else of a class is a dictionary.
    for part in _referents(parent):
        if type(part) is dict:
            yield part, Step("attribute", Label(text, "attributes"))


def _referents(value: Any) -> list[Any]:
    import gc

    return gc.get_referents(value)


def _cached(cache: Any, child: Any) -> Step:
    wrapped = own_dict(cache)["__wrapped__"]  # type: ignore[index]  # always set by functools
    name = getattr(wrapped, "__qualname__", "a function").rpartition("<locals>.")[2]
    if child is wrapped:
        return Step("attribute", Label(f"{name}.__wrapped__"))
    label = Label(f"lru_cache of {name}", "cache")
    results = next(part for part in _referents(cache) if type(part) is dict)
    if child is results:
        return Step("item", label)
    is_key = id(child) in set(map(id, results))
    return _item_step(label, Loose("a key") if is_key else "", child, lambda _: None)


def instance_dict(value: Any) -> dict[str, Any] | None:
    """Give an instance's attributes, without running a ``__getattr__`` or property of its own."""
    return None if isinstance_of(value, type, types.ModuleType) else own_dict(value)


def has_dict(value: Any) -> bool:
    """Say whether an object has attributes of its own, without asking it."""
    return any("__dict__" in class_dict(base) for base in mro(type(value)))


def own_dict(value: Any) -> dict[str, Any] | None:
    """Give a module's or an instance's ``__dict__``, without running code of its own."""
    for base in mro(type(value)):
        slot = class_dict(base).get("__dict__")
        if slot is not None:  # a property of the user's is left alone
            own = slot.__get__(value) if type(slot) in DESCRIPTORS else None
            return own if type(own) is dict else None
    return None


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    if is_tensor(value):
        names = ("_backward_hooks", "_post_accumulate_grad_hooks")
        yield from ((name, getattr(value, name, None)) for name in names)
        return
    for kind in mro(type(value)):
        for name, slot in list(class_dict(kind).items()):
            if type(slot) is types.MemberDescriptorType:
                try:
                    yield name, slot.__get__(value)
                except AttributeError:  # not set
                    continue


def key_text(key: Any, name_of: NameOf) -> str:
    """Show a dictionary's key, running no ``__repr__`` but those of plain values."""
    if isinstance_of(key, str):
        plain = str.__repr__(key)
    elif type(key) in (int, float, bool, bytes, complex, type(None)):
        plain = repr(key)
    elif type(key) is tuple and len(key) < 5:
        plain = f"({', '.join(key_text(item, name_of) for item in key)})"
    else:
        return name_of(key) or f"<{class_name(type(key))}>"
    return plain if len(plain) <= LONGEST_KEY else f"{plain[: LONGEST_KEY - 1]}…"


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
        return str(value.name())
    if isinstance_of(value, types.FrameType):
        return notebook.frame_label(value)
    if isinstance_of(value, types.FunctionType):
        return f"function {value.__name__}"
    if isinstance_of(value, type):
        return f"class {class_name(value)}"
    return class_name(type(value))
