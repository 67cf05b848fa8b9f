"""What `gradcheck` found: plain values that can be kept, sent and shown without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nbinspect.blocks import Unavailable, View
from nbinspect.records import Record, SourceLine


@dataclass(frozen=True, slots=True)
class GradientEntry:
    """The derivative of an output with respect to one value, both ways.

    Attributes:
        input: the tensor, e.g. ``w`` or ``model.0.weight``.
        index: the value in it, e.g. ``[1, 0]``, "" for a scalar; ``.imag`` for that part.
        output: the output value, e.g. ``[3]``, "" for a scalar; ``weighted sum`` of all of them
            where there are too many.
        analytic: what the backward pass gives.
        numeric: what a small change of the value makes of the output.
        error: their distance.
        tolerance: what it may be: atol + rtol * abs(numeric).
        doubt: why a disagreement need not be an error of backward: ``kink`` where the output has
            another slope on each side, as relu has at 0; ``rounding`` where the output is so large
            that its change is lost in it; "" if neither.
    """

    input: str
    index: str
    output: str
    analytic: float
    numeric: float
    error: float
    tolerance: float
    doubt: Literal["", "kink", "rounding"]

    @property
    def agrees(self) -> bool:
        """Whether the error is within its tolerance; not if one of both is NaN."""
        return self.error <= self.tolerance


@dataclass(frozen=True, slots=True)
class CheckedInput:
    """One tensor that gradients were taken of.

    Attributes:
        name: what the user calls it.
        description: shape and dtype as the user has it.
        is_parameter: whether it is a module's parameter.
        n_values: how many values it has.
        n_checked: how many were changed one by one.
        n_wrong: how many of those disagree.
        analytic: the derivative along one direction through all its values, by backward.
        numeric: the same by a small step.
        own_dtype_error: how far the gradient at the user's dtype is from the one in float64,
            relative to the largest gradient of this tensor.
        cause: what the numbers say of a disagreement, "" if nothing.
    """

    name: str
    description: str
    is_parameter: bool
    n_values: int
    n_checked: int
    n_wrong: int
    analytic: float
    numeric: float
    own_dtype_error: float | Unavailable
    cause: str


@dataclass(frozen=True, slots=True)
class NonFiniteValues:
    """Values at the user's own dtype that are NaN or infinite.

    Attributes:
        what: ``output`` or ``gradient of x``.
        n_bad: how many.
        n_values: of how many.
        index: the first one's place.
        value: what it is.
    """

    what: str
    n_bad: int
    n_values: int
    index: str
    value: float


@dataclass(frozen=True, slots=True)
class BornAt:
    """The operation that made a NaN or Inf at the user's dtype, as `nanwatch` tells it.

    Attributes:
        op: e.g. ``aten.exp``; ``leaf`` if it came in with an argument or a parameter.
        phase: ``forward`` or ``backward``.
        where: the user's line.
        why: the cause, in sentences.
        mend: what to do, "" if that is not known.
    """

    op: str
    phase: str
    where: SourceLine | None
    why: str
    mend: str


@dataclass(frozen=True, slots=True)
class CustomFunction:
    """A `torch.autograd.Function` that ran, or an operation registered with one, checked by itself.

    Attributes:
        name: its class, or the operation's name.
        where: its backward.
        agrees: torch's verdict on it alone, or why there is none.
    """

    name: str
    where: SourceLine | None
    agrees: bool | Unavailable


@dataclass(frozen=True, slots=True)
class GradcheckReport(Record):
    """Whether analytic and numeric gradients agree.

    Attributes:
        name: the function.
        passed: the verdict of `torch.autograd.gradcheck` in float64, or why there is none.
        message: what torch says where it failed, "" else.
        eps: the size of the change.
        atol: absolute tolerance.
        rtol: relative tolerance.
        fast_mode: whether torch checked random directions instead of every entry.
        entries: derivatives one by one, the worst first.
        inputs: by tensor, arguments before parameters.
        dtype: the user's own dtype.
        nonfinite: what is NaN or infinite at that dtype.
        born_at: the operation that made it, None if there is none or it is not known.
        functions: custom autograd functions.
        notes: what was left out, and what was assumed.
        n_top: how many rows the tables show.
    """

    name: str
    passed: bool | Unavailable
    message: str
    eps: float
    atol: float
    rtol: float
    fast_mode: bool
    entries: tuple[GradientEntry, ...]
    inputs: tuple[CheckedInput, ...]
    dtype: str
    nonfinite: tuple[NonFiniteValues, ...]
    born_at: BornAt | None
    functions: tuple[CustomFunction, ...]
    notes: tuple[str, ...]
    n_top: int = 10

    @property
    def ok(self) -> bool:
        """Whether torch's check passed and all is finite at the user's dtype."""
        return self.passed is True and not self.nonfinite

    def view(self) -> View:
        """Answer, causes, and the worst entries."""
        from nbinspect.numerics.gradcheck_view import gradcheck_view

        return gradcheck_view(self)
