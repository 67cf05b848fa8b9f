"""What gradients did, as plain values: a run, what is wrong with it, and two runs beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from nbinspect.blocks import View
from nbinspect.gradients.step_records import (
    Figure,
    GradientStep,
    PackedStep,
    ParameterName,
    unpack,
)
from nbinspect.records import Record

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal[
    "NAN", "EXPLODING", "VANISHING", "DEAD", "UNUSED", "PILING_UP", "SPIKING", "SKIPPING"
]


@dataclass(frozen=True, slots=True)
class Rules:
    """When a gradient is called ill. Each rule needs all of its conditions.

    Attributes:
        low: a layer can only vanish, and
        high: a parameter can only explode, where its gradient's norm is beyond this.
        decades: VANISHING: the gradient per element falls by 10 to this power from the last layer
            to the first, more or less steadily, in some steps running; or it does in the very first
            step, and the first layers' gradient has not grown since. All layers falling together is
            convergence.
        growth: EXPLODING: beyond `high`, the norm is this many times its median at the start, or a
            single update is larger than the weights, or it grows by 10 to the `decades` from the
            last layer to the first; in some steps running, or in one whose update is `growth`
            times the weights.
        dead_steps: DEAD: reached by backward, and yet exactly 0 in so many steps running (in all
            steps of a shorter run, three at least); or all that backward left is exactly 0 by the
            time the optimizer reads it. A bias whose layer's weight has a gradient is not dead: it
            drops out of the loss, as in a difference of outputs.
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
        return unpack(step, [self._history.parameters[n] for n in members])


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

    def to_json(self, path: str | Path | None = None) -> str | None:
        """Give steps and parameters as readable JSON, or write them to `path`.

        `to_dict` is smaller and can be read back by `from_dict`.

        **Cost**: 320 bytes and some 15 µs for each parameter of each step; to a file it takes the
        memory of one step.
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
