"""Runs something again and again, and tells what grows."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, Self

from nbinspect.blocks import Reading, Unavailable
from nbinspect.leaks.bounded import filling
from nbinspect.leaks.growth import Survivor, growths, survivors
from nbinspect.leaks.in_order import in_order
from nbinspect.leaks.larger import larger_places, with_larger
from nbinspect.leaks.longer_graphs import longer_graphs
from nbinspect.leaks.objects import object_growths, python_growths
from nbinspect.leaks.parts import Parts, part_growths
from nbinspect.leaks.places import MOST_OBJECTS
from nbinspect.leaks.records import (
    DeviceGrowth,
    Growth,
    LeakReport,
    ObjectGrowth,
    PartGrowth,
    unexplained,
)
from nbinspect.leaks.rounds import Rounds, collect
from nbinspect.render.format import count

NOT_COLLECTED = Unavailable("nothing was collected; --collect does at the end")


def leakwatch(
    fn: Callable[[], object],
    n: int = 5,
    *,
    warmup: int = 1,
    collect: bool = False,
    isolate: bool = False,
    model: Any = None,
    loader: Any = None,
    optimizer: Any = None,
) -> LeakReport:
    """Answer what grows each time that something is repeated, who holds it and how to mend it.

    Args:
        fn: one repetition: a training step, an epoch, a fold.
        n: repetitions to compare; with less than 3 what is kept for one more turn looks like growth.
        warmup: repetitions before them, for caches and what an optimizer makes at its first step.
        collect: run ``gc.collect()`` at the very end and say what it freed.
        isolate: repeat the parts of the step alone: loader, forward, forward and backward.
        model: for ``isolate``: an ``nn.Module``; else it is looked for among the names of `fn`.
        loader: for ``isolate``: an iterable of batches.
        optimizer: for ``isolate``: whose gradients and state are put back.

    Returns:
        A record of plain values. `healthy` is true if nothing grows: no holder, not the process
        beyond what holders explain (from 3 repetitions on), nor the number of compiled graphs.

    Raises:
        ValueError: `n` is below 2 or `warmup` below 0.

    Cost: `n` + `warmup` calls of `fn` at some 20 µs an operation more, a pass over the heap after
    each, one census at the end, and a reference search for each growth. Collects nothing unless
    asked, synchronises nothing.
    Blind to: memory of a library's own: the process's size stands beside what is explained. Of arrays,
    texts and buffers what is not below a name of yours, or further than some 50,000 objects away. A
    container counts if it gets longer with every repetition, of lists of numbers only by more than
    1 MiB; not one with a limit, such as ``deque(maxlen=...)``, that memory has room for: a note says
    what it comes to.
    Source: a dispatch mode and weak references to storages; ``gc.get_objects``.
    """
    parts = partial(Parts.of_function, fn, model, loader, optimizer) if isolate else None
    with LeakWatch(n, warmup=warmup, collect=collect, isolate=parts) as watch:
        for _ in watch.repetitions():
            fn()
    return watch.report


class LeakWatch:
    """Watches repetitions that are taken from `repetitions`; enter it once.

    Args:
        n: repetitions to compare.
        warmup: repetitions before them.
        collect: collect garbage at the end, and say what that freed.
        isolate: finds what to repeat part by part afterwards, None for nothing.
    """

    def __init__(
        self,
        n: int = 5,
        *,
        warmup: int = 1,
        collect: bool = False,
        isolate: Callable[[], Parts] | None = None,
    ) -> None:
        if n < 2:
            raise ValueError(f"n must be at least 2, not {n}")
        if warmup < 0:
            raise ValueError(f"warmup must not be below 0, but is {warmup}")
        self._isolate = isolate
        self._n, self._n_warmup, self._collect = n, warmup, collect
        self._rounds = Rounds()
        self._report: LeakReport | None = None

    @property
    def report(self) -> LeakReport:
        """What was seen.

        Raises:
            RuntimeError: the watch has not ended yet.
        """
        if self._report is None:
            raise RuntimeError("the watch has not ended yet; its report comes after the block")
        return self._report

    def repetitions(self) -> Iterator[int]:
        """Give a number for each repetition to make."""
        return self._rounds.repeat(self._n_warmup + self._n)

    def __enter__(self) -> Self:
        self._rounds.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._rounds.__exit__(kind, *rest)
        try:
            if kind is None:
                self._report = self._made("")
            else:
                with suppress(Exception):  # never hide the user's own error
                    self._report = self._made(kind.__name__)
        finally:
            self._rounds.close()

    def _made(self, error: str) -> LeakReport:
        rounds = self._rounds
        n_rounds = len(rounds.boundaries) - 1
        first = min(self._n_warmup, max(0, n_rounds - 1))
        duration_s = time.monotonic() - rounds.started_s
        larger = larger_places(rounds.places, n_rounds - first)
        everything = survivors(rounds.survivors(), rounds.census())
        objects = object_growths(rounds.objects, first)
        endless, fills = filling(self._growths(everything, objects, larger, first))
        found = tuple(in_order(endless))
        n_compared = n_rounds - first
        process = tuple(one.process_bytes for one in rounds.boundaries[first:])
        n_graphs = _graphs_per_run([one.n_graphs for one in rounds.boundaries[first:]])
        rest = unexplained(process, found)
        grows = bool(found or n_graphs or (isinstance(rest, int) and rest))
        collected: Reading = NOT_COLLECTED
        if self._collect:
            collected = collect([one.ref for one in everything])
        by_part: tuple[PartGrowth, ...] = ()
        notes = [*_notes(error, n_compared, found, rounds, rest), *fills]
        if self._isolate is not None and not error:
            try:
                by_part = part_growths(self._isolate(), self._n, found)
            except ValueError as reason:  # a name that there is not
                notes.append(f"The parts were not told apart: {reason}.")
        return LeakReport(
            growths=found,
            by_part=by_part,
            healthy=not grows and n_compared > 1,
            n=n_compared,
            n_warmup=first,
            devices=self._devices(first),
            objects=objects,
            process_bytes=process,
            collected_bytes=collected,
            error=error,
            duration_s=duration_s,
            notes=tuple(notes),
            graphs_per_run=n_graphs,
        )

    def _growths(
        self,
        everything: list[Survivor],
        objects: tuple[ObjectGrowth, ...],
        larger: list[Growth],
        first: int,
    ) -> tuple[Growth, ...]:
        """Tell what grows: what tensors are held by, graphs, Python objects, arrays and texts."""
        rounds = self._rounds
        n_rounds = len(rounds.boundaries) - 1
        found: tuple[Growth, ...] = ()
        if n_rounds - first > 1:
            found = growths(everything, first, n_rounds, rounds.rising_lines(first))
            found += tuple(longer_graphs(rounds, everything, first))
        found += tuple(python_growths(rounds.objects, n_rounds - first, objects, found, rounds))
        return tuple(sorted(with_larger(found, larger), key=lambda one: -one.bytes_per_run))

    def _devices(self, first: int) -> tuple[DeviceGrowth, ...]:
        boundaries = self._rounds.boundaries[first:]
        names = dict.fromkeys(name for one in boundaries for name in one.sizes)
        n = max(1, len(boundaries) - 1)
        rows = []
        for name in names:
            sizes = [one.sizes.get(name, (0, 0)) for one in boundaries]
            added, number = sizes[-1][0] - sizes[0][0], sizes[-1][1] - sizes[0][1]
            held = tuple(size for size, _ in sizes)
            rows.append(DeviceGrowth(name, round(added / n), number / n, held))
        return tuple(sorted(rows, key=lambda one: -one.bytes_per_run))


def _notes(
    error: str, n: int, found: tuple[Growth, ...], rounds: Rounds, rest: Reading
) -> Iterator[str]:
    if rounds.failure:
        yield f"Not every repetition could be looked at: {rounds.failure}"
    if error and n < 2:
        yield "It failed too early to tell what grows."
    elif n == 2:
        yield "With 2 repetitions what is kept for one more turn looks like growth."
    is_unexplained = isinstance(rest, int) and rest > 0
    if is_unexplained and not rounds.places.saw_all:
        yield (
            f"Arrays, texts and buffers were looked for in the {count(MOST_OBJECTS)} objects nearest to "
            "your names; there are more."
        )
    waits = any(one.state == "garbage" for one in found)
    if (waits or is_unexplained) and not gc.isenabled():
        yield "Python's collector is switched off."


def _graphs_per_run(numbers: list[int]) -> float:
    """Say how many graphs are compiled each time, 0 if not every time."""
    rises = [new - old for old, new in pairwise(numbers)]
    return sum(rises) / len(rises) if len(rises) > 1 and min(rises) > 0 else 0
