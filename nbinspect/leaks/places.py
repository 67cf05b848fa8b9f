"""Places below the user's names, and how many bytes of arrays, texts and buffers lie under each."""

from __future__ import annotations

import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from nbinspect import notebook
from nbinspect.heapgraph.labelling import Label
from nbinspect.heapgraph.labels import Reader
from nbinspect.heapgraph.objects import isinstance_of, own_dict, referents
from nbinspect.leaks.bulk import BULK, bulk_bytes
from nbinspect.leaks.containers import base_of
from nbinspect.tensors import class_dict, is_node

MOST_OBJECTS = 50_000
MOST_PLACES = 1_000  # of one container that are told apart
LEAST_BYTES = 4 << 10  # a place with less is not noted
COMPILED = "__compiled_fn_"  # what torch.compile names among the user's own leads to its innards
SEQUENCES = (list, tuple, deque)
SETS = (set, frozenset)
NUMBERS = (int, float, complex, type(None), np.generic)
CALLS = (types.FrameType, types.TracebackType, types.CodeType, types.ModuleType)
BUILT_IN = (types.BuiltinFunctionType, weakref.ref, property)
SKIPPED = (torch.Tensor, *NUMBERS, *CALLS, *BUILT_IN)

_DTYPE: Any = vars(np.ndarray)["dtype"]
_FLAT: Any = vars(np.ndarray)["flat"]

Place = tuple[object, object]
"""What holds something, by its id, and where in it."""


@dataclass(slots=True)
class Tree:
    """What lies below the user's names, each object once, under the nearest name.

    Attributes:
        values: the objects.
        above: for each, the number of its holder; -1 for what has a name.
        places: for each, where it is.
        roots: labels of what has a name.
        sizes: for each, the bytes of bulk at and below it.
        is_whole: nothing was left out for want of time.
    """

    values: list[Any] = field(default_factory=list)
    above: list[int] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    roots: list[Label] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    is_whole: bool = True

    def name(self, number: int) -> str:
        """Spell where an object is, as code has it where there is code for it."""
        way = [number]
        while self.above[way[-1]] >= 0:
            way.append(self.above[way[-1]])
        label, reader = self.roots[way[-1]], Reader()
        for holder, held in zip(way[::-1], way[-2::-1], strict=False):
            label = reader.step(
                label, self.values[holder], self.values[held], "", lambda _: None
            ).label
        return label.text


def tree() -> Tree:
    """Look below the user's variables, modules and running calls.

    Cost: some 2 µs an object, of which 50,000 are looked at, the nearest to the names first.
    """
    search = _Search()
    found = search.found
    for label, place, value in _roots():
        search.add(value, -1, place)
        found.roots += [label] * (len(found.values) - len(found.roots))
    at = 0
    while at < len(found.values) < MOST_OBJECTS:
        value = found.values[at]
        inner = search.kinds.inner(value)
        search.is_apart = len(inner) <= MOST_PLACES
        for slot, one in inner:
            search.add(one, at, (id(value), slot))
        at += 1
    found.is_whole = at == len(found.values)
    for number in range(len(found.values) - 1, -1, -1):
        if found.above[number] >= 0:
            found.sizes[found.above[number]] += found.sizes[number]
    return found


class _Search:
    """Makes a tree.

    Attributes:
        found: what there is of it.
        kinds: how objects are looked into.
        is_apart: arrays, texts and buffers that are added have places of their own.
    """

    def __init__(self) -> None:
        self.found = Tree()
        self.kinds = _Kinds()
        self.is_apart = True
        self._seen: set[int] = set()

    def add(self, value: Any, above: int, place: Place) -> None:
        """Put an object into the tree, unless it has nothing below it or is there."""
        how, size, key = self.kinds.of(value), 0, id(value)
        if how == "bulk":
            key, size = bulk_bytes(value)
        if how == "nothing" or key in self._seen:
            return
        self._seen.add(key)
        found, is_alone = self.found, how == "bulk" and not _has_objects(value)
        if is_alone and above >= 0 and (size < LEAST_BYTES or not self.is_apart):
            found.sizes[above] += size
            return
        found.values.append(value)
        found.above.append(above)
        found.places.append(place)
        found.sizes.append(size)


def _has_objects(value: Any) -> bool:
    return isinstance_of(value, np.ndarray) and bool(_DTYPE.__get__(value).hasobject)


def _roots() -> Iterator[tuple[Label, Place, Any]]:
    """Give what has a name: a variable of the notebook, of the user's modules, of running calls."""
    yield from _of_names(notebook.user_namespace(), "")
    for name, module in list(sys.modules.items()):
        names = own_dict(module)
        file = names.get("__file__") if names is not None else None
        if names is not None and type(file) is str and notebook.is_users_file(file):
            yield from _of_names(names, f"{name}.")
    for frame in notebook.running_frames():
        for variable, value in frame.values.items():
            yield Label(f"{frame.label}, variable {variable}"), (frame.label, variable), value


