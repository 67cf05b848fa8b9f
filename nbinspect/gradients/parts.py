"""What one optimizer did in one step, as numbers that were read; packed when there is time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbinspect.gradients import rows as packed
from nbinspect.gradients.step_records import Exponents

MOST_RANK = 65535  # what a packed row has room for
PACKED = ("norm", "sum", "low", "high", "nonzero", "written", "weight", "update")


@dataclass(slots=True)
class Figures:
    """Numbers of one optimizer's step: lists of those parameters that have a gradient.

    Attributes:
        n_rows: how many parameters there are in all.
        reached: places of those that backward reached.
        live: places of those that have a gradient.
        columns: what was measured, by name: norm, sum, low, high, nonzero, written, weight, update.
        ranks: how many gradients came before each.
        sizes: how many elements each has.
        known: whether each was seen before clipping.
        cosines: (place, cosine with the gradient of the step before).
        scale: what the gradients had been multiplied by before backward.
        grad_scale: the same, if the optimizer itself divides by it.
    """

    n_rows: int
    reached: list[int]
    live: list[int]
    columns: dict[str, list[float]]
    ranks: list[int]
    sizes: list[int]
    known: list[bool]
    cosines: list[tuple[int, float]]
    scale: float | None = None
    grad_scale: float | None = None

    @property
    def layout(self) -> tuple[Any, ...]:
        """What those have in common that `pack` takes together."""
        names = [name for name in PACKED if name in self.columns]
        lists: tuple[Sequence[Any], ...] = (self.reached, self.live, self.sizes, self.known, names)
        return (self.n_rows, *map(tuple, lists))


@dataclass(slots=True)
class Part:
    """What one optimizer did in one step.

    Attributes:
        optimizer: its name, "" if the loop writes by itself.
        members: numbers of the parameters.
        figures: what was measured of them.
        bad: (row, NaNs, Infs) of gradients with any.
        learning_rates: one for each group.
        skipped: the write did not happen.
        exponents: a histogram for each parameter, where wanted.
        n_evaluations: how often a closure was called.
        piled_up: backward added to the gradients of its step before.
    """

    optimizer: str
    members: tuple[int, ...]
    figures: Figures
    bad: list[tuple[int, int | None, int | None]]
    learning_rates: tuple[float, ...] = ()
    skipped: bool = False
    exponents: tuple[Exponents, ...] = ()
    n_evaluations: int = 0
    piled_up: bool = False

    @property
    def scale(self) -> float | None:
        """What the gradients had been multiplied by."""
        return self.figures.scale


def pack(figures: Sequence[Figures]) -> list[packed.Rows]:
    """Give packed rows for each; those of one layout, as a loop's steps are, are packed at once."""
    found: list[Any] = [None] * len(figures)
    alike: dict[tuple[Any, ...], list[int]] = {}
    for at, one in enumerate(figures):
        alike.setdefault(one.layout, []).append(at)
    for places in alike.values():
        for at, rows in zip(places, _pack([figures[at] for at in places]), strict=True):
            found[at] = rows
    return found


def _pack(figures: Sequence[Figures]) -> Any:
    """Pack figures of one layout: a row of rows for each."""
    one = figures[0]
    shape, live = (len(figures), one.n_rows), np.asarray(one.live, np.intp)
    columns = {
        name: np.asarray([each.columns[name] for each in figures], np.float64)
        for name in PACKED
        if name in one.columns
    }
    sizes, known = np.asarray(one.sizes, np.float64), np.asarray(one.known, bool)
    scales = np.asarray([[each.scale or 1.0, each.grad_scale or 1.0] for each in figures])
    divisor = np.where(known, scales[:, :1], scales[:, 1:])
    rows, flags = np.zeros(shape, packed.ROW), np.zeros(shape, np.uint8)
    flags[:, one.reached] |= packed.REACHED
    flags[:, live] |= packed.HAS_GRADIENT
    flags[:, live[known]] |= packed.BEFORE_CLIP
    with np.errstate(all="ignore"):
        rows["norm"][:, live] = packed.held(columns["norm"] / divisor)
        rows["mean"][:, live] = packed.held(columns["sum"] / divisor / sizes)
        highest = np.maximum(np.abs(columns["low"]), np.abs(columns["high"]))
        rows["max_abs"][:, live] = packed.held(highest / divisor)
        if "written" in columns:
            rows["written"][:, live] = packed.held(columns["written"] / scales[:, 1:])
            rows["weight"][:, live] = packed.held(columns["weight"])
            rows["zeros"][:, live] = packed.share(1 - columns["nonzero"] / sizes)
            flags[:, live] |= packed.HAS_WRITTEN | packed.HAS_WEIGHT | packed.HAS_ZEROS
        if "update" in columns:
            rows["update"][:, live] = packed.held(columns["update"])
            flags[:, live] |= packed.HAS_UPDATE
    cosines = [(n, *one) for n, each in enumerate(figures) for one in each.cosines]
    if cosines:
        steps, places, values = map(list, zip(*cosines, strict=True))
        rows["cosine"][steps, places] = values
        flags[steps, places] |= packed.HAS_COSINE
    rows["rank"][:, live] = np.minimum([each.ranks for each in figures], MOST_RANK)
    rows["flags"] = flags
    return rows
