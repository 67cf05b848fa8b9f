"""One step up at a time: who else holds this box of the picture?"""

from __future__ import annotations

import dataclasses
import gc
import io
import typing
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from nbinspect import _torch, notebook
from nbinspect.blocks import GraphEdge, GraphNode
from nbinspect.heapgraph.graph import collector_paused
from nbinspect.heapgraph.labelling import Label
from nbinspect.heapgraph.labels import Reader, short_name
from nbinspect.heapgraph.native import Reference, owned
from nbinspect.heapgraph.objects import isinstance_of, object_parts, own_dict, referents
from nbinspect.heapgraph.roots import roots
from nbinspect.referrers.backward import Backward
from nbinspect.referrers.garbage import freed_with
from nbinspect.referrers.links import link_to, link_to_call
from nbinspect.referrers.origins import origin_of
from nbinspect.referrers.records import Link
from nbinspect.referrers.view import box
from nbinspect.tensors import (
    class_name,
    is_node,
    is_tensor,
    looking,
)

if typing.TYPE_CHECKING:
    import graphviz

MOST_BELOW = 2_000  # objects looked at to say what would be freed with a box
MOST_HOLDERS = 12  # of one box; more become a stub


class GoneError(LookupError):
    """The object that a box stands for is not there any more."""


def unfold(
    target: object, path: tuple[tuple[int, str], ...], key: str
) -> tuple[tuple[GraphNode, ...], tuple[GraphEdge, ...], tuple[tuple[int, str], ...]]:
    """Give the direct holders of one box of a reference picture.

    Args:
        target: the object at the bottom of the picture.
        path: from the target up to the box: id and type name of each holder.
        key: the box's own key, for the arrows.

    Returns:
        New boxes, arrows from them to the box, and (id, type name) of each new box, in order.

    Raises:
        GoneError: one of them does not hold the next any more.

    Cost: a pass over the heap for each step of the path.
    """
    box: list[Any] = [target]
    del target
    with collector_paused(), looking():
        for wanted, type_name in path:
            box.append(_holder(box.pop(), wanted, type_name))
        search = Backward([box.pop()], every_root=True, budget_s=2.0)
        try:
            search.one_level()
            return _boxes(search, key)
        finally:
            search.close()


def follow(steps: tuple[tuple[int, str], ...]) -> Any:
    """Give the object at the end of a way down from a root.

    Args:
        steps: a chain's: id and type name of the root's own dictionary first, of the object last.

    Raises:
        GoneError: one of them does not hold the next any more, or has another type now.

    Cost: a pass over the heap.
    Blind to: another object of the same type that has come to lie at the same address and place.
    """
    (first, _), *rest = steps
    with collector_paused(), looking():
        box = [one for one in gc.get_objects() if id(one) == first] if first in roots() else []
        for key, type_name in rest:
            held = [child for holder in box for child in _held_by(holder) if id(child) == key]
            box = [one for one in held[:1] if class_name(type(one)) == type_name]
    if not box:
        raise GoneError("it is not where it was any more")
    return box.pop()


def objgraph_picture(
    ways: list[tuple[tuple[int, str], ...]], max_depth: int, options: dict[str, Any]
) -> graphviz.Source:
    """Let objgraph draw what refers to the object at the end of some ways down from roots."""
    import graphviz
    import objgraph

    starts = roots()
    way = next((one for one in ways if one and one[0][0] in starts), None)
    if way is None:
        raise GoneError("no name leads to it by which it can be found again")
    box, text = [follow(way)], io.StringIO()
    ours = {"extra_ignore": [id(box)], **options}
    objgraph.show_backrefs(box, max_depth=max_depth, output=text, **ours)
    return graphviz.Source(text.getvalue())


