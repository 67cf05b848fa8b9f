"""A graph with a place for every box and arrow, in pixels; who draws it only draws it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nbinspect.blocks import GraphEdge, GraphFrame, GraphNode

Point = tuple[float, float]

HEAD_LENGTH, HEAD_WIDTH = 8.0, 6.0


@dataclass(frozen=True, slots=True)
class Box:
    """Where a node stands; `x` and `y` are its left upper corner.

    Attributes:
        node: what stands there.
        x: pixels from the left.
        y: pixels from the top.
        width: of the box.
        height: of the box.
    """

    node: GraphNode
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> Point:
        """Give its centre."""
        return self.x + self.width / 2, self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a frame stands.

    Attributes:
        frame: what it is.
        x: pixels from the left.
        y: pixels from the top.
        width: of the frame.
        height: of the frame.
    """

    frame: GraphFrame
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Arrow:
    """How an edge runs.

    Attributes:
        edge: what it stands for.
        line: points of a cubic Bezier curve (start, then three for each piece), or the corners
            of a polyline if it is not `curved`.
        curved: which of the two.
        head: corners of its tip.
        label_at: middle of its label's base line, None for no label.
    """

    edge: GraphEdge
    line: tuple[Point, ...]
    curved: bool
    head: tuple[Point, ...]
    label_at: Point | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A graph that can be drawn.

    Attributes:
        boxes: its nodes.
        arrows: its edges.
        width: of the picture in pixels.
        height: of the picture in pixels.
        columns: how many characters of a label are shown.
        engine: who found the places.
        why: why it was not Graphviz, "" if it was.
        frames: frames around boxes, the outer ones first.
    """

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    width: float
    height: float
    columns: int
    engine: str
    why: str = ""
    frames: tuple[Frame, ...] = ()


def arrow_head(before: Point, tip: Point) -> tuple[Point, ...]:
    """Give the triangle at the end of a line that comes from `before`."""
    dx, dy = tip[0] - before[0], tip[1] - before[1]
    length = math.hypot(dx, dy) or 1.0
    ux, uy = dx / length, dy / length
    x, y = tip[0] - HEAD_LENGTH * ux, tip[1] - HEAD_LENGTH * uy
    half = HEAD_WIDTH / 2
    corners = (tip, (x - half * uy, y + half * ux), (x + half * uy, y - half * ux))
    return tuple((round(a, 1), round(b, 1)) for a, b in corners)
