"""Puts the parts of each step together, keeps as many steps as was asked for, and minds health."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from nbinspect.blocks import Unavailable
from nbinspect.gradients import parts as packing
from nbinspect.gradients import rows as packed
from nbinspect.gradients.findings import findings
from nbinspect.gradients.parts import Part
from nbinspect.gradients.passes import Passes
from nbinspect.gradients.records import GradientHistory, Rules
from nbinspect.gradients.rules import LEAST_LAYERS, Health
from nbinspect.gradients.step_records import (
    Exponents,
    Figure,
    PackedStep,
    ParameterName,
    StepFigures,
)

SAME = 1e-4  # relative: norms of the same gradient, summed in another order
UNIFORM = 1e-3
KEPT_EXPONENTS = 64
BATCH = 32  # steps at a time: code that runs again at once finds itself in the cache


class Builder:
    """Collects steps; everything in it is a plain value.

    Args:
        rules: the thresholds of the health rules.
        keep: how many steps to keep.

    Attributes:
        parameters: those seen so far.
        models: the variable that each one's name begins with.
        places: where each one stands among all, for the order in the end.
        kept: the kept steps.
        n_thinned: how often older steps have been thinned out.
    """

    def __init__(self, rules: Rules, keep: int) -> None:
        self.health = Health(rules)
        self.parameters: list[ParameterName] = []
        self.models: list[str] = []
        self.places: list[int] = []
        self.kept: list[PackedStep] = []
        self.n_thinned = 0
        self._keep = max(2, keep)
        self._groups: dict[tuple[int, ...], int] = {}
        self._waiting: deque[tuple[int, Sequence[Part], Passes]] = deque()

    def add(self, name: ParameterName, model: str, place: int) -> int:
        """Take a parameter in, and give its number."""
        self.parameters.append(name)
        self.models.append(model)
        self.places.append(place)
        return len(self.parameters) - 1

    def step(self, index: int, parts: Sequence[Part], passes: Passes) -> None:
        """Take a step: what each of the optimizers did that share its backward passes."""
        self._waiting.append((index, parts, passes))
        if len(self._waiting) >= BATCH:
            self.settle()

    def settle(self) -> None:
        """Pack the steps that wait, and hold the rules against them."""
        steps = [self._waiting.popleft() for _ in range(len(self._waiting))]
        rows = iter(packing.pack([part.figures for _, parts, _ in steps for part in parts]))
        joined = [
            _joined(parts, [next(rows) for _ in parts], self.parameters) for _, parts, _ in steps
        ]
        looks = self._looks(joined)
        for (index, parts, passes), one, look in zip(steps, joined, looks, strict=True):
            figures = _figures(index, parts, passes, look)
            group = self._groups.setdefault(one.members, len(self._groups))
            self.health.step(figures, one.members, look, self.parameters)
            kept = one.rows.tobytes()
            step = PackedStep(figures, group, kept, one.bad, one.exponents, one.resized)
            self.kept.append(step)
            self._thin()

    def shown(self) -> set[int]:
        """Give the numbers of those that any step has."""
        return {one for members in self._groups for one in members}

    def _looks(self, joined: Sequence[_Joined]) -> list[packed.Look]:
        """Look at the rows of each step, at once at those of the same parameters."""
        alike: dict[tuple[Any, ...], list[int]] = {}
        for at, one in enumerate(joined):
            alike.setdefault((one.members, one.resized), []).append(at)
        found: dict[int, packed.Look] = {}
        for (members, resized), places in alike.items():
            sizes = np.asarray([self.parameters[one].n_elements for one in members], np.float64)
            for row, n_elements in resized:
                sizes[row] = n_elements
            own = packed.looks([joined[at].rows for at in places], sizes, LEAST_LAYERS)
            found.update(zip(places, own, strict=True))
        return [found[at] for at in range(len(joined))]

    def _thin(self) -> None:
        """Leave out every second one of the older half, but for those that a finding names."""
        if len(self.kept) <= self._keep:
            return
        half = self._keep // 2
        named = {broken.step for broken in self.health.state(ended=False).values()}
        older, newer = self.kept[:-half], self.kept[-half:]
        older = [one for n, one in enumerate(older) if n % 2 == 0 or one.figures.index in named]
        self.kept = [*older, *newer]
        self.n_thinned += 1
        with_exponents = [n for n, one in enumerate(self.kept) if one.exponents]
        for n in with_exponents[:-KEPT_EXPONENTS]:
            self.kept[n] = replace(self.kept[n], exponents=())

    def report(self, *, n_steps: int, ended: bool, **more: Any) -> GradientHistory:
        """Give what there is so far, but for steps that wait.

        Args:
            n_steps: how many steps there were, read or not.
            ended: no more steps come.
            more: further attributes of the record.
        """
        parameters = list(self.parameters)
        order = sorted(range(len(parameters)), key=lambda n: self.places[n])
        number = {old: new for new, old in enumerate(order)}
        groups = tuple(tuple(number[one] for one in members) for members in list(self._groups))
        broken = self.health.state(ended=ended)
        return GradientHistory(
            parameters=tuple(parameters[n] for n in order),
            groups=groups,
            packed=tuple(self.kept),
            findings=findings(broken, parameters, self.models, self.health.rules),
            rules=self.health.rules,
            n_steps=n_steps,
            **more,
        )


class _Joined(NamedTuple):
    """A step's parameters over all of its optimizers, each once."""

    members: tuple[int, ...]
    rows: packed.Rows
    bad: tuple[tuple[int, int | None, int | None], ...]
    exponents: tuple[Exponents, ...]
    resized: tuple[tuple[int, int], ...]


