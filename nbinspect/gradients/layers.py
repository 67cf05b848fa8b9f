"""A history by layers: what the heat map, the small curves and comparisons are drawn from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbinspect.gradients import rows as packed
from nbinspect.gradients.records import GradientHistory
from nbinspect.gradients.step_records import PackedStep

Matrix = np.ndarray[Any, np.dtype[Any]]
SPARK = "▁▂▃▄▅▆▇█"


def layer_of(name: str) -> str:
    """Give the module that a parameter belongs to."""
    return name.rpartition(".")[0] or name


@dataclass(frozen=True, slots=True)
class LayerMap:
    """Norms by layer and step.

    Attributes:
        layers: names, in module order.
        first_steps: the first step of each column.
        last_step: the last one of all.
        norms: layers x columns; the largest of a column, NaN where the gradient was NaN or
            infinite, and below 0 where the layer had none.
    """

    layers: tuple[str, ...]
    first_steps: tuple[int, ...]
    last_step: int
    norms: Matrix


def layer_map(history: GradientHistory, most_rows: int, most_columns: int) -> LayerMap:
    """Sum a history up for a picture of so many rows and columns."""
    names = [layer_of(one.name) for one in history.parameters]
    layers, groups = _folded(names, most_rows)
    n_steps = len(history.packed)
    n_columns = min(n_steps, most_columns)
    edges = np.linspace(0, n_steps, n_columns + 1).astype(int)
    norms = np.full((len(layers), n_columns), -1.0)
    for column in range(n_columns):
        for step in history.packed[edges[column] : edges[column + 1]]:
            if step.figures.skipped:  # which is what a scaler is for, and no gap in the training
                continue
            one = _by_layer(history, step, groups, len(layers))
            norms[:, column] = np.where(
                np.isnan(one) | np.isnan(norms[:, column]),
                np.nan,
                np.fmax(one, norms[:, column]),
            )
    firsts = tuple(history.packed[at].figures.index for at in edges[:-1])
    last = history.packed[-1].figures.index if n_steps else 0
    return LayerMap(layers, firsts, last, norms)


def _folded(names: Sequence[str], most: int) -> tuple[tuple[str, ...], Matrix]:
    """Name the layers, as deep as there is room for, and say which one each parameter is in."""
    depth = max((name.count(".") for name in names), default=0) + 1
    while True:
        cut = [".".join(name.split(".")[:depth]) for name in names]
        layers = tuple(dict.fromkeys(cut))
        if len(layers) <= most or depth == 1:
            break
        depth -= 1
    if len(layers) > most:  # even so: the rest shares the last row
        layers = (*layers[: most - 1], f"{len(layers) - most + 1} more")
    place = {name: at for at, name in enumerate(layers)}
    return layers, np.asarray([place.get(name, len(layers) - 1) for name in cut], np.intp)


def _by_layer(history: GradientHistory, step: PackedStep, groups: Matrix, n: int) -> Matrix:
    rows = packed.unpack(step.rows)
    members = np.asarray(history.groups[step.group], np.intp)
    has = packed.has(rows, packed.HAS_GRADIENT)
    squares, present = np.zeros(n), np.zeros(n, bool)
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(squares, groups[members[has]], rows["norm"][has].astype(np.float64) ** 2)
        present[groups[members[has]]] = True
        norms = np.sqrt(squares)
    norms[~np.isfinite(norms)] = np.nan
    return np.where(present, norms, -1.0)


def matrix(history: GradientHistory, name: str, flag: int) -> Matrix:
    """Give one figure as steps x parameters, NaN where there is none or it was skipped."""
    found = np.full((len(history.packed), len(history.parameters)), np.nan, np.float32)
    groups = [np.asarray(members, np.intp) for members in history.groups]
    for at, step in enumerate(history.packed):
        if step.figures.skipped:
            continue
        rows = packed.unpack(step.rows)
        found[at, groups[step.group]] = packed.known(rows, name, flag)
    return found


def spark(values: Sequence[float], width: int = 16) -> str:
    """Draw figures as a row of small bars on a logarithmic scale, over what a column has seen.

    A gap stands for steps without a figure, ``!`` for one that is not finite.
    """
    if not values:
        return ""
    edges = np.linspace(0, len(values), min(width, len(values)) + 1).astype(int)
    parts = [values[a:b] for a, b in itertools.pairwise(edges)]
    tops = [max((one for one in part if not math.isnan(one)), default=math.nan) for part in parts]
    logs = [math.log10(one) for one in tops if one > 0 and math.isfinite(one)]
    low, high = min(logs, default=0.0), max(logs, default=0.0)
    scale = max(high - low, 0.5)
    return "".join(_bar(one, low, scale) for one in tops)


def _bar(value: float, low: float, scale: float) -> str:
    if math.isnan(value):
        return " "
    if math.isinf(value):
        return "!"
    if value <= 0:
        return SPARK[0]
    return SPARK[min(7, max(0, round(7 * (math.log10(value) - low) / scale)))]
