"""What is shown, as data: a few kinds of block that every renderer knows.

An inspector's record describes itself as a `View`, a tuple of blocks. Renderers know blocks
and nothing else, so one more record costs no renderer a line, and one more renderer costs no
record a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A reading that is not to be had, and why. It is shown as its reason, never as 0."""

    reason: str


Reading = int | Unavailable
"""A count or a number of bytes, or the reason why there is none."""


@dataclass(frozen=True, slots=True)
class Code:
    """A name or a line of code inside a sentence; set in monospace, never translated."""

    text: str


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes inside a sentence; three figures are shown, the exact count on hover."""

    n_bytes: int


Span = str | Code | Size


@dataclass(frozen=True, slots=True)
class Text:
    """A sentence or two.

    Attributes:
        spans: pieces of the sentence, joined without separators.
        role: headline (the answer), body, note (small print) or action (needs the user).
    """

    spans: tuple[Span, ...]
    role: Literal["headline", "body", "note", "action"] = "body"


@dataclass(frozen=True, slots=True)
class Advice:
    """One finding: what is wrong, what it costs, and the line of code that mends it.

    Attributes:
        spans: the sentence.
        code: the line that mends it, "" if there is none.
        size_bytes: what the mend gives back, None if that is not known.
    """

    spans: tuple[Span, ...]
    code: str = ""
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar.

    Attributes:
        label: what the part is, in the user's words.
        size_bytes: its length.
        hue: a name of `render.palette`, usually a holder kind.
    """

    label: str
    size_bytes: int
    hue: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A stacked bar with a number for each part.

    Attributes:
        label: the bar's own name, e.g. ``cuda:0``.
        segments: its parts, left to right.
        total_bytes: the length of the whole track; None makes the parts fill it.
        note: what the whole track stands for, e.g. ``of 24.0 GiB, the container's limit``.
    """

    label: str
    segments: tuple[Segment, ...]
    total_bytes: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: its heading.
        kind: how its cells read. ``text``: prose; ``name``: monospace, cut in the middle;
            ``code``: monospace source line, cut at the end; ``kind``: a holder kind with its
            colour; ``bytes``: binary units, right-aligned, with a small bar of its share;
            ``change``: bytes that came or went, with their sign; ``count``: an integer, right-aligned; ``percent``: a fraction 0..1.
    """

    title: str
    kind: Literal["text", "name", "code", "kind", "bytes", "change", "count", "percent"] = "text"


