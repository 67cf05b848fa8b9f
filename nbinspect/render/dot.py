"""Graphs in the DOT language, for Graphviz and whoever else reads it.

Names in it are `n0`, `n1`, ... and `e0`, `e1`, ... in the order given: what the user's program
calls things stands in labels only, where nothing is a command.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from nbinspect.blocks import Graph, GraphNode
from nbinspect.render.nodes import (
    LABEL_SIZE,
    NARROW,
    SMALL_SIZE,
    box_size,
    edge_line,
    frame_line,
    label_line,
    labels_edges,
    small_line,
)

if TYPE_CHECKING:
    import graphviz

PX_PER_INCH = 72
GRAPH = {"rankdir": "TB", "bgcolor": "transparent", "nodesep": "0.22", "ranksep": "0.42"}
NODE = {
    "shape": "box",
    "style": "rounded",
    "color": "#8c8c8c",
    "fontname": "DejaVu Sans Mono",
    "fontsize": str(LABEL_SIZE),
    "margin": "0.05,0.03",
}
EDGE = {
    "color": "#5a6068",
    "fontcolor": "#5a6068",
    "fontname": "DejaVu Sans",
    "fontsize": str(SMALL_SIZE),
    "arrowsize": "0.7",
}
FRAME = 'labeljust=l margin=9 style=rounded color="#8c8c8c" fontname="DejaVu Sans" fontsize=12'
ROLES = {
    "root": {"color": "#1f2328", "penwidth": "2"},
    "target": {"style": "rounded,filled", "fillcolor": "#0072b2", "fontcolor": "#ffffff"},
    "holder": {},
    "stub": {"style": "rounded,dashed"},
}


def to_dot(graph: Graph, columns: int = NARROW) -> str:
    """Write a graph as DOT text; the same graph gives the same text.

    Args:
        graph: what to write; arrows from or to unknown keys are left out.
        columns: how long a label may be before its middle is left out.

    Cost: none to speak of; nothing is laid out.
    Blind to: `detail`, which a box has no room for.
    Source: the `graphviz` package, and https://graphviz.org/doc/info/lang.html.
    """
    import graphviz

    attributes = GRAPH | ({"rankdir": "LR"} if graph.across else {})
    dot = graphviz.Digraph("nbinspect", graph_attr=attributes, node_attr=NODE, edge_attr=EDGE)
    ids = {node.key: f"n{n}" for n, node in enumerate(graph.nodes)}
    for n, node in enumerate(graph.nodes):
        _add_node(dot, f"n{n}", node, columns)
    _add_frames(dot, graph, ids)
    labelled = labels_edges(graph)
    holding = {edge.source for edge in graph.edges}
    for n, edge in enumerate(graph.edges):
        if edge.source in ids and edge.target in ids:
            text = edge_line(edge) if labelled else ""
            # Graphviz sets labels tight against their arrows.
            label = {"label": _escaped(f" {text} ")} if text else {}
            # Long chains stand upright, with what hangs on them beside them.
            weight = {"weight": "4"} if edge.target in holding else {}
            dot.edge(ids[edge.source], ids[edge.target], id=f"e{n}", **label, **weight)
    return str(dot.source)


def _add_frames(dot: graphviz.Digraph, graph: Graph, ids: dict[str, str]) -> None:
    """Say which boxes stand in which frame; a frame with nothing in it is left out."""
    names = {frame.key: f"f{n}" for n, frame in enumerate(graph.frames)}
    inside: dict[str, list[str]] = defaultdict(list)
    for node in graph.nodes:
        if node.frame in names:
            inside[node.frame].append(f"{ids[node.key]};")
    for frame in reversed(graph.frames):  # the inner ones first
        if not (lines := inside.pop(frame.key, None)):
            continue
        label = _escaped(frame_line(frame))
        text = f'label="{label}" id={names[frame.key]} {FRAME}\n' + "\n".join(lines)
        cluster = f"subgraph cluster_{names[frame.key]} {{\n{text}\n}}"
        if frame.parent in names:
            inside[frame.parent].append(cluster)
        else:
            dot.body.append(f"\t{cluster}\n")


def _add_node(dot: graphviz.Digraph, name: str, node: GraphNode, columns: int) -> None:
    import graphviz

    width, height = box_size(node, columns)
    lines = [label_line(node, columns), small_line(node, columns)]
    # Wrapped once more: joined text would be plain, and `<b>` at its ends would be markup.
    label = graphviz.nohtml("\\n".join(_escaped(line) for line in lines if line))
    size = {"width": f"{width / PX_PER_INCH:.3f}", "height": f"{height / PX_PER_INCH:.3f}"}
    dot.node(name, label, **size, **ROLES[node.role])


def _escaped(line: str) -> str:
    """Make a printable line a label that stands for nothing but itself: no markup, no entity."""
    import graphviz

    return str(graphviz.escape(line.replace("&", "&amp;")))
