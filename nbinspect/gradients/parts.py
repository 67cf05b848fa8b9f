"""What one optimizer did in one step, as numbers that were read; packed when there is time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nbinspect.gradients import rows as packed
from nbinspect.gradients.step_records import Exponents

MOST_RANK = 65535  # what a packed row has room for


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

    def pack(self) -> packed.Rows:
        """Give packed rows."""
        live = np.asarray(self.live, np.intp)
        columns = {name: np.asarray(own, np.float64) for name, own in self.columns.items()}
        sizes = np.asarray(self.sizes, np.float64)
        known = np.asarray(self.known, bool)
        divisor = np.where(known, self.scale or 1.0, self.grad_scale or 1.0)
        rows = np.zeros(self.n_rows, packed.ROW)
        flags = np.zeros(self.n_rows, np.uint8)
        flags[self.reached] |= packed.REACHED
        flags[live] |= packed.HAS_GRADIENT
        with np.errstate(all="ignore"):
            rows["norm"][live] = columns["norm"] / divisor
            rows["mean"][live] = columns["sum"] / divisor / sizes
            highest = np.maximum(np.abs(columns["low"]), np.abs(columns["high"]))
            rows["max_abs"][live] = highest / divisor
            if "written" in columns:
                self._fill_written(rows, flags, live, columns)
        for at, cosine in self.cosines:
            rows["cosine"][at] = cosine
            flags[at] |= packed.HAS_COSINE
        rows["rank"][live] = np.minimum(self.ranks, MOST_RANK)
        flags[live[known]] |= packed.BEFORE_CLIP
        rows["flags"] = flags
        return rows

    def _fill_written(
        self, rows: packed.Rows, flags: Any, live: Any, columns: dict[str, Any]
    ) -> None:
        rows["written"][live] = columns["written"] / (self.grad_scale or 1.0)
        rows["weight"][live] = columns["weight"]
        rows["zeros"][live] = 1 - columns["nonzero"] / self.sizes
        flags[live] |= packed.HAS_WRITTEN | packed.HAS_WEIGHT | packed.HAS_ZEROS
        if "update" in columns:
            rows["update"][live] = columns["update"]
            flags[live] |= packed.HAS_UPDATE


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
