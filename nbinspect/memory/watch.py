"""What a cell did to memory: before, peak and after; by line, by module, and what stayed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack, nullcontext, suppress
from typing import Any, NamedTuple, Self

import torch

from nbinspect import _torch, notebook
from nbinspect.holders import HeldStorage, census
from nbinspect.memory.exact import AllocatorRecording, curve
from nbinspect.memory.holdings import holdings
from nbinspect.memory.records import (
    DevicePeak,
    LineMemory,
    MemoryReport,
    MemorySnapshot,
    ModuleMemory,
)
from nbinspect.memory.snapshot import assemble
from nbinspect.memory.tracker import Curve, DeviceTally, Origin, Tracker
from nbinspect.ops import OpStream, Site
from nbinspect.records import Holding, SourceLine

Events = dict[str, list[_torch.AllocatorEvent]]
MOST_POINTS = 1500  # of a curve in a record; a picture is not wider


def memwatch(*, exact: bool = False, eager: bool = False, top: int = 10) -> MemoryWatch:
    """Answer what a cell does to memory: peak, timeline, lines, modules, and what it leaves.

    Args:
        exact: take peak and timeline from the allocator's own events as the profiler records
            them; so what kernels allocate inside, a convolution's workspace say, counts too.
        eager: run compiled functions eagerly, so that their lines and modules are seen.
        top: how many rows the tables show; the record has them all.

    Returns:
        A context manager whose `report` is a `MemoryReport` once it has ended.

    Raises:
        ValueError: `top` is below 1.

    Cost: a census before and after (see `gpumem`), and about 15 µs an operation in between: 1.4x a
    small transformer's training step, 3.2x one of an MLP that takes 0.7 ms (benchmarks/RESULTS.md).
    Does not synchronise, collect garbage or reset a counter; results are bit-identical.
    Blind to: what kernels allocate inside unless `exact` (a convolution's, LSTM's or sort's), other
    threads' operations, the inside of compiled functions unless `eager`. What ends between two
    operations shows in the timeline at the second.
    Source: a dispatch mode and weak references to storages; on CUDA also the allocator's peak
    counter; with `exact`, ``torch.profiler``.
    """
    if top < 1:
        raise ValueError(f"top must be at least 1, not {top}")
    return MemoryWatch(exact=exact, eager=eager, top=top)


class _Ended(NamedTuple):
    """What was there at the end of a cell and not before: by where it was made, and by holder."""

    by_origin: dict[tuple[str, Origin], int]
    by_holder: tuple[Holding, ...]


class MemoryWatch:
    """The context manager that `memwatch` gives; enter it once."""

    def __init__(self, *, exact: bool, eager: bool, top: int) -> None:
        self._report: MemoryReport | None = None
        self._top = top
        self._eager = eager
        self._tracker = Tracker()
        self._stream = OpStream(self._tracker, eager=eager)
        self._recordings: list[AllocatorRecording | _torch.AllocatorHistory] = []
        if exact:
            self._recordings.append(AllocatorRecording())
        if torch.cuda.is_available():
            self._recordings.append(_torch.AllocatorHistory())
        self._devices = (*_torch.accelerators(), "cpu")

    @property
    def report(self) -> MemoryReport:
        """What was seen.

        Raises:
            RuntimeError: the watch has not ended yet.
        """
        if self._report is None:
            raise RuntimeError("the watch has not ended yet; its report comes after the block")
        return self._report

    def __enter__(self) -> Self:
        seen = census(meet=self._tracker.know)
        self._before = assemble(seen, self._devices, self._top)
        self._held_before = seen.storages
        self._peaks_before = _torch.allocator_peaks(self._devices)
        self._tracker.start_ns = time.time_ns()
        with ExitStack() as undo:
            for recording in self._recordings:
                recording.start()
                undo.callback(recording.stop, self._tracker.start_ns)
            self._stream.__enter__()
            undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        end_ns = time.time_ns()
        try:
            self._stream.__exit__(kind, *rest)
        finally:
            events: Events = {}
            for recording in reversed(self._recordings):
                events.update(recording.stop(self._tracker.start_ns))
            kept = self._tracker.kept()
            old = self._tracker.old()
            self._tracker.close()
        error = kind.__name__ if kind else ""
        with suppress(Exception) if kind else nullcontext():  # never hide the user's own error
            seen = census()
            after = assemble(seen, self._devices, self._top)
            duration_s = (end_ns - self._tracker.start_ns) / 1e9
            ended = _Ended(kept, _stayed(self._held_before, seen.storages, old))
            self._report = self._made(after, events, ended, duration_s, error)

    def _made(
        self,
        after: MemorySnapshot,
        events: Events,
        ended: _Ended,
        duration_s: float,
        error: str,
    ) -> MemoryReport:
        before = self._before
        peaks = tuple(
            self._peak(device.device, before, after, events.get(device.device), duration_s)
            for device in after.devices
        )
        main = max(peaks, key=lambda one: one.peak_bytes - one.before_bytes)
        source = self._source(main.device, events)
        return MemoryReport(
            before=before,
            after=after,
            device=main.device,
            peak_bytes=main.peak_bytes,
            added_peak_bytes=main.peak_bytes - main.before_bytes,
            timeline=tuple(zip(main.times_s, main.sizes_bytes, strict=True)),
            peaks=peaks,
            lines=_lines(self._tracker, ended.by_origin),
            modules=_modules(self._tracker),
            kept=ended.by_holder,
            source=source,
            duration_s=duration_s,
            error=error,
            notes=tuple(self._notes(source)),
        )

    def _peak(
        self,
        device: str,
        before: MemorySnapshot,
        after: MemorySnapshot,
        events: list[_torch.AllocatorEvent] | None,
        duration_s: float,
    ) -> DevicePeak:
        start_ns = self._tracker.start_ns
        tally = self._tracker.tallies.get(device) or DeviceTally(start_ns)
        line, added, when = tally.curve, tally.peak_bytes, tally.peak_ns
        if events:
            # CUDA's log has all frees; the profiler lacks those of blocks from before.
            old_frees = self._tracker.old_frees[device] if device == "cpu" else []
            line = curve(events, old_frees, start_ns)
            added = max(line.sizes_bytes)
            when = line.times_ns[line.sizes_bytes.index(added)]
        held = _held(before, device)
        counted = _torch.allocator_peaks((device,)).get(device, 0)
        if counted > self._peaks_before.get(device, counted):
            # The allocator's own peak rose meanwhile, so it was reached in this cell.
            added = max(added, counted - held)
        at_end = _held(after, device)
        added = max(added, at_end - held)  # what came past all operations is there at the end
        times_s, sizes = _points(line, start_ns, held, duration_s, at_end)
        return DevicePeak(
            device,
            held,
            held + added,
            at_end,
            max(0.0, (when - start_ns) / 1e9),
            _source(tally.peak_site),
            times_s,
            sizes,
        )

    def _source(self, device: str, events: Events) -> str:
        if device not in events:
            return "op stream"
        return "profiler" if device == "cpu" else "allocator history"

    def _notes(self, source: str) -> list[str]:
        notes = list(dict.fromkeys(note for one in self._before.devices for note in one.notes))
        if source == "op stream":
            notes.append(
                "What kernels allocate inside (on the CPU: convolutions, LSTMs, attention, sorts) is not in "
                "these figures; --exact counts it."
            )
        notes += [f"No allocator log: {one.why_not}." for one in self._recordings if one.why_not]
        if _torch.has_compiled() and not self._eager:
            notes.append(_compiled_note())
        return notes


def _compiled_note() -> str:
    if not _torch.compiles_under_modes():
        return "This torch runs compiled functions eagerly while operations are watched."
    return (
        "Compiled functions ran as compiled: what they allocate inside is not attributed; --eager "
        "runs them eagerly and shows it."
    )


def _held(snapshot: MemorySnapshot, device: str) -> int:
    """Give what was held on a device: by torch's own count where it has one."""
    for one in snapshot.devices:
        if one.device == device:
            allocated = one.allocated_bytes
            return allocated if isinstance(allocated, int) else one.tracked_bytes
    return 0


def _points(
    line: Curve, start_ns: int, held: int, duration_s: float, at_end: int
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Give the curve as absolute bytes over seconds, to the end of the cell."""
    while len(line.times_ns) > MOST_POINTS:
        line.thin()
    times = [max(0.0, (when - start_ns) / 1e9) for when in line.times_ns]
    sizes = [held + size for size in line.sizes_bytes]
    return (*times, max(duration_s, times[-1])), (*sizes, at_end)


def _source(site: Site) -> SourceLine | None:
    return notebook.source_line(*site) if site is not None else None


def _lines(tracker: Tracker, kept: dict[tuple[str, Origin], int]) -> tuple[LineMemory, ...]:
    sums: dict[tuple[str, Site], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for (device, origin), (size, number) in tracker.allocated.items():
        row = sums[device, origin.site]
        row[0] += size
        row[1] += number
        row[2] += tracker.tallies[device].at_peak.get(origin, 0)
        row[3] += kept.get((device, origin), 0)
    lines = [LineMemory(_source(site), device, *row) for (device, site), row in sums.items()]
    return tuple(sorted(lines, key=lambda one: -one.allocated_bytes))


def _modules(tracker: Tracker) -> tuple[ModuleMemory, ...]:
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for (device, origin), (size, number) in tracker.allocated.items():
        if origin.module:
            row = sums[device, origin.module]
            row[0] += size
            row[1] += number
            row[2] += tracker.tallies[device].at_peak.get(origin, 0)
    types = tracker.modules.type_names
    modules = [
        ModuleMemory(name, types.get(name, ""), device, *row)
        for (device, name), row in sums.items()
    ]
    return tuple(sorted(modules, key=lambda one: -one.allocated_bytes))


def _stayed(
    before: Iterable[HeldStorage], after: Iterable[HeldStorage], old: dict[int, int]
) -> tuple[Holding, ...]:
    """Give what holders have more than before. What took the place of what is gone is no more.

    Args:
        before: the storages of then.
        after: those of now.
        old: size of each storage that was there then and still is, by handle.
    """
    gone: dict[Any, int] = defaultdict(int)
    for one in before:
        gone[_holder(one)] += one.size_bytes - _bytes_of(one, old)
    by_device = defaultdict(list)
    for one in after:
        size = one.size_bytes - _bytes_of(one, old)
        replaced = min(size, gone[_holder(one)])
        gone[_holder(one)] -= replaced
        if size > replaced:
            by_device[one.device].append(one._replace(size_bytes=size - replaced))
    found = [one for group in by_device.values() for one in holdings(group)]
    return tuple(sorted(found, key=lambda one: -one.size_bytes))


def _holder(one: HeldStorage) -> tuple[str, str, str]:
    return one.device, one.claims[0].kind, one.claims[0].owner


def _bytes_of(one: HeldStorage, sizes: dict[int, int]) -> int:
    return sum(sizes.get(handle, 0) for handle in one.handles)
