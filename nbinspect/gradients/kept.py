"""What is kept of weights until they are written, and of gradients until the next step.

Updates and cosines need what a tensor was before. In the CPU's memory, many small tensors are laid in
a row (`small`) and others compared part by part (`near`); of the rest, and of very large tensors,
samples are copied by fused kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from nbinspect import _torch
from nbinspect.gradients import measure, near, samples, small
from nbinspect.gradients.numpy_kernels import Row


@dataclass(slots=True)
class Compared:
    """Gradients and weights before a write; lists of those parameters that have a gradient.

    Attributes:
        written: norms of the gradients.
        weight: norms of the weights.
        pairs: places of the gradients that could be held against those of the step before.
        dot: scalar products of these two.
        length: norms of the samples that they were taken of.
        length_then: the same of the step before.
    """

    written: list[measure.Scalar]
    weight: list[measure.Scalar]
    pairs: list[int] = field(default_factory=list)
    dot: list[measure.Scalar] = field(default_factory=list)
    length: list[measure.Scalar] = field(default_factory=list)
    length_then: list[measure.Scalar] = field(default_factory=list)


@dataclass(slots=True)
class _Earlier:
    """A gradient of the step before: itself if that has been let go, else a copy.

    Where `zero_grad` sets gradients to None, each step's is a tensor of its own, and nothing
    needs to be copied. Which of the two it is shows at the second step.

    Blind to: what is written through `.data` to few of its elements alone.
    """

    itself: torch.Tensor | None
    version: int
    row: Row
    trace: bytes
    copied: near.Room | None
    length: float

    def now_that(self, gradient: torch.Tensor, row: Row, kernels: near.Kernels) -> Row | None:
        """Give it, now that there is another gradient; None if that has taken its place."""
        if self.itself is not None:
            is_intact = self._is_intact(self.itself, gradient)
            if is_intact and kernels.trace(self.row) == self.trace:
                self.copied = None
                return self.row
            self.itself = None
        then = self.copied.row if self.copied is not None else None
        return then if then is not None and near.is_like(then, row) else None

    def _is_intact(self, old: torch.Tensor, gradient: torch.Tensor) -> bool:
        if (old.shape, old.dtype) != (gradient.shape, gradient.dtype):
            return False
        if (_torch.version(old), old.data_ptr()) != (self.version, self.row[0]):
            return False
        return old.untyped_storage().data_ptr() != gradient.untyped_storage().data_ptr()

    def keep(self, gradient: torch.Tensor, row: Row, length: float, kernels: near.Kernels) -> None:
        """Put this step's in its place."""
        self.length = length
        if self.itself is not None:
            self.itself, self.version = gradient, _torch.version(gradient)
            self.row, self.trace = row, kernels.trace(row)
        else:
            self.copied = _room(self.copied, row)
            kernels.copy(row, self.copied.row)


def _room(old: near.Room | None, row: Row) -> near.Room:
    """Give room for a copy of a row: the old one if it fits."""
    return old if old is not None and near.is_like(old.row, row) else near.Room(row)


@dataclass(slots=True)
class _Beside:
    """Small tensors that were laid in a row: where they stand, their gradients, their weights."""

    places: list[int]
    gradients: small.Row
    weights: small.Row
    lengths: list[float]


