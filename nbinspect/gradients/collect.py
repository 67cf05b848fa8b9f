"""One optimizer's gradients and weights around a step: measured before the write and after."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from nbinspect import _torch
from nbinspect.gradients import measure, samples
from nbinspect.gradients.parts import Figures, Part
from nbinspect.gradients.records import Exponents

FIGURES = ("norm", "sum", "low", "high", "nonzero")
SAME = 1e-6  # relative: norms of one gradient, taken twice


@dataclass(slots=True)
class Final:
    """A gradient as backward left it.

    Attributes:
        scalars: norm, sum, lowest, highest and number of nonzeros, some on their device.
        rank: how many other gradients came before it in that pass.
        bad: its NaNs and Infs, if they were counted.
    """

    scalars: tuple[measure.Scalar, ...]
    rank: int
    bad: tuple[int, int] | None = None


@dataclass(slots=True)
class _Reading:
    """Scalars of one step, of which some wait on their devices for the read."""

    numbers: tuple[int, ...]
    reached: list[int]
    live: list[int]
    columns: dict[str, list[measure.Scalar]]
    finals: list[Final | None]
    sizes: list[int]
    pairs: list[int]
    exponents: tuple[Exponents, ...] = ()


class _Left(NamedTuple):
    """A parameter whose gradient a write has left; where that lies, and its version."""

    parameter: weakref.ref[torch.Tensor]
    address: int
    version: int


class Writer:
    """Measures what one optimizer reads and writes.

    Args:
        optimizer: it, known by a weak reference alone; None where the loop writes by itself.
        name: what the notebook calls it.
        light: make no copies: so no updates and no cosines.
        exact: copy whole tensors, not samples.

    Attributes:
        name: what the notebook calls it.
        learning_rates: of its groups, at the last step.
        listed: ids of its parameters, for as long as they are the same.
        order: which of them are watched, in the order of their modules.
    """

    def __init__(self, optimizer: Any, name: str, *, light: bool, exact: bool = False) -> None:
        self._ref = weakref.ref(optimizer) if optimizer is not None else None
        self.name = name
        self.light = light
        self._exact = exact
        self.learning_rates: tuple[float, ...] = ()
        self.listed: tuple[int, ...] = ()
        self.order: list[int] = []
        self._key: tuple[int, ...] = ()
        self._old: samples.Copies = {}
        self._earlier: samples.Copies = {}
        self._spare: samples.Copies = {}
        self._left: _Left | None = None
        self._reading: _Reading | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the optimizer is still there."""
        return self._ref is None or self._ref() is not None

    def forget_copies(self) -> None:
        """Let go of all copies, and make no more."""
        self.light = True
        self._old, self._earlier, self._spare, self._reading = {}, {}, {}, None

    def _leave(self, parameters: Sequence[torch.Tensor], reading: _Reading) -> None:
        """Note the gradient that backward came to last, to see whether it will be set to zero.

        When the next backward pass is first heard of, it has added to another one already.
        """
        own = zip(reading.live, reading.finals, strict=True)
        rank, at = max(((final.rank, at) for at, final in own if final), default=(0, 0))
        grad = parameters[at].grad if rank else None
        if grad is not None and grad.layout is torch.strided and not grad.is_meta:
            self._left = _Left(weakref.ref(parameters[at]), grad.data_ptr(), _torch.version(grad))

    def look(self) -> None:
        """See whether the gradients of the step before are gone, as backward begins.

        Cost: reads one small gradient, if its version says that nothing has been written to it.
        """
        if self._left is None:
            return
        parameter = self._left.parameter()
        grad = parameter.grad if parameter is not None else None
        known = self._left.address, self._left.version
        if grad is None or (grad.data_ptr(), _torch.version(grad)) != known or not grad.any():
            self._left = None

    def before(
        self,
        parameters: Sequence[torch.Tensor],
        numbers: tuple[int, ...],
        finals: Mapping[int, Final],
        *,
        histogram: bool = False,
    ) -> None:
        """Measure what the optimizer is about to use.

        Args:
            parameters: those that it has.
            numbers: which these are among all.
            finals: by id, the gradients as backward left them.
            histogram: count their exponents too.
        """
        key = tuple(map(id, parameters))
        if key != self._key:
            self._key = key
            self._old, self._earlier, self._spare = {}, {}, {}
        gradients: list[torch.Tensor] = []
        weights: list[torch.Tensor] = []
        live: list[int] = []
        reached: list[int] = []
        for at, one in enumerate(parameters):
            gradient = measure.dense(one.grad) if one.grad is not None else None
            weight = measure.dense(one) if gradient is not None else None
            if gradient is not None and weight is not None:
                live.append(at)
                gradients.append(gradient)
                weights.append(weight)
            if id(one) in finals:
                reached.append(at)
        own = [finals.get(key[at]) for at in live]
        columns = _before_clipping(own, gradients)
        sizes = [parameters[at].numel() for at in live]
        reading = _Reading(numbers, reached, live, columns, own, sizes, [])
        columns["written"] = measure.norms(gradients)
        columns["weight"] = measure.norms(weights)
        columns["nonzero"] = _nonzeros(columns, gradients)
        if not self.light:
            self._copy(reading, gradients, weights)
        if histogram:
            reading.exponents = measure.exponents(gradients, live)
        self._reading = reading

    def _copy(
        self, reading: _Reading, gradients: list[torch.Tensor], weights: list[torch.Tensor]
    ) -> None:
        """Keep samples of the weights until after the step, and of the gradients until the next."""
        live = reading.live
        self._old = samples.copy(live, weights, self._old, exact=self._exact)
        own = zip(live, gradients, weights, strict=True)
        # of a sparse gradient the places differ by step
        whole = [(at, gradient) for at, gradient, weight in own if gradient.shape == weight.shape]
        places = [at for at, _ in whole]
        now = samples.copy(places, [one for _, one in whole], self._spare, exact=self._exact)
        then = self._earlier
        pairs = [at for at, one in whole if at in then and then[at].fits(one)]
        rooms, others = ([copies[at].room for at in pairs] for copies in (now, then))
        reading.pairs, reading.columns["dot"] = pairs, measure.products(rooms, others)
        reading.columns["length"], reading.columns["length_then"] = map(
            measure.norms, (rooms, others)
        )
        self._earlier, self._spare = now, then

    def after(
        self,
        parameters: Sequence[torch.Tensor],
        losses: list[torch.Tensor],
        scale: float | None,
        grad_scale: float | None,
    ) -> tuple[Part, list[float]] | None:
        """Measure what the optimizer has written, and read all of it at once.

        Args:
            parameters: those that it has.
            losses: scalars to be read along.
            scale: what the gradients were multiplied by before backward.
            grad_scale: the same, if the optimizer itself divides by it.
        """
        reading, self._reading = self._reading, None
        if reading is None:
            return None
        if not self.light and reading.live:
            new = [measure.dense(parameters[at]) for at in reading.live]
            views = [samples.sample(one, exact=self._exact) for one in new if one is not None]
            rooms = [self._old[at].room for at in reading.live]
            reading.columns["update"] = measure.updates(rooms, views)
        columns, read = _read(reading.columns, losses)
        if "update" in columns:
            factors = [samples.scale(self._old[at]) for at in reading.live]
            columns["update"] = [a * b for a, b in zip(columns["update"], factors, strict=True)]
        figures = Figures(
            len(parameters),
            reading.reached,
            reading.live,
            columns,
            [final.rank if final else 0 for final in reading.finals],
            reading.sizes,
            [final is not None for final in reading.finals],
            _cosines(reading.pairs, columns),
            scale,
            grad_scale,
        )
        bad = _bad_counts(reading, columns, parameters)
        part = Part(
            self.name,
            reading.numbers,
            figures,
            bad,
            self.learning_rates,
            exponents=reading.exponents,
            piled_up=self._left is not None,
        )
        self._leave(parameters, reading)
        return part, read


