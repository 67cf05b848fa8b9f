"""Finding what repeats in a row: the twelve equal blocks of a model, the fifty steps of a loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LONGEST_PERIOD = 256
FEW, MANY = 2, 3  # repetitions that are enough: of something large, and of anything
LARGE = 8  # nodes


class Run(NamedTuple):
    """Items `start` to `start + period * times` are `times` equal stretches of `period` items."""

    start: int
    period: int
    times: int

    @property
    def end(self) -> int:
        """Give the place after the last item."""
        return self.start + self.period * self.times


def runs(tokens: Sequence[int], weights: Sequence[int]) -> list[Run]:
    """Find repetitions that do not overlap, those that save most first, in order of their start.

    Args:
        tokens: what each item is; equal numbers for equal items.
        weights: how many boxes each item stands for.

    Cost: linear in the number of items for each period up to 256.
    """
    n_items = len(tokens)
    values = np.asarray(tokens)
    total = np.concatenate([[0], np.cumsum(weights)])
    found: list[tuple[int, Run]] = []
    for period in range(1, min(LONGEST_PERIOD, n_items // 2) + 1):
        same = values[period:] == values[:-period]
        for start, length in _stretches(same):
            times = (length + period) // period
            weight = int(total[start + period] - total[start])
            if times >= MANY or (times >= FEW and weight >= LARGE):
                # A loop's first turn is often the odd one, so what is left over stands before.
                start += (length + period) % period
                found.append((weight * (times - 1), Run(start, period, times)))
    found.sort(key=lambda one: (-one[0], one[1].period, one[1].start))
    taken = np.zeros(n_items, dtype=bool)
    chosen = []
    for _, run in found:
        if not taken[run.start : run.end].any():
            taken[run.start : run.end] = True
            chosen.append(run)
    return sorted(chosen)


def _stretches(same: np.ndarray) -> list[tuple[int, int]]:
    """Give start and length of each stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.astype(np.int8), [0]])))
    return [(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
