"""One step's gradients as plain values: of each parameter and of all, as kept and as shown."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nbinspect.blocks import Unavailable
from nbinspect.gradients import rows as packed

Figure = float | Unavailable


@dataclass(frozen=True, slots=True)
class ParameterName:
    """A parameter that was watched.

    Attributes:
        name: as the notebook spells it, e.g. ``model.layers.2.weight``.
        n_elements: how many numbers it has, or had when it was first seen.
        shape: its sizes, then too.
        dtype: e.g. ``float32``.
        also: its other names, if it is tied.
    """

    name: str
    n_elements: int
    shape: tuple[int, ...]
    dtype: str
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ParameterGradient:
    """One parameter in one step. What was not measured, or does not exist, is None.

    Attributes:
        name: the parameter.
        grad_norm: its gradient's norm as backward left it: unscaled, before clipping.
        max_abs: its largest absolute value, then too.
        mean: the mean of its elements, then too; of a complex one of all real and imaginary parts.
        std: their standard deviation, then too, right to a thousandth of their root mean square.
        zero_share: the share of its elements that are exactly 0, as the optimizer got it.
        n_nan: how many are NaN, None if that was not counted.
        n_inf: how many are infinite, None if that was not counted.
        written_norm: its norm as the optimizer got it: after clipping.
        weight_norm: the parameter's own norm before the step.
        update_norm: the norm of what the step added to it.
        update_ratio: that over `weight_norm`.
        cosine: the cosine between this gradient and that of the step before.
        state: "" for a gradient of this step; ``NONE``: `.grad` is None; ``STALE``: there is one,
            but no backward reached it since the last step.
    """

    name: str
    grad_norm: float | None
    max_abs: float | None
    mean: float | None
    std: float | None
    zero_share: float | None
    n_nan: int | None
    n_inf: int | None
    written_norm: float | None
    weight_norm: float | None
    update_norm: float | None
    update_ratio: float | None
    cosine: float | None
    state: Literal["", "NONE", "STALE"] = ""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What is known of a step as a whole.

    Attributes:
        index: its number, from 0; steps that were not read count too.
        loss: the sum of what `backward` was called on since the step before, unscaled.
        grad_norm: over all its parameters, before clipping and unscaled.
        written_norm: the same as the optimizer got it.
        clip_factor: the second over the first; 1 if nothing was clipped.
        clipped: "" if not; ``norm``: all by one factor; ``value``: where it was too large;
            ``changed``: in another way.
        scale: what a gradient scaler had multiplied the loss by, None without one.
        skipped: the scaler found an Inf or NaN and skipped the step.
        n_backward: how many backward passes the step is made of.
        n_evaluations: how often the optimizer called its closure, 0 without one.
        learning_rates: one for each parameter group of `optimizers`.
        optimizers: who wrote; none where the loop writes by itself.
        piled_up: backward added to the gradients of the step before.
    """

    index: int
    loss: Figure
    grad_norm: float
    written_norm: Figure
    clip_factor: Figure
    clipped: Literal["", "norm", "value", "changed"] = ""
    scale: float | None = None
    skipped: bool = False
    n_backward: int = 1
    n_evaluations: int = 0
    learning_rates: tuple[float, ...] = ()
    optimizers: tuple[str, ...] = ()
    piled_up: bool = False


@dataclass(frozen=True, slots=True)
class Exponents:
    """How often each power of two occurs in a gradient; NaN and Inf are of none.

    Attributes:
        row: which of the step's rows.
        first: the lowest exponent that occurs: values from 2**first up.
        packed: the counts from there on, as unsigned 32-bit numbers.
        n_tiny: zeros and what is below 2**-126.
    """

    row: int
    first: int
    packed: bytes
    n_tiny: int

    @property
    def counts(self) -> tuple[int, ...]:
        """How many values have the exponent `first`, and those above it, one after the other."""
        return struct.unpack(f"<{len(self.packed) // 4}I", self.packed)


