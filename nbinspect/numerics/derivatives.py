"""Derivatives both ways: by the backward pass, and by changing one value at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from nbinspect.numerics.copied_call import Leaf
from nbinspect.numerics.gradcheck_records import GradientEntry
from nbinspect.tensors import is_tensor

MOST_VALUES = 400  # changed one by one, over all tensors
MOST_OUTPUTS = 64  # told apart; more are added up with weights
MOST_S = 5.0
_ROUNDING = 4 * 2.0**-52  # of the outputs' size, in their difference
_KINK = 0.05  # slopes on both sides that differ by more are no rounding error


class Evaluation:
    """The function in float64 as a vector of real outputs.

    Args:
        call: gives all differentiable outputs for its leaves' values.
        leaves: the tensors that gradients are taken of.
        eps: the size of a change.

    Attributes:
        leaves: the same.
        base: the outputs.
        rows: weights of the outputs, one for each sum of them that is looked at.
        names: what each of those sums is.
        gradients: of each of those sums, by tensor, as real vectors.
        total_gradients: of the sum of all outputs, likewise.
    """

    def __init__(
        self, call: Callable[..., tuple[torch.Tensor, ...]], leaves: Sequence[Leaf], eps: float
    ) -> None:
        self.leaves = leaves
        self._call = call
        self._eps = eps
        self._values = [leaf.value for leaf in leaves]
        self._outputs = _real_vector(call(*self._values))
        self.base = self._outputs.detach().clone()
        self.rows, self.names = _rows(self.base.numel(), self.base.device)
        self.gradients = [self._gradients(row) for row in self.rows]
        self.total_gradients = self._gradients(torch.ones_like(self.base))
        del self._outputs  # what it was worked out from is written into from here on

    def _gradients(self, row: torch.Tensor) -> list[torch.Tensor]:
        """Give the gradient of a weighted sum of the outputs, as real vectors, 0 where cut."""
        found: Sequence[torch.Tensor | None] = torch.autograd.grad(
            self._outputs, self._values, row, retain_graph=True, allow_unused=True
        )
        return [
            torch.zeros(_n_real(leaf.value), dtype=torch.float64, device=leaf.value.device)
            if one is None
            else _real_vector((_dense(one),)).detach()
            for one, leaf in zip(found, self.leaves, strict=True)
        ]

    def at(self, leaf: Leaf, change: Callable[[torch.Tensor], object]) -> torch.Tensor:
        """Give the outputs after `change` has written into a leaf's real values."""
        flat = real_values(leaf.value)
        kept = flat.clone()
        try:
            change(flat)
            return _real_vector(self._call(*self._values)).detach().clone()
        finally:
            flat.copy_(kept)

    def entries(self, leaf_at: int, place: int) -> Iterator[GradientEntry]:
        """Change one value up and down, and hold each output's slope against its gradient."""
        leaf = self.leaves[leaf_at]

        def changed(step: float) -> torch.Tensor:
            return self.at(leaf, lambda flat: flat[place].add_(step))

        up, down = changed(self._eps), changed(-self._eps)
        for row, name, gradients in zip(self.rows, self.names, self.gradients, strict=True):
            numeric = float(row @ (up - down)) / (2 * self._eps)
            right = float(row @ (up - self.base)) / self._eps
            left = float(row @ (self.base - down)) / self._eps
            analytic = float(gradients[leaf_at][place])
            error = abs(analytic - numeric)
            noise = _ROUNDING * float(row.abs() @ self.base.abs()) / self._eps
            doubt: Literal["", "kink", "rounding"] = ""
            if error <= noise:
                doubt = "rounding"
            elif abs(right - left) > _KINK * max(abs(right), abs(left), 1e-3):
                doubt = "kink"
            where = _index(leaf.value, place)
            yield GradientEntry(leaf.name, where, name, analytic, numeric, error, math.nan, doubt)

    def along(self, leaf_at: int, generator: torch.Generator) -> tuple[float, float]:
        """Give analytic and numeric derivative along a random direction, of all outputs together."""
        leaf = self.leaves[leaf_at]
        size = _n_real(leaf.value)
        direction = torch.rand(size, generator=generator, dtype=torch.float64) + 0.5
        direction = (direction / direction.norm()).to(leaf.value.device)
        weights = sum(self.rows[1:], start=self.rows[0].clone())
        total = sum(
            (one[leaf_at] for one in self.gradients[1:]), self.gradients[0][leaf_at].clone()
        )

        def changed(step: float) -> torch.Tensor:
            return self.at(leaf, lambda flat: flat.add_(direction, alpha=step))

        difference = changed(self._eps) - changed(-self._eps)
        return float(total @ direction), float(weights @ difference) / (2 * self._eps)


