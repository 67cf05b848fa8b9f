"""What a holder that is no container holds, and how each part of it reads."""

from __future__ import annotations

import concurrent.futures
import functools
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from nbinspect import notebook
from nbinspect.heapgraph.go_betweens import go_betweens
from nbinspect.heapgraph.labelling import Label, Step
from nbinspect.heapgraph.objects import (
    instance_dict,
    is_hooks,
    isinstance_of,
    object_parts,
    own_dict,
    referents,
    slots,
)
from nbinspect.tensors import class_dict, is_node, mro

MEMBER_DICTS = ("_parameters", "_buffers", "_modules")
SPELLED = {  # attributes that users know by another spelling
    concurrent.futures.Future: ("_result", ".result()", "_exception", ".exception()"),
    weakref.WeakKeyDictionary: ("data", ""),
    weakref.WeakValueDictionary: ("data", ""),
    WeakIdKeyDictionary: ("data", ""),
}


def parts(parent: Any, label: Label) -> Iterator[tuple[Any, Step]]:
    """Yield what a holder that is no container holds, each with its step."""
    yield from _special_parts(parent, label.text, label.text + label.joint)
    yield from _attributes(parent, label)


def _special_parts(parent: Any, text: str, dotted: str) -> Iterator[tuple[Any, Step]]:
    """Name the parts of the interpreter's own kinds of object."""
    if isinstance_of(parent, types.FunctionType):
        free = parent.__code__.co_freevars
        yield parent.__closure__, Step("cell", Label(text, "closure", free))
        defaults = parent.__defaults__ or ()
        names = parent.__code__.co_varnames[: parent.__code__.co_argcount][-len(defaults) :]
        yield defaults, Step("item", Label(text, "defaults", names))
        yield parent.__kwdefaults__, Step("item", Label(text, "defaults"))
        yield from _annotations(parent, text)
    elif isinstance_of(parent, types.CellType):
        yield parent.cell_contents, Step("cell", Label(text))
    elif isinstance_of(parent, types.MethodType):
        yield parent.__self__, Step("attribute", Label(f"{dotted}__self__"))
        yield parent.__func__, Step("attribute", Label(text))
    elif isinstance_of(parent, np.ndarray):  # of objects
        for field, part in object_parts(parent):
            for index, value in zip(np.ndindex(part.shape), part.flat, strict=True):
                place = f"{field}[{', '.join(map(str, index)) or '()'}]"
                yield value, Step("item", Label(f"{text}{place}", container="ndarray"))
    elif isinstance_of(parent, functools.partial):
        yield parent.func, Step("attribute", Label(f"{dotted}func"))
        yield parent.args, Step("item", Label(f"{dotted}args"))
        yield parent.keywords, Step("item", Label(f"{dotted}keywords"))
    elif isinstance_of(parent, BaseException, types.TracebackType, types.FrameType):
        yield from _error_parts(parent, text)
    elif isinstance_of(parent, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType):
        yield from _suspended_parts(parent, text)
    elif is_node(parent):  # one that nothing in C++ has shows its hooks
        hooks = (part for part in referents(parent) if is_hooks(part))
        yield from ((part, Step("hook", Label(text, "hooks"))) for part in hooks)
    else:
        yield from go_betweens(parent, text)


def _annotations(function: types.FunctionType, text: str) -> Iterator[tuple[Any, Step]]:
    """Find them without asking for them: a tuple of names and values in turn, or a dictionary."""
    known = (function.__closure__, function.__defaults__, function.__kwdefaults__)
    others = set(map(id, (*known, function.__globals__, own_dict(function))))
    for part in referents(function):
        if (type(part) is tuple or type(part) is dict) and id(part) not in others:
            names = tuple(part[n - n % 2] for n in range(len(part))) if type(part) is tuple else ()
            noted = Label(f"{text}.__annotations__", "annotations", names)
            yield part, Step("attribute", noted)


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
        names = (part for part in referents(parent) if type(part) is dict)
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
    bases = set(map(id, mro(type(parent))))  # `issubclass` would ask an ABC, and that the metaclass
    spelled = next((pairs for kind, pairs in SPELLED.items() if id(kind) in bases), ())
    holder = Label(text, context, spelled, joint=label.joint)
    if own is not None:
        yield own, Step("attribute", holder)
        for key, value in list(own.items()):  # values kept inline, with no dictionary of their own
            if isinstance(key, str):
                yield value, Step("attribute", attribute(holder, key))
    if isinstance_of(parent, type):
        yield from _class_parts(parent, text)
    for name, value in slots(parent):
        yield value, Step("attribute", attribute(holder, name))
    yield type(parent), Step("attribute", Label(f"type({text})"))


def _class_parts(parent: type, text: str) -> Iterator[tuple[Any, Step]]:
    for name, value in list(class_dict(parent).items()):
        yield value, Step("attribute", class_attribute(text, name, value))
    for base in mro(parent)[1:]:
        yield base, Step("attribute", Label(text))
    for name in ("__mro__", "__bases__"):
        yield vars(type)[name].__get__(parent), Step("attribute", Label(text, "bases"))
    # A class's dictionary cannot be asked for, only met; nothing else of a class is a dictionary.
    for part in referents(parent):
        if type(part) is dict:
            yield part, Step("attribute", Label(text, "class attributes"))


def class_attribute(text: str, name: str, value: Any) -> Label:
    """Name an attribute of a class; one that answers for itself when asked for is in its `__dict__`."""
    kinds = map(class_dict, mro(type(value)))
    answers = next((own["__get__"] for own in kinds if "__get__" in own), None)
    if type(answers) is types.FunctionType and type(value) is not functools.cached_property:
        return Label(f"{text}.__dict__[{name!r}]")
    return Label(f"{text}.{name}")


def attribute(holder: Label, key: str) -> Label:
    """Name an attribute of a holder; a module's own dictionaries and its hooks have no names."""
    if holder.context == "module attributes" and key in MEMBER_DICTS:
        return Label(holder.text, "members")
    if key == "_python_modules":  # of TorchScript's list of submodules
        return Label(holder.text, "members")
    if key == "_actual_script_module":  # has the names of the traced module that it is in
        return Label(holder.text)
    if key in holder.extra[::2]:
        return Label(holder.text + holder.extra[holder.extra.index(key) + 1])
    if "hooks" in key:
        return Label(holder.text, "hooks", (key,))
    return Label(f"{holder.text}{holder.joint}{key}")
