"""What every picture of a histogram needs: columns, ticks and bands in the unit square."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nbinspect.blocks import Histogram
from nbinspect.render.curve import Tick
from nbinspect.render.format import percent, printable

LEAST = 0.02  # of the height: what is not nothing is seen


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """A column: where it stands, its height 0..1, and how it looks."""

    left: float
    right: float
    height: float
    look: Literal["plain", "faint", "alert"]


@dataclass(frozen=True, slots=True)
class BandLine:
    """The bands of one label: (left, right, faint)."""

    label: str
    pieces: tuple[tuple[float, float, bool], ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """A histogram ready to be drawn: everything between 0 and 1, y upwards."""

    columns: tuple[ColumnShape, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    bands: tuple[BandLine, ...]


def columns(block: Histogram) -> Columns:
    """Scale a histogram to the unit square; no column that holds anything vanishes."""
    width, top, total = max(len(block.counts), 1), max(block.counts), sum(block.counts)

    def x(place: float) -> float:
        return min(max((place - block.start) / width, 0.0), 1.0)

    shapes = tuple(
        ColumnShape(at / width, (at + 1) / width, max(count / top, LEAST), _look(block, at))
        for at, count in enumerate(block.counts)
        if count
    )
    ticks = [
        Tick(x(place), printable(label))
        for place, label in block.ticks
        if block.start <= place <= block.start + width
    ]
    lines: dict[str, list[tuple[float, float, bool]]] = {}
    for band in block.bands:
        piece = (x(band.start), x(band.end), band.faint)
        lines.setdefault(printable(band.label), []).append(piece)
    bands = tuple(
        BandLine(label, tuple(p for p in pieces if p[0] < p[1])) for label, pieces in lines.items()
    )
    return Columns(shapes, tuple(ticks), (Tick(1.0, percent(top / total)),), bands)


def _look(block: Histogram, at: int) -> Literal["plain", "faint", "alert"]:
    place = block.start + at
    if block.alert_from is not None and place >= block.alert_from:
        return "alert"
    return "faint" if block.faint_below is not None and place < block.faint_below else "plain"
