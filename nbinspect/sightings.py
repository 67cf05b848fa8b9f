"""In which cell an object came into sight: what the notebook's names lead to, when a cell has ended."""

from __future__ import annotations

import builtins
import gc
import sys
import types
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import compress
from typing import Any, NamedTuple

from nbinspect import notebook

MOST_LOOKS = 5_000  # each time, 0.3 µs each; one object may be met more than once
MOST_ITEMS = 10_000  # of all containers together
CONTAINERS: tuple[Any, ...] = (list, dict, tuple, set, frozenset, deque)
NO_WAY_ON = (  # they lead into libraries, or nowhere
    type,
    types.ModuleType,
    types.CodeType,
    types.FrameType,
    types.TracebackType,
    types.BuiltinFunctionType,
)
IPYTHONS = frozenset({"In", "_ih", "_dh", "_i", "_ii", "_iii"})
_TYPE = vars(type)


class _Kind(NamedTuple):
    """What is to be done with the objects of a type.

    Attributes:
        leads_on: what they refer to is looked at.
        container: the built-in type that counts their items, if any.
        can_be_noted: a weak reference to them can be made.
        is_tensor: they are tensors, whose gradients Python's collector does not see.
    """

    leads_on: bool
    container: Any
    can_be_noted: bool
    is_tensor: bool


class Sightings:
    """Which cell each object is first seen after, by weak references without callbacks.

    It goes from the names down, level by level, as far as the two limits allow. An object that comes
    into sight is from the cell that ends only if its holder was looked into the last time, or has
    come with it; else it may have been there before, and nothing is said of it.

    Cost: 0.1 ms for a hundred names, 2 ms at most; 100 bytes for each object that is noted.
    Blind to: lists, dictionaries and tuples themselves, to which no weak reference can be made; what
    frames, classes, modules and C++ hold, but for gradients.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[weakref.ref[Any], int | None]] = {}
        self._visited: set[int] = set()
        self._entered: set[int] = set()
        self._knows_names = False

    def look(self, names: Mapping[str, Any], cell: int | None) -> None:
        """Note what has come into sight.

        Args:
            names: the notebook's names.
            cell: number of the cell that ends; None if what is new is of no cell.
        """
        walk = _Walk(self._seen, self._visited, self._entered)
        level = [value for name, value in list(names.items()) if name not in IPYTHONS]
        walk.visited.update(map(id, (names, notebook.shell(), vars(builtins), self)))
        level = walk.note(level, cell if self._knows_names else None, is_fresh=self._knows_names)
        self._knows_names = not walk.is_cut_off
        with _no_modes():
            while level:
                level = walk.step(level, cell)
        self._seen, self._visited, self._entered = walk.seen, walk.visited, walk.entered

    def cell_of(self, value: object) -> int | None:
        """Give the number of the cell after which an object was first seen, None if not known."""
        reference, cell = self._seen.get(id(value), (None, None))
        return cell if reference is not None and reference() is value else None


def _no_modes() -> AbstractContextManager[None]:
    """Keep torch's modes from hearing of a tensor that is asked for its gradient."""
    if "torch" not in sys.modules:
        return nullcontext()
    from nbinspect import _torch

    return _torch.no_overrides()


class _Walk:
    """One look at what the names lead to.

    Attributes:
        seen: a weak reference to each object, and its cell.
        entered: ids of those of which all that they hold was noted.
        visited: ids of all that was met.
        is_cut_off: there was more than can be looked at.
    """

    def __init__(
        self,
        known: dict[int, tuple[weakref.ref[Any], int | None]],
        visited: set[int],
        entered: set[int],
    ) -> None:
        self.seen: dict[int, tuple[weakref.ref[Any], int | None]] = {}
        self.entered: set[int] = set()
        self.visited: set[int] = set()
        self._known, self._was_visited, self._was_entered = known, visited, entered
        self._kinds: dict[int, _Kind] = {}
        self._fresh: set[int] = set()
        self._items_left, self._looks_left = MOST_ITEMS, MOST_LOOKS
        self.is_cut_off = False

    def step(self, level: list[Any], cell: int | None) -> list[Any]:
        """Look into the objects of one level; give those of the next."""
        sure, unsure = list[Any](), list[Any]()
        for value in level:
            key = id(value)
            is_sure = key in self._was_entered or key in self._fresh
            (sure if is_sure else unsure).append(value)
            self.entered.add(key)
        below = self.note(self._held_by(sure), cell)
        below += self.note(self._held_by(unsure), None, is_fresh=False)
        if self.is_cut_off:  # some of what these hold was not noted
            self.entered.difference_update(map(id, level))
        return below

    def note(self, values: list[Any], cell: int | None, *, is_fresh: bool = True) -> list[Any]:
        """Note objects that are met for the first time; give those to look into."""
        level = list[Any]()
        visited, known, seen = self.visited, self._known, self.seen
        self.is_cut_off = self.is_cut_off or len(values) > self._looks_left
        values = values[: self._looks_left]
        self._looks_left -= len(values)
        for value in values:
            key = id(value)
            if key in visited:
                continue
            kind = self._kinds.get(id(type(value))) or self._kind(type(value))
            n_items = 1 if kind.container is None else kind.container.__len__(value)
            if not n_items:  # a module has a dozen of them
                continue
            visited.add(key)
            if kind.can_be_noted:
                old = known.get(key)
                if old is not None and old[0]() is value:
                    seen[key] = old
                else:
                    seen[key] = weakref.ref(value), cell
                    if is_fresh:
                        self._fresh.add(key)
            elif is_fresh and key not in self._was_visited:
                self._fresh.add(key)
            if kind.leads_on and n_items <= self._items_left:
                self._items_left -= n_items
                level.append(value)
        return level

    def _kind(self, kind: type) -> _Kind:
        bases = _TYPE["__mro__"].__get__(kind)
        torch = sys.modules.get("torch")
        leads_on = not any(one is base for one in NO_WAY_ON for base in bases)
        container = next((one for one in CONTAINERS if any(one is base for base in bases)), None)
        can_be_noted = _TYPE["__weakrefoffset__"].__get__(kind) != 0
        is_tensor = torch is not None and (kind is torch.Tensor or kind is torch.nn.Parameter)
        found = self._kinds[id(kind)] = _Kind(leads_on, container, can_be_noted, is_tensor)
        return found

    def _held_by(self, holders: list[Any]) -> list[Any]:
        """List what is behind some objects, as far as Python's collector tracks it."""
        functions = [one for one in holders if type(one) is types.FunctionType]
        others = [one for one in holders if type(one) is not types.FunctionType]
        held = gc.get_referents(*others)
        for one in functions:
            held += (one.__closure__, one.__defaults__, one.__kwdefaults__)
        found = list(compress(held, map(gc.is_tracked, held)))
        tensors = (one for one in others if self._kinds[id(type(one))].is_tensor and one.is_leaf)
        return found + [one.grad for one in tensors if one.grad is not None]
