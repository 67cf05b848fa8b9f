"""From a graph to places for its boxes: few enough to be read, by whoever can lay them out."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from nbinspect.blocks import Graph
from nbinspect.render.dot import to_dot
from nbinspect.render.format import count, printable
from nbinspect.render.graphviz_svg import read_places
from nbinspect.render.layers import place
from nbinspect.render.layout import TIMEOUT_S, layout
from nbinspect.render.limit import MOST_NODES, layer_widths, limited, tidied
from nbinspect.render.nodes import NARROW, SLIM, WIDE
from nbinspect.render.placed import Placed

# What a card of 900 pixels has between its margins, and what a narrow column has.
PAGE_WIDTH, COLUMN_WIDTH = 860.0, 490.0
TRIES = 3


@functools.lru_cache(maxsize=8)
def placed(graph: Graph, width: float = PAGE_WIDTH) -> Placed:
    """Lay a graph out for a page, folding what would make it wider than `width` pixels.

    Cost: a process (0.1 s) if Graphviz draws; the last few answers are kept, so that HTML and its
        image share them.
    """
    return _placed(graph, width, (WIDE, NARROW))


@functools.lru_cache(maxsize=8)
def placed_narrow(graph: Graph) -> Placed:
    """Lay a graph out once more for a narrow column, folding and shortening more.

    Cost: as `placed`, which it calls: where Graphviz failed there, it is not tried again.
    """
    return _placed(graph, COLUMN_WIDTH, (NARROW, SLIM), placed(graph).why)


def _placed(graph: Graph, width: float, lengths: Sequence[int], why: str = "") -> Placed:
    columns = next((c for c in lengths if not _too_wide(graph, c, width)), lengths[-1])
    goal = width
    for _ in range(TRIES):
        small = limited(graph, MOST_NODES, goal, columns)
        found = _places(small, columns) if not why else place(small, columns, why)
        why = found.why
        if found.width <= width:
            break
        # Arrows and labels between boxes take room too, which the widths of boxes do not tell.
        goal *= 1.0 if columns != lengths[-1] else 0.97 * width / found.width
        columns = lengths[-1]
    return found


def _too_wide(graph: Graph, columns: int, width: float) -> bool:
    return max(layer_widths(tidied(graph), columns).values(), default=0.0) > width


def _places(graph: Graph, columns: int) -> Placed:
    """Ask Graphviz, else do it ourselves."""
    found = layout(to_dot(graph, columns), TIMEOUT_S)
    why = found.why
    if found.svg is not None:
        try:
            return read_places(found.svg, graph, columns, found.engine)
        except ValueError as error:
            why = f"{found.engine} drew what {error}"
    return place(graph, columns, why)


def caption(graph: Graph, drawn: Placed) -> str:
    """Say who drew a picture, and how much of the graph is not in it, in printable words."""
    parts = [printable(graph.note)] if graph.note else []
    n_all = len(tidied(graph).nodes)
    n_shown = sum(1 for box in drawn.boxes if box.node.role != "stub")
    n_real = sum(1 for node in tidied(graph).nodes if node.role != "stub")
    if len(drawn.boxes) != n_all or n_shown < n_real:
        parts.append(f"{count(n_shown)} of {count(n_real)} shown.")
    because = f" because {printable(drawn.why)}" if drawn.why else ""
    parts.append(f"Drawn by {drawn.engine}{because}.")
    return " ".join(parts)
