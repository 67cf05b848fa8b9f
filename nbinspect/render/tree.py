"""A graph as a tree of lines: what was asked about first, under each thing who holds it."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from nbinspect.blocks import Graph, GraphNode
from nbinspect.render.format import (
    ELLIPSIS,
    bytes_text,
    count,
    cut_end,
    cut_middle,
    pad,
    printable,
    text_width,
)
from nbinspect.render.limit import limited
from nbinspect.render.nodes import full_name

MOST_NODES, MOST_LINES = 26, 48
GAP = "  "
# How much room names, reasons and types deserve where there is not enough for all.
WEIGHTS = (3.0, 1.2, 1.4)
SHOWN = "(shown above)"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a tree.

    Attributes:
        stem: the branches that lead to it.
        name: what it is called.
        by: how it holds the line above it.
        what: its type, and whether it is a root.
        size: its bytes.
    """

    stem: str
    name: str
    by: str = ""
    what: str = ""
    size: str = ""


def tree(graph: Graph, width: int) -> list[str]:
    """Write a graph as lines of at most `width` columns; cycles end where they close."""
    small = limited(graph, MOST_NODES)
    title = [cut_end(graph.title, width)] if graph.title else []
    if not small.nodes:
        return [*title, "  nothing"]
    note = textwrap.wrap(printable(graph.note), width)
    if graph.across:
        return [*title, *textwrap.wrap(_in_a_row(small), width), *note]
    lines = list(_walk(small))
    rest = _rest(len(lines) - MOST_LINES)
    return [*title, *_aligned(lines[:MOST_LINES], width), *rest, *note]


def _in_a_row(graph: Graph) -> str:
    """Write a graph that goes across as ``a (what) → b (what) → c``."""
    lines = [_line("", node, "") for node in graph.nodes]
    return " → ".join(f"{one.name} ({one.what})" if one.what else one.name for one in lines)


def _rest(n_more: int) -> list[str]:
    return [f"and {count(n_more)} more lines"] if n_more > 0 else []


def _walk(graph: Graph) -> Iterator[Line]:
    """Go through the graph from the targets up; each node's holders are listed once."""
    nodes = {node.key: node for node in graph.nodes}
    holders = _holders(graph)
    seen: set[str] = set()
    for start in _starts(graph):
        if start.key in seen:
            continue
        # A stack and not recursion: chains may be long.
        todo = [(_line("", start, ""), "", start.key)]
        while todo:
            line, stem, key = todo.pop()
            if key in seen:
                yield Line(line.stem, line.name, line.by, SHOWN)
                continue
            seen.add(key)
            yield line
            above = holders[key]
            for n, (other, by) in reversed(list(enumerate(above.items()))):
                last = n == len(above) - 1
                branch = stem + ("└─ " if last else "├─ ")
                below = stem + ("   " if last else "│  ")
                todo.append((_line(branch, nodes[other], by), below, other))


def _holders(graph: Graph) -> dict[str, dict[str, str]]:
    """Give who holds each node, and by what; who holds it twice comes once."""
    holders: dict[str, dict[str, str]] = defaultdict(dict)
    for edge in graph.edges:
        before = holders[edge.target].get(edge.source, "")
        by = ", ".join(label for label in (before, edge.label) if label)
        holders[edge.target][edge.source] = by
    return holders


def _starts(graph: Graph) -> list[GraphNode]:
    """Give where to begin: targets, then what holds nothing, then whatever is left."""
    holding = {edge.source for edge in graph.edges if edge.source != edge.target}
    return sorted(graph.nodes, key=lambda n: (n.role != "target", n.key in holding))


def _line(stem: str, node: GraphNode, by: str) -> Line:
    what = ", ".join(
        part for part in (node.alert, node.type_name, "root" if node.role == "root" else "") if part
    )
    size = "" if node.size_bytes is None else bytes_text(node.size_bytes)
    return Line(stem, full_name(node), printable(by), printable(what), size)


def _aligned(lines: list[Line], width: int) -> list[str]:
    """Set names, reasons, types and sizes in columns; where room is short names keep the most."""
    w_size = max(len(line.size) for line in lines)
    wishes = [
        max(text_width(line.stem + line.name) for line in lines),
        max(text_width(line.by) for line in lines),
        max(text_width(line.what) for line in lines),
    ]
    w_name, w_by, w_what = _shares(wishes, width - (w_size + len(GAP) if w_size else 0))
    written = []
    for line in lines:
        cells = [_name(line, w_name)]
        if w_by:
            cells.append(pad(cut_middle(line.by, w_by), w_by))
        if w_what:
            cells.append(pad(cut_middle(line.what, w_what), w_what))
        if w_size:
            cells.append(pad(line.size, w_size, right=True))
        written.append(GAP.join(cells).rstrip())
    return written


def _shares(wishes: list[int], room: int) -> list[int]:
    """Give each column what it wishes; where that is too much, the longest gives way."""
    widths = list(wishes)
    room -= len(GAP) * sum(1 for width in wishes[1:] if width)
    while sum(widths) > room:
        given = [width / weight for width, weight in zip(widths, WEIGHTS, strict=True)]
        widths[given.index(max(given))] -= 1
    return widths


def _name(line: Line, width: int) -> str:
    """Give stem and name; a stem that is too long loses its beginning, never its end."""
    stem, most = line.stem, width // 2
    if len(stem) > most and len(stem) + text_width(line.name) > width:
        stem = ELLIPSIS + stem[len(stem) - most + 1 :]
    return pad(stem + cut_middle(line.name, width - len(stem)), width)
