"""What no name leads to: cycles that wait for the collector, or hold themselves up for ever."""

from __future__ import annotations

from types import CellType, FrameType, FunctionType
from typing import Any

from nbinspect.heapgraph.graph import HeapGraph, Unexplained
from nbinspect.heapgraph.labelling import Label
from nbinspect.heapgraph.labels import short_name
from nbinspect.heapgraph.objects import isinstance_of
from nbinspect.holders.search import Search, Start, State
from nbinspect.tensors import class_dict, is_node, is_tensor

COLLECTABLE = "a cycle that waits for the collector"
BUILTIN = {"", "builtins", "collections"}  # modules of types that say nothing
UNCOLLECTABLE = "a cycle through C++ that no collector frees"


def spread_from_unreachable(search: Search) -> dict[int, str]:
    """Reach what no root leads to, from where it begins.

    Returns:
        Why it is alive, by the id of the object where each such part begins: first the parts that
        something invisible refers to (OTHER), then the cycles (CYCLE).
    """
    graph = search.graph
    reasons: dict[int, str] = {}
    for key in _unreached(search):
        counts = graph.unexplained(key)
        if counts.python > 0 or counts.native > 0:
            reasons[key] = _invisible(counts)
    _spread(search, list(reasons), "OTHER")
    for key, is_collectable in _cycle_starts(graph, set(_unreached(search))):
        reasons[key] = COLLECTABLE if is_collectable else UNCOLLECTABLE
    _spread(search, [key for key in reasons if key not in search.kinds], "CYCLE")
    return reasons


def _unreached(search: Search) -> list[int]:
    return [
        key
        for key in search.graph.objects
        if key not in search.kinds and key not in search.graph.roots
    ]


def _spread(search: Search, keys: list[int], kind: str) -> None:
    objects = search.graph.objects
    search.spread(Start(0, State(key, kind), Label(short_name(objects[key]))) for key in keys)


def _invisible(counts: Unexplained) -> str:
    if counts.native > 0:
        return (
            f"{counts.native} C++ reference{'s' * (counts.native > 1)} that cannot be named "
            "(DLPack, TorchScript, forward AD or a DDP reducer hold them this way)"
        )
    return (
        f"{counts.python} Python reference{'s' * (counts.python > 1)} not visible to gc "
        "(a running expression, or C code such as an autograd node that holds its hooks)"
    )


def _cycle_starts(graph: HeapGraph, keys: set[int]) -> list[tuple[int, bool]]:
    """Give one object of each outermost cycle among `keys`, and whether Python can collect it."""
    if not keys:
        return []
    import networkx as nx

    links = nx.DiGraph()
    links.add_nodes_from(keys)
    for key in keys:
        links.add_edges_from(
            (key, one.child, {"native": bool(one.slot)})
            for one in graph.children.get(key, ())
            if one.child in keys
        )
    condensed = nx.condensation(links)
    starts = []
    for number, members in condensed.nodes(data="members"):
        if condensed.in_degree(number) == 0:
            first = min(members, key=lambda key: _plainness(graph, key))
            starts.append((first, not _is_native(links.subgraph(members))))
    return starts


def _plainness(graph: HeapGraph, key: int) -> tuple[bool, bool, bool, bool, int]:
    """Put objects of the user's own types first, then leaves: they say most about the cycle."""
    value = graph.objects[key]
    module = str(class_dict(type(value)).get("__module__", ""))
    is_builtin = module in BUILTIN
    is_leaf = is_tensor(value) and value.is_leaf
    is_dull = is_builtin and not isinstance_of(value, FunctionType, FrameType)
    is_dull = is_dull or (is_tensor(value) and not is_leaf) or is_node(value)
    is_box = isinstance_of(value, dict, list, tuple, set, CellType)
    of_torch = not is_leaf and module.partition(".")[0] == "torch"
    return is_dull, is_box, of_torch, not is_leaf, key


def _is_native(links: Any) -> bool:
    """Say whether a cycle needs a reference from C++, which Python's collector cannot see."""
    import networkx as nx

    python = nx.DiGraph()
    python.add_edges_from((a, b) for a, b, native in links.edges(data="native") if not native)
    parts = nx.strongly_connected_components(python)
    return not any(len(part) > 1 for part in parts) and not any(a == b for a, b in python.edges)
