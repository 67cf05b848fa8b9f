"""What is kept of weights until they are written, and of gradients until the next step.

Updates and cosines need what a tensor was before. What lies in the CPU's memory is compared part by
part (`near`); of the rest, and of very large tensors, samples are copied by fused kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from nbinspect import _torch
from nbinspect.gradients import measure, near, samples


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
    """

    itself: torch.Tensor | None
    version: int
    copied: samples.Copy | None
    length: float

    def now_that(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Give it, now that there is another gradient; None if that has taken its place."""
        if self.itself is not None:
            if self._is_intact(gradient):
                self.copied = None
                return self.itself
            self.itself = None
        fits = self.copied is not None and self.copied.fits(gradient)
        return self.copied.room if fits and self.copied is not None else None

    def _is_intact(self, gradient: torch.Tensor) -> bool:
        old = self.itself
        if old is None or (old.shape, old.dtype) != (gradient.shape, gradient.dtype):
            return False
        storage = old.untyped_storage()
        return (
            _torch.version(old) == self.version
            and storage.nbytes() > 0
            and storage.data_ptr() != gradient.untyped_storage().data_ptr()
        )


class Kept:
    """Compares gradients with those of the step before, and weights with what they become.

    Args:
        desk: room for intermediate results.
        exact: take whole tensors, however large.
    """

    def __init__(self, desk: near.Desk, *, exact: bool) -> None:
        self._desk, self._exact = desk, exact
        self._weights: samples.Copies = {}
        self._earlier: dict[int, _Earlier] = {}
        self._samples: samples.Copies = {}
        self._spare: samples.Copies = {}

    def before(
        self,
        places: Sequence[int],
        gradients: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
    ) -> Compared:
        """Measure dense gradients and weights before a write, and keep what is needed of them."""
        found = Compared([0.0] * len(places), [0.0] * len(places))
        rest: list[int] = []
        for n, (at, gradient, weight) in enumerate(zip(places, gradients, weights, strict=True)):
            if self._is_whole(gradient) and self._is_whole(weight) and _are_alike(gradient, weight):
                found.written[n] = self._compare(at, gradient, found)
                found.weight[n] = near.copy(weight, self._room(at, weight))
            else:
                rest.append(n)
        if rest:
            own, theirs = [gradients[n] for n in rest], [weights[n] for n in rest]
            self._compare_samples([places[n] for n in rest], own, theirs, found)
            norms = zip(rest, measure.norms(own), measure.norms(theirs), strict=True)
            for n, written, norm in norms:
                found.written[n], found.weight[n] = written, norm
        return found

    def _is_whole(self, tensor: torch.Tensor) -> bool:
        return near.is_near(tensor) and (self._exact or tensor.numel() <= samples.WHOLE)

    def _compare(self, at: int, gradient: torch.Tensor, found: Compared) -> float:
        """Hold a gradient against that of the step before, and give its norm."""
        earlier = self._earlier.get(at)
        then = earlier.now_that(gradient) if earlier is not None else None
        if earlier is None or then is None:
            norm = near.norm(gradient)
        else:
            norm, dot = near.product(gradient, then)
            found.pairs.append(at)
            found.dot.append(dot)
            found.length.append(norm)
            found.length_then.append(earlier.length)
        self._keep(at, gradient, norm)
        return norm

    def _keep(self, at: int, gradient: torch.Tensor, norm: float) -> None:
        earlier = self._earlier.get(at)
        if earlier is None:
            earlier = self._earlier[at] = _Earlier(gradient, 0, None, norm)
            is_copied = True  # it is not known yet whether the next one will take its place
        else:
            is_copied = earlier.itself is None
        earlier.length = norm
        if earlier.itself is not None:
            earlier.itself, earlier.version = gradient, _torch.version(gradient)
        if is_copied:
            earlier.copied = samples.room(earlier.copied, gradient, gradient.view(-1))
            earlier.copied.room.copy_(gradient.view(-1))

    def _room(self, at: int, weight: torch.Tensor) -> torch.Tensor:
        kept = self._weights[at] = samples.room(self._weights.get(at), weight, weight.view(-1))
        return kept.room

    def _compare_samples(
        self,
        places: list[int],
        gradients: list[torch.Tensor],
        weights: list[torch.Tensor],
        found: Compared,
    ) -> None:
        """Keep samples of weights, and hold samples of gradients against those of the step before."""
        self._weights |= samples.copy(places, weights, self._weights, exact=self._exact)
        own = zip(places, gradients, weights, strict=True)
        # of a sparse gradient the places differ by step
        whole = [(at, gradient) for at, gradient, weight in own if gradient.shape == weight.shape]
        steady = [gradient for _, gradient in whole]
        now = samples.copy([at for at, _ in whole], steady, self._spare, exact=self._exact)
        then = self._samples
        pairs = [at for at, one in whole if at in then and then[at].fits(one)]
        rooms, others = ([copies[at].room for at in pairs] for copies in (now, then))
        found.pairs += pairs
        found.dot += measure.products(rooms, others)
        found.length += measure.norms(rooms)
        found.length_then += measure.norms(others)
        self._samples, self._spare = now, then

    def updates(
        self, places: Sequence[int], weights: Sequence[torch.Tensor]
    ) -> list[measure.Scalar]:
        """Give the norm of what a write has added to weights, of which it may use copies up."""
        found: list[measure.Scalar] = [0.0] * len(places)
        rest: list[int] = []
        for n, (at, weight) in enumerate(zip(places, weights, strict=True)):
            room = self._weights[at].room
            if self._is_whole(weight) and room.numel() == weight.numel():
                found[n] = near.difference(weight, room, self._desk)
            else:
                rest.append(n)
        views = [samples.sample(weights[n], exact=self._exact) for n in rest]
        norms = measure.updates([self._weights[places[n]].room for n in rest], views)
        for n, norm in zip(rest, norms, strict=True):
            found[n] = norm
        return found

    def scales(self, places: Sequence[int]) -> list[float]:
        """Say by what the norm of each update is to be multiplied, being that of a sample."""
        return [samples.scale(self._weights[at]) for at in places]


def _are_alike(some: torch.Tensor, other: torch.Tensor) -> bool:
    return some.shape == other.shape and some.dtype == other.dtype