def _of_names(names: dict[str, Any], prefix: str) -> Iterator[tuple[Label, Place, Any]]:
    own = [
        (name, value)
        for name, value in names.items()
        if type(name) is not str or not name.startswith(COMPILED)
    ]
    # What was displayed comes last: most of it has a better name.
    for name, value in sorted(own, key=lambda pair: notebook.is_out_name(pair[0])):
        yield Label(f"{prefix}{name}"), (id(names), name), value


class _Kinds:
    """How objects are looked into, by their type: asked once for each type."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        self._kinds: list[type] = []  # alive as long as their ids are keys

    def of(self, value: Any) -> str:
        kind = type(value)
        found = self._known.get(id(kind))
        if found is None:
            found = self._known[id(kind)] = "nothing" if is_node(value) else _how(kind)
            self._kinds.append(kind)
        if found == "function" and not notebook.is_users_file(value.__code__.co_filename):
            return "nothing"
        if found == "class" and not _is_users(value):
            return "nothing"
        return found

    def inner(self, value: Any) -> list[tuple[object, Any]]:
        """List what an object holds, each with where it is in it."""
        how = self.of(value)
        if how == "dict":
            pairs = list(dict.items(value))
            return [(key if type(key) is str else id(key), one) for key, one in pairs]
        if how == "bulk":
            items: Iterable[Any] = _FLAT.__get__(value) if _has_objects(value) else ()
        elif how == "function":
            items = (value.__closure__, value.__defaults__, value.__kwdefaults__, own_dict(value))
        elif how == "class":
            return list(class_dict(value).items())
        elif how == "set":
            return [(id(one), one) for one in _base(value, SETS).__iter__(value)]
        elif how == "sequence":
            items = list(_base(value, SEQUENCES).__iter__(value))
        else:
            items = referents(value)
        return list(enumerate(items))


def _base(value: Any, kinds: tuple[Any, ...]) -> Any:
    return next(kind for kind in kinds if isinstance_of(value, kind))


def _how(kind: type) -> str:
    """Say how objects of a type are looked into; ``nothing``: not at all."""
    rules: tuple[tuple[str, tuple[type, ...]], ...] = (
        ("nothing", SKIPPED),
        ("bulk", BULK),
        ("dict", (dict,)),
        ("sequence", SEQUENCES),
        ("set", SETS),
        ("function", (types.FunctionType,)),
        ("class", (type,)),
    )
    found = next((how for how, kinds in rules if issubclass(kind, kinds)), "")
    module = class_dict(kind).get("__module__")
    is_shells = type(module) is str and module.partition(".")[0] in notebook.PLUMBING
    return "nothing" if is_shells and not found else found or "other"


def _is_users(kind: type) -> bool:
    name = class_dict(kind).get("__module__")
    module = sys.modules.get(name) if type(name) is str else None
    file = (own_dict(module) or {}).get("__file__") if module is not None else None
    return name == "__main__" or (type(file) is str and notebook.is_users_file(file))


class Noted(NamedTuple):
    """What lies under a place: bytes, and how many items it has if it is a container."""

    size_bytes: int
    n_items: int


NOTHING = Noted(0, 0)


class Places:
    """Follows how many bytes lie under each place, without holding anything.

    Attributes:
        saw_all: there never was more below the names than is looked at.
    """

    def __init__(self) -> None:
        self.saw_all = True
        self._before: dict[Place, Noted] | None = None
        self._rising: dict[Place, list[Noted]] = {}

    def note(self) -> None:
        """Note how many there are now."""
        found = tree()
        self.saw_all = self.saw_all and found.is_whole
        now = {
            place: Noted(size, n_items(value))
            for place, size, value in zip(found.places, found.sizes, found.values, strict=True)
            if size >= LEAST_BYTES
        }
        if self._before is not None:
            before, rising = self._before, self._rising
            self._rising = {
                place: [*rising.get(place, (before.get(place, NOTHING),)), one]
                for place, one in now.items()
                if one.size_bytes > before.get(place, NOTHING).size_bytes
            }
        self._before = now

    def per_run(self, n_times: int) -> dict[Place, tuple[int, float]]:
        """Give the places under which there was more at each of the last times.

        Returns:
            How many bytes more, and how many items, on average.
        """
        told = {key: seen[-n_times - 1 :] for key, seen in self._rising.items()}
        return {
            key: (
                round((seen[-1].size_bytes - seen[0].size_bytes) / n_times),
                (seen[-1].n_items - seen[0].n_items) / n_times,
            )
            for key, seen in told.items()
            if len(seen) > n_times
        }

    def close(self) -> None:
        """Forget all."""
        self._before = None
        self._rising = {}


def n_items(value: Any) -> int:
    """Say how many items a container has, by the built-in type's own count; 0 if it is none."""
    base = base_of(value)
    return int(base.__len__(value)) if base is not None else 0
