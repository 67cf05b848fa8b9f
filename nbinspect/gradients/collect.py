"""One optimizer's gradients and weights around a step: measured before the write and after."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nbinspect import _torch
from nbinspect.gradients import measure
from nbinspect.gradients import rows as packed
from nbinspect.gradients.records import Exponents

Buffers = dict[int, torch.Tensor]


@dataclass(slots=True)
class Final:
    """A gradient as backward left it.

    Attributes:
        scalars: norm, sum, lowest and highest, on their device.
        rank: how many other gradients came before it in that pass.
        bad: its NaNs and Infs, if they were counted.
        norm: its norm where float32 could not hold it.
    """

    scalars: tuple[torch.Tensor, ...]
    rank: int
    bad: tuple[int, int] | None = None
    norm: float | None = None


@dataclass(slots=True)
class Part:
    """What one optimizer did in one step.

    Attributes:
        optimizer: its name, "" if the loop writes by itself.
        members: numbers of the parameters.
        rows: their figures.
        bad: (row, NaNs, Infs) of gradients with any.
        learning_rates: one for each group.
        scale: what the gradients had been multiplied by.
        skipped: the write did not happen.
        exponents: a histogram for each parameter, where wanted.
        n_evaluations: how often a closure was called.
    """

    optimizer: str
    members: tuple[int, ...]
    rows: packed.Rows
    bad: list[tuple[int, int | None, int | None]]
    learning_rates: tuple[float, ...] = ()
    scale: float | None = None
    skipped: bool = False
    exponents: tuple[Exponents, ...] = ()
    n_evaluations: int = 0


@dataclass(slots=True)
class _Reading:
    """Scalars of one step that wait on their devices for the read."""

    live: list[int]
    numbers: tuple[int, ...]
    flags: Any
    ranks: list[int]
    sizes: list[int]
    columns: dict[str, list[torch.Tensor]]
    finals: list[Final | None]
    exponents: tuple[Exponents, ...] = ()


class Writer:
    """Measures what one optimizer reads and writes.

    Args:
        optimizer: it, known by a weak reference alone; None where the loop writes by itself.
        name: what the notebook calls it.
        light: make no copies: so no updates and no cosines.

    Attributes:
        name: what the notebook calls it.
        learning_rates: of its groups, at the last step.
        listed: ids of its parameters, for as long as they are the same.
        order: which of them are watched, in the order of their modules.
    """

    def __init__(self, optimizer: Any, name: str, *, light: bool) -> None:
        self._ref = weakref.ref(optimizer) if optimizer is not None else None
        self.name = name
        self.light = light
        self.learning_rates: tuple[float, ...] = ()
        self.listed: tuple[int, ...] = ()
        self.order: list[int] = []
        self._key: tuple[int, ...] = ()
        self._old: Buffers = {}
        self._earlier: Buffers = {}
        self._earlier_norms: dict[int, float] = {}
        self._reading: _Reading | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the optimizer is still there."""
        return self._ref is None or self._ref() is not None

    def forget_copies(self) -> None:
        """Let go of all copies, and make no more."""
        self.light = True
        self._old, self._earlier, self._reading = {}, {}, None

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
            self._old, self._earlier, self._earlier_norms = {}, {}, {}
        gradients: list[torch.Tensor] = []
        weights: list[torch.Tensor] = []
        live: list[int] = []
        flags = np.zeros(len(parameters), np.uint8)
        for at, one in enumerate(parameters):
            gradient = measure.dense(one.grad) if one.grad is not None else None
            weight = measure.dense(one) if gradient is not None else None
            if gradient is not None and weight is not None:
                live.append(at)
                gradients.append(gradient)
                weights.append(weight)
            if id(one) in finals:
                flags[at] |= packed.REACHED
        own = [finals.get(key[at]) for at in live]
        sizes = [parameters[at].numel() for at in live]
        reading = _Reading(
            live,
            numbers,
            flags,
            [final.rank if final else 0 for final in own],
            sizes,
            _before_clipping(own, gradients),
            own,
        )
        self._measure(reading, gradients, weights)
        if histogram:
            reading.exponents = measure.exponents(gradients, live)
        self._reading = reading

    def _measure(
        self, reading: _Reading, gradients: list[torch.Tensor], weights: list[torch.Tensor]
    ) -> None:
        columns = reading.columns
        columns["written"] = _torch.fused_norms(gradients)
        columns["nonzero"] = measure.nonzeros(gradients)
        if self.light:
            columns["weight"] = _torch.fused_norms(weights)
        else:
            self._copy(reading, gradients, weights)

    def _copy(
        self, reading: _Reading, gradients: list[torch.Tensor], weights: list[torch.Tensor]
    ) -> None:
        """Keep the weights until after the step, and the gradients until the next one."""
        old = [_room(self._old, at, one) for at, one in zip(reading.live, weights, strict=True)]
        _torch.copy_all(old, weights)
        reading.columns["weight"] = _torch.fused_norms(old)
        pairs = [
            (n, gradient, self._earlier[at])
            for n, (at, gradient) in enumerate(zip(reading.live, gradients, strict=True))
            if at in self._earlier and self._earlier[at].shape == gradient.shape
        ]
        dots = measure.products([g for _, g, _ in pairs], [e for _, _, e in pairs])
        reading.columns["dot"] = dots
        reading.flags[[reading.live[n] for n, _, _ in pairs]] |= packed.HAS_COSINE
        whole = [
            (at, one)
            for at, one in zip(reading.live, gradients, strict=True)
            if one.shape == self._old[at].shape
        ]
        gone = set(self._earlier) - {at for at, _ in whole}
        for at in gone:
            del self._earlier[at]
        earlier = [_room(self._earlier, at, one) for at, one in whole]
        _torch.copy_all(earlier, [one for _, one in whole])

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
            old = [self._old[at] for at in reading.live]
            _torch.subtract_all(old, [one for one in new if one is not None])
            reading.columns["update"] = _torch.fused_norms(old)
        names = list(reading.columns)
        flat = [one for name in names for one in reading.columns[name]]
        values = measure.read([*losses, *flat])
        columns: dict[str, Any] = {}
        at = len(losses)
        for name in names:
            n = len(reading.columns[name])
            columns[name] = np.asarray(values[at : at + n], np.float64)
            at += n
        part = self._part(reading, columns, scale, grad_scale)
        part.bad = _bad_counts(reading, part, parameters)
        return part, values[: len(losses)]

    def _part(
        self,
        reading: _Reading,
        columns: dict[str, Any],
        scale: float | None,
        grad_scale: float | None,
    ) -> Part:
        live = np.asarray(reading.live, np.intp)
        rows = np.zeros(len(reading.flags), packed.ROW)
        flags = reading.flags
        sizes = np.asarray(reading.sizes, np.float64)
        known = np.asarray([final is not None for final in reading.finals], bool)
        divisor = np.where(known, scale or 1.0, grad_scale or 1.0) if len(live) else sizes
        norms = columns["norm"].copy()
        for n, final in enumerate(reading.finals):
            if final is not None and final.norm is not None:
                norms[n] = final.norm
        with np.errstate(all="ignore"):
            rows["norm"][live] = norms / divisor
            rows["mean"][live] = columns["sum"] / divisor / sizes
            highest = np.maximum(np.abs(columns["low"]), np.abs(columns["high"]))
            rows["max_abs"][live] = highest / divisor
            rows["written"][live] = columns["written"] / (grad_scale or 1.0)
            rows["weight"][live] = columns["weight"]
            rows["zeros"][live] = 1 - columns["nonzero"] / sizes
            if "update" in columns:
                rows["update"][live] = columns["update"]
            self._cosines(reading, columns, rows)
        rows["rank"][live] = np.minimum(reading.ranks, 65535)
        flags[live] |= packed.HAS_GRADIENT | packed.HAS_WRITTEN | packed.HAS_WEIGHT
        flags[live] |= packed.HAS_ZEROS | (packed.HAS_UPDATE if "update" in columns else 0)
        flags[live[known]] |= packed.BEFORE_CLIP
        rows["flags"] = flags
        return Part(
            self.name,
            reading.numbers,
            rows,
            [],
            self.learning_rates,
            scale,
            exponents=reading.exponents,
        )

    def _cosines(self, reading: _Reading, columns: dict[str, Any], rows: packed.Rows) -> None:
        pairs = [at for at in reading.live if reading.flags[at] & packed.HAS_COSINE]
        norms = dict(zip(reading.live, columns["written"], strict=True))
        for at, dot in zip(pairs, columns.get("dot", ()), strict=True):
            length = norms[at] * self._earlier_norms.get(at, math.nan)
            cosine = dot / length if length > 0 else math.nan
            if math.isnan(cosine):
                reading.flags[at] &= ~np.uint8(packed.HAS_COSINE)
            rows["cosine"][at] = min(1.0, max(-1.0, cosine))
        self._earlier_norms = norms


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
    rows = np.zeros(len(parameters), packed.ROW)
    own = [(at, finals[id(one)]) for at, one in enumerate(parameters) if id(one) in finals]
    values = measure.read([*losses, *(one for _, final in own for one in final.scalars)])
    figures = np.asarray(values[len(losses) :], np.float64).reshape(len(own), 4)
    sizes = [parameters[at].numel() for at, _ in own]
    _fill(rows, own, figures, np.asarray(sizes, np.float64), scale)
    bad = [(at, *final.bad) for at, final in own if final.bad and any(final.bad)]
    part = Part(writer.name, numbers, rows, list(bad), writer.learning_rates, scale, skipped=True)
    return part, values[: len(losses)]


