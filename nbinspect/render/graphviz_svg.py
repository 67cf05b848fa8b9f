"""Reading places out of the SVG that Graphviz writes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from nbinspect.blocks import Graph
from nbinspect.render.nodes import edge_line, labels_edges
from nbinspect.render.placed import Arrow, Box, Frame, Placed, Point

SVG = "{http://www.w3.org/2000/svg}"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
MARGIN = 3.0


def read_places(svg: str, graph: Graph, columns: int, engine: str) -> Placed:
    """Put the nodes and edges of a graph where Graphviz put them.

    Args:
        svg: what Graphviz made of `to_dot(graph, columns)`.
        graph: the same graph; labels, types and roles are taken from here, never from the SVG.
        columns: how many characters of a label are shown.
        engine: who drew the SVG.

    Raises:
        ValueError: something that should be in the SVG is not.

    Blind to: colours, fonts and texts of the SVG; only coordinates are read.
    Source: Graphviz 2.40 to 14; points are taken as pixels, as the sizes in the DOT text were.
    """
    try:
        root = ET.fromstring(svg)
        groups = {_name(g): g for g in root.iter(f"{SVG}g")}
        x0, y0, width, height = map(float, root.attrib["viewBox"].split())
        dx, dy = _shift(groups["graph"])
        shift = dx - x0 + MARGIN, dy - y0 + MARGIN
        boxes = tuple(
            _box(_shape(groups[f"n{n}"]), shift, graph, n) for n in range(len(graph.nodes))
        )
        arrows = tuple(_arrows(groups, shift, graph))
        frames = tuple(_frames(groups, shift, graph))
    except (ET.ParseError, KeyError, IndexError) as error:
        raise ValueError(f"cannot be read: {error}") from error
    return Placed(
        boxes, arrows, width + 2 * MARGIN, height + 2 * MARGIN, columns, engine, "", frames
    )


def _name(group: ET.Element) -> str:
    """Name a group as the DOT text does: nodes by their title, edges by their id."""
    css = group.get("class", "")
    if css in ("node", "cluster"):
        return group.findtext(f"{SVG}title", "").strip()
    return group.get("id", "") if css == "edge" else css


def _shift(graph: ET.Element) -> Point:
    found = re.search(r"translate\((\S+?)[ ,]+(\S+?)\)", graph.get("transform", ""))
    return (float(found[1]), float(found[2])) if found else (0.0, 0.0)


def _points(text: str, shift: Point) -> list[Point]:
    numbers = [float(number) for number in NUMBER.findall(text)]
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return [(round(x + shift[0], 1), round(y + shift[1], 1)) for x, y in pairs]


def _shape(node: ET.Element) -> str:
    """Give the numbers of a node's outline: a path if its corners are round."""
    for element in node.iter():
        if numbers := element.get("points") or element.get("d"):
            return numbers
    raise KeyError(f"outline of {_name(node)}")


def _box(numbers: str, shift: Point, graph: Graph, n: int) -> Box:
    points = _points(numbers, shift)
    left, top = min(x for x, _ in points), min(y for _, y in points)
    right, bottom = max(x for x, _ in points), max(y for _, y in points)
    return Box(graph.nodes[n], left, top, round(right - left, 1), round(bottom - top, 1))


def _frames(groups: dict[str, ET.Element], shift: Point, graph: Graph) -> Iterator[Frame]:
    for n, frame in enumerate(graph.frames):
        group = groups.get(f"cluster_f{n}")
        if group is not None:  # else there is nothing in it
            points = _points(_shape(group), shift)
            left, top = min(x for x, _ in points), min(y for _, y in points)
            right, bottom = max(x for x, _ in points), max(y for _, y in points)
            yield Frame(frame, left, top, round(right - left, 1), round(bottom - top, 1))


def _arrows(groups: dict[str, ET.Element], shift: Point, graph: Graph) -> Iterator[Arrow]:
    labelled = labels_edges(graph)
    for n, edge in enumerate(graph.edges):
        if (group := groups.get(f"e{n}")) is None:
            continue  # from or to a key that is not there
        lines = [p.get("d", "") for p in group.iter(f"{SVG}path")]
        heads = [p.get("points", "") for p in group.iter(f"{SVG}polygon")]
        label = _label(group, shift) if labelled and edge_line(edge) else None
        head = tuple(_points(heads[0], shift)) if heads else ()
        yield Arrow(edge, tuple(_points(lines[0], shift)), True, head, label)


def _label(group: ET.Element, shift: Point) -> Point | None:
    text = group.find(f"{SVG}text")
    if text is None:
        return None
    return _points(f"{text.get('x')} {text.get('y')}", shift)[0]
