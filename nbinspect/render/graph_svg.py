"""A placed graph as SVG that takes its colours and fonts from the page around it.

There are no ids in it, so that any number of pictures go on one page. Two dressings: with its
words as SVG text, for widgets and files; and with its words in attributes that the style sheet
writes out, for HTML output, where places that drop pictures would keep their words as litter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from nbinspect.blocks import Graph
from nbinspect.render.format import printable
from nbinspect.render.nodes import (
    edge_line,
    edge_width,
    frame_hover,
    frame_line,
    graph_words,
    hover_lines,
    label_line,
    node_words,
    small_line,
)
from nbinspect.render.palette import css_class, hue
from nbinspect.render.picture import PAGE_WIDTH, caption, placed
from nbinspect.render.placed import Arrow, Box, Frame, Placed, Point

RADIUS = 4
HUE_INSET = 4.0
LABEL_HEIGHT = 15.0
HOTTEST = 0.55  # of a hue; more would make words on it hard to read
# How boxes look where no style sheet is; it outweighs these.
BARE = {
    "root": 'fill="#eef0f2" stroke="#1f2328" stroke-width="2.5"',
    "target": 'fill="#0072b2" stroke="#0072b2"',
    "holder": 'fill="#ffffff" stroke="#8c8c8c"',
    "stub": 'fill="#ffffff" stroke="#8c8c8c" stroke-dasharray="4 3"',
}


@dataclass(frozen=True, slots=True)
class GraphPicture:
    """A drawn graph.

    Attributes:
        svg: an ``<svg class="nbi-graph">``; each box is a
            ``<g class="nbi-node nbi-root" data-key="..." role="treeitem" tabindex="0">``.
        caption: who drew it and what is not in it.
        width: its natural width in pixels.
        height: its natural height in pixels.
    """

    svg: str
    caption: str
    width: float
    height: float


def to_graph_svg(graph: Graph, width: float = PAGE_WIDTH) -> GraphPicture:
    """Draw a graph for a page that has `nbinspect.render.style.style_sheet` in it.

    Without the style sheet it is drawn too, in black on white.

    Args:
        graph: what to draw; much of a large one is folded into stubs.
        width: pixels that it may take; infinity where the reader can move the picture.

    Cost: see `placed`.
    """
    drawn = placed(graph, width)
    size = f'width="{drawn.width:g}" height="{drawn.height:g}" role="tree"'
    inside = "".join(_node(box, drawn, as_text=True) for box in drawn.boxes)
    inside = "".join(_frame(frame, as_text=True) for frame in drawn.frames) + inside
    svg = _svg(graph, drawn, size, inside, as_text=True)
    return GraphPicture(svg, caption(graph, drawn), drawn.width, drawn.height)


def page_svg(graph: Graph, drawn: Placed) -> str:
    """Draw a graph for HTML output: nothing in it is text, and no size without the style sheet."""
    inside = "".join(_node(box, drawn, as_text=False) for box in drawn.boxes)
    inside = "".join(_frame(frame, as_text=False) for frame in drawn.frames) + inside
    return _svg(graph, drawn, 'width="0" height="0" role="img"', inside, as_text=False)


def _svg(graph: Graph, drawn: Placed, size: str, nodes: str, *, as_text: bool) -> str:
    arrows = "".join(_arrow(arrow) for arrow in drawn.arrows)
    labels = "".join(_edge_label(a, as_text=as_text) for a in drawn.arrows if a.label_at)
    space = ' xmlns="http://www.w3.org/2000/svg"' if as_text else ""
    return (
        f'<svg{space} class="nbi-graph" viewBox="0 0 {drawn.width:g} {drawn.height:g}" {size} '
        f'aria-label="{_text(graph_words(graph))}" font-size="12">{arrows}{labels}{nodes}</svg>'
    )


def _text(words: str) -> str:
    return escape(printable(words), quote=True)


def _arrow(arrow: Arrow) -> str:
    head = " ".join(f"{x:g},{y:g}" for x, y in arrow.head)
    tip = f'<polygon points="{head}" fill="#5a6068"></polygon>' if head else ""
    return (
        f'<g class="nbi-edge" data-source="{_text(arrow.edge.source)}" '
        f'data-target="{_text(arrow.edge.target)}"><path d="{_path(arrow.line, arrow.curved)}" '
        f'fill="none" stroke="#5a6068"></path>{tip}</g>'
    )


def _path(line: Sequence[Point], curved: bool) -> str:
    rest = " ".join(f"{x:g},{y:g}" for x, y in line[1:])
    return f"M{line[0][0]:g},{line[0][1]:g}{'C' if curved else 'L'}{rest}"


def _edge_label(arrow: Arrow, *, as_text: bool) -> str:
    x, y = arrow.label_at or (0.0, 0.0)
    words = _text(edge_line(arrow.edge))
    whole = _text(arrow.edge.label)
    if as_text:
        return (
            f'<text class="nbi-elabel" x="{x:g}" y="{y:g}" text-anchor="middle" font-size="11" '
            f'font-family="sans-serif" fill="#5a6068" data-whole="{whole}">{words}</text>'
        )
    width = edge_width(arrow.edge) + 24
    return (
        f'<foreignObject x="{x - width / 2:g}" y="{y - 12:g}" width="{width:g}" '
        f'height="{LABEL_HEIGHT + 2:g}"><span class="nbi-elabel" data-a="{words}" title="{whole}">'
        "</span></foreignObject>"
    )


def _node(box: Box, drawn: Placed, *, as_text: bool) -> str:
    node = box.node
    shape = (
        f'<rect x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" '
        f'rx="{RADIUS}" {BARE[node.role]}></rect>{_heat(box)}{_hue(box)}'
    )
    unfold = " nbi-unfold" if node.can_unfold else ""
    alert = " nbi-alert" if node.alert else ""
    css = f'class="nbi-node nbi-{node.role}{unfold}{alert}"'
    if not as_text:
        return f"<g {css}>{shape}{_span(box, drawn)}</g>"
    hover = _lines_text(hover_lines(node))
    return (
        f'<g {css} data-key="{_text(node.key)}" tabindex="0" role="treeitem" '
        f'aria-label="{_text(node_words(node))}"><title>{hover}</title>'
        f"{shape}{_texts(box, drawn)}</g>"
    )


def _frame(placed: Frame, *, as_text: bool) -> str:
    """Draw a frame and its heading; the page may fold it by a click on that."""
    frame = placed.frame
    shape = (
        f'<rect x="{placed.x:g}" y="{placed.y:g}" width="{placed.width:g}" '
        f'height="{placed.height:g}" rx="{2 * RADIUS}" fill="none" stroke="#8c8c8c"></rect>'
    )
    words, hover = _text(frame_line(frame)), _lines_text(frame_hover(frame))
    if not as_text:
        return (
            f'<g class="nbi-frame">{shape}<foreignObject x="{placed.x + 8:g}" y="{placed.y + 2:g}" '
            f'width="{max(placed.width - 16, 16):g}" height="18"><span class="nbi-frame-words" '
            f'data-a="{words}" title="{hover}"></span></foreignObject></g>'
        )
    unfold = " nbi-unfold" if frame.can_fold else ""
    return (
        f'<g class="nbi-node nbi-frame{unfold}" data-key="{_text(frame.key)}" tabindex="0" '
        f'role="treeitem" aria-label="{words}">{shape}<title>{hover}</title>'
        f'<text class="nbi-frame-label" x="{placed.x + 9:g}" y="{placed.y + 15:g}" font-size="12" '
        f'font-family="sans-serif" fill="#1f2328">{words}</text></g>'
    )


def _heat(box: Box) -> str:
    """Tint a box by how much it has of what the graph's scale measures."""
    node = box.node
    if node.heat is None or node.role == "target":
        return ""
    x, y, width, height = box.x + 1, box.y + 1, box.width - 2, box.height - 2
    return (
        f'<path class="nbi-heat" d="M{x:g},{y:g}h{width:g}v{height:g}h{-width:g}z" '
        f'fill="{hue(node.heat_hue).fill}" fill-opacity="{HOTTEST * node.heat:.3f}"></path>'
    )


