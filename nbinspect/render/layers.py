"""A small layout of our own, for where Graphviz is missing or takes too long.

Layers by the longest path to the bottom, the order within a layer by what each box is connected
to, straight lines between; lines over several layers bend around the boxes in between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from nbinspect.blocks import Graph, GraphEdge
from nbinspect.render.nodes import NARROW, box_size, edge_line, edge_width, labels_edges
from nbinspect.render.placed import Arrow, Box, Frame, Placed, Point, arrow_head

GAP_X, GAP_Y, MARGIN, BEND = 18.0, 46.0, 4.0, 14.0
SWEEPS = 8
FRAME_PAD, FRAME_HEAD = 9.0, 24.0
LOOP = 16.0
OWN_ENGINE = "nbinspect's own layout"

Rect = tuple[float, float, float, float]
LABEL_PLACES = (0.5, 0.3, 0.7, 0.15, 0.85)

Slot = str | tuple[int, int]
"""A place in a layer: a node's key, or the bend of edge `n` in layer `m`."""


def ranks(graph: Graph) -> dict[str, int]:
    """Give each node its layer, counted from the bottom; an arrow that closes a cycle counts not.

    Cost: linear, and without recursion.
    """
    below = _acyclic(graph)
    found = _heights(below)
    above: dict[str, list[str]] = {key: [] for key in below}
    for key, others in below.items():
        for other in others:
            above[other].append(key)
    # What more arrows come to than leave goes up to them, as far as it can: arrows get shorter.
    for key in sorted(found, key=found.__getitem__, reverse=True):
        if len(above[key]) > len(below[key]):
            found[key] = min(found[other] for other in above[key]) - 1
    lowest = min(found.values(), default=0)
    return {key: height - lowest for key, height in found.items()}


