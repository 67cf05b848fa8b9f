"""Objects looked at from outside: whatever methods they have, none of them runs."""

from __future__ import annotations

import gc
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np

from nbinspect.tensors import class_dict, is_tensor, mro

DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)


def isinstance_of(value: object, *kinds: type) -> bool:
    """Like ``isinstance``, but asks the type alone: ``__class__`` may be the user's code."""
    return issubclass(type(value), kinds)


def is_hooks(value: Any) -> bool:
    """Say whether an object is a dictionary of hooks as torch makes them: callables by number."""
    if type(value) is not OrderedDict or not value:
        return False
    return all(type(key) is int and callable(one) for key, one in value.items())


def object_parts(array: Any) -> Iterator[tuple[str, Any]]:
    """Yield what of a NumPy array has objects for elements, the place of a field before it.

    That is the array, or those of its fields that are of objects, e.g. ``['loss']``. Of a subclass
    that is not NumPy's own the fields are left alone: to take one would run its code.
    """
    if array.dtype == object:
        yield "", array
    elif type(array) in {np.ndarray, np.recarray}:
        for name in array.dtype.names or ():
            if array.dtype.fields[name][0].hasobject:
                inner = object_parts(np.ndarray.__getitem__(array, name))
                yield from ((f"[{name!r}]{place}", part) for place, part in inner)


def address_of_bytes(value: Any) -> int:
    """Give where an array or buffer lies that a tensor can be made over, 0 for anything else.

    Also 0 for an array over a tensor: that tensor is held by it, not the other way round.
    """
    if isinstance_of(value, np.ndarray):
        below = value
        while isinstance_of(below, np.ndarray):
            below = vars(np.ndarray)["base"].__get__(below)
        interface = vars(np.ndarray)["__array_interface__"]
        return 0 if is_tensor(below) else int(interface.__get__(value)["data"][0])
    if type(value) not in (memoryview, bytearray, bytes):
        return 0
    try:
        return address_of_bytes(np.frombuffer(value, np.uint8))
    except (ValueError, BufferError):  # empty, released or scattered
        return 0


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


def slots(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of an instance's slots, and of a tensor's hooks."""
    if is_tensor(value):
        names = ("_backward_hooks", "_post_accumulate_grad_hooks")
        yield from ((name, getattr(value, name, None)) for name in names)
        return
    for kind in mro(type(value)):
        yield from slots_of(kind, value)


def slots_of(kind: type, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of those slots of an instance that one of its classes defines."""
    for name, slot in list(class_dict(kind).items()):
        if type(slot) is types.MemberDescriptorType:
            try:
                yield name, slot.__get__(value)
            except AttributeError:  # not set
                continue


def referents(value: Any) -> list[Any]:
    """List what Python's collector sees that an object refers to."""
    return gc.get_referents(value)


def own_size(value: Any) -> int:
    """Give ``sys.getsizeof``, but of a type that says it by code of the user's what its base says."""
    said = [own["__sizeof__"] for own in map(class_dict, mro(type(value))) if "__sizeof__" in own]
    if type(said[0]) is types.MethodDescriptorType:
        return sys.getsizeof(value)
    built_in = (one for one in said if type(one) is types.MethodDescriptorType)
    return int(next(built_in)(value))  # `object` has one


def own_bytes(value: Any) -> int:
    """Give an object's own bytes and those of its attributes' dictionary, what they hold left out."""
    own = own_dict(value)
    return own_size(value) + (0 if own is None else own_size(own))
