"""Samples of very large tensors: small groups of neighbours, evenly spread, always at the same places.

A copy of a sample takes a ninth of the memory and of the time, and tells updates and cosines within
about a hundredth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from nbinspect import _torch

WHOLE = 1 << 20  # elements; a tensor up to this size is its own sample
MOST_APART = 9  # one group in so many at most, so that the rows of an embedding are met
GROUP = 16  # neighbours: what comes from memory at once


def stride(n_elements: int) -> int:
    """Say of how many groups one is taken: an odd number, so that no column is passed over."""
    return min(MOST_APART, math.ceil(n_elements / WHOLE) | 1) if n_elements > WHOLE else 1


def sample(tensor: torch.Tensor, *, exact: bool) -> torch.Tensor:
    """Give the sample of a dense tensor, as a view where it lies in one piece."""
    if not tensor.is_contiguous():  # but maybe in another order
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        tensor = tensor.permute(order)
    flat = tensor.reshape(-1)
    n = flat.numel()
    if exact or n <= WHOLE:
        return flat
    n_groups = n // GROUP
    return flat[: n_groups * GROUP].view(n_groups, GROUP)[:: stride(n)]


@dataclass(slots=True)
class Copy:
    """A copy of a tensor's sample.

    Attributes:
        room: the copy.
        like: shape and strides of the whole tensor: only of such a one are places the same.
    """

    room: torch.Tensor
    like: tuple[torch.Size, tuple[int, ...]]

    def fits(self, tensor: torch.Tensor) -> bool:
        """Say whether it could be a copy of a tensor's sample."""
        kind = self.room.dtype, self.room.device
        return self.like == (tensor.shape, tensor.stride()) and kind == (
            tensor.dtype,
            tensor.device,
        )


Copies = dict[int, Copy]


def room(old: Copy | None, tensor: torch.Tensor, view: torch.Tensor) -> Copy:
    """Give room for a copy of a tensor's sample: the old one if it fits."""
    if old is not None and old.fits(tensor) and old.room.shape == view.shape:
        return old
    fresh = torch.empty(view.shape, dtype=tensor.dtype, device=tensor.device)
    return Copy(fresh, (tensor.shape, tensor.stride()))


def copy(
    places: Sequence[int], tensors: Sequence[torch.Tensor], into: Mapping[int, Copy], *, exact: bool
) -> Copies:
    """Copy the samples of tensors, each into its old room if there is one that fits.

    Args:
        places: where each tensor stands.
        tensors: dense ones.
        into: rooms by place, which are used up.
        exact: whole tensors for samples.
    """
    views = [sample(one, exact=exact) for one in tensors]
    own = zip(places, tensors, views, strict=True)
    found = {at: room(into.get(at), one, view) for at, one, view in own}
    _torch.copy_all([found[at].room for at in places], views)
    return found


def scale(copied: Copy) -> float:
    """Say by what the norm of a sample is to be multiplied to be that of the whole."""
    return math.sqrt(copied.like[0].numel() / copied.room.numel())