def _fill(
    rows: packed.Rows, own: list[tuple[int, Final]], figures: Any, sizes: Any, scale: float
) -> None:
    live = np.asarray([at for at, _ in own], np.intp)
    with np.errstate(all="ignore"):
        rows["norm"][live] = figures[:, 0] / scale
        rows["mean"][live] = figures[:, 1] / scale / sizes
        rows["max_abs"][live] = np.abs(figures[:, 2:4]).max(axis=1, initial=0) / scale
    rows["rank"][live] = [min(final.rank, 65535) for _, final in own]
    rows["flags"][live] = packed.HAS_GRADIENT | packed.REACHED | packed.BEFORE_CLIP


def _before_clipping(
    own: Sequence[Final | None], gradients: Sequence[torch.Tensor]
) -> dict[str, list[torch.Tensor]]:
    """Take what was measured when backward ended; where nothing was, what is there now."""
    missing = [gradient for final, gradient in zip(own, gradients, strict=True) if final is None]
    now = iter(measure.final(missing))
    scalars = [final.scalars if final is not None else next(now) for final in own]
    return {
        name: [one[place] for one in scalars]
        for place, name in enumerate(("norm", "sum", "low", "high"))
    }


def _bad_counts(
    reading: _Reading, part: Part, parameters: Sequence[torch.Tensor]
) -> list[tuple[int, int | None, int | None]]:
    """Give the NaNs and Infs of each gradient whose norm is neither.

    They were counted when backward ended where that costs no wait. Else they are counted now, if
    clipping has not made one NaN a NaN everywhere since.
    """
    rows = part.rows
    norms = rows["norm"][reading.live]
    if np.isfinite(norms).all():
        return []
    spread = (np.isfinite(norms) & ~np.isfinite(rows["written"][reading.live])).any()
    found: list[tuple[int, int | None, int | None]] = []
    for n, at in enumerate(reading.live):
        final = reading.finals[n]
        if np.isfinite(norms[n]):
            continue
        if final is not None and final.bad is not None:
            found.append((at, *final.bad))
        elif spread:
            found.append((at, None, None))
        else:
            gradient = parameters[at].grad
            solid = measure.dense(gradient) if gradient is not None else None
            found.append((at, *(measure.count_bad(solid) if solid is not None else (None, None))))
    return found


def _room(buffers: Buffers, at: int, like: torch.Tensor) -> torch.Tensor:
    """Give a buffer for a copy, made at the first step and used again."""
    room = buffers.get(at)
    fits = room is not None and (room.shape, room.dtype, room.device) == (
        like.shape,
        like.dtype,
        like.device,
    )
    if room is None or not fits:
        room = buffers[at] = torch.empty_like(like, memory_format=torch.preserve_format)
    return room
