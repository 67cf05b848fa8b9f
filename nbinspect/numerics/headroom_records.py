"""What `headroom` found: plain values that can be kept, sent and shown without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nbinspect.blocks import Unavailable, View
from nbinspect.records import Record, SourceLine

FP16_MAX = 65504.0
BF16_MAX = 3.3895313892515355e38
Where = SourceLine | None


@dataclass(frozen=True, slots=True)
class OpHeadroom:
    """The magnitudes that one operation gave at one place, over all its calls.

    Attributes:
        op: e.g. ``aten.addmm``.
        module: fqn of the module whose forward ran it; in backward the one that made the node.
        phase: ``forward``, ``backward`` or ``optimizer``.
        where: the user's line; in backward the forward line that made the node.
        n_calls: how often it ran.
        n_values: values in its results, all calls together.
        n_zero: of them, 0.
        n_nonfinite: of them, NaN or infinite.
        n_meant: of them, a mask's large values, put there by a number in the code; these count
            nowhere else.
        largest: the largest finite magnitude, 0.0 if there is none.
        fp16_subnormal: share of the values other than 0 that are subnormal in float16.
        fp16_flushed: share of them that float16 rounds to 0.
        bf16_subnormal: the same of bfloat16.
        bf16_flushed: the same of bfloat16.
        runs_in: the dtype that it would give under autocast to float16, e.g. ``float32``.
    """

    op: str
    module: str
    phase: str
    where: Where
    n_calls: int
    n_values: int
    n_zero: int
    n_nonfinite: int
    n_meant: int
    largest: float
    fp16_subnormal: float
    fp16_flushed: float
    bf16_subnormal: float
    bf16_flushed: float
    runs_in: str

    @property
    def fp16_factor(self) -> float:
        """How many times larger the values could be before float16 overflows; below 1 if it does."""
        return FP16_MAX / self.largest if self.largest else math.inf

    @property
    def fp16_powers(self) -> float:
        """The same in powers of two; below 0 if it overflows."""
        return math.log2(self.fp16_factor) if self.largest else math.inf

    @property
    def bf16_factor(self) -> float:
        """How many times larger the values could be before bfloat16 overflows."""
        return BF16_MAX / self.largest if self.largest else math.inf

    @property
    def bf16_powers(self) -> float:
        """The same in powers of two."""
        return math.log2(self.bf16_factor) if self.largest else math.inf


@dataclass(frozen=True, slots=True)
class FirstOverflow:
    """The operation that would overflow first.

    Attributes:
        op: e.g. ``aten.addmm``.
        module: fqn of its module.
        phase: ``forward``, ``backward`` or ``optimizer``.
        where: the user's line.
        number: which operation of the step it is, from 1.
        largest: the magnitude that float16 cannot hold; infinite if float32 overflows as well.
        of: ``result``, or ``input`` if a value is lost where it is cast to float16.
        caution: why it may go otherwise, "" if nothing speaks for it.
    """

    op: str
    module: str
    phase: str
    where: Where
    number: int
    largest: float
    of: str
    caution: str


@dataclass(frozen=True, slots=True)
class Forecasted:
    """What would happen if the step ran in float16 in one of several ways.

    Attributes:
        setting: e.g. ``autocast on cuda``.
        first: the first overflow, None if there is none.
        n_overflows: how many operations would overflow.
        n_half: how many operations would give float16.
    """

    setting: str
    first: FirstOverflow | None
    n_overflows: int
    n_half: int


@dataclass(frozen=True, slots=True)
class LossScale:
    """Which scale of the loss keeps the gradients inside float16; counted from an unscaled loss.

    Attributes:
        largest: the largest gradient of an operation that would run in float16; where the loss
            would be in float16 itself at least 1, which is its own.
        n_values: how many gradients other than 0 those operations gave.
        flushed_unscaled: share of them that float16 rounds to 0 without a scale.
        lowest_log2: the smallest power of two that leaves at most 0.1 % at 0; 0 if none is needed.
        highest_log2: the largest one at which nothing overflows.
        flushed_highest: share that is lost even at the highest.
        ran_at: the scale that the step itself used, 1.0 if it used none.
    """

    largest: float
    n_values: int
    flushed_unscaled: float
    lowest_log2: int
    highest_log2: int
    flushed_highest: float
    ran_at: float


@dataclass(frozen=True, slots=True)
class Exponents:
    """How many values lie between 2^e and 2^(e+1).

    Attributes:
        what: what was counted, e.g. ``forward``.
        first: the exponent of the first count.
        counts: one for each exponent from there on.
        n_zero: values that are 0, which have none.
    """

    what: str
    first: int
    counts: tuple[int, ...]
    n_zero: int


@dataclass(frozen=True, slots=True)
class HeadroomReport(Record):
    """How near the values of a step come to what float16 and bfloat16 can hold.

    Attributes:
        ops: one for each operation, module and line, the largest magnitudes first.
        forecasts: what would overflow, the way that suits the step's device first.
        scale: the loss scale that gradients need, or why that is not known.
        exponents: the spread of the values, by phase.
        n_ops: how many operations were looked at.
        skipped: (what, how many) results that hold no such values, e.g. ``integer or bool``.
        dtypes: (dtype, how many) results as they were.
        error: the type of the exception that ended the step, "" if none did.
        notes: what is not in these figures.
        n_top: how many rows the tables show.
    """

    ops: tuple[OpHeadroom, ...]
    forecasts: tuple[Forecasted, ...]
    scale: LossScale | Unavailable
    exponents: tuple[Exponents, ...]
    n_ops: int
    skipped: tuple[tuple[str, int], ...]
    dtypes: tuple[tuple[str, int], ...]
    error: str
    notes: tuple[str, ...]
    n_top: int = 10

    @property
    def first_overflow(self) -> FirstOverflow | None:
        """The first overflow on the step's own device under autocast, None if there is none."""
        return self.forecasts[0].first if self.forecasts else None

    def view(self) -> View:
        """Answer, spread, and the operations with the least room."""
        from nbinspect.numerics.headroom_view import headroom_view

        return headroom_view(self)
