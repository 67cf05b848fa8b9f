"""One optimizer's gradients and weights around a step: measured before the write and after."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch

from nbinspect import _torch
from nbinspect.gradients import measure, near
from nbinspect.gradients.kept import Kept
from nbinspect.gradients.parts import Figures, Part
from nbinspect.gradients.step_records import Exponents

FIGURES = ("norm", "sum", "low", "high", "nonzero")


@dataclass(slots=True)
class Final:
    """A gradient as backward left it.

    Attributes:
        scalars: norm, sum, lowest, highest and number of nonzeros, some on their device; () of
            one that has no numbers to be read.
        rank: how many other gradients came before it in that pass.
        thread: the one that heard the pass begin.
        bad: its NaNs and Infs, if they were counted.
    """

    scalars: tuple[measure.Scalar, ...]
    rank: int
    thread: int
    bad: tuple[int, int] | None = None


@dataclass(slots=True)
class _Reading:
    """Scalars of one step, of which some wait on their devices for the read."""

    reached: list[int]
    live: list[int]
    columns: dict[str, list[measure.Scalar]]
    finals: list[Final | None]
    sizes: list[int]
    pairs: list[int]
    parameters: Sequence[torch.Tensor]
    exponents: tuple[Exponents, ...] = ()


class _Left(NamedTuple):
    """A parameter whose gradient a write has left; where that lies, its version, and its thread."""

    parameter: weakref.ref[torch.Tensor]
    address: int
    version: int
    thread: int


class Writer:
    """Measures what one optimizer reads and writes.

    Args:
        optimizer: it, known by a weak reference alone; None where the loop writes by itself.
        name: what the notebook calls it.
        kernels: for what is near.
        light: make no copies: so no updates and no cosines.
        exact: copy whole tensors, however large.

    Attributes:
        name: what the notebook calls it.
        learning_rates: of its groups, at the last step.
        listed: ids of its parameters, for as long as they are the same.
        order: which of them are watched, in the order of their modules.
        numbers: which these are among all.
        keys: their ids, at the last step.
        alone: the only parameter that had a gradient at the last step, if there was but one.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str,
        kernels: near.Kernels,
        *,
        light: bool,
        exact: bool = False,
    ) -> None:
        self._ref = weakref.ref(optimizer) if optimizer is not None else None
        self.name = name
        self._kernels, self._exact = kernels, exact
        self.learning_rates: tuple[float, ...] = ()
        self.listed: tuple[int, ...] = ()
        self.order: list[int] = []
        self.numbers: tuple[int, ...] = ()
        self.keys: tuple[int, ...] = ()
        self.alone: torch.Tensor | None = None
        self._held: dict[int, torch.Tensor] = {}
        self._has_copies = not light
        self._kept: Kept | None = None
        self._left: _Left | None = None
        self._has_looked = False
        self._reading: _Reading | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the optimizer is still there."""
        return self._ref is None or self._ref() is not None

    def forget_copies(self) -> None:
        """Let go of all copies, and make no more."""
        self._has_copies, self._kept, self._reading = False, None, None

    def _leave(self, parameters: Sequence[torch.Tensor], reading: _Reading) -> None:
        """Note the gradient that backward came to last, to see whether it will be set to zero.

        When the next backward pass is first heard of, it has added to another one already; where
        there is no other, it must be heard of earlier.
        """
        own = zip(reading.live, reading.finals, strict=True)
        rank, at, thread = max(
            ((final.rank, at, final.thread) for at, final in own if final), default=(-1, 0, 0)
        )
        grad = parameters[at].grad if rank >= 0 else None
        if rank == 0 and parameters[at].requires_grad:
            self.alone = parameters[at]
        if grad is not None and grad.layout is torch.strided and not grad.is_meta:
            address, version = grad.data_ptr(), _torch.version(grad)
            self._left = _Left(weakref.ref(parameters[at]), address, version, thread)
            self._has_looked = False

    def look(self) -> None:
        """See whether the gradients of the step before are gone, as backward begins.

        Only the thread that ran backward then may look: another's may be writing them just now,
        without waiting for anybody.

        Cost: reads one small gradient, if its version says that nothing has been written to it.
        """
        if self._left is None or self._left.thread != threading.get_ident():
            return
        self._has_looked = True
        parameter = self._left.parameter()
        grad = parameter.grad if parameter is not None else None
        known = self._left.address, self._left.version
        if grad is None or (grad.data_ptr(), _torch.version(grad)) != known or not grad.any():
            self._left = None

    def look_again(self) -> None:
        """Take down what a backward pass has made of the gradients of the step before.

        They were there as it began, else `look` would have forgotten them: it has added to them,
        maybe on another optimizer's behalf, and has not set them to zero.
        """
        if self._left is None:
            return
        parameter = self._left.parameter()
        grad = parameter.grad if parameter is not None else None
        if grad is None:
            self._left = None
        elif self._has_looked and grad.layout is torch.strided:
            self._left = self._left._replace(address=grad.data_ptr(), version=_torch.version(grad))

    def hold(self, parameters: Sequence[torch.Tensor]) -> None:
        """Copy weights as a step starts that will call a closure, maybe after it has changed them."""
        if self._has_copies:
            solid = [(at, measure.dense(one)) for at, one in enumerate(parameters)]
            self._held = {at: one.detach().clone() for at, one in solid if one is not None}

    def before(
        self,
        parameters: Sequence[torch.Tensor],
        finals: Mapping[int, Final],
        *,
        histogram: bool = False,
    ) -> None:
        """Measure what the optimizer is about to use.

        Args:
            parameters: those that it has.
            finals: by id, the gradients as backward left them.
            histogram: count their exponents too.
        """
        key = tuple(map(id, parameters))
        if key != self.keys:
            self.keys = key
            self._kept = (
                Kept(parameters, self._kernels, exact=self._exact) if self._has_copies else None
            )
        gradients: list[torch.Tensor] = []
        weights: list[torch.Tensor] = []
        live: list[int] = []
        reached: list[int] = []
        for at, one in enumerate(parameters):
            grad = one.grad
            gradient = measure.dense(grad) if grad is not None else None
            weight = measure.dense(one) if gradient is not None else None
            if gradient is not None and weight is not None:
                live.append(at)
                gradients.append(gradient)
                weights.append(self._held.get(at, weight))
            if key[at] in finals:
                reached.append(at)
        own = [finals.get(key[at]) for at in live]
        columns = _before_clipping(own, gradients, self._kernels)
        sizes = [measure.n_numbers(parameters[at]) for at in live]
        reading = _Reading(reached, live, columns, own, sizes, [], parameters)
        self._held = {}
        self._compare(reading, gradients, weights)
        columns["nonzero"] = _nonzeros(columns, gradients, self._kernels)
        if histogram:
            reading.exponents = measure.exponents(gradients, live)
        self._reading = reading

    def _compare(
        self, reading: _Reading, gradients: list[torch.Tensor], weights: list[torch.Tensor]
    ) -> None:
        columns = reading.columns
        if self._kept is None:
            columns["written"] = measure.norms(gradients, self._kernels)
            columns["weight"] = measure.norms(weights, self._kernels)
            return
        found = self._kept.before(reading.live, gradients, weights)
        columns["written"], columns["weight"] = found.written, found.weight
        columns["dot"], columns["length"] = found.dot, found.length
        columns["length_then"] = found.length_then
        reading.pairs = found.pairs

    def after(
        self, losses: measure.Scalars, scale: float | None, grad_scale: float | None
    ) -> tuple[Part, list[float]] | None:
        """Measure what the optimizer has written, and read all of it at once.

        Args:
            losses: scalars to be read along.
            scale: what the gradients were multiplied by before backward.
            grad_scale: the same, if the optimizer itself divides by it.
        """
        reading, self._reading = self._reading, None
        if reading is None:
            return None
        kept, parameters = self._kept, reading.parameters
        if kept is not None:
            new = [measure.dense(parameters[at]) for at in reading.live]
            solid = [one for one in new if one is not None]
            reading.columns["update"] = kept.updates(reading.live, solid)
        columns, read = _read(reading.columns, losses)
        if kept is not None:
            scales = kept.scales(reading.live)
            norms = zip(columns["update"], reading.live, strict=True)
            columns["update"] = [norm * scales.get(at, 1.0) for norm, at in norms]
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
            self.numbers,
            figures,
            bad,
            self.learning_rates,
            exponents=reading.exponents,
            piled_up=self._left is not None and self._has_looked,
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
    columns: Mapping[str, list[measure.Scalar]], losses: measure.Scalars
) -> tuple[dict[str, list[float]], list[float]]:
    """Read columns and losses, all at once."""
    values = measure.read([*losses, *chain.from_iterable(columns.values())])
    found: dict[str, list[float]] = {}
    at = len(losses)
    for name, column in columns.items():
        found[name] = values[at : at + len(column)]
        at += len(column)
    return found, values[: len(losses)]


def skipped(
    writer: Writer,
    parameters: Sequence[torch.Tensor],
    finals: Mapping[int, Final],
    losses: measure.Scalars,
    *,
    scale: float,
) -> tuple[Part, list[float]]:
    """Read a step that the gradient scaler has skipped: what backward left is all that there is."""
    known_ones = ((at, finals.get(id(one))) for at, one in enumerate(parameters))
    own = [(at, final) for at, final in known_ones if final is not None and final.scalars]
    live, known = [at for at, _ in own], [final for _, final in own]
    columns, read = _read(_columns([final.scalars for final in known]), losses)
    figures = Figures(
        len(parameters),
        live,
        live,
        columns,
        [final.rank for final in known],
        [measure.n_numbers(parameters[at]) for at in live],
        [True] * len(live),
        [],
        scale,
    )
    bad = [(at, *final.bad) for at, final in own if final.bad and any(final.bad)]
    part = Part(
        writer.name, writer.numbers, figures, list(bad), writer.learning_rates, skipped=True
    )
    return part, read


def _before_clipping(
    own: Sequence[Final | None], gradients: Sequence[torch.Tensor], kernels: near.Kernels
) -> dict[str, list[measure.Scalar]]:
    """Take what was measured when backward ended; where nothing was, what is there now."""
    missing = [gradient for final, gradient in zip(own, gradients, strict=True) if final is None]
    now = iter(measure.final(missing, kernels))
    return _columns([final.scalars if final is not None else next(now) for final in own])


def _columns(scalars: Sequence[tuple[measure.Scalar, ...]]) -> dict[str, list[measure.Scalar]]:
    return {name: [one[place] for one in scalars] for place, name in enumerate(FIGURES)}


def _nonzeros(
    columns: Mapping[str, list[measure.Scalar]],
    gradients: Sequence[torch.Tensor],
    kernels: near.Kernels,
) -> list[measure.Scalar]:
    """Count nonzeros as the optimizer gets them: anew where the gradient may have been changed."""
    found = list(columns["nonzero"])
    pairs = zip(columns["norm"], columns["written"], strict=True)
    changed = [n for n, (before, now) in enumerate(pairs) if not _is_same(before, now)]
    again = measure.nonzeros([gradients[n] for n in changed], kernels)
    for n, count in zip(changed, again, strict=True):
        found[n] = count
    return found


def _is_same(before: measure.Scalar, now: measure.Scalar) -> bool:
    """Compare two norms, if that costs no wait for a device.

    To the last bit: what sets many small elements to 0 changes the norm by hardly more.
    """
    if isinstance(before, torch.Tensor) or isinstance(now, torch.Tensor):
        return False
    return now == before


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
