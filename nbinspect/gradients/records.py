"""What gradients did, as plain values: per step and parameter, and what is wrong with them."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from nbinspect.blocks import Unavailable, View
from nbinspect.gradients import rows as packed
from nbinspect.records import Record

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal[
    "NAN", "EXPLODING", "VANISHING", "DEAD", "UNUSED", "PILING_UP", "SPIKING", "SKIPPING"
]
Figure = float | Unavailable


@dataclass(frozen=True, slots=True)
class Rules:
    """When a gradient is called ill. Each rule needs all of its conditions.

    Attributes:
        low: a layer can only vanish, and
        high: a parameter can only explode, where its gradient's norm is beyond this.
        decades: VANISHING: the gradient per element falls by 10 to this power from the last layer
            to the first, more or less steadily. All layers falling together is convergence.
        growth: EXPLODING: beyond `high`, the norm is this many times its median at the start, or a
            single update is larger than the weights, or it grows by 10 to the `decades` from the
            last layer to the first.
        dead_steps: DEAD: reached by backward, and yet exactly 0 in so many steps running (in all
            steps of a shorter run, three at least).
        unused_steps: UNUSED: an optimizer has it, and no backward reached it in all of so many
            steps (in all steps of a shorter run).
        piling_steps: PILING_UP: in so many steps running backward added to the gradients of the step
            before, which nothing had set to zero.
        spike: SPIKING: the norm over all parameters is this many times the median of
            the last 50 steps, far outside of their own spread, and no small one by the standard
            of the first steps.
        skipped_steps: SKIPPING: the gradient scaler skipped so many steps running.
    """

    low: float = 1e-3
    high: float = 1e3
    decades: float = 4.0
    growth: float = 100.0
    dead_steps: int = 10
    unused_steps: int = 10
    piling_steps: int = 3
    spike: float = 10.0
    skipped_steps: int = 10


@dataclass(frozen=True, slots=True)
class ParameterName:
    """A parameter that was watched.

    Attributes:
        name: as the notebook spells it, e.g. ``model.layers.2.weight``.
        n_elements: how many numbers it has.
        shape: its sizes.
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
        mean: the mean of its elements, then too.
        std: their standard deviation, then too.
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
    """How often each power of two occurs in a gradient.

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
    """

    figures: StepFigures
    group: int
    rows: bytes
    bad: tuple[tuple[int, int | None, int | None], ...] = ()
    exponents: tuple[Exponents, ...] = ()


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


@dataclass(frozen=True, slots=True)
class GradientFinding:
    """A rule that was broken.

    Attributes:
        kind: which.
        parameter: the parameter, "" where it is about all.
        step: the first step in which it was broken.
        value: what was measured there.
        why: in a sentence.
        mend: the line of code that mends it, "" if there is none.
        n_steps: in how many steps it was broken.
        others: further parameters that broke it.
    """

    kind: Kind
    parameter: str
    step: int
    value: float
    why: str
    mend: str = ""
    n_steps: int = 1
    others: tuple[str, ...] = ()


class Steps(Sequence[GradientStep]):
    """The steps of a history, each unpacked when it is asked for."""

    __slots__ = ("_history",)

    def __init__(self, history: GradientHistory) -> None:
        self._history = history

    def __len__(self) -> int:
        return len(self._history.packed)

    @overload
    def __getitem__(self, at: int) -> GradientStep: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[GradientStep, ...]: ...
    def __getitem__(self, at: int | slice) -> GradientStep | tuple[GradientStep, ...]:
        if isinstance(at, slice):
            return tuple(self._unpack(one) for one in self._history.packed[at])
        return self._unpack(self._history.packed[at])

    def __iter__(self) -> Iterator[GradientStep]:
        return map(self._unpack, self._history.packed)

    def _unpack(self, step: PackedStep) -> GradientStep:
        members = self._history.groups[step.group]
        bad = {row: counts for row, *counts in step.bad}
        rows = packed.unpack(step.rows)
        ratios = packed.ratio(rows)
        return GradientStep(
            step.figures,
            tuple(
                _parameter(self._history.parameters[n], row, float(quotient), bad.get(at))
                for at, (n, row, quotient) in enumerate(zip(members, rows, ratios, strict=True))
            ),
        )


