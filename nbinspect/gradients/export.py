"""A history in other forms: a data frame, CSV, and JSON that people can read."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbinspect.blocks import Unavailable
from nbinspect.gradients.records import GradientFinding, GradientHistory
from nbinspect.gradients.step_records import GradientStep, ParameterGradient, StepFigures

if TYPE_CHECKING:
    import pandas as pd

OF_STEP = ("index", "loss", "grad_norm", "clip_factor", "scale", "skipped")
OF_PARAMETER, OF_FIGURES, OF_FINDING = (
    tuple(field.name for field in dataclasses.fields(kind))
    for kind in (ParameterGradient, StepFigures, GradientFinding)
)
COLUMNS = (
    "step",
    "loss",
    "total_grad_norm",
    "clip_factor",
    "scale",
    "skipped",
    "learning_rate",
    *OF_PARAMETER,
)


def _lines(history: GradientHistory) -> Iterator[tuple[Any, ...]]:
    for step in history.steps:
        head = _head(step)
        for one in step.parameters:
            yield (*head, *(getattr(one, name) for name in OF_PARAMETER))


def _head(step: GradientStep) -> tuple[Any, ...]:
    """Give what is the same for all parameters; what is not known is None."""
    values = (getattr(step, name) for name in OF_STEP)
    rates = step.learning_rates
    known = (None if isinstance(one, Unavailable) else one for one in values)
    return (*known, rates[0] if rates else None)


def to_pandas(history: GradientHistory) -> pd.DataFrame:
    """Give one row for each step and parameter.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "to_pandas needs pandas, which is not installed: pip install 'nbinspect[pandas]'. "
            "to_csv and to_json do without it."
        ) from error
    return pandas.DataFrame.from_records(list(_lines(history)), columns=list(COLUMNS))


def to_csv(history: GradientHistory, path: str | Path) -> None:
    """Write one line for each step and parameter; what is not known is empty."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(_lines(history))


def to_json(history: GradientHistory, path: str | Path | None) -> str | None:
    """Give steps with their parameters, or write them to `path`.

    NaN and Inf are the strings ``nan`` and ``inf``.
    """
    if path is None:
        return "".join(_pieces(history))
    with Path(path).open("w", encoding="utf-8") as file:
        file.writelines(_pieces(history))
    return None


def _pieces(history: GradientHistory) -> Iterator[str]:
    """Yield the text step by step: that of a long run may be larger than the memory."""
    encode = json.JSONEncoder(allow_nan=False).encode
    yield '{"steps": ['
    for n, step in enumerate(history.steps):
        own = {name: _plain(getattr(step.figures, name)) for name in OF_FIGURES}
        parameters = [
            {name: _plain(getattr(one, name)) for name in OF_PARAMETER} for one in step.parameters
        ]
        yield ", " * (n > 0) + encode(own | {"parameters": parameters})
    findings = [
        {name: _plain(getattr(one, name)) for name in OF_FINDING} for one in history.findings
    ]
    yield f'], "findings": {encode(findings)}}}'


def _plain(value: Any) -> Any:
    if isinstance(value, Unavailable):
        return {"unavailable": value.reason}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
