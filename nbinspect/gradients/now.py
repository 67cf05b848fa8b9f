"""The gradients of this moment: the `.grad` of every parameter, as it stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from nbinspect import _torch
from nbinspect.blocks import Unavailable
from nbinspect.gradients import measure, near
from nbinspect.gradients import rows as packed
from nbinspect.gradients.findings import findings
from nbinspect.gradients.names import notebook_models
from nbinspect.gradients.records import GradientFinding, Rules
from nbinspect.gradients.rules import LEAST_LAYERS, Health
from nbinspect.gradients.step_records import ParameterName, StepFigures, spread
from nbinspect.gradients.table_records import FROZEN, NOT_REACHED, GradientTable, TableRow
from nbinspect.ops import variable_name

N_SCALARS = 5


def gradtable(model: nn.Module | None = None, *, rules: Rules | None = None) -> GradientTable:
    """Answer what the gradients of a model are at this moment.

    Args:
        model: any module; without one, all that the notebook has a variable for.
        rules: thresholds of the health rules.

    Returns:
        One row for each parameter, those without a gradient too.

    Raises:
        TypeError: `model` is no module.

    **Cost**: a few passes over gradients and weights, one read for each device; allocates nothing
    of their size, and changes nothing.
    **Blind to**: what clipping or a gradient scaler has done to them; whether a zero has been one
    for long: see `gradwatch`.
    **Source**: ``torch.nn.Module.named_parameters``.
    """
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(f"takes a torch.nn.Module, not {type(model).__name__}")
    models = notebook_models() if model is None else [(_name(model), model)]
    named: dict[int, tuple[torch.Tensor, list[str]]] = {}
    owner: dict[int, str] = {}
    for prefix, one in models:
        parts: list[tuple[str, Any]] = list(one.named_parameters(remove_duplicate=False))
        for path, parameter in parts:
            if not is_lazy(parameter) and owner.setdefault(id(parameter), prefix) == prefix:
                entry = named.setdefault(id(parameter), (parameter, []))
                entry[1].append(f"{prefix}.{path}")
    with _torch.aside():
        rows = _rows(list(named.values()))
    norm = packed.total([row.grad_norm for row in rows if row.grad_norm is not None])
    return GradientTable(rows, norm, _findings(rows, list(owner.values()), rules or Rules()))


def _name(model: nn.Module) -> str:
    """Name a model as the notebook does, also one that is a part of another: ``model.0``."""
    name = variable_name(model)
    if name != type(model).__name__:
        return name
    for whole, one in notebook_models():
        for path, part in one.named_modules():
            if part is model:
                return f"{whole}.{path}" if path else whole
    return name


def _rows(named: list[tuple[torch.Tensor, list[str]]]) -> tuple[TableRow, ...]:
    gradients = [measure.dense(p.grad) if p.grad is not None else None for p, _ in named]
    weights = [measure.dense(p) for p, _ in named]
    live = [n for n, one in enumerate(gradients) if one is not None]
    solid = [one for one in gradients if one is not None]
    kernels = near.kernels()
    counts = measure.nonzeros(solid, kernels)
    finals = zip(measure.final(solid, kernels), counts, strict=True)
    scalars = [one for final, nonzero in finals for one in (*final[:-1], nonzero)]
    heavy = [n for n, one in enumerate(weights) if one is not None]
    weighed = measure.norms([one for one in weights if one is not None], kernels)
    values = measure.read([*scalars, *weighed])
    norms = dict(zip(heavy, values[len(scalars) :], strict=True))
    figures = {n: values[N_SCALARS * at : N_SCALARS * (at + 1)] for at, n in enumerate(live)}
    return tuple(
        _row(parameter, names, gradients[n], figures.get(n), norms.get(n))
        for n, (parameter, names) in enumerate(named)
    )


def _row(
    parameter: torch.Tensor,
    names: list[str],
    gradient: torch.Tensor | None,
    figures: list[float] | None,
    weight_norm: float | None,
) -> TableRow:
    norm = total = low = high = nonzero = None
    n_nan = n_inf = None
    if gradient is not None and figures is not None:
        norm, total, low, high, nonzero = figures
        bad = norm - norm != 0
        n_nan, n_inf = measure.count_bad(gradient) if bad else (0, 0)
        norm = measure.wide_norm(gradient) if bad and not (n_nan or n_inf) else norm
    n = measure.n_numbers(parameter)
    mean = None if total is None else total / n
    return TableRow(
        name=names[0],
        shape=tuple(parameter.shape),
        grad_norm=norm,
        max_abs=None if low is None or high is None else _largest(low, high),
        mean=mean,
        std=None if norm is None or mean is None else spread(norm, mean, n),
        zero_share=None if nonzero is None else 1 - nonzero / n,
        n_nan=n_nan,
        n_inf=n_inf,
        weight_norm=weight_norm,
        requires_grad=parameter.requires_grad,
        why_not=_why_not(parameter, gradient),
        also=tuple(names[1:]),
    )


def _largest(low: float, high: float) -> float:
    return float(np.maximum(abs(low), abs(high)))  # NaN if one of them is


def _why_not(parameter: torch.Tensor, gradient: torch.Tensor | None) -> str:
    if gradient is not None:
        return ""
    if parameter.grad is not None:
        return "its kind of tensor cannot be read"
    return NOT_REACHED if parameter.requires_grad else FROZEN


def _findings(
    rows: tuple[TableRow, ...], models: list[str], rules: Rules
) -> tuple[GradientFinding, ...]:
    """Hold the rules against this one moment; the order of modules stands in for depth."""
    chosen = [n for n, row in enumerate(rows) if row.requires_grad]
    table = np.zeros(len(chosen), packed.ROW)
    for at, n in enumerate(chosen):
        row = rows[n]
        if row.grad_norm is not None:
            table[at]["norm"] = packed.held(np.float64(row.grad_norm))
            table[at]["zeros"] = packed.share(np.float64(row.zero_share or 0.0))
            table[at]["flags"] = packed.HAS_GRADIENT | packed.REACHED | packed.HAS_ZEROS
        table[at]["rank"] = min(len(chosen) - at, 65535)
    about = [
        ParameterName(rows[n].name, int(np.prod(rows[n].shape)), rows[n].shape, "") for n in chosen
    ]
    health = Health(rules)
    why = Unavailable("this is one moment")
    figures = StepFigures(0, why, packed.total(table["norm"]), why, why)
    sizes = np.asarray([one.n_elements for one in about], np.float64)
    (look,) = packed.looks([table], sizes, LEAST_LAYERS)
    health.step(figures, tuple(range(len(chosen))), look, about)
    return findings(health.state(ended=True), about, [models[n] for n in chosen], rules)