@dataclass(frozen=True, slots=True)
class PackedStep:
    """A step as it is kept; `GradientHistory.steps` unpacks it.

    Attributes:
        figures: what is known of it as a whole.
        group: which parameters it has, as a number of `GradientHistory.groups`.
        rows: their figures, packed as `rows.ROW`.
        bad: (row, NaNs, Infs) of gradients with any.
        exponents: a histogram for each parameter, where this step has them.
        resized: (row, elements) of parameters that have become larger or smaller.
    """

    figures: StepFigures
    group: int
    rows: bytes
    bad: tuple[tuple[int, int | None, int | None], ...] = ()
    exponents: tuple[Exponents, ...] = ()
    resized: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class GradientStep:
    """One step of the optimizer, or of several that share a backward pass.

    Attributes:
        figures: what is known of it as a whole; its attributes are here too (`loss`, ...).
        parameters: one entry for each parameter, in the order of their modules.
    """

    figures: StepFigures
    parameters: tuple[ParameterGradient, ...]

    @property
    def index(self) -> int:
        """Its number, from 0."""
        return self.figures.index

    @property
    def loss(self) -> Figure:
        """The sum of what `backward` was called on, unscaled."""
        return self.figures.loss

    @property
    def grad_norm(self) -> float:
        """The norm over all parameters, before clipping and unscaled."""
        return self.figures.grad_norm

    @property
    def clip_factor(self) -> Figure:
        """The norm as the optimizer got it over that before clipping."""
        return self.figures.clip_factor

    @property
    def scale(self) -> float | None:
        """The gradient scaler's factor."""
        return self.figures.scale

    @property
    def skipped(self) -> bool:
        """Whether the gradient scaler skipped it."""
        return self.figures.skipped

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """One for each parameter group."""
        return self.figures.learning_rates

    def __getitem__(self, name: str) -> ParameterGradient:
        """Give a parameter by its name.

        Raises:
            KeyError: this step has none of that name.
        """
        for one in self.parameters:
            if one.name == name:
                return one
        raise KeyError(name)


def unpack(step: PackedStep, names: Sequence[ParameterName]) -> GradientStep:
    """Unpack a step.

    Args:
        step: as it is kept.
        names: of its parameters.
    """
    bad = {row: counts for row, *counts in step.bad}
    resized = dict(step.resized)
    rows = packed.unpack(step.rows)
    ratios = packed.ratio(rows)
    return GradientStep(
        step.figures,
        tuple(
            _parameter(
                name.name, resized.get(at, name.n_elements), row, float(quotient), bad.get(at)
            )
            for at, (name, row, quotient) in enumerate(zip(names, rows, ratios, strict=True))
        ),
    )


def _parameter(
    name: str, n_elements: int, row: Any, quotient: float, bad: list[int | None] | None
) -> ParameterGradient:
    flags = int(row["flags"])

    def given(column: str, flag: int) -> float | None:
        return float(row[column]) if flags & flag else None

    norm, mean = given("norm", packed.HAS_GRADIENT), given("mean", packed.HAS_GRADIENT)
    counts = bad if bad is not None else [0, 0]
    has_gradient = bool(flags & packed.HAS_GRADIENT)
    return ParameterGradient(
        name=name,
        grad_norm=norm,
        max_abs=given("max_abs", packed.HAS_GRADIENT),
        mean=mean,
        std=None if norm is None or mean is None else spread(norm, mean, n_elements),
        zero_share=given("zeros", packed.HAS_ZEROS),
        n_nan=counts[0] if has_gradient else None,
        n_inf=counts[1] if has_gradient else None,
        written_norm=given("written", packed.HAS_WRITTEN),
        weight_norm=given("weight", packed.HAS_WEIGHT),
        update_norm=given("update", packed.HAS_UPDATE),
        update_ratio=None if math.isnan(quotient) else quotient,
        cosine=given("cosine", packed.HAS_COSINE),
        state="" if flags & packed.REACHED else "STALE" if has_gradient else "NONE",
    )


def spread(norm: float, mean: float, n_elements: int) -> float | None:
    """Give the standard deviation (of a sample) from norm and mean; None for a single element."""
    if n_elements < 2:
        return None
    if not (math.isfinite(norm) and math.isfinite(mean)):
        return math.nan
    return math.sqrt(max(0.0, norm * norm - n_elements * mean * mean) / (n_elements - 1))