def _joined(
    parts: Sequence[Part], rows: Sequence[packed.Rows], about: Sequence[ParameterName]
) -> _Joined:
    """Put the parameters of several optimizers one after the other."""
    if len(parts) == 1:
        one = parts[0]
        return _Joined(one.members, rows[0], tuple(one.bad), one.exponents, _resized(one, about))
    seen: set[int] = set()
    members: list[int] = []
    some: list[packed.Rows] = []
    bad: list[tuple[int, int | None, int | None]] = []
    exponents: list[Exponents] = []
    resized: list[tuple[int, int]] = []
    for part, own in zip(parts, rows, strict=True):
        new = [at for at, one in enumerate(part.members) if one not in seen]
        place = {at: len(members) + n for n, at in enumerate(new)}
        seen.update(part.members)
        members += [part.members[at] for at in new]
        some.append(own[new])
        bad += [(place[row], nans, infs) for row, nans, infs in part.bad if row in place]
        exponents += [replace(e, row=place[e.row]) for e in part.exponents if e.row in place]
        resized += [(place[row], n) for row, n in _resized(part, about) if row in place]
    return _Joined(
        tuple(members), np.concatenate(some), tuple(bad), tuple(exponents), tuple(resized)
    )


def _resized(part: Part, about: Sequence[ParameterName]) -> tuple[tuple[int, int], ...]:
    """Give (row, elements) of parameters that are of another size than when first seen."""
    live, members = part.figures.live, part.members
    known = [about[members[at]].n_elements for at in live]
    if known == part.figures.sizes:
        return ()
    both = zip(live, known, part.figures.sizes, strict=True)
    return tuple((at, now) for at, then, now in both if now != then)


def _figures(index: int, parts: Sequence[Part], passes: Passes, look: packed.Look) -> StepFigures:
    scales = [part.scale for part in parts if part.scale is not None]
    scale = scales[0] if scales else None
    skipped = all(part.skipped for part in parts)
    written, factor, clipped = _clipping(look, skipped)
    return StepFigures(
        index=index,
        loss=_loss(passes, scale),
        grad_norm=look.total,
        written_norm=written,
        clip_factor=factor,
        clipped=clipped,
        scale=scale,
        skipped=skipped,
        n_backward=passes.n_backward,
        n_evaluations=max(part.n_evaluations for part in parts),
        learning_rates=tuple(rate for part in parts for rate in part.learning_rates),
        optimizers=tuple(part.optimizer for part in parts if part.optimizer),
        piled_up=any(part.piled_up for part in parts),
    )


def _loss(passes: Passes, scale: float | None) -> Figure:
    if passes.why_no_loss:
        return Unavailable(passes.why_no_loss)
    if not passes.losses:
        return Unavailable("no backward pass was seen")
    finite = all(map(math.isfinite, passes.losses))
    # `fsum` refuses Inf beside -Inf; `sum` gives NaN for these, and Inf where that is what it is.
    return (math.fsum if finite else sum)(passes.losses) / (scale or 1.0)


Clipped = Literal["", "norm", "value", "changed"]


def _clipping(look: packed.Look, skipped: bool) -> tuple[Figure, Figure, Clipped]:
    """Compare the gradients as the optimizer got them with those that backward left."""
    if skipped:
        why = Unavailable("the step was skipped")
        return why, why, ""
    n_both, first, last, written, apart = look.clipping
    if not n_both:
        return written, Unavailable("the gradients were first seen as the optimizer wrote"), ""
    if not (math.isfinite(first) and math.isfinite(last)):
        return written, Unavailable("the gradients are not finite"), ""
    factor = last / first if first else 1.0
    way = _way(look, factor) if apart > SAME else ""
    return written, factor if abs(factor - 1) > SAME else 1.0, way


@np.errstate(all="ignore")
def _way(look: packed.Look, factor: float) -> Clipped:
    """Say how gradients were changed: by one factor, the large ones, or else.

    One factor for several of them is a norm's clipping, also where others were left alone, as a
    model is that has an optimizer in common with a head.
    """
    rows = look.rows
    both = packed.has(rows, packed.BEFORE_CLIP) & packed.has(rows, packed.HAS_WRITTEN)
    some = both & (look.norms > 0)
    ratios = rows["written"][some].astype(np.float64) / look.norms[some]
    touched = ratios[np.abs(ratios - 1) > SAME]
    if np.abs(touched / np.median(touched) - 1).max() <= UNIFORM:
        told = len(touched) > 1 or len(ratios) == 1
        return "norm" if told and factor < 1 else "changed"
    return "value" if (touched <= 1 + SAME).all() else "changed"
