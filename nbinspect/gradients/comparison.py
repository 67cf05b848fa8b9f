"""Two runs beside each other: how far their gradients are apart, and since when."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nbinspect.blocks import Block, Column, Table, Text, Unavailable, View
from nbinspect.gradients import rows as packed
from nbinspect.gradients.layers import matrix
from nbinspect.gradients.records import ComparedParameter, GradientComparison, GradientHistory
from nbinspect.gradients.step_records import Figure
from nbinspect.gradients.view import number, three
from nbinspect.render.format import count

MOST_ROWS = 20


def compare(one: GradientHistory, other: GradientHistory) -> GradientComparison:
    """Hold a run against an earlier one: medians of each parameter over the steps of each."""
    mine, others = _medians(one), _medians(other)
    names = list(dict.fromkeys([*mine, *others]))
    nothing = (None, None)
    rows = []
    for name in names:
        (norm, ratio), (other_norm, other_ratio) = (
            mine.get(name, nothing),
            others.get(name, nothing),
        )
        rows.append(ComparedParameter(name, norm, other_norm, ratio, other_ratio))
    return GradientComparison(
        tuple(rows),
        (_last_loss(one), _last_loss(other)),
        (one.n_steps, other.n_steps),
        _first_difference(one, other),
    )


def _medians(history: GradientHistory) -> dict[str, tuple[float | None, float | None]]:
    norms = matrix(history, "norm", packed.HAS_GRADIENT).astype(np.float64)
    updates = matrix(history, "update", packed.HAS_UPDATE).astype(np.float64)
    weights = matrix(history, "weight", packed.HAS_WEIGHT).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(weights > 0, updates / weights, np.nan)
    columns = zip(history.parameters, norms.T, ratios.T, strict=True)
    return {about.name: (_median(norm), _median(ratio)) for about, norm, ratio in columns}


def _median(values: Any) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def _last_loss(history: GradientHistory) -> Figure:
    if not history.packed:
        return Unavailable("no step was read")
    return history.packed[-1].figures.loss


def _first_difference(one: GradientHistory, other: GradientHistory) -> int | None:
    """Find the first step of both in which loss or norm are not the same number."""
    others = {step.figures.index: step.figures for step in other.packed}
    for step in one.packed:
        mine, theirs = step.figures, others.get(step.figures.index)
        if theirs is not None and not (
            _same(mine.loss, theirs.loss) and _same(mine.grad_norm, theirs.grad_norm)
        ):
            return mine.index
    return None


def _same(a: Figure, b: Figure) -> bool:
    if isinstance(a, Unavailable) or isinstance(b, Unavailable):
        return True
    return a == b or (math.isnan(a) and math.isnan(b))


def comparison_view(comparison: GradientComparison) -> View:
    """Say since when the runs part, and list the parameters that differ most."""
    here, there = comparison.losses
    first = comparison.first_difference
    verdict = (
        "No difference in loss or gradient norm."
        if first is None
        else (
            f"The runs differ from step {first} on: the loss ends at {number(here)}, "
            f"before at {number(there)}."
        )
    )
    steps, other_steps = comparison.n_steps
    rows = sorted(comparison.parameters, key=_apart, reverse=True)
    shown = [row for row in rows[:MOST_ROWS] if first is not None]
    columns = (
        Column("parameter", "name"),
        Column("norm", "count"),
        Column("before", "count"),
        Column("ratio", "count"),
        Column("update / weight", "count"),
        Column("before", "count"),
    )
    cells = tuple(
        (
            row.name,
            _three(row.grad_norm),
            _three(row.other_grad_norm),
            _three(_ratio(row)),
            _three(row.update_ratio),
            _three(row.other_update_ratio),
        )
        for row in shown
    )
    blocks: list[Block] = [Text((verdict,), "headline")]
    if cells:
        title = "Medians over the steps, those that differ most first"
        blocks.append(Table(columns, cells, title, len(rows) - len(shown)))
    blocks.append(Text((f"{count(steps)} steps, before {count(other_steps)}.",), "note"))
    return tuple(blocks)


def _three(value: float | None) -> float | None:
    return None if value is None else three(value)


def _ratio(row: ComparedParameter) -> float | None:
    if row.grad_norm is None or not row.other_grad_norm:
        return None
    return row.grad_norm / row.other_grad_norm


def _apart(row: ComparedParameter) -> float:
    """Say how far apart two medians are; what only one run has comes first."""
    if row.grad_norm is None or row.other_grad_norm is None:
        return math.inf if row.grad_norm is not row.other_grad_norm else 0.0
    ratio = _ratio(row)
    return abs(math.log(ratio)) if ratio else 0.0
