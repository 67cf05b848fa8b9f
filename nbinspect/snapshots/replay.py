"""Plays an allocator's log back: what was held when, and by which line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from nbinspect.snapshots.frames import Line, Lines
from nbinspect.snapshots.reading import number, text
from nbinspect.snapshots.records import Allocation, Annotation, FailedAllocation, Moment, SegmentMap

RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
ACTIVE = {"alloc": 1, "free_completed": -1}
ALLOCATED = {"alloc": 1, "free_requested": -1}
ALLOCATED_BLOCK = "active_allocated"
MOST_MOMENTS = 3000


@dataclass(slots=True)
class Replay:
    """What a log tells.

    Attributes:
        moments: every one, in order.
        allocations: in order of time.
        oom: refused allocations.
    """

    moments: list[Moment] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    oom: list[FailedAllocation] = field(default_factory=list)


def replay(
    trace: list[Any], segments: Iterable[Any], maps: Iterable[SegmentMap], times: list[float]
) -> Replay:
    """Play a log back from its end, where the segments tell what is held.

    The log may have begun after the program did, or have lost its oldest entries; its end is the
    snapshot itself. So the curves are laid through the end.

    Args:
        trace: entries of one device, the oldest first.
        segments: that device's segments, as in the file.
        maps: the same, as records.
        times: the entries' times in seconds.
    """
    maps = list(maps)
    ends = (
        sum(one.allocated_bytes for one in maps),
        sum(one.active_bytes for one in maps),
        sum(one.total_bytes for one in maps),
    )
    segments = list(segments)
    sizes = _sizes(trace, segments)
    curves = [
        _curve(trace, sizes, signs, end)
        for signs, end in zip((ALLOCATED, ACTIVE, RESERVES), ends, strict=True)
    ]
    found = Replay([Moment(*row) for row in zip([0.0, *times], *curves, strict=True)])
    _Lives(found, Lines()).play(trace, sizes, times, segments)
    return found


def _sizes(trace: list[Any], segments: list[Any]) -> list[int]:
    """Give each entry's bytes: of an allocation that lives to the end its block's, as in the totals."""
    sizes = [number(one, "size", 0) for one in trace]
    blocks = {at: size for at, size, state, _ in _blocks_of(segments) if state == ALLOCATED_BLOCK}
    seen = set[int]()
    for index in range(len(trace) - 1, -1, -1):
        if text(trace[index], "action") in ALLOCATED:
            at = number(trace[index], "addr")
            if at not in seen and text(trace[index], "action") == "alloc":
                sizes[index] = blocks.get(at, sizes[index])
            seen.add(at)
    return sizes


def _blocks_of(segments: list[Any]) -> Iterator[tuple[int, int, str, Any]]:
    """Yield (address, bytes, state, itself) of each block; old files do not tell their addresses."""
    for segment in segments:
        address = number(segment, "address", 0)
        for block in segment["blocks"]:
            size, at = number(block, "size"), number(block, "address", address)
            address = at + size
            yield at, size, text(block, "state"), block


def _curve(trace: list[Any], sizes: list[int], signs: dict[str, int], end: int) -> list[int]:
    """Give the bytes before the first entry and after each, so that they end at `end`."""
    steps = [
        signs.get(text(one, "action"), 0) * size for one, size in zip(trace, sizes, strict=True)
    ]
    return list(accumulate(steps, initial=end - sum(steps)))


class _Lives:
    """Pairs allocations with their ends."""

    def __init__(self, found: Replay, lines: Lines) -> None:
        self._found = found
        self._lines = lines
        self._open: dict[int, tuple[float, int, Line, int]] = {}

    def play(
        self, trace: list[Any], sizes: list[int], times: list[float], segments: list[Any]
    ) -> None:
        for one, size, time_s in zip(trace, sizes, times, strict=True):
            action = text(one, "action")
            if action == "alloc":
                line = self._lines.of(one)
                self._open[number(one, "addr")] = time_s, size, line, number(one, "stream", 0)
            elif action == "free_requested":
                self._end(one, time_s)
            elif action == "oom":
                line = self._lines.of(one)
                free = number(one, "device_free", 0)
                self._found.oom.append(FailedAllocation(time_s, size, free, *line))
        self._blocks(segments)
        for start_s, size, line, stream in self._open.values():
            self._found.allocations.append(Allocation(size, *line, start_s, None, stream))
        self._found.allocations.sort(key=lambda one: -1.0 if one.start_s is None else one.start_s)

    def _end(self, entry: Any, time_s: float) -> None:
        known = self._open.pop(number(entry, "addr"), None)
        if known is None:  # from before the log, so nobody recorded who asked
            start, size, line = None, number(entry, "size"), Line(None, "")
            stream = number(entry, "stream", 0)
        else:
            start, size, line, stream = known
        self._found.allocations.append(Allocation(size, *line, start, time_s, stream))

    def _blocks(self, segments: list[Any]) -> None:
        """Add what is allocated at the end and was so before the log began."""
        for segment in segments:
            stream = number(segment, "stream", 0)
            for at, size, state, block in _blocks_of([segment]):
                if state == ALLOCATED_BLOCK and at not in self._open:
                    line = self._lines.of(block)
                    self._found.allocations.append(Allocation(size, *line, None, None, stream))


def thinned(moments: list[Moment]) -> tuple[Moment, ...]:
    """Keep some of many moments: of each run the lowest and the highest, the first and the last."""
    if len(moments) <= MOST_MOMENTS:
        return tuple(moments)
    length = -(-6 * len(moments) // MOST_MOMENTS)
    keep = {0, len(moments) - 1}
    for start in range(0, len(moments), length):
        run = range(start, min(start + length, len(moments)))
        for name in ("allocated_bytes", "active_bytes", "reserved_bytes"):
            sizes = [getattr(moments[at], name) for at in run]
            keep.add(start + sizes.index(min(sizes)))
            keep.add(start + sizes.index(max(sizes)))
    return tuple(moments[at] for at in sorted(keep))


def stretches(entries: Any, device: int, start_us: int) -> tuple[Annotation, ...]:
    """Pair the starts and ends of named stretches of time."""
    found, open_ = list[Annotation](), dict[str, list[float]]()
    for one in entries if isinstance(entries, list) else []:
        if number(one, "device", device) != device:
            continue
        name, time_s = text(one, "name"), (number(one, "time_us", start_us) - start_us) / 1e6
        if text(one, "stage") == "START":
            open_.setdefault(name, []).append(time_s)
        elif open_.get(name):
            found.append(Annotation(name, open_[name].pop(), time_s))
    found += [Annotation(name, start, None) for name, starts in open_.items() for start in starts]
    return tuple(sorted(found, key=lambda one: one.start_s))