Cell = str | int | float | Unavailable | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings.

    Attributes:
        columns: the headings.
        rows: one cell per column.
        title: a heading over the table, "" for none.
        n_more: rows that were left out; shown as "n more".
        more_bytes: what the left-out rows hold together, None if that says nothing.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    n_more: int = 0
    more_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of a timeline that has a name, e.g. its peak."""

    time_s: float
    size_bytes: int
    label: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bytes over time, as steps.

    Attributes:
        title: what is drawn, e.g. ``cpu: bytes held by tensors``.
        times_s: seconds since the start, ascending.
        sizes_bytes: bytes from that moment on; as long as `times_s`.
        marks: points with a name.
        baseline_bytes: what was held before, drawn as a dashed line; None for none.
    """

    title: str
    times_s: tuple[float, ...]
    sizes_bytes: tuple[int, ...]
    marks: tuple[Mark, ...] = ()
    baseline_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Band:
    """A range under the axis of a histogram, e.g. what a number format can hold.

    Attributes:
        label: what it is; bands of one label stand in one line.
        start: where on the axis it begins; beyond the axis it is cut.
        end: where it ends.
        faint: drawn lighter, for a part that holds less well.
    """

    label: str
    start: float
    end: float
    faint: bool = False


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values lie in each of equally wide classes, as columns.

    Attributes:
        title: what is counted.
        start: where on the axis the first column begins; each is 1 wide.
        counts: how many values, column by column.
        ticks: (place on the axis, what is written there).
        bands: ranges that are drawn under the axis.
        faint_below: columns below this place are drawn lighter; None for none.
        alert_from: columns from this place on need action; None for none.
    """

    title: str
    start: int
    counts: tuple[int, ...]
    ticks: tuple[tuple[float, str], ...] = ()
    bands: tuple[Band, ...] = ()
    faint_below: float | None = None
    alert_from: float | None = None


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Numbers as shades, in rows under each other.

    Attributes:
        title: what is drawn.
        labels: one name for each row.
        values: the rows, all of one length; None where there is no number. NaN stands out.
        low: the number of the lightest shade.
        high: the number of the darkest one.
        low_text: how `low` reads, e.g. ``1e-7``.
        high_text: how `high` reads.
        first: what the first column is, e.g. ``step 0``.
        last: what the last one is.
    """

    title: str
    labels: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    low: float
    high: float
    low_text: str
    high_text: str
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A box of a graph.

    Attributes:
        key: its name within the graph; nothing is read into it.
        label: what it is called, e.g. ``losses[0]`` or ``MulBackward0``; cut in the middle.
        type_name: what it is, e.g. ``list``, ``Tensor 64x256 float32``.
        role: root (a name of the user's), target (what was asked about), holder (in between),
            stub (stands for nodes that are not drawn, e.g. "12 more").
        hue: a name of `render.palette`.
        size_bytes: its own bytes, None where that says nothing.
        detail: more for those who point at it, one fact a line.
        can_unfold: a click may ask for its neighbours.
        frame: key of the innermost frame around it, "" for none.
        heat: how strongly it is coloured by the graph's scale, 0..1; None for not at all.
        heat_hue: the hue of that scale.
        alert: what is wrong with it in a word or two, e.g. ``NaN``; "" for nothing.
        path: its whole name where `label` is short for what stands in a frame, "" if that is it.
    """

    key: str
    label: str
    type_name: str = ""
    role: Literal["root", "target", "holder", "stub"] = "holder"
    hue: str = "OTHER"
    size_bytes: int | None = None
    detail: tuple[str, ...] = ()
    can_unfold: bool = False
    frame: str = ""
    heat: float | None = None
    heat_hue: str = "OTHER"
    alert: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class GraphFrame:
    """A frame around boxes that belong together, e.g. a module's parts.

    Attributes:
        key: its name within the graph, also apart from the boxes' keys.
        label: what it is called.
        type_name: what it is.
        parent: key of the frame that it is in, "" for none.
        size_bytes: bytes of all that is in it, None where that says nothing.
        can_fold: a click folds it into one box.
    """

    key: str
    label: str
    type_name: str = ""
    parent: str = ""
    size_bytes: int | None = None
    can_fold: bool = False


@dataclass(frozen=True, slots=True)
class HeatScale:
    """What the colour of boxes stands for.

    Attributes:
        title: what is measured, with its unit or kind, e.g. ``saved for backward``.
        low: the value of no colour, e.g. ``0 B``.
        high: the value of full colour, e.g. ``12.0 MiB``.
        hue: a name of `render.palette`.
    """

    title: str
    low: str
    high: str
    hue: str


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """An arrow from holder to held.

    Attributes:
        source: key of the holder.
        target: key of what it holds.
        label: by what, e.g. ``saved self``, ``.grad``, ``closure variable 'buf'``.
    """

    source: str
    target: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """Boxes and arrows; roots on top, arrows downwards, unless it goes across.

    Attributes:
        title: what is drawn.
        nodes: the boxes.
        edges: the arrows.
        frames: frames around boxes; each comes before those that are in it.
        scale: what the colour of boxes stands for, None if they have none.
        across: drawn from left to right, as what happens one after the other is read.
        note: a sentence on how to read it, "" for none.
    """

    title: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    frames: tuple[GraphFrame, ...] = ()
    scale: HeatScale | None = None
    across: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fold:
    """Details that are folded away until asked for.

    A terminal cannot unfold: it shows a few lines as they are, and of more the title only.

    Attributes:
        title: what is inside, with its count or bytes.
        blocks: what is inside.
    """

    title: str
    blocks: tuple[Block, ...]


Block = Text | Advice | Bar | Table | Timeline | Histogram | HeatMap | Graph | Fold
View = tuple[Block, ...]
