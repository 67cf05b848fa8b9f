"""One run at the user's own dtype: what in it is not finite, and where that began."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from nbinspect.blocks import Unavailable
from nbinspect.numerics.copied_call import CopiedCall
from nbinspect.numerics.derivatives import differentiable, index_text
from nbinspect.numerics.exponents import values_of
from nbinspect.numerics.gradcheck_records import BornAt, NonFiniteValues
from nbinspect.numerics.random_state import RandomState
from nbinspect.numerics.records import NanReport
from nbinspect.numerics.watch import nanwatch
from nbinspect.tensors import is_tensor, looking


@dataclass(slots=True)
class OwnRun:
    """What one run at the user's dtype gave.

    Attributes:
        dtype: of what gradients are taken of.
        nonfinite: what is NaN or infinite.
        born_at: the operation that made it, as `nanwatch` finds it.
        draws_random: whether it drew random numbers.
        gradients: of the sum of all outputs; None where there is none.
    """

    dtype: str
    nonfinite: tuple[NonFiniteValues, ...]
    born_at: BornAt | None
    draws_random: bool
    gradients: list[torch.Tensor | None]

    def errors(self, exact: Sequence[torch.Tensor]) -> list[float | Unavailable]:
        """Say how far each gradient is from the one in float64, given as real vectors."""
        if self.draws_random:
            why = Unavailable("other random numbers in float64")
            return [why for _ in exact]
        return [_error(one, right) for one, right in zip(self.gradients, exact, strict=True)]


def _error(gradient: torch.Tensor | None, exact: torch.Tensor) -> float | Unavailable:
    parts = values_of(gradient) if gradient is not None else "none"
    if isinstance(parts, str) or not exact.numel():
        return Unavailable("no gradient")
    found = torch.cat([part.reshape(-1).to(torch.float64) for part in parts])
    if found.shape != exact.shape:
        return Unavailable("sparse")
    scale = float(exact.abs().max())
    distance = float((found - exact).abs().max())
    if not math.isfinite(distance):
        return Unavailable("not finite")
    return distance / scale if scale else distance


def run_at_own_dtype(call: CopiedCall) -> OwnRun:
    """Run forward and backward once, and look at outputs and gradients.

    Raises:
        Exception: what the function raises.
    """
    __tracebackhide__ = True
    values = [leaf.value for leaf in call.leaves]
    before = RandomState.now()
    with nanwatch(stop=False) as watch:
        outputs = call(*values)
        made = differentiable(outputs)
        gradients = _gradients(made, values)
    bad = list(_nonfinite("output", [t for t in pytree.tree_leaves(outputs) if is_tensor(t)]))
    for leaf, gradient in zip(call.leaves, gradients, strict=True):
        bad += _nonfinite(f"gradient of {leaf.name}", [] if gradient is None else [gradient])
    kinds = dict.fromkeys(str(value.dtype).removeprefix("torch.") for value in values)
    return OwnRun(
        dtype=", ".join(kinds),
        nonfinite=tuple(bad),
        born_at=_born(watch.report) if bad else None,
        draws_random=before.was_used(),
        gradients=gradients,
    )


def _born(report: NanReport) -> BornAt | None:
    if not report.findings:
        return None
    one = report.findings[0]
    return BornAt(one.op, one.phase, one.where, one.why, one.mend)


def _gradients(
    made: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    if not made:
        return [None for _ in values]
    ones = [torch.ones_like(one) * (1 + 1j if one.is_complex() else 1) for one in made]
    return list(torch.autograd.grad(made, values, ones, allow_unused=True))


def _nonfinite(what: str, tensors: Sequence[torch.Tensor]) -> Iterator[NonFiniteValues]:
    for n, tensor in enumerate(tensors):
        with looking():
            parts = values_of(tensor)
            for part in () if isinstance(parts, str) else parts:
                bad = ~part.to(torch.float64).isfinite()
                if bool(bad.any()):
                    place = int(bad.reshape(-1).to(torch.uint8).argmax())
                    value = float(part.reshape(-1)[place])
                    index = index_text(tuple(part.shape), place)
                    name = f"{what} {n}" if len(tensors) > 1 else what
                    yield NonFiniteValues(name, int(bad.sum()), part.numel(), index, value)
