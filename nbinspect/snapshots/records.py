"""What an allocator snapshot shows, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from nbinspect.blocks import View
from nbinspect.records import Record, SourceLine


@dataclass(frozen=True, slots=True)
class SegmentMap:
    """One piece of memory that the allocator got from the driver.

    Attributes:
        device: index of the GPU.
        address: where it begins.
        total_bytes: its size, which counts as reserved.
        allocated_bytes: given to tensors.
        active_bytes: the same, and what waits for a stream before it can be reused.
        requested_bytes: what the tensors asked for, before rounding.
        stream: the stream that it belongs to.
        kind: ``large`` or ``small``.
        is_expandable: it can grow.
        blocks: (bytes, state), in order of address; a state is ``active_allocated``,
            ``active_pending_free`` or ``inactive``.
    """

    device: int
    address: int
    total_bytes: int
    allocated_bytes: int
    active_bytes: int
    requested_bytes: int
    stream: int
    kind: str
    is_expandable: bool
    blocks: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Allocation:
    """One call of the allocator.

    Attributes:
        size_bytes: what was asked for; of one that is there before or after the log, its block's.
        where: the line that asked, the user's own first; None if nobody recorded it.
        function: the function that the line is in.
        start_s: when, None if before the log began.
        end_s: when it was freed, None if it never was.
        stream: for which stream.
    """

    size_bytes: int
    where: SourceLine | None
    function: str
    start_s: float | None
    end_s: float | None
    stream: int


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes at one moment and from then on."""

    time_s: float
    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """An allocation that was refused.

    Attributes:
        time_s: when.
        asked_bytes: what was asked for.
        free_bytes: what the device had left.
        where: the line that asked.
        function: the function that the line is in.
    """

    time_s: float
    asked_bytes: int
    free_bytes: int
    where: SourceLine | None
    function: str


@dataclass(frozen=True, slots=True)
class Annotation:
    """A named stretch of time, e.g. ``Optimizer.step#AdamW.step``; `end_s` is None if it is open."""

    name: str
    start_s: float
    end_s: float | None


@dataclass(frozen=True, slots=True)
class LineBytes:
    """What one line holds at some moment."""

    where: SourceLine | None
    function: str
    size_bytes: int
    n_allocations: int


@dataclass(frozen=True, slots=True)
class AllocatorSnapshot(Record):
    """A snapshot of torch's CUDA allocator.

    Attributes:
        name: the file's name.
        device: index of the GPU that the times are about.
        reserved_bytes: sum of the segments.
        allocated_bytes: of it, given to tensors.
        active_bytes: of it, given or waiting for a stream.
        requested_bytes: what the tensors asked for, before rounding to blocks.
        peak_bytes: the most that was allocated at once while the log ran; at its end, if there
            is no log.
        peak_time_s: when that was.
        segments: every segment with its blocks.
        allocations: every allocation that the log or a block tells of, in order of time.
        timeline: allocated, active and reserved bytes over time, thinned without losing peaks.
        oom: allocations that were refused.
        annotations: named stretches of time.
        has_times: false for old files, where seconds are numbers of entries.
        n_entries: entries of the log.
        settings: the allocator's settings, as ``name=value``.
        notes: what is not known, and why.
    """

    name: str
    device: int
    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    requested_bytes: int
    peak_bytes: int
    peak_time_s: float
    segments: tuple[SegmentMap, ...]
    allocations: tuple[Allocation, ...]
    timeline: tuple[Moment, ...]
    oom: tuple[FailedAllocation, ...]
    annotations: tuple[Annotation, ...]
    has_times: bool
    n_entries: int
    settings: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def alive_at(self, time_s: float) -> tuple[LineBytes, ...]:
        """Say what was alive at a moment, by the line that allocated it, the largest first."""
        sums: dict[tuple[SourceLine | None, str], list[int]] = {}
        for one in self.allocations:
            began = one.start_s is None or one.start_s <= time_s
            if began and (one.end_s is None or one.end_s > time_s):
                row = sums.setdefault((one.where, one.function), [0, 0])
                row[0] += one.size_bytes
                row[1] += 1
        lines = [LineBytes(*line, *row) for line, row in sums.items()]
        return tuple(sorted(lines, key=lambda one: -one.size_bytes))

    @property
    def free_blocks_bytes(self) -> tuple[int, ...]:
        """Sizes of the free blocks, the largest first: reserved, but in use by nobody."""
        sizes = [size for one in self.segments for size, state in one.blocks if state == "inactive"]
        return tuple(sorted(sizes, reverse=True))

    def view(self) -> View:
        """Show the peak, the curve, what was alive at the peak and the map of segments."""
        from nbinspect.snapshots.view import snapshot_view

        return snapshot_view(self)
