"""Fewer boxes: what is too much for one picture folds into stubs, "12 more"."""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from nbinspect.blocks import Graph, GraphEdge, GraphNode
from nbinspect.render.format import count
from nbinspect.render.layers import GAP_X, ranks
from nbinspect.render.nodes import NARROW, box_size

MOST_NODES = 150
TRIES = 24
MORE = re.compile(r"(\d[\d\u202f]*) more")
STUB_WIDTH = 90.0
Links = dict[str, list[str]]


def limited(
    graph: Graph, most: int = MOST_NODES, width: float = math.inf, columns: int = NARROW
) -> Graph:
    """Leave the boxes that matter; of the rest say at each box how many more there are.

    The targets stay, with the shortest way to each root as long as there is room (one stays in
    any case), then the other boxes between roots and targets, then what is nearest.

    Args:
        graph: any graph.
        most: how many boxes there may be, stubs among them.
        width: how wide, in pixels, the boxes of a layer may be side by side.
        columns: how many characters of a label are shown.

    Cost: linear in the size of the graph, a few times.
    """
    graph = tidied(graph)
    ways = list(_ways(graph))
    kept = _chosen(graph, ways, most)
    ranked = {key: n for n, key in enumerate(dict.fromkeys(key for way, _ in ways for key in way))}
    safe = set(ways[0][0]) if ways else set()
    heads = [way[0] for way, begins in ways if begins and len(way) == 1]
    for _ in range(TRIES):
        small, anchors = _folded(graph, kept)
        weight = {node.key: ranked.get(anchors.get(node.key, node.key), 0) for node in small.nodes}
        drop = _too_wide(small, weight, width, columns) | _too_many(small, weight, most)
        drop = {anchors.get(key, key) for key in drop} - safe
        if not drop:
            break
        kept = _together(graph, kept - drop, heads) or safe
    return small


def _too_wide(graph: Graph, weight: Mapping[str, int], width: float, columns: int) -> set[str]:
    """Give what has to go from layers that are too wide, what matters least first."""
    layers: dict[int, list[GraphNode]] = defaultdict(list)
    rank = ranks(graph)
    for node in graph.nodes:
        layers[rank[node.key]].append(node)
    drop: set[str] = set()
    for layer in layers.values():
        widths = {node.key: box_size(node, columns)[0] + GAP_X for node in layer}
        over = sum(widths.values()) - width
        if over > 0 and len(layer) > 1:
            over += 0 if any(node.role == "stub" for node in layer) else STUB_WIDTH
            for key in sorted(widths, key=weight.__getitem__, reverse=True):
                if over > 0:
                    drop.add(key)
                    over -= widths[key]
    return drop


