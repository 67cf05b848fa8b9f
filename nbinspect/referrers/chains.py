"""What a search found, read aloud from the root down to the object."""

from __future__ import annotations

import dataclasses
import itertools
import re
import types
from collections import deque
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from nbinspect import _torch, notebook
from nbinspect.heapgraph.labelling import Label
from nbinspect.heapgraph.labels import LruCache, Reader, short_name
from nbinspect.heapgraph.native import BYTES, HOOKS, SAME_BYTES, TENSOR_HOOKS, Reference
from nbinspect.heapgraph.objects import isinstance_of, own_dict, slots_of
from nbinspect.heapgraph.resolving import is_needed
from nbinspect.referrers.backward import Backward
from nbinspect.referrers.links import link_to, link_to_call
from nbinspect.referrers.records import Chain, Link
from nbinspect.referrers.spelling import as_code
from nbinspect.render.format import count
from nbinspect.tensors import (
    class_dict,
    class_name,
    is_tensor,
    mro,
    node_name,
)

FOLDED = {"attribute", "item"}  # steps that only lengthen the name of the link they start from
FIXED = {
    "read-only",
    "members",
    "a thread's attributes",
}  # contexts in which nothing can be taken out
GIVES_UP = (dict, list, deque, np.ndarray)
MOST_STEPS = 64
MOST_IN_A_ROW = 6  # autograd nodes, or calls of each other; those in the middle are left out


class Place(NamedTuple):
    """Something that code can take out of its holder.

    Attributes:
        code: how it is spelled.
        key: its id.
        container: what it is an item of, as in `Link.container`.
        is_needed: it is an attribute that a library's code goes by, which would break without it.
    """

    code: str
    key: int
    container: str
    is_needed: bool = False