def _lines_text(lines: Sequence[str]) -> str:
    """Join lines for hovering; they are printable already."""
    return "&#10;".join(escape(line, quote=True) for line in lines)


def _hue(box: Box) -> str:
    """Draw the kind's colour as a stripe; what has no kind of its own has none."""
    if box.node.hue == "OTHER" or box.node.role in ("target", "stub"):
        return ""
    x, y = box.x + HUE_INSET, box.y + HUE_INSET
    css = css_class(box.node.hue)
    length = box.height - 2 * HUE_INSET
    return f'<path class="nbi-stripe {css}" d="M{x:g},{y:g}v{length:g}" stroke="{hue(box.node.hue).fill}" stroke-width="4"></path>'


def _texts(box: Box, drawn: Placed) -> str:
    x, middle = box.middle
    ink, grey = ("#ffffff", "#ffffff") if box.node.role == "target" else ("#1f2328", "#5a6068")
    small = _text(small_line(box.node, drawn.columns))
    y = middle - 2.5 if small else middle + 4
    label = (
        f'<text class="nbi-label" x="{x:g}" y="{y:g}" text-anchor="middle" '
        f'font-family="monospace" fill="{ink}">{_text(label_line(box.node, drawn.columns))}</text>'
    )
    if not small:
        return label
    return (
        f'{label}<text class="nbi-small" x="{x:g}" y="{middle + 12.5:g}" text-anchor="middle" '
        f'font-family="sans-serif" font-size="11" fill="{grey}">{small}</text>'
    )


def _span(box: Box, drawn: Placed) -> str:
    small = small_line(box.node, drawn.columns)
    return (
        f'<foreignObject x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}">'
        f'<span class="nbi-words" data-a="{_text(label_line(box.node, drawn.columns))}" '
        f'data-b="{_text(small)}" title="{_lines_text(hover_lines(box.node))}"></span></foreignObject>'
    )