class Kept:
    """Compares gradients with those of the step before, and weights with what they become.

    Each step's tensors are gone through from the last to the first, since backward ends with the
    first and the optimizer with the last: what was used just now is in the cache.

    Args:
        parameters: all that there may be.
        kernels: for what is near.
        exact: take whole tensors, however large.
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], kernels: near.Kernels, *, exact: bool
    ) -> None:
        self._exact, self._kernels = exact, kernels
        self._has_rows = sum(map(near.is_small, parameters)) >= kernels.fewest_small
        self._beside: _Beside | None = None
        self._old: dict[int, near.Room] = {}
        self._weights: samples.Copies = {}
        self._earlier: dict[int, _Earlier] = {}
        self._samples: samples.Copies = {}
        self._spare: samples.Copies = {}

    @np.errstate(all="ignore")  # Inf and NaN are what is looked for
    def before(
        self,
        places: Sequence[int],
        gradients: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
    ) -> Compared:
        """Measure dense gradients and weights before a write, and keep what is needed of them."""
        found = Compared([0.0] * len(places), [0.0] * len(places))
        tiny: list[int] = []
        rest: list[int] = []
        for n in reversed(range(len(places))):
            gradient, weight = gradients[n], weights[n]
            if gradient.shape != weight.shape:  # sparse: its places differ by step
                rest.append(n)
            elif self._has_rows and near.is_small(weight) and near.is_small(gradient):
                tiny.append(n)
            elif self._is_whole(gradient) and self._is_whole(weight):
                found.written[n] = self._compare(places[n], gradient, found)
                row = near.row(weight)
                room = self._old[places[n]] = _room(self._old.get(places[n]), row)
                found.weight[n] = self._kernels.copy(row, room.row)
                self._weights.pop(places[n], None)
            else:
                rest.append(n)
        if len(self._earlier) + len(tiny) + len(rest) != len(places):  # some have none now
            live = set(places)
            self._earlier = {at: one for at, one in self._earlier.items() if at in live}
        self._compare_small(tiny, places, gradients, weights, found)
        self._compare_samples(rest, places, gradients, weights, found)
        return found

    def _is_whole(self, tensor: torch.Tensor) -> bool:
        return near.is_near(tensor) and (self._exact or tensor.numel() <= samples.WHOLE)

    def _compare(self, at: int, gradient: torch.Tensor, found: Compared) -> float:
        """Hold a gradient against that of the step before, and give its norm."""
        row, kernels = near.row(gradient), self._kernels
        earlier = self._earlier.get(at)
        if earlier is None:
            # It is not known yet whether the next one will take its place.
            copied, version = near.Room(row), _torch.version(gradient)
            norm = kernels.copy(row, copied.row)
            self._earlier[at] = _Earlier(gradient, version, row, kernels.trace(row), copied, norm)
            return norm
        then = earlier.now_that(gradient, row, kernels)
        if then is None:
            norm = kernels.norm(row)
        else:
            norm, dot = kernels.product(row, then)
            found.pairs.append(at)
            found.dot.append(dot)
            found.length.append(norm)
            found.length_then.append(earlier.length)
        earlier.keep(gradient, row, norm, kernels)
        return norm

    def _compare_small(
        self,
        tiny: list[int],
        places: Sequence[int],
        gradients: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
        found: Compared,
    ) -> None:
        then, self._beside = self._beside, None
        if not tiny:
            return
        both = small.Row.of([some[n] for some in (gradients, weights) for n in tiny])
        norms, row_of = both.norms(), both.halves()
        now = _Beside([places[n] for n in tiny], *row_of, norms[: len(tiny)])
        for n, written, weight in zip(tiny, now.lengths, norms[len(tiny) :], strict=True):
            found.written[n], found.weight[n] = written, weight
        if then is not None:
            self._compare_rows(now, then, found)
        self._beside = now

    def _compare_rows(self, now: _Beside, then: _Beside, found: Compared) -> None:
        if then.places == now.places and then.gradients.sizes == now.gradients.sizes:
            found.pairs += now.places
            found.dot += now.gradients.products(then.gradients)
            found.length += now.lengths
            found.length_then += then.lengths
            return
        ranks = {at: rank for rank, at in enumerate(then.places)}
        for rank, at in enumerate(now.places):  # the set that has gradients differs by step
            there = ranks.get(at)
            if there is None or now.gradients.sizes[rank] != then.gradients.sizes[there]:
                continue
            found.pairs.append(at)
            found.dot.append(now.gradients.product(rank, then.gradients, there))
            found.length.append(now.lengths[rank])
            found.length_then.append(then.lengths[there])

    def _compare_samples(
        self,
        rest: list[int],
        places: Sequence[int],
        gradients: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
        found: Compared,
    ) -> None:
        """Keep samples of weights, and hold samples of gradients against those of the step before."""
        if not rest:
            return
        own, theirs = [gradients[n] for n in rest], [weights[n] for n in rest]
        norms = zip(
            rest, *(measure.norms(some, self._kernels) for some in (own, theirs)), strict=True
        )
        for n, written, weight in norms:
            found.written[n], found.weight[n] = written, weight
        own_places = [places[n] for n in rest]
        for at in own_places:
            self._old.pop(at, None)
        self._weights |= samples.copy(own_places, theirs, self._weights, exact=self._exact)
        steady = [n for n in rest if gradients[n].shape == weights[n].shape]
        whole = [(places[n], gradients[n]) for n in steady]
        now = samples.copy(
            [at for at, _ in whole], [one for _, one in whole], self._spare, exact=self._exact
        )
        then = self._samples
        pairs = [at for at, one in whole if at in then and then[at].fits(one)]
        rooms, others = ([copies[at].room for at in pairs] for copies in (now, then))
        found.pairs += pairs
        found.dot += measure.products(rooms, others)
        found.length += measure.norms(rooms, self._kernels)
        found.length_then += measure.norms(others, self._kernels)
        self._samples, self._spare = now, then

    @np.errstate(all="ignore")
    def updates(
        self, places: Sequence[int], weights: Sequence[torch.Tensor]
    ) -> list[measure.Scalar]:
        """Give the norm of what a write has added to weights, of which it may use copies up."""
        found: dict[int, measure.Scalar] = {}
        own = dict(zip(places, weights, strict=True))
        if self._beside is not None:
            tiny = small.Row.of([own[at] for at in self._beside.places])
            norms = tiny.differences(self._beside.weights)
            found.update(zip(self._beside.places, norms, strict=True))
        rest: list[int] = []
        for at, weight in reversed(own.items()):
            if at in found:
                continue
            old = self._old.get(at)
            if old is None:
                rest.append(at)
            elif near.is_near(weight) and near.is_like(old.row, row := near.row(weight)):
                found[at] = self._kernels.difference(row, old.row)
            else:
                found[at] = math.nan  # it is another kind of tensor now
        if rest:
            views = [samples.sample(own[at], exact=self._exact) for at in rest]
            some = measure.updates([self._weights[at].room for at in rest], views, self._kernels)
            found.update(zip(rest, some, strict=True))
        return [found[at] for at in places]

    def scales(self, places: Sequence[int]) -> dict[int, float]:
        """Say by what the norm of an update is to be multiplied, where it is that of a sample."""
        sampled = (at for at in places if at in self._weights)
        return {at: samples.scale(self._weights[at]) for at in sampled}
