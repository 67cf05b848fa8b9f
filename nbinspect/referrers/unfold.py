"""One step up at a time: who else holds this box of the picture?"""

from __future__ import annotations

from typing import Any

from nbinspect.blocks import GraphEdge, GraphNode
from nbinspect.heapgraph.graph import collector_paused
from nbinspect.heapgraph.labelling import Label
from nbinspect.heapgraph.labels import Reader, short_name
from nbinspect.heapgraph.native import Reference
from nbinspect.referrers.backward import Backward
from nbinspect.tensors import class_name, describe, is_tensor, looking, storage_bytes

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


def _holder(value: Any, wanted: int, type_name: str) -> Any:
    search = Backward([value], every_root=True, budget_s=2.0)
    del value
    try:
        search.one_level()
        found = search.objects.get(wanted, search.root_objects.get(wanted))
        if found is None or class_name(type(found)) != type_name:
            raise GoneError(f"the {type_name} does not hold it any more")
        return found
    finally:
        search.close()


def _boxes(
    search: Backward, key: str
) -> tuple[tuple[GraphNode, ...], tuple[GraphEdge, ...], tuple[tuple[int, str], ...]]:
    (target,) = search.targets
    reader, nodes, edges, ids = Reader(), list[GraphNode](), list[GraphEdge](), []
    references = list({one.parent: one for one in search.parents[target]}.values())
    for reference in references[:MOST_HOLDERS]:
        node, edge, name = _box(search, reader, reference, key)
        nodes.append(node)
        edges.append(edge)
        ids.append((reference.parent, name))
    more = len(references) - MOST_HOLDERS
    if more > 0:
        nodes.append(GraphNode(f"{key}/more", f"{more} more", "", "stub"))
        edges.append(GraphEdge(f"{key}/more", key))
        ids.append((0, ""))
    return tuple(nodes), tuple(edges), tuple(ids)


def _box(
    search: Backward, reader: Reader, reference: Reference, key: str
) -> tuple[GraphNode, GraphEdge, str]:
    own = f"{key}/{reference.parent}"
    child = search.objects[reference.child]
    if reference.parent < 0:
        frame = search.frames[-reference.parent - 1]
        name = next(k for k, value in frame.values.items() if value is child)
        node = GraphNode(own, frame.label, "running call", "root", "FRAME")
        return node, GraphEdge(own, key, f"variable {name}"), ""
    root = search.roots.get(reference.parent)
    holder: Any = search.objects.get(reference.parent, search.root_objects.get(reference.parent))
    label = root.label if root is not None else Label("")
    step = reader.step(label, holder, child, reference.slot, short_name)
    kind = class_name(type(holder))
    if root is not None:
        node = GraphNode(own, step.label.text, "variable", "root", "VARIABLE")
        return node, GraphEdge(own, key), kind
    described = describe(holder) if is_tensor(holder) else ""
    size = storage_bytes(holder) if is_tensor(holder) else None
    shown = f"{kind} {described}".strip()
    node = GraphNode(own, short_name(holder), shown, "holder", "OTHER", size, (), can_unfold=True)
    return node, GraphEdge(own, key, step.label.text.strip(" ,") or reference.slot), kind
