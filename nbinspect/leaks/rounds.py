"""Repetitions under watch: what is alive after each of them, and since when."""

from __future__ import annotations

import gc
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

from nbinspect import _torch
from nbinspect.blocks import Reading
from nbinspect.heapgraph.graph import collector_paused
from nbinspect.holders import Census, census
from nbinspect.leaks.counts import ObjectCounts
from nbinspect.leaks.places import Places
from nbinspect.memory.system import process_bytes
from nbinspect.memory.tracker import LiveStorage, Tracker
from nbinspect.ops import OpStream, Site
from nbinspect.tensors import looking, tensors_of_python

PINNED = "pinned host memory"
LEAST_RISES = 3  # that are no chance
Line = tuple[str, Site]
"""A device, and a line that made tensors on it."""


@dataclass(slots=True)
class Boundary:
    """What was alive between two repetitions.

    Attributes:
        serial: the number of storages met so far; those with a higher one are younger.
        sizes: (bytes, storages) by device.
        by_line: bytes by device and the line that made them, of what was made under watch.
        n_graphs: how many graphs torch.compile had compiled.
        next_node: the number that the next autograd node will get, None if torch does not tell.
    """

    serial: int
    process_bytes: Reading
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    by_line: dict[Line, int] = field(default_factory=dict)
    n_graphs: int = 0
    next_node: int | None = None


class Rounds:
    """Watches repetitions: follows every storage from the operation that made it to its end.

    Enter it, then take each repetition from `repeat`, or call `mark` between them.

    Attributes:
        boundaries: one before the first repetition and one after each.
        objects: counts of Python objects at the same moments.
        places: where arrays, texts and buffers were then.
        failure: why a boundary could not be marked, "" if all were.
    """

    def __init__(self) -> None:
        self.boundaries: list[Boundary] = []
        self.objects = ObjectCounts()
        self.places = Places()
        self.failure = ""
        self.started_s = time.monotonic()
        self._tracker = Tracker()
        self._stream = OpStream(self._tracker)

    def __enter__(self) -> Self:
        self.mark()
        self._stream.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.__exit__(*error)

    def repeat(self, n: int) -> Iterator[int]:
        """Give 0 to n - 1, marking a boundary after each."""
        for number in range(n):
            yield number
            try:
                self.mark()
            except Exception as error:  # ours, which must not end the user's loop
                self.failure = f"{type(error).__name__}: {error}"
                error.__traceback__ = None

    def mark(self) -> None:
        """Note what is alive now."""
        self.objects.count()  # first: what follows makes objects of its own
        with collector_paused(), looking():
            self._tracker.know(tensors_of_python())
            self.places.note()
        boundary = Boundary(self._tracker.n_met, process_bytes())
        boundary.n_graphs = _torch.n_compiled_graphs()
        boundary.next_node = _torch.next_sequence_number()
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        lines: dict[Line, int] = defaultdict(int)
        for one in self._tracker.living():
            place = sums[_place(one)]
            place[0] += one.size_bytes
            place[1] += 1
            if one.origin is not None:
                lines[one.device, one.origin.site] += one.size_bytes
        boundary.by_line = dict(lines)
        boundary.sizes = {name: (size, number) for name, (size, number) in sums.items()}
        self.boundaries.append(boundary)

    def census(self) -> Census:
        """Ask who holds what is alive now."""
        with collector_paused():
            return census()

    def survivors(self) -> list[tuple[int, LiveStorage]]:
        """List what was made in a repetition and is alive, with the repetition's number, from 0."""
        serials = [one.serial for one in self.boundaries]
        return [
            (bisect_left(serials, one.serial) - 1, one)
            for one in self._tracker.living()
            if one.serial > serials[0]
        ]

    def rising_lines(self, first: int) -> dict[Line, int]:
        """Give the lines whose tensors take more after every repetition, with the bytes of each.

        Args:
            first: number of the boundary to begin with.
        """
        told = [one.by_line for one in self.boundaries[first:]]
        if len(told) <= LEAST_RISES:
            return {}
        series = {line: [one.get(line, 0) for one in told] for line in told[-1]}
        return {
            line: round((sizes[-1] - sizes[0]) / (len(sizes) - 1))
            for line, sizes in series.items()
            if all(new > old for old, new in pairwise(sizes))
        }

    def fraction(self, one: LiveStorage) -> float:
        """Say when within the watch a storage was made: 0 at its start, 1 at its end."""
        first, last = self.boundaries[0].serial, max(1, self._tracker.n_met)
        return (one.serial - first) / max(1, last - first)

    def close(self) -> None:
        """Follow nothing any longer."""
        self._tracker.close()
        self.objects.close()
        self.places.close()


def _place(one: LiveStorage) -> str:
    if one.device == "cpu":
        storage = one()
        if storage is not None and _torch.is_pinned(storage):
            return PINNED
    return one.device


def collect(refs: list[LiveStorage]) -> int:
    """Run the collector, and give the bytes of these storages that it freed."""
    before = [one for one in refs if one() is not None]
    gc.collect()
    return sum(one.size_bytes for one in before if one() is None)