def _too_many(graph: Graph, weight: Mapping[str, int], most: int) -> set[str]:
    """Give what has to go where there are too many boxes; each takes its stub with it."""
    over = len(graph.nodes) - most
    last = sorted(weight, key=weight.__getitem__, reverse=True)
    return set(last[: (over + 1) // 2]) if over > 0 else set()


def _together(graph: Graph, kept: set[str], heads: Sequence[str]) -> set[str]:
    """Leave what still hangs together with what the picture is about."""
    near = _both(*_links(graph))
    inner = {key: [other for other in near[key] if other in kept] for key in kept}
    return set(_distances([key for key in heads if key in kept], inner))


def layer_widths(graph: Graph, columns: int = NARROW) -> dict[int, float]:
    """Give the width of each layer with its boxes side by side."""
    widths: dict[int, float] = defaultdict(float)
    rank = ranks(graph)
    for node in graph.nodes:
        widths[rank[node.key]] += box_size(node, columns)[0] + GAP_X
    return widths


def tidied(graph: Graph) -> Graph:
    """Leave out arrows from or to nowhere and boxes whose key was there before."""
    nodes = {node.key: node for node in reversed(graph.nodes)}
    edges = tuple(e for e in graph.edges if e.source in nodes and e.target in nodes)
    if len(nodes) == len(graph.nodes) and len(edges) == len(graph.edges):
        return graph
    first = tuple(node for node in graph.nodes if nodes.get(node.key) is node)
    return replace(graph, nodes=first, edges=edges)


def _chosen(graph: Graph, ways: Sequence[tuple[Sequence[str], bool]], most: int) -> set[str]:
    """Choose boxes in the order of what they matter, as long as there is room."""
    near = _both(*_links(graph))
    kept: set[str] = set()
    for way, begins in ways:
        new = [key for key in way if key not in kept]
        touches = begins or any(other in kept for other in near[way[0]])
        if (touches and len(kept) + len(new) <= most) or not kept:
            kept.update(new)
    stubs = (node.key for node in graph.nodes if node.role == "stub")
    return kept - {key for key in stubs if not kept.intersection(near[key])}


def _ways(graph: Graph) -> Iterator[tuple[Sequence[str], bool]]:
    """Give boxes that only make sense together, what matters most first.

    With each comes whether it may stand without a box beside it that was given before.
    """
    up, down = _links(graph)
    both = _both(up, down)
    targets = [n.key for n in graph.nodes if n.role == "target"]
    roots = [n.key for n in graph.nodes if n.role == "root"]
    starts = targets or [key for key in down if not down[key]][:1] or list(down)[:1]
    to_target = _distances(starts, up)
    reached = sorted((key for key in roots if key in to_target), key=to_target.__getitem__)
    yield from ((_way(root, down, to_target), True) for root in reached)
    yield from (([key], True) for key in starts)
    from_root = _distances(reached, down)
    between = [key for key in from_root if key in to_target]
    yield from (([key], False) for key in sorted(between, key=to_target.__getitem__))
    yield from (([key], False) for key in to_target)
    found = _distances(starts, both)
    # At the same distance first what leads on to more.
    yield from (([k], False) for k in sorted(found, key=lambda k: (found[k], -len(both[k]))))
    for key in down:  # parts of their own
        if key not in found:
            part = _distances([key], both)
            found |= part
            yield from (([other], other == key) for other in part)


def _links(graph: Graph) -> tuple[Links, Links]:
    """Give for each box who points to it, and to whom it points."""
    up: Links = {node.key: [] for node in graph.nodes}
    down: Links = {node.key: [] for node in graph.nodes}
    for edge in graph.edges:
        up[edge.target].append(edge.source)
        down[edge.source].append(edge.target)
    return up, down


def _both(up: Links, down: Links) -> Links:
    return {key: up[key] + down[key] for key in up}


def _distances(starts: Sequence[str], links: Links) -> dict[str, int]:
    """Give the number of steps to each box that can be reached, nearest first."""
    found = dict.fromkeys(starts, 0)
    todo = deque(found)
    while todo:
        key = todo.popleft()
        for other in links[key]:
            if other not in found:
                found[other] = found[key] + 1
                todo.append(other)
    return found


def _way(root: str, down: Links, to_target: Mapping[str, int]) -> list[str]:
    """Give a shortest way from a root to a target."""
    way = [root]
    while to_target[way[-1]]:
        way.append(next(k for k in down[way[-1]] if to_target.get(k) == to_target[way[-1]] - 1))
    return way


def _folded(graph: Graph, kept: set[str]) -> tuple[Graph, dict[str, str]]:
    """Leave what is `kept`; where it loses neighbours say how many. Give each stub's box, too."""
    if len(kept) == len(graph.nodes):
        return graph, {}
    nodes = [node for node in graph.nodes if node.key in kept]
    edges = [e for e in graph.edges if e.source in kept and e.target in kept]
    taken = {node.key for node in graph.nodes}
    anchors: dict[str, str] = {}
    for (at, holds), gone in _lost(graph, kept).items():
        stub = _stub(at, gone, taken)
        nodes.append(stub)
        if at is not None:
            anchors[stub.key] = at
            edges.append(GraphEdge(stub.key, at) if holds else GraphEdge(at, stub.key))
            edges += [GraphEdge(key, stub.key) for key in _sources(graph, kept, gone) if key != at]
    return replace(graph, nodes=tuple(nodes), edges=tuple(edges)), anchors


def _sources(graph: Graph, kept: set[str], gone: Sequence[GraphNode]) -> list[str]:
    """Give the boxes that point to most of what is folded into a stub."""
    pointed: dict[str, set[str]] = defaultdict(set)
    keys = {node.key for node in gone}
    for edge in graph.edges:
        if edge.target in keys and edge.source in kept:
            pointed[edge.source].add(edge.target)
    return [source for source, found in pointed.items() if 2 * len(found) > len(keys)]


def _lost(graph: Graph, kept: set[str]) -> dict[tuple[str | None, bool], list[GraphNode]]:
    """Give to each box what is folded there: its holders (True), else what it holds (False)."""
    up, down = _links(graph)
    order = [node.key for node in graph.nodes if node.key in kept]
    home: dict[str, tuple[str | None, bool]] = {}
    for links, holds in ((up, True), (down, False), (_both(up, down), True)):
        todo = deque((key, home.get(key, (key, holds))) for key in [*order, *home])
        while todo:
            key, at = todo.popleft()
            for other in links[key]:
                if other not in kept and other not in home:
                    home[other] = at
                    todo.append((other, at))
    lost: dict[tuple[str | None, bool], list[GraphNode]] = defaultdict(list)
    for node in graph.nodes:
        if node.key not in kept:
            lost[home.get(node.key, (None, True))].append(node)
    return lost


def _stub(at: str | None, gone: Sequence[GraphNode], taken: set[str]) -> GraphNode:
    n_gone = sum(map(_stands_for, gone))
    key = f"more:{at or ''}"
    while key in taken:
        key += "+"
    taken.add(key)
    names = [node.label for node in gone[:5] if node.role != "stub"]
    detail = (f"among them: {', '.join(names)}",) if names else ()
    return GraphNode(key, f"{count(n_gone)} more", role="stub", detail=detail, can_unfold=True)


def _stands_for(node: GraphNode) -> int:
    """Give how many boxes a box stands for: a stub says it."""
    match = MORE.fullmatch(node.label) if node.role == "stub" else None
    return int(match[1].replace("\u202f", "")) if match else 1