def _cosines(places: Sequence[int], columns: Mapping[str, list[float]]) -> list[tuple[int, float]]:
    if not places:
        return []
    figures = zip(places, columns["dot"], columns["length"], columns["length_then"], strict=True)
    return [
        (at, min(1.0, max(-1.0, dot / (now * then))))
        for at, dot, now, then in figures
        if now * then > 0 and math.isfinite(dot / (now * then))
    ]


def _read(
    columns: Mapping[str, list[measure.Scalar]], losses: list[torch.Tensor]
) -> tuple[dict[str, list[float]], list[float]]:
    """Read columns and losses, all at once."""
    values = measure.read([*losses, *(one for column in columns.values() for one in column)])
    found: dict[str, list[float]] = {}
    at = len(losses)
    for name, column in columns.items():
        found[name] = values[at : at + len(column)]
        at += len(column)
    return found, values[: len(losses)]


def skipped(
    writer: Writer,
    parameters: Sequence[torch.Tensor],
    numbers: tuple[int, ...],
    finals: Mapping[int, Final],
    losses: list[torch.Tensor],
    *,
    scale: float,
) -> tuple[Part, list[float]]:
    """Read a step that the gradient scaler has skipped: what backward left is all that there is."""
    own = [(at, finals[id(one)]) for at, one in enumerate(parameters) if id(one) in finals]
    live, known = [at for at, _ in own], [final for _, final in own]
    columns, read = _read(_columns([final.scalars for final in known]), losses)
    figures = Figures(
        len(parameters),
        live,
        live,
        columns,
        [final.rank for final in known],
        [parameters[at].numel() for at in live],
        [True] * len(live),
        [],
        scale,
    )
    bad = [(at, *final.bad) for at, final in own if final.bad and any(final.bad)]
    part = Part(writer.name, numbers, figures, list(bad), writer.learning_rates, skipped=True)
    return part, read