class Narrator:
    """Turns paths of a `Backward` search into chains of links."""

    def __init__(self, search: Backward, names: dict[int, str] | None = None) -> None:
        self._search = search
        self._reader = Reader()
        self._names: dict[int, str] = {} if names is None else names

    def from_root(self, start: Reference) -> list[Chain]:
        """Read the shortest way that begins with a reference out of a root, by each of its names."""
        search, root = self._search, self._search.roots.get(start.parent)
        if root is None:
            return [self._from_frame(start)]
        parent, child = search.root_objects[start.parent], search.objects[start.child]
        step = self._reader.step(root.label, parent, child, start.slot, self._name_of)
        labels = [step.label]
        if root.label.context == "names":
            names = [name for name, value in list(parent.items()) if value is child]
            users = [name for name in names if not notebook.is_out_name(name)]
            labels = [dataclasses.replace(step.label, text=name) for name in users] or labels
        return [self._from_name(label, step.edge, start) for label in labels]

    def _from_name(self, label: Label, edge: str, start: Reference) -> Chain:
        links = [self._link(label, edge, start.child)]
        path = self._path(start.child)
        return Chain(label.text, self._along(path, links, label), self._steps([start, *path]))

    def _from_frame(self, start: Reference) -> Chain:
        frame = self._search.frames[-start.parent - 1]
        name = next(k for k, value in frame.values.items() if id(value) == start.child)
        first = link_to_call(frame)
        label = Label(f"variable {name}")
        held = self._link(label, "frame", start.child)
        path = self._path(start.child)
        links = self._along(path, [first, held], label)
        return Chain(frame.label, links, self._steps([start, *path])[-1 - len(path) :])

    def places(self, start: Reference, name: str) -> list[Place]:
        """Give what code can take out of its holder on the way from a root, the root's own first.

        A module's parts are left alone: who wants to let go of a weight lets go of its model.

        Args:
            start: the reference out of the root.
            name: of the object that it leads to, where it is a variable and may have several.
        """
        search, root = self._search, self._search.roots.get(start.parent)
        if root is None:
            return []
        label, found, owner = root.label, list[Place](), None
        holders = search.root_objects | search.objects
        for reference in (start, *self._path(start.child)):
            parent, child = holders[reference.parent], search.objects[reference.child]
            step = self._reader.step(label, parent, child, reference.slot, self._name_of)
            can_go = _gives_up(parent, child) and label.context not in FIXED
            is_within = label.context.endswith("attributes")  # the dictionary of the one before
            can_go = can_go and not (is_within and not _lets_delete(owner))
            holder, owner = (owner if is_within else parent), parent
            if reference.slot or step.edge not in FOLDED:
                break
            is_variable = root.label.context == "names" and reference is start
            before, label = label.text, step.label
            label = dataclasses.replace(label, text=name) if is_variable else label
            code = as_code(label.text)
            if can_go and code and label.text != before:
                attribute = re.search(r"\.(\w+)$", code)
                needed = attribute is not None and is_needed(holder, attribute[1])
                found.append(Place(code, reference.child, label.container, needed))
        return found

    def from_cycle(self, path: list[Reference]) -> Chain:
        """Read a way that begins at an object of a cycle."""
        start = self._search.objects[path[0].parent]
        label = Label(short_name(start))
        first = link_to(start, f"cycle of {label.text}")
        links = self._along(path, [first], label)
        return Chain(f"cycle of {label.text}", links, self._steps(path))

    def from_loose_end(self, path: list[Reference]) -> Chain:
        """Read a way that begins at an object whose own holder cannot be seen."""
        start = self._search.objects[path[0].parent]
        label = Label(f"unnamed {short_name(start)}")
        first = self._link(label, "other", path[0].parent)
        return Chain(label.text, self._along(path, [first], label), self._steps(path))

    def _path(self, key: int) -> list[Reference]:
        """Give the references from a holder down to the target."""
        path = []
        while key in self._search.toward:
            path.append(self._search.toward[key])
            key = path[-1].child
        return path

    def _steps(self, path: list[Reference]) -> tuple[tuple[int, str], ...]:
        """List what a way leads through, each with its type."""
        search = self._search
        found: dict[int, Any] = search.root_objects | search.objects
        keys = [key for key in (path[0].parent, *(one.child for one in path)) if key in found]
        return tuple((key, class_name(type(found[key]))) for key in keys[-MOST_STEPS:])

    def _along(self, path: list[Reference], links: list[Link], label: Label) -> tuple[Link, ...]:
        objects, in_a_row = self._search.objects, 0
        runs = self._runs(path)
        for number, reference in enumerate(path):
            parent, child = objects[reference.parent], objects[reference.child]
            before, step = label, self._step(label, parent, child, reference)
            label = step.label
            in_a_row = in_a_row + 1 if runs[number] else 0
            if runs[number] > MOST_IN_A_ROW and 2 < in_a_row <= runs[number] - 2:
                if in_a_row == 3:
                    what = "nodes" if reference.slot else "calls"
                    links.append(Link(f"{count(runs[number] - 4)} more {what}", "other", ""))
                continue
            if step.edge == "hook" and label.context == "hooks" and number + 1 < len(path):
                continue  # the hook itself is named next
            link = self._link(label, step.edge, reference.child)
            if before.context == "hooks":
                place = self._reader.place(before, parent, child)
                link = dataclasses.replace(link, droppable=f"{_shown(before)}[{place}]")
            elif not _gives_up(parent, child) or before.context in FIXED - {"members"}:
                link = dataclasses.replace(link, droppable=links[-1].droppable)
            if link.label == links[-1].label:  # a step that has no name adds nothing
                continue
            if step.edge in FOLDED and type(parent) is not LruCache:
                links[-1] = link
            else:
                links.append(link)
        return tuple(links)

    def _runs(self, path: list[Reference]) -> list[int]:
        """Give, for each step, the length of the run of nodes, or of calls, that it belongs to."""
        objects = self._search.objects
        kinds = [
            one.slot
            if one.slot == "next"
            else all(type(objects[key]) is types.FrameType for key in (one.parent, one.child))
            for one in path
        ]
        runs: list[int] = []
        for kind, steps in itertools.groupby(kinds):
            n = len(list(steps))
            runs += [n if kind else 0] * n
        return runs

    def _step(self, label: Label, parent: Any, child: Any, reference: Reference) -> Any:
        """Name one step; what follows a C++ reference is named from there on."""
        slot = reference.slot
        step = self._reader.step(label, parent, child, slot, self._name_of)
        if slot in {"next", "grad_fn"}:
            name = node_name(child)
            text = name if slot == "next" else f"grad_fn {name}"
            return step._replace(label=Label(text))
        if (
            slot
            and slot not in {HOOKS, TENSOR_HOOKS}
            and not slot.startswith(_torch.SCRIPT_MEMBERS)
        ):
            shown = {"grad": ".grad", "base": "._base", "array": "the array's tensor"}
            shown |= dict.fromkeys((BYTES, SAME_BYTES), f"the tensor's {class_name(type(child))}")
            is_array = slot == "array" and isinstance_of(child, np.ndarray)
            text = ".base" if is_array else shown.get(slot, slot)
            return step._replace(label=Label(text))
        if step.edge in {"cell", "frame", "generator", "exception"}:
            own = step.label.text.removeprefix(label.text).removeprefix(", ")
            return step._replace(
                label=Label(own or label.text, step.label.context, step.label.extra)
            )
        return step

    def _link(self, label: Label, edge: str, key: int) -> Link:
        return link_to(self._search.objects[key], _shown(label), edge, label.container)

    def _name_of(self, value: Any) -> str | None:
        """Name a dictionary's key that is an object, e.g. the parameter in an optimizer's state."""
        if not is_tensor(value):
            return None
        if id(value) not in self._names:
            self._names[id(value)] = short_name(value)  # also ends a search that comes back here
            self._names[id(value)] = self._searched_name(value) or short_name(value)
        return self._names[id(value)]

    def _searched_name(self, value: Any) -> str:
        ours = {*self._search.ours, id(vars(self._search))}
        budget_s = max(1.0, self._search.remaining_s())
        search = Backward(
            [value], every_root=False, budget_s=budget_s, ours=ours, namer_of=self._search
        )
        try:
            search.search()
            narrator = Narrator(search, self._names)
            return narrator.from_root(search.hits[0].reference)[0].links[-1].label
        except IndexError:  # it has no name
            return ""
        finally:
            search.close()


def _gives_up(parent: Any, child: Any) -> bool:
    """Say whether what an object holds can be taken out of it: an item, an attribute of its own."""
    if isinstance_of(parent, *GIVES_UP):
        return True
    if isinstance_of(parent, type):
        return any(one is child for one in class_dict(parent).values())
    own = own_dict(parent)
    if not _lets_delete(parent):
        return own is child
    if own is not None and (own is child or any(one is child for one in list(own.values()))):
        return True
    # Slots that are not a class statement's are read-only: the arguments of a partial.
    kinds = [kind for kind in mro(type(parent)) if "__slots__" in class_dict(kind)]
    return any(one is child for kind in kinds for _, one in slots_of(kind, parent))


def _lets_delete(owner: Any) -> bool:
    """Say whether attributes can be deleted: a frozen dataclass does not let them."""
    own = (class_dict(kind).get("__delattr__") for kind in mro(type(owner)))
    is_module = isinstance_of(owner, nn.Module)
    return is_module or not any(isinstance_of(one, types.FunctionType) for one in own)


def _shown(label: Label) -> str:
    is_attribute = label.context == "hooks" and label.extra
    return f"{label.text}.{label.extra[0]}" if is_attribute else label.text
