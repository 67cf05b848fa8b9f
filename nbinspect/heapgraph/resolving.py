"""From a holder's name back to the object, and to code that a user can run."""

from __future__ import annotations

import re
import sys
import types
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch

from nbinspect import notebook
from nbinspect.heapgraph.objects import isinstance_of, own_dict, slots
from nbinspect.tensors import class_dict, mro

NAME = re.compile(r"[^\W\d]\w*(\.\w+|\[(\d+|'[^'\\]*')\])*")
PART = re.compile(r"\.?(?P<name>\w+)|\[(?P<index>\d+)\]|\['(?P<key>[^'\\]*)'\]")
SEQUENCES = (list, tuple, deque)
MEMBERS = ("_parameters", "_buffers", "_modules")
NUMBERED = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ParameterList)
NOTHING = object()
"""What a name leads to that leads nowhere; None is a value like others."""


def resolved(name: str) -> Any:
    """Give what a holder's name leads to, running no code of the user's; else `NOTHING`.

    Args:
        name: as `Label.text` has it: ``model.layers.2.weight``, ``log['loss'][0]``.
    """
    if NAME.fullmatch(name) is None:
        return NOTHING
    first, *rest = PART.finditer(name)
    value = notebook.user_namespace().get(first["name"], NOTHING)
    if value is NOTHING:
        value = sys.modules.get(first["name"], NOTHING)
    for part in rest:
        value = _part(value, part)
    return value


def _part(value: Any, part: re.Match[str]) -> Any:
    if value is NOTHING:
        return NOTHING
    if part["name"] is not None:
        return _attribute(value, part["name"])
    if part["key"] is not None:
        is_dict = isinstance_of(value, dict)
        return dict.get(value, part["key"], NOTHING) if is_dict else NOTHING
    index = int(part["index"])
    if isinstance_of(value, dict):
        return dict.get(value, index, NOTHING)
    base = next((kind for kind in SEQUENCES if isinstance_of(value, kind)), None)
    if base is None or index >= base.__len__(value):
        return NOTHING
    return base.__getitem__(value, index)


def _attribute(value: Any, name: str) -> Any:
    if isinstance_of(value, type):
        owns = [class_dict(base) for base in mro(value)]
        return next((own[name] for own in owns if name in own), NOTHING)
    own = own_dict(value) or {}
    if isinstance_of(value, torch.nn.Module):
        inner = [own.get(member) for member in MEMBERS]
        found = [one[name] for one in inner if type(one) is dict and name in one]
        if found:
            return found[0]
    if name in own:
        return own[name]
    slot = dict(slots(value)).get(name, NOTHING)
    of_class = [class_dict(base) for base in mro(type(value))]
    return slot if slot is not NOTHING else next((c[name] for c in of_class if name in c), NOTHING)


def as_code(name: str) -> str:
    """Write the numbered parts of a model as items: ``model.0.weight`` is ``model[0].weight``.

    Returns:
        The name as it is, where no such module has them.
    """
    code, taken = "", ""
    for part in PART.finditer(name) if NAME.fullmatch(name) else ():
        is_number = part["name"] is not None and part["name"].isdigit()
        if is_number and taken:
            if not isinstance_of(resolved(taken), *NUMBERED):
                return name
            code += f"[{part['name']}]"
        else:
            code += part[0]
        taken += part[0]
    return code or name


def is_of_library(name: str) -> bool:
    """Say whether a name is an attribute that an object of a library keeps for itself.

    E.g. ``loop._scheduled``: to empty it would break the object.
    """
    before, dot, last = name.rpartition(".")
    if not dot or not last.startswith("_"):
        return False
    owner = resolved(before)
    if owner is NOTHING:
        return False
    return _is_of_library(owner if isinstance_of(owner, type) else type(owner))


def _is_of_library(kind: type) -> bool:
    module = sys.modules.get(str(class_dict(kind).get("__module__", "")))
    file = (own_dict(module) or {}).get("__file__") if module is not None else None
    return module is not None and type(file) is str and not notebook.is_users_file(file)


def is_needed(owner: Any, name: str) -> bool:
    """Say whether a library's code goes by an attribute, so that it would break without it.

    Args:
        owner: an object, or a module of a library.
        name: of an attribute that it has.
    """
    if isinstance_of(owner, torch.nn.Module):  # which is built of what its user gave it
        return False
    if isinstance_of(owner, types.ModuleType):
        own = own_dict(owner) or {}
        if f"__{name}__" in own or name in (own.get("__all__") or ()):
            return True
        kinds = (one for one in list(own.values()) if isinstance_of(one, type))
        places = [own, *(class_dict(kind) for kind in kinds)]
    else:
        places = [class_dict(kind) for kind in mro(type(owner)) if _is_of_library(kind)]
    return any(_goes_by(name, place) for place in places)


def _goes_by(name: str, place: Mapping[str, Any]) -> bool:
    """Say whether the slots or functions of a class, or those of a module, know a name."""
    if type(place.get(name)) is types.MemberDescriptorType:
        return True
    values = (one.fget if isinstance_of(one, property) else one for one in list(place.values()))
    return any(type(one) is types.FunctionType and name in one.__code__.co_names for one in values)