def _before_clipping(
    own: Sequence[Final | None], gradients: Sequence[torch.Tensor]
) -> dict[str, list[measure.Scalar]]:
    """Take what was measured when backward ended; where nothing was, what is there now."""
    missing = [gradient for final, gradient in zip(own, gradients, strict=True) if final is None]
    now = iter(measure.final(missing))
    return _columns([final.scalars if final is not None else next(now) for final in own])


def _columns(scalars: Sequence[tuple[measure.Scalar, ...]]) -> dict[str, list[measure.Scalar]]:
    return {name: [one[place] for one in scalars] for place, name in enumerate(FIGURES)}


def _nonzeros(
    columns: Mapping[str, list[measure.Scalar]], gradients: Sequence[torch.Tensor]
) -> list[measure.Scalar]:
    """Count nonzeros as the optimizer gets them: anew where the gradient may have been changed."""
    found = list(columns["nonzero"])
    pairs = zip(columns["norm"], columns["written"], strict=True)
    changed = [n for n, (before, now) in enumerate(pairs) if not _is_same(before, now)]
    again = measure.nonzeros([gradients[n] for n in changed])
    for n, count in zip(changed, again, strict=True):
        found[n] = count
    return found


def _is_same(before: measure.Scalar, now: measure.Scalar) -> bool:
    """Compare two norms, if that costs no wait for a device."""
    if isinstance(before, torch.Tensor) or isinstance(now, torch.Tensor):
        return False
    return abs(now - before) <= SAME * before


def _bad_counts(
    reading: _Reading, columns: Mapping[str, list[float]], parameters: Sequence[torch.Tensor]
) -> list[tuple[int, int | None, int | None]]:
    """Give the NaNs and Infs of each gradient whose norm is neither.

    They were counted when backward ended where that costs no wait. Else they are counted now, if
    clipping has not made one NaN a NaN everywhere since.
    """
    norms = columns["norm"]
    bad = [n for n, norm in enumerate(norms) if not math.isfinite(norm)]
    if not bad:
        return []
    written = zip(norms, columns["written"], strict=True)
    spread = any(math.isfinite(norm) and not math.isfinite(now) for norm, now in written)
    found: list[tuple[int, int | None, int | None]] = []
    for n in bad:
        at, final = reading.live[n], reading.finals[n]
        if final is not None and final.bad is not None:
            found.append((at, *final.bad))
        elif spread:
            found.append((at, None, None))
        else:
            gradient = parameters[at].grad
            solid = measure.dense(gradient) if gradient is not None else None
            found.append((at, *(measure.count_bad(solid) if solid is not None else (None, None))))
    return found
