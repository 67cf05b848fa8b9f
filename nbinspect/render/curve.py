"""What every picture of a timeline needs: fewer points, and axes with round numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nbinspect.blocks import Timeline
from nbinspect.render.format import TIME_UNITS, bytes_text, plain_number

MAX_COLUMNS = 300


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis, 0..1, and what is written there."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A timeline ready to be drawn: everything between 0 and 1, y upwards.

    Attributes:
        points: (x, y) steps; y holds until the next x.
        x_ticks: times; the last label carries the unit.
        y_ticks: sizes.
        baseline: height of the dashed line, None for none.
        marks: (x, y, number from 1, label).
    """

    points: tuple[tuple[float, float], ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    baseline: float | None
    marks: tuple[tuple[float, float, int, str], ...]


def curve(timeline: Timeline, max_columns: int = MAX_COLUMNS) -> Curve:
    """Scale a timeline to the unit square and thin it, keeping every peak."""
    steps = [
        (time_s, float(size))
        for time_s, size in zip(timeline.times_s, timeline.sizes_bytes, strict=True)
        if math.isfinite(time_s)
    ]
    marks = [m for m in timeline.marks if math.isfinite(m.time_s)]
    times = [t for t, _ in steps] + [m.time_s for m in marks] or [0.0]
    start, end = min(times), max(times)
    span = (end - start) or 1.0
    base = timeline.baseline_bytes
    sizes = [s for _, s in steps] + [float(m.size_bytes) for m in marks]
    levels = _byte_levels(max([*sizes, float(base or 0), 1.0]))
    top = levels[-1]

    def y(size: float) -> float:
        return max(0.0, size) / top

    points = thin([((t - start) / span, y(s)) for t, s in steps], max_columns)
    return Curve(
        points=tuple([*points, (1.0, points[-1][1])] if points else []),
        x_ticks=_time_ticks(end - start),
        y_ticks=tuple(Tick(level / top, bytes_text(round(level))) for level in levels),
        baseline=None if base is None else y(base),
        marks=tuple(
            ((m.time_s - start) / span, y(m.size_bytes), n, m.label)
            for n, m in enumerate(marks, start=1)
        ),
    )


def thin(steps: list[tuple[float, float]], max_columns: int) -> list[tuple[float, float]]:
    """Keep at most four steps of each column: the first, lowest, highest and last.

    So no peak and no valley is lost, whatever the number of steps.
    """
    if len(steps) <= 4 * max_columns:
        return steps
    columns: dict[int, list[tuple[float, float]]] = {}
    for step in steps:
        columns.setdefault(min(int(step[0] * max_columns), max_columns - 1), []).append(step)
    kept: list[tuple[float, float]] = []
    for column in columns.values():
        order = range(len(column))
        low = min(order, key=lambda i: column[i][1])
        high = max(order, key=lambda i: column[i][1])
        kept += [column[i] for i in sorted({0, low, high, len(column) - 1})]
    return kept


def _byte_levels(largest: float) -> list[float]:
    """Give three to six round binary levels from 0 to at least `largest`."""
    unit = 1024.0 ** max(0, math.floor(math.log(max(largest, 1.0), 1024) + 1e-9))
    step = _round_up(largest / unit / 5, (1.0, 2.0, 2.5, 5.0, 10.0))
    step = max(step, 1.0) if unit == 1 else step
    n_steps = max(1, math.ceil(largest / unit / step - 1e-9))
    return [i * step * unit for i in range(n_steps + 1)]


def _time_ticks(duration_s: float) -> tuple[Tick, ...]:
    """Give about five round times; all are in the unit that the last one names."""
    if duration_s <= 0:
        return (Tick(0.0, "0 s"),)
    scale, unit = next((scale, unit) for limit, scale, unit in TIME_UNITS if duration_s < limit)
    length = duration_s * scale
    step = _round_up(length / 5, (1.0, 2.0, 5.0, 10.0))
    n_ticks = math.floor(length / step + 1e-9)
    labels = [plain_number(round(i * step, 9)) for i in range(n_ticks + 1)]
    labels[-1] += f" {unit}"
    return tuple(Tick(i * step / length, label) for i, label in enumerate(labels))


def _round_up(raw: float, factors: tuple[float, ...]) -> float:
    """Give the next round number from `raw` on: a factor times a power of ten."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(f * power for f in factors if f * power >= raw * (1 - 1e-9))