def _heights(below: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Give the length of the longest way down from each node."""
    found: dict[str, int] = {}
    for start in below:
        todo = [start]
        while todo:
            key = todo[-1]
            missing = [other for other in below[key] if other not in found]
            if missing and key not in found:
                todo += missing
            else:
                todo.pop()
                found[key] = 1 + max((found[other] for other in below[key]), default=-1)
    return found


def _acyclic(graph: Graph) -> dict[str, list[str]]:
    """Give what each node points to, without the arrows that lead back."""
    after: dict[str, list[str]] = {node.key: [] for node in graph.nodes}
    for edge in graph.edges:
        if edge.source in after and edge.target in after and edge.source != edge.target:
            after[edge.source].append(edge.target)
    done: set[str] = set()
    open_: dict[str, Iterator[str]] = {}
    kept: dict[str, list[str]] = {key: [] for key in after}
    for start in (n.key for n in sorted(graph.nodes, key=lambda n: n.role != "root")):
        if start not in done:
            open_[start] = iter(after[start])
        while open_:
            key = next(reversed(open_))
            other = next(open_[key], None)
            if other is None:
                del open_[key]
                done.add(key)
            elif other not in open_:
                kept[key].append(other)
                if other not in done:
                    open_[other] = iter(after[other])
    return kept


def place(graph: Graph, columns: int = NARROW, why: str = "") -> Placed:
    """Find a place for each box and arrow.

    Args:
        graph: what to lay out; at most a few hundred nodes, or crossings are many.
        columns: how many characters of a label are shown.
        why: why Graphviz does not do it.

    Cost: some milliseconds for 150 nodes.
    Blind to: crossings that better orders would avoid; labels may lie on lines.
    """
    rank = ranks(graph)
    chains = _chains(graph, rank)
    sizes: dict[Slot, tuple[float, float]] = {n.key: box_size(n, columns) for n in graph.nodes}
    layers, links = _layers(graph, rank, chains)
    _order(layers, links)
    centres = _centres(layers, links, sizes)
    tops, total = _tops(layers, sizes)
    depth = len(layers) - 1
    boxes = {
        n.key: Box(
            n,
            round(centres[n.key] - sizes[n.key][0] / 2, 1),
            tops[depth - rank[n.key]],
            *sizes[n.key],
        )
        for n in graph.nodes
    }
    arrows = tuple(_arrows(graph, chains, boxes, centres, tops))
    frames = _frames(graph, boxes)
    left = min((frame.x for frame in frames), default=MARGIN) - MARGIN
    top = min((frame.y for frame in frames), default=MARGIN) - MARGIN
    if min(left, top) < 0:
        return _moved(place(replace(graph, frames=()), columns, why), frames, left, top)
    width = max((box.x + box.width for box in boxes.values()), default=0.0)
    width = max([width, *(x for arrow in arrows for x, _ in arrow.line)])
    total = max([total, *(y + MARGIN for arrow in arrows for _, y in arrow.line)])
    return Placed(
        tuple(boxes.values()), arrows, round(width + MARGIN, 1), total, columns, OWN_ENGINE, why
    )


def _frames(graph: Graph, boxes: Mapping[str, Box]) -> list[Frame]:
    """Put each frame around its boxes; boxes of others may be in it too."""
    inside: dict[str, list[Rect]] = defaultdict(list)
    for box in boxes.values():
        inside[box.node.frame].append((box.x, box.y, box.x + box.width, box.y + box.height))
    found: list[Frame] = []
    for frame in reversed(graph.frames):
        if not (rects := inside[frame.key]):
            continue
        left, top = min(r[0] for r in rects) - FRAME_PAD, min(r[1] for r in rects) - FRAME_HEAD
        right, bottom = max(r[2] for r in rects) + FRAME_PAD, max(r[3] for r in rects) + FRAME_PAD
        inside[frame.parent].append((left, top, right, bottom))
        found.insert(0, Frame(frame, left, top, right - left, bottom - top))
    return found


def _moved(drawn: Placed, frames: Sequence[Frame], left: float, top: float) -> Placed:
    """Make room for frames that reach over the left and upper edge."""
    dx, dy = round(-min(left, 0.0), 1), round(-min(top, 0.0), 1)

    def at(points: Sequence[Point]) -> tuple[Point, ...]:
        return tuple((round(x + dx, 1), round(y + dy, 1)) for x, y in points)

    boxes = tuple(replace(box, x=box.x + dx, y=box.y + dy) for box in drawn.boxes)
    arrows = tuple(
        replace(
            arrow,
            line=at(arrow.line),
            head=at(arrow.head),
            label_at=at([arrow.label_at])[0] if arrow.label_at else None,
        )
        for arrow in drawn.arrows
    )
    placed = tuple(replace(frame, x=frame.x + dx, y=frame.y + dy) for frame in frames)
    width = max([drawn.width + dx, *(one.x + one.width + MARGIN for one in placed)])
    height = max([drawn.height + dy, *(one.y + one.height + MARGIN for one in placed)])
    return replace(drawn, boxes=boxes, arrows=arrows, frames=placed, width=width, height=height)


def _chains(graph: Graph, rank: Mapping[str, int]) -> dict[int, list[Slot]]:
    """Give the slots that each arrow runs through, from its source to its target."""
    chains: dict[int, list[Slot]] = {}
    for n, edge in enumerate(graph.edges):
        if edge.source in rank and edge.target in rank:
            high, low = rank[edge.source], rank[edge.target]
            step = -1 if high > low else 1
            bends: list[Slot] = [(n, layer) for layer in range(high + step, low, step)]
            chains[n] = [edge.source, *bends, edge.target]
    return chains


def _layers(
    graph: Graph, rank: Mapping[str, int], chains: Mapping[int, list[Slot]]
) -> tuple[list[list[Slot]], dict[Slot, list[Slot]]]:
    """Give the slots of each layer, from the top, and the neighbours of each slot."""
    depth = max(rank.values(), default=-1)
    layers: list[list[Slot]] = [[] for _ in range(depth + 1)]
    for node in graph.nodes:
        layers[depth - rank[node.key]].append(node.key)
    links: dict[Slot, list[Slot]] = defaultdict(list)
    for chain in chains.values():
        for slot in chain[1:-1]:
            layers[depth - slot[1]].append(slot)  # type: ignore[operator]
        for one, other in pairwise(chain):
            links[one].append(other)
            links[other].append(one)
    return layers, links


def _order(layers: list[list[Slot]], links: Mapping[Slot, Sequence[Slot]]) -> None:
    """Sort each layer by where the neighbours of its slots are, down and up in turns."""
    for sweep in range(SWEEPS):
        at = {slot: place for layer in layers for slot, place in _in_order(layer)}
        for before, layer in pairwise(layers if sweep % 2 == 0 else layers[::-1]):
            wishes = {slot: _mean(slot, links, at, set(before)) for slot in layer}
            layer.sort(key=wishes.__getitem__)
            at.update(_in_order(layer))


def _in_order(layer: Sequence[Slot]) -> list[tuple[Slot, float]]:
    return [(slot, n - len(layer) / 2) for n, slot in enumerate(layer)]


def _mean(
    slot: Slot, links: Mapping[Slot, Sequence[Slot]], at: Mapping[Slot, float], near: set[Slot]
) -> float:
    """Give where the neighbours of a slot are in the middle; where it is if it has none there."""
    places = [at[other] for other in links.get(slot, ()) if other in near]
    return sum(places) / len(places) if places else at[slot]


def _centres(
    layers: list[list[Slot]],
    links: Mapping[Slot, Sequence[Slot]],
    sizes: Mapping[Slot, tuple[float, float]],
) -> dict[Slot, float]:
    """Give each slot its x: near its neighbours, and apart from those beside it."""
    half = {s: sizes[s][0] / 2 if s in sizes else BEND / 2 for layer in layers for s in layer}
    centres: dict[Slot, float] = {}
    for layer in layers:
        _spread(layer, dict.fromkeys(layer, 0.0), half, centres)
    for sweep in range(2 * SWEEPS):
        for layer in layers if sweep % 2 else layers[::-1]:
            wishes = {slot: _wish(slot, links, centres) for slot in layer}
            _spread(layer, wishes, half, centres)
    left = min((centres[s] - half[s] for s in centres), default=0.0) - MARGIN
    return {slot: centre - left for slot, centre in centres.items()}


def _wish(slot: Slot, links: Mapping[Slot, Sequence[Slot]], centres: Mapping[Slot, float]) -> float:
    """Give where a slot would like to be; chains count more than what hangs on them."""
    others = [other for other in links.get(slot, ()) if other != slot]
    weights = [1 if len(links[other]) == 1 else 4 for other in others]
    if not others:
        return centres[slot]
    return sum(w * centres[o] for w, o in zip(weights, others, strict=True)) / sum(weights)


def _spread(
    layer: Sequence[Slot],
    wishes: Mapping[Slot, float],
    half: Mapping[Slot, float],
    centres: dict[Slot, float],
) -> None:
    """Set the slots of a layer in their order, each as near to its wish as the others allow.

    Slots that collide become one block at the mean of their wishes (isotonic regression).
    """
    offset, at = {}, 0.0
    for slot in layer:
        at += half[slot]
        offset[slot] = at
        at += half[slot] + GAP_X
    blocks: list[tuple[float, list[Slot]]] = []
    for slot in layer:
        start, members = wishes[slot] - offset[slot], [slot]
        while blocks and blocks[-1][0] > start:
            other, more = blocks.pop()
            n, m = len(more), len(members)
            start, members = (other * n + start * m) / (n + m), more + members
        blocks.append((start, members))
    for start, members in blocks:
        centres |= {slot: start + offset[slot] for slot in members}


def _tops(
    layers: list[list[Slot]], sizes: Mapping[Slot, tuple[float, float]]
) -> tuple[list[float], float]:
    """Give the y of each layer, and the height of all."""
    tops, y = [], MARGIN
    for layer in layers:
        tops.append(y)
        y += max((sizes[s][1] for s in layer if s in sizes), default=0.0) + GAP_Y
    return tops, round(max(y - GAP_Y, 0.0) + MARGIN, 1)


def _arrows(
    graph: Graph,
    chains: Mapping[int, list[Slot]],
    boxes: Mapping[str, Box],
    centres: Mapping[Slot, float],
    tops: Sequence[float],
) -> Iterator[Arrow]:
    labelled = labels_edges(graph)
    taken: list[Rect] = []
    for n, chain in chains.items():
        edge = graph.edges[n]
        source, target = boxes[edge.source], boxes[edge.target]
        if source is target:
            line = _loop(source)
        else:
            bends = [(centres[s], tops[len(tops) - 1 - s[1]] + LOOP) for s in chain[1:-1]]  # type: ignore[operator]
            start = _edge_of(source, bends[0] if bends else target.middle)
            tip = _edge_of(target, bends[-1] if bends else source.middle)
            line = [(round(x, 1), round(y, 1)) for x, y in (start, *bends, tip)]
        label = None
        if labelled and edge_line(edge):
            label = _beside(edge, line) if source is target else _label_at(edge, line, taken)
        yield Arrow(edge, tuple(line), False, arrow_head(line[-2], line[-1]), label)


def _edge_of(box: Box, towards: Point) -> Point:
    """Give the point where a line from the middle of a box leaves it."""
    (x, y), dx, dy = box.middle, towards[0] - box.middle[0], towards[1] - box.middle[1]
    scales = [box.width / 2 / abs(dx) if dx else 1e9, box.height / 2 / abs(dy) if dy else 1e9]
    scale = min(*scales, 1.0)
    return x + dx * scale, y + dy * scale


def _loop(box: Box) -> list[Point]:
    """Give the line of an arrow from a box to itself, below its right end."""
    x, y = round(box.x + box.width - LOOP, 1), round(box.y + box.height, 1)
    return [(x, y), (x, y + LOOP), (x - LOOP, y + LOOP), (x - LOOP, y)]


def _beside(edge: GraphEdge, loop: Sequence[Point]) -> Point:
    """Give the place of a loop's label, on its left."""
    x, y = loop[2]
    return round(x - edge_width(edge) / 2 - 6, 1), y


def _label_at(edge: GraphEdge, line: Sequence[Point], taken: list[Rect]) -> Point:
    """Give a place along an arrow where no other label is, if there is one."""
    (x1, y1), (x2, y2) = line[(len(line) - 1) // 2], line[(len(line) - 1) // 2 + 1]
    half = edge_width(edge) / 2
    for part in LABEL_PLACES:
        x, y = x1 + (x2 - x1) * part, y1 + (y2 - y1) * part + 4
        here = (x - half, y - 11, x + half, y + 3)
        if not any(_overlap(here, other) for other in taken):
            break
    taken.append(here)
    return round(x, 1), round(y, 1)


def _overlap(one: Rect, other: Rect) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
