"""What text, HTML and pictures say alike about bars and table cells."""

from __future__ import annotations

from dataclasses import dataclass

from nbinspect.blocks import Bar, Cell, Column, Table, Unavailable
from nbinspect.render.format import bytes_text, count, percent, plain_number, printable
from nbinspect.render.palette import hue, kind_words

NUMBER_KINDS = ("bytes", "change", "count", "percent")
NOTHING = "\u2013"


@dataclass(frozen=True, slots=True)
class BarTotal:
    """How long a bar is, and the words beside its name.

    Attributes:
        full_bytes: what the whole track stands for; parts never run over it.
        text: e.g. ``1.20 GiB of 24.0 GiB``.
    """

    full_bytes: int
    text: str


def bar_total(bar: Bar) -> BarTotal:
    """Say what a bar adds up to, free room not counted."""
    parts = sum(max(0, s.size_bytes) for s in bar.segments)
    used = sum(s.size_bytes for s in bar.segments if not hue(s.hue).empty)
    full = max(parts, bar.total_bytes or 0)
    note = printable(bar.note)
    if bar.total_bytes is not None and not note:
        note = f"of {bytes_text(bar.total_bytes)}"
    if not bar.segments and bar.total_bytes is None and note:  # not known, which is not nothing
        return BarTotal(full, note)
    return BarTotal(full, f"{bytes_text(used)} {note}".rstrip())


def is_number(column: Column) -> bool:
    """Say whether a column holds numbers, which stand at its right edge."""
    return column.kind in NUMBER_KINDS


def cell_text(cell: Cell, column: Column) -> str:
    """Give a cell in words, uncut."""
    if cell is None:
        return NOTHING
    if isinstance(cell, Unavailable):
        return f"not known: {printable(cell.reason)}"
    if isinstance(cell, str):
        return printable(kind_words(cell) if column.kind == "kind" else cell)
    if column.kind == "bytes":
        return bytes_text(round(cell))
    if column.kind == "change":
        return bytes_text(round(cell), signed=True)
    if column.kind == "percent":
        return percent(cell)
    return count(cell) if column.kind == "count" and isinstance(cell, int) else plain_number(cell)


def more_text(table: Table) -> str:
    """Say how many rows were left out and what they hold."""
    text = f"and {count(table.n_more)} more"
    if table.more_bytes is not None:
        text += f", {bytes_text(table.more_bytes)} together"
    return text


def largest(table: Table, at: int) -> float:
    """Give the largest size of a column, which its small bars are measured against."""
    sizes = [abs(row[at]) for row in table.rows if isinstance(row[at], int | float)]  # type: ignore[arg-type]
    return max(sizes, default=0)