def _parameter(
    about: ParameterName, row: Any, quotient: float, bad: list[int | None] | None
) -> ParameterGradient:
    flags = int(row["flags"])

    def given(column: str, flag: int) -> float | None:
        return float(row[column]) if flags & flag else None

    norm, mean = given("norm", packed.HAS_GRADIENT), given("mean", packed.HAS_GRADIENT)
    counts = bad if bad is not None else [0, 0]
    has_gradient = bool(flags & packed.HAS_GRADIENT)
    return ParameterGradient(
        name=about.name,
        grad_norm=norm,
        max_abs=given("max_abs", packed.HAS_GRADIENT),
        mean=mean,
        std=None if norm is None or mean is None else spread(norm, mean, about.n_elements),
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


@dataclass(frozen=True, slots=True)
class GradientHistory(Record):
    """What gradients did in a cell, step by step and layer by layer.

    Attributes:
        parameters: those that an optimizer has, or that backward reached, in module order.
        groups: parameters that were stepped together, as numbers of `parameters`.
        packed: the steps that are kept; `steps` unpacks them.
        findings: the rules that were broken, the earliest first.
        rules: the thresholds they were held to.
        n_steps: how many steps there were; older ones are thinned out beyond `--keep`.
        every: only every so many steps were read.
        frozen: parameters of the same models that need no gradient.
        without_optimizer: parameters that get gradients, but that no optimizer has.
        notes: what was not measured, and why.
        error: what ended the cell, "" if it came to its end.
    """

    parameters: tuple[ParameterName, ...]
    groups: tuple[tuple[int, ...], ...]
    packed: tuple[PackedStep, ...]
    findings: tuple[GradientFinding, ...]
    rules: Rules
    n_steps: int
    every: int = 1
    frozen: tuple[str, ...] = ()
    without_optimizer: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""

    @property
    def steps(self) -> Steps:
        """The kept steps, each with `.loss`, `.grad_norm`, `.parameters`, ..."""
        return Steps(self)

    @property
    def losses(self) -> tuple[Figure, ...]:
        """The loss of each kept step."""
        return tuple(step.figures.loss for step in self.packed)

    def step(self, index: int) -> GradientStep:
        """Give a step by its number.

        Raises:
            KeyError: it was not read, or has been thinned out.
        """
        for at, step in enumerate(self.packed):
            if step.figures.index == index:
                return self.steps[at]
        raise KeyError(index)

    def view(self) -> View:
        """Say whether the gradients are well, and show them."""
        from nbinspect.gradients.view import history_view

        return history_view(self)

    def compare(self, other: GradientHistory) -> GradientComparison:
        """Hold this run against an earlier one, parameter by parameter."""
        from nbinspect.gradients.comparison import compare

        return compare(self, other)

    def to_pandas(self) -> pd.DataFrame:
        """Give one row for each step and parameter; the loss and such are repeated in each.

        Raises:
            ImportError: pandas is not installed.
        """
        from nbinspect.gradients.export import to_pandas

        return to_pandas(self)

    def to_csv(self, path: str | Path) -> None:
        """Write one line for each step and parameter."""
        from nbinspect.gradients.export import to_csv

        to_csv(self, path)

    def to_json(self, path: str | Path | None = None) -> str:
        """Give, and write to `path`, steps and parameters as readable JSON.

        `to_dict` is smaller and can be read back by `from_dict`.
        """
        from nbinspect.gradients.export import to_json

        return to_json(self, path)


@dataclass(frozen=True, slots=True)
class ComparedParameter:
    """A parameter in two runs; medians over the steps of each, None where there is none."""

    name: str
    grad_norm: float | None
    other_grad_norm: float | None
    update_ratio: float | None
    other_update_ratio: float | None


@dataclass(frozen=True, slots=True)
class GradientComparison(Record):
    """Two runs beside each other.

    Attributes:
        parameters: those of either run, in module order.
        losses: the last loss of each run.
        n_steps: the steps of each run.
        first_difference: the first step in which loss or norm differ, None if none does.
    """

    parameters: tuple[ComparedParameter, ...]
    losses: tuple[Figure, Figure]
    n_steps: tuple[int, int]
    first_difference: int | None

    def view(self) -> View:
        """Say how the runs differ, the parameters that differ most first."""
        from nbinspect.gradients.comparison import comparison_view

        return comparison_view(self)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A parameter and its `.grad` at this moment; None for what does not exist."""

    name: str
    shape: tuple[int, ...]
    grad_norm: float | None
    max_abs: float | None
    mean: float | None
    std: float | None
    zero_share: float | None
    n_nan: int | None
    n_inf: int | None
    weight_norm: float | None
    requires_grad: bool
    why_not: str = ""
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GradientTable(Record):
    """The current `.grad` of every parameter.

    Attributes:
        parameters: one row each, in module order.
        grad_norm: the norm over all of them.
        findings: what is wrong with them at this moment.
    """

    parameters: tuple[TableRow, ...]
    grad_norm: float
    findings: tuple[GradientFinding, ...] = ()

    def __getitem__(self, name: str) -> TableRow:
        """Give a parameter by its name.

        Raises:
            KeyError: there is none of that name.
        """
        for one in self.parameters:
            if name == one.name or name in one.also:
                return one
        raise KeyError(name)

    def view(self) -> View:
        """Say whether the gradients are well, and list them."""
        from nbinspect.gradients.view import table_view

        return table_view(self)