def differentiable(outputs: Any) -> tuple[torch.Tensor, ...]:
    """Give those of a function's outputs that gradients can be taken of."""
    return tuple(one for one in pytree.tree_leaves(outputs) if is_tensor(one) and one.requires_grad)


def places(leaves: Sequence[Leaf], generator: torch.Generator) -> list[tuple[int, list[int]]]:
    """Choose which values to change: all of them, or some of each tensor."""
    sizes = [_n_real(leaf.value) for leaf in leaves]
    if sum(sizes) <= MOST_VALUES:
        return [(at, list(range(size))) for at, size in enumerate(sizes)]
    room = max(1, MOST_VALUES // len(sizes))
    return [(at, _some(size, room, generator)) for at, size in enumerate(sizes)]


def _some(size: int, room: int, generator: torch.Generator) -> list[int]:
    if size <= room:
        return list(range(size))
    drawn = torch.randint(size, (room,), generator=generator)
    return sorted(set(drawn.tolist()))


def all_entries(
    evaluation: Evaluation, chosen: Sequence[tuple[int, list[int]]]
) -> Iterator[tuple[int, list[GradientEntry]]]:
    """Yield each changed value's entries with its tensor's number, until time is up.

    Tensors take turns, so that each has been looked at when it is.
    """
    end = time.monotonic() + MOST_S
    for turn in range(max((len(several) for _, several in chosen), default=0)):
        for at, several in chosen:
            if turn < len(several) and time.monotonic() < end:
                yield at, list(evaluation.entries(at, several[turn]))


def real_values(tensor: torch.Tensor) -> torch.Tensor:
    """Give a tensor's values as a real vector that writes through."""
    data = tensor.detach()
    return (torch.view_as_real(data) if data.is_complex() else data).view(-1)


def _n_real(tensor: torch.Tensor) -> int:
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _real_vector(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Line up real and imaginary parts of all outputs in one vector of float64."""
    parts = [
        (torch.view_as_real(one.resolve_conj()) if one.is_complex() else one).reshape(-1)
        for one in tensors
    ]
    return torch.cat([part.to(device=parts[0].device, dtype=torch.float64) for part in parts])


def _rows(n_outputs: int, device: torch.device) -> tuple[list[torch.Tensor], list[str]]:
    """Choose the outputs to look at: each, or one sum of all with unlike weights."""
    if n_outputs <= MOST_OUTPUTS:
        rows = list(torch.eye(n_outputs, dtype=torch.float64, device=device))
        return rows, [f"[{n}]" for n in range(n_outputs)] if n_outputs > 1 else [""]
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(n_outputs, generator=generator, dtype=torch.float64) + 0.5
    return [weights.to(device)], ["weighted sum"]


def _index(tensor: torch.Tensor, place: int) -> str:
    part = ""
    if tensor.is_complex():
        place, is_imaginary = divmod(place, 2)
        part = ".imag" if is_imaginary else ".real"
    return index_text(tuple(tensor.shape), place) + part


def index_text(shape: tuple[int, ...], place: int) -> str:
    """Write the place of the nth value: ``[1, 0]``; "" in a scalar."""
    index = []
    for size in reversed(shape):
        place, at = divmod(place, size)
        index.append(at)
    return f"[{', '.join(map(str, reversed(index)))}]" if index else ""
