"""What the numbers say of why analytic and numeric gradients disagree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from nbinspect.numerics.gradcheck_records import GradientEntry

_NOTHING = 1e-8  # of what a small step of 1e-6 gives where nothing changes
_SAME = 1e-3  # how much the ratios of a constant factor may differ


def finished(entries: Iterable[GradientEntry], atol: float, rtol: float) -> Iterator[GradientEntry]:
    """Give each entry its tolerance, as `torch.allclose` counts it."""
    for one in entries:
        yield replace(one, tolerance=atol + rtol * abs(one.numeric))


def badness(entry: GradientEntry) -> tuple[bool, float]:
    """Order entries: those that disagree first, by how far they are beyond their tolerance."""
    beyond = entry.error / entry.tolerance if entry.tolerance else math.inf
    return entry.agrees, -beyond if math.isfinite(beyond) else -math.inf


def cause(entries: Sequence[GradientEntry]) -> str:
    """Say what the disagreement of one tensor's entries looks like, "" if like nothing known."""
    wrong = [one for one in entries if not one.agrees]
    if not wrong:
        return ""
    if all(one.doubt == "rounding" for one in wrong):
        return (
            "the outputs are so large that float64 loses a small step in them: this says nothing of "
            "backward; check at smaller values"
        )
    if all(one.doubt for one in wrong):
        return (
            "the slope differs on both sides, as at 0 of relu and abs or between equal values of "
            "max: there is no derivative to compare; check at other values"
        )
    if any(not math.isfinite(one.analytic) for one in wrong):
        return "backward gives NaN or Inf in float64 too"
    if all(one.analytic == 0 for one in entries):
        return "backward gives 0: its path is cut, by detach(), .data, item() or no_grad()"
    if all(abs(one.numeric) < _NOTHING for one in entries):
        return (
            "the outputs do not change with it, but backward says they do, as after round() with a "
            "straight-through gradient"
        )
    return _factor(entries)


def _factor(entries: Sequence[GradientEntry]) -> str:
    """Recognise a gradient that is wrong by one factor throughout."""
    pairs = [(one.analytic, one.numeric) for one in entries if abs(one.numeric) > 1e-4]
    if not pairs or any(one.analytic == 0 for one in entries if abs(one.numeric) > 1e-4):
        return ""
    ratios = [analytic / numeric for analytic, numeric in pairs]
    middle = sorted(ratios)[len(ratios) // 2]
    if any(abs(ratio - middle) > _SAME * abs(middle) for ratio in ratios):
        return ""
    if abs(middle - 1) < _SAME:
        return ""
    if abs(middle + 1) < _SAME:
        return "backward has the wrong sign throughout"
    return f"backward is {middle:.4g} times what it should be throughout"