def _held_by(holder: Any) -> Iterator[Any]:
    """Yield what an object holds, for Python's collector or hidden from it."""
    yield from referents(holder)
    yield from (own_dict(holder) or {}).values()  # where they are depends on who asked before
    if is_tensor(holder) or is_node(holder):
        yield from (child for _, child, _ in owned(holder))
    elif isinstance_of(holder, np.ndarray):
        yield holder.base
        for _, part in object_parts(holder):
            yield from part.flat
    elif isinstance_of(holder, _torch.saved_tensor_type()):
        yield holder.data


def _holder(value: Any, wanted: int, type_name: str) -> Any:
    search = Backward([value], every_root=True, budget_s=2.0)
    del value
    try:
        search.one_level()
        found = search.objects.get(wanted, search.root_objects.get(wanted))
        if found is None:
            found = _owner(search, wanted)
        if found is None or class_name(type(found)) != type_name:
            raise GoneError(f"the {type_name} does not hold it any more")
        return found
    finally:
        search.close()


def _owner(search: Backward, wanted: int) -> Any:
    """Find an instance by its attributes' dictionary, which it may not have had when it was seen."""
    for held in [one for one in search.objects.values() if type(one) is dict]:
        for owner in gc.get_referrers(held):
            if id(owner) == wanted and own_dict(owner) is held:
                return owner
    return None


class _Seen(NamedTuple):
    """A holder as it was seen: nothing here refers to it, so that its own references are counted."""

    link: Link
    arrow: str
    type_name: str = ""
    role: Literal["root", "holder"] = "root"
    variable: str = ""


def _boxes(
    search: Backward, key: str
) -> tuple[tuple[GraphNode, ...], tuple[GraphEdge, ...], tuple[tuple[int, str], ...]]:
    (target,) = search.targets
    nodes, edges, ids = list[GraphNode](), list[GraphEdge](), []
    references = list({one.parent: one for one in search.parents[target]}.values())
    for one, seen in _seen(search, references[:MOST_HOLDERS]):
        own = f"{key}/{one.parent}"
        link = _weighed(search, seen) if one.parent > 0 else seen.link
        nodes.append(box(link, own, seen.role, can_unfold=seen.role == "holder"))
        edges.append(GraphEdge(own, key, seen.arrow))
        ids.append((one.parent, seen.type_name))
    more = len(references) - MOST_HOLDERS
    if more > 0:
        nodes.append(GraphNode(f"{key}/more", f"{more} more", "", "stub"))
        edges.append(GraphEdge(f"{key}/more", key))
        ids.append((0, ""))
    return tuple(nodes), tuple(edges), tuple(ids)


def _seen(search: Backward, references: list[Reference]) -> list[tuple[Reference, _Seen]]:
    reader = Reader()  # refers to keys of dictionaries, so it must go before references are counted
    return [(one, _look(search, reader, one)) for one in references]


def _look(search: Backward, reader: Reader, reference: Reference) -> _Seen:
    child = search.objects[reference.child]
    if reference.parent < 0:
        frame = search.frames[-reference.parent - 1]
        name = next(k for k, value in frame.values.items() if value is child)
        return _Seen(link_to_call(frame), f"variable {name}")
    root = search.roots.get(reference.parent)
    holder: Any = search.objects.get(reference.parent, search.root_objects.get(reference.parent))
    label = root.label if root is not None else Label("")
    step = reader.step(label, holder, child, reference.slot, short_name)
    kind, text = class_name(type(holder)), step.label.text
    if root is not None:  # the box stands for the variable, so for what it is bound to
        is_users = reference.parent == id(notebook.user_namespace())
        return _Seen(link_to(child, text), "", kind, "root", text if is_users else "")
    link = link_to(holder, short_name(holder))
    return _Seen(link, text.strip(" ,") or reference.slot, kind, "holder")


def _weighed(search: Backward, seen: _Seen) -> Link:
    """Add what would go with an object, and where it is from."""
    key = seen.link.key
    freed = freed_with(search, [key], MOST_BELOW)
    origin = origin_of(search.objects[key], seen.variable)
    return dataclasses.replace(
        seen.link, retained_bytes=freed, cell=origin.cell, origin=origin.text
    )
