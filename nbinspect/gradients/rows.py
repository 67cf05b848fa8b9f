"""One step's figures as packed rows: 31 bytes a parameter, so that ten thousand steps fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.void]]
Marks = np.ndarray[Any, np.dtype[np.bool_]]
LARGEST = float(np.finfo(np.float32).max)
NEARLY_ALL = float(np.nextafter(np.float16(1), np.float16(0)))
Floats = np.ndarray[Any, np.dtype[np.float64]]

ROW = np.dtype(
    [
        ("norm", "<f4"),
        ("max_abs", "<f4"),
        ("mean", "<f4"),
        ("written", "<f4"),
        ("weight", "<f4"),
        ("update", "<f4"),
        ("zeros", "<f2"),
        ("cosine", "<f2"),
        ("rank", "<u2"),
        ("flags", "u1"),
    ]
)
"""What is kept of each parameter in each step; `flags` says which of it was measured."""

HAS_GRADIENT = 1
REACHED = 2
HAS_UPDATE = 4
HAS_COSINE = 8
BEFORE_CLIP = 16
HAS_WRITTEN = 32
HAS_WEIGHT = 64
HAS_ZEROS = 128


def unpack(rows: bytes) -> Rows:
    """Look at packed rows as an array, without a copy."""
    return np.frombuffer(rows, ROW)


def has(rows: Rows, flag: int) -> Marks:
    """Say for each row whether something was measured."""
    measured: Marks = (rows["flags"] & flag) != 0
    return measured


def known(rows: Rows, column: str, flag: int) -> Floats:
    """Give a column with NaN where it was not measured."""
    return np.where(has(rows, flag), rows[column].astype(np.float64), np.nan)


def ratio(rows: Rows) -> Floats:
    """Divide each update's norm by its weight's; NaN where unknown or the weight is zero."""
    update, weight = known(rows, "update", HAS_UPDATE), known(rows, "weight", HAS_WEIGHT)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(weight > 0, update / weight, np.nan)


def total(norms: Sequence[float] | np.ndarray[Any, Any]) -> float:
    """Give the norm over all parameters from the norms of each."""
    values = np.asarray(norms, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.square(values).sum()))


def held(values: Floats | np.float64) -> Floats:
    """Keep finite what is: single precision has nothing above `LARGEST`, and would say Inf."""
    return np.where(np.isfinite(values), np.clip(values, -LARGEST, LARGEST), values)


def share(values: Floats | np.float64) -> Floats:
    """Keep apart from 1 what is less: half precision would round it up."""
    return np.where(values < 1, np.minimum(values, NEARLY_ALL), values)


@dataclass(slots=True)
class Look:
    """One step's rows, and what nearly every step is asked about them.

    Attributes:
        rows: packed.
        reached: which of them backward reached.
        read: which of these have a gradient.
        norms: of gradients as backward left them.
        logs: the logarithm of each gradient per element that has one; -Inf for one of zeros.
        is_finite: no norm that was reached is NaN or infinite.
        has_zeros: some gradient that was read is all zeros.
        decades: by how many powers of ten the gradients per element differ.
        total: the norm of all gradients that there are.
        clipping: the same of those seen before and after clipping, and as the optimizer got them.
    """

    rows: Rows
    reached: Marks
    read: Marks
    norms: Floats
    logs: Floats
    is_finite: bool
    has_zeros: bool
    decades: float
    total: float
    clipping: Clipping


class Clipping(NamedTuple):
    """Norms over parameters, to see what was done to gradients before the optimizer got them.

    Attributes:
        n_both: how many parameters were seen before and after.
        first: over these, as backward left them.
        last: over these, as the optimizer got them.
        written: over all that the optimizer got.
        apart: by what share of itself any of these was changed most.
    """

    n_both: int
    first: float
    last: float
    written: float
    apart: float


@np.errstate(all="ignore")
def looks(rows: Sequence[Rows], sizes: Floats, least: int) -> list[Look]:
    """Look at steps of the same parameters, all at once.

    Args:
        rows: of each step.
        sizes: how many elements each parameter has.
        least: of how many gradients to compare the sizes; `Look.decades` is 0 for fewer.
    """
    all_rows = np.stack(rows)
    flags = all_rows["flags"]
    reached, has_gradient = (flags & REACHED) != 0, (flags & HAS_GRADIENT) != 0
    norms = all_rows["norm"].astype(np.float64)
    read, is_zero = reached & has_gradient, norms == 0
    zeros = np.where((flags & HAS_ZEROS) != 0, np.nan_to_num(all_rows["zeros"].astype(float)), 0.0)
    logs = np.log10(norms) - 0.5 * np.log10(np.maximum(1.0, sizes * (1 - zeros)))
    some = reached & (norms > 0)
    highest = np.where(some, logs, -np.inf).max(axis=1, initial=-np.inf)
    lowest = np.where(some, logs, np.inf).min(axis=1, initial=np.inf)
    decades = np.where(some.sum(axis=1) < least, 0.0, highest - lowest)
    has_written = (flags & HAS_WRITTEN) != 0
    both, last = has_written & ((flags & BEFORE_CLIP) != 0), all_rows["written"].astype(float)
    apart = np.where(both & some, np.abs(last / norms - 1), 0.0).max(axis=1, initial=0.0)
    sums = (
        np.sqrt(np.where(which, values * values, 0.0).sum(axis=1))
        for which, values in (
            (has_gradient, norms),
            (both, norms),
            (both, last),
            (has_written, last),
        )
    )
    total, first, kept, written = (one.tolist() for one in sums)
    n_both = both.sum(axis=1).tolist()
    clipping = map(Clipping, n_both, first, kept, written, apart.tolist())
    return list(
        map(
            Look,
            rows,
            reached,
            read,
            norms,
            logs,
            (np.isfinite(norms) | ~reached).all(axis=1).tolist(),
            (read & is_zero).any(axis=1).tolist(),
            decades.tolist(),
            total,
            clipping,
        )
    )
