"""Tables of figures, as text for a terminal and as Markdown for a file."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Table:
    """One question and its figures.

    Attributes:
        title: the question.
        columns: what each column is.
        rows: the figures, as they are shown.
        notes: how they were taken, and how far they can be trusted.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """Add a row."""
        self.rows.append(cells)

    def text(self) -> str:
        """Show the table in aligned columns."""
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]
        lines = [_line(row, widths) for row in (self.columns, *self.rows)]
        lines.insert(1, "-" * len(lines[0]))
        return "\n".join((f"== {self.title}", *lines, *(f"   {note}" for note in self.notes)))

    def markdown(self) -> str:
        """Show the table as Markdown."""
        rows = [self.columns, ("---",) * len(self.columns), *self.rows]
        lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
        return "\n".join((f"## {self.title}", "", *lines, "", *(f"- {n}" for n in self.notes)))


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the quartiles around it."""

    low: float
    median: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum up some figures, at least one."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0], len(values))
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low, middle, high, len(values))

    def show(self, scale: float = 1, unit: str = "", digits: int = 2) -> str:
        """Write it as ``1.23 [1.20, 1.30] ms``."""
        low, middle, high = (
            f"{value * scale:.{digits}f}" for value in (self.low, self.median, self.high)
        )
        return f"{middle} [{low}, {high}] {unit}".strip()

    @property
    def width(self) -> float:
        """The distance between the quartiles, as a part of the median."""
        return (self.high - self.low) / self.median


def ratios(pairs: Sequence[tuple[float, float]]) -> Spread:
    """Divide the second of each pair by the first."""
    return Spread.of([second / first for first, second in pairs])


def verdict(value: float, limit: float, unit: str = "") -> str:
    """Say whether a figure is below its goal."""
    return f"< {limit:g}{unit}: {'met' if value < limit else 'MISSED'}"
