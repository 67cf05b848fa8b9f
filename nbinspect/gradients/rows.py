"""One step's figures as packed rows: 31 bytes a parameter, so that ten thousand steps fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.void]]

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


def has(rows: Rows, flag: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Say for each row whether something was measured."""
    measured: np.ndarray[Any, np.dtype[np.bool_]] = (rows["flags"] & flag) != 0
    return measured


def known(rows: Rows, column: str, flag: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Give a column with NaN where it was not measured."""
    return np.where(has(rows, flag), rows[column].astype(np.float64), np.nan)


def ratio(rows: Rows) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Divide each update's norm by its weight's; NaN where unknown or the weight is zero."""
    update, weight = known(rows, "update", HAS_UPDATE), known(rows, "weight", HAS_WEIGHT)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(weight > 0, update / weight, np.nan)


def total(norms: Sequence[float] | np.ndarray[Any, Any]) -> float:
    """Give the norm over all parameters from the norms of each."""
    values = np.asarray(norms, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.square(values).sum()))
