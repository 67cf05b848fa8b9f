"""What a search found, read aloud from the root down to the object."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
from typing import Any

from nbinspect import _torch, notebook
from nbinspect.heapgraph.labelling import Label
from nbinspect.heapgraph.labels import LruCache, Reader, short_name
from nbinspect.heapgraph.native import Reference
from nbinspect.heapgraph.objects import isinstance_of
from nbinspect.referrers.backward import Backward
from nbinspect.referrers.records import Chain, Link
from nbinspect.tensors import (
    class_name,
    describe,
    device_of,
    is_node,
    is_tensor,
    node_name,
    storage_bytes,
)

FOLDED = {"attribute", "item"}  # steps that only lengthen the name of the link they start from
# Nothing can be taken out of these, but for what is in an error's own dictionary.
FIXED = (tuple, frozenset, functools.partial, types.MethodType, BaseException)
MOST_STEPS = 64
MOST_IN_A_ROW = 6  # autograd nodes, or calls of each other; those in the middle are left out


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
        first = Link(frame.label, "other", "frame")
        label = Label(f"variable {name}")
        held = self._link(label, "frame", start.child)
        path = self._path(start.child)
        links = self._along(path, [first, held], label)
        return Chain(frame.label, links, self._steps([start, *path])[-1 - len(path) :])

    def from_cycle(self, path: list[Reference]) -> Chain:
        """Read a way that begins at an object of a cycle."""
        start = self._search.objects[path[0].parent]
        label = Label(short_name(start))
        first = Link(f"cycle of {label.text}", "other", class_name(type(start)))
        links = self._along(path, [first], label)
        return Chain(f"cycle of {label.text}", links, self._steps(path))

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
                    links.append(Link(f"{runs[number] - 4:,} more {what}", "other", ""))
                continue
            link = self._link(label, step.edge, reference.child)
            if isinstance_of(parent, *FIXED) or before.context == "read-only":
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
        if slot and not slot.startswith(_torch.SCRIPT_MEMBERS):
            shown = {"grad": ".grad", "base": "._base", "array": "the array's tensor"}
            return step._replace(label=Label(shown.get(slot, slot)))
        if step.edge in {"cell", "frame", "generator", "exception"}:
            own = step.label.text.removeprefix(label.text).removeprefix(", ")
            return step._replace(
                label=Label(own or label.text, step.label.context, step.label.extra)
            )
        return step

    def _link(self, label: Label, edge: str, key: int) -> Link:
        value, text = self._search.objects[key], _shown(label)
        if is_tensor(value):
            kind, size = f"{class_name(type(value))} {describe(value)}", storage_bytes(value)
        else:
            kind, size = node_name(value) if is_node(value) else class_name(type(value)), None
        device = device_of(value)
        return Link(text, edge, kind, size, key, text, label.container, device=device)

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


def _shown(label: Label) -> str:
    return f"{label.text}.{label.extra[0]}" if label.context == "hooks" else label.text
