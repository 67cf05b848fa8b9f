"""`memsnapshot`: a snapshot file as a record."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbinspect.snapshots.reading import number, read, text
from nbinspect.snapshots.records import AllocatorSnapshot, SegmentMap
from nbinspect.snapshots.replay import Replay, replay, stretches, thinned

TICK_S = 1e-9  # between entries of the same microsecond
STATES = ("active_allocated", "active_pending_free", "inactive")


def memsnapshot(path: str | os.PathLike[str], *, device: int | None = None) -> AllocatorSnapshot:
    """Answer what filled a GPU, from a snapshot file, with no GPU at hand.

    Args:
        path: a file of ``torch.cuda.memory._dump_snapshot``, old or new, gzipped or not.
        device: index of the GPU to look at; else all segments are counted, and the times are
            those of the GPU with the longest log.

    Returns:
        A record of plain values. Its totals are the file's own sums over segments.

    Raises:
        ValueError: the file is no snapshot; nothing in it was executed.
        OSError: it cannot be read.

    Cost: under 1 s for 20,000 entries. Needs neither torch nor a network.
    Blind to: who held the memory: a snapshot knows who asked for it. What was allocated and freed
    before the log began. What was freed counts as what was asked for, before rounding to a block.
    Source: the format that ``torch.cuda.memory._snapshot`` documents.
    """
    file = Path(path).expanduser()
    return as_record(read(file), file.name, device)


def as_record(found: dict[str, Any], name: str, wanted: int | None = None) -> AllocatorSnapshot:
    """Make a record of what ``torch.cuda.memory._snapshot`` gives.

    Raises:
        ValueError: it is no snapshot, or no such device is in it.
    """
    traces = found["device_traces"]
    device = _device(found, wanted)
    here = [one for one in found["segments"] if number(one, "device", 0) == device]
    counted = found["segments"] if wanted is None else here
    trace = traces[device] if device < len(traces) else []
    start_us, times = _times(trace)
    maps = tuple(map(_segment, counted))
    own = [one for one in maps if one.device == device]
    played = replay(trace, here, own, times)
    peak = max(played.moments, key=lambda one: one.allocated_bytes)
    return AllocatorSnapshot(
        name=name,
        device=device,
        reserved_bytes=sum(one.total_bytes for one in maps),
        allocated_bytes=sum(one.allocated_bytes for one in maps),
        active_bytes=sum(one.active_bytes for one in maps),
        requested_bytes=sum(one.requested_bytes for one in maps),
        peak_bytes=peak.allocated_bytes,
        peak_time_s=peak.time_s,
        segments=maps,
        allocations=tuple(played.allocations),
        timeline=thinned(played.moments),
        oom=tuple(played.oom),
        annotations=stretches(found.get("external_annotations"), device, start_us),
        has_times=bool(start_us),
        n_entries=len(trace),
        settings=tuple(_settings(found.get("allocator_settings"))),
        notes=tuple(_notes(found, device, wanted, trace, played)),
    )


def record_snapshot() -> AllocatorSnapshot:
    """Answer what fills this process's GPU now, from a snapshot taken on the spot.

    Raises:
        ValueError: there is no CUDA device here, or this torch takes no snapshots.

    Cost: one walk over the allocator's segments and its log; a log that was not on is not begun.
    Blind to: the past, unless ``torch.cuda.memory._record_memory_history()`` ran before.
    Source: ``torch.cuda.memory._snapshot``.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_available() or not cuda.is_initialized():
        raise ValueError("this process uses no CUDA device; give the name of a snapshot file")
    from nbinspect import _torch

    try:
        found = _torch.allocator_snapshot()
    except (AttributeError, RuntimeError):  # the driver's own allocator, or one plugged in
        raise ValueError("this process's CUDA allocator takes no snapshots") from None
    return as_record(found, "this process")


def _device(found: dict[str, Any], wanted: int | None) -> int:
    traces, segments = found["device_traces"], found["segments"]
    known = {number(one, "device", 0) for one in segments}
    known |= {index for index, trace in enumerate(traces) if trace}
    if wanted is not None:
        if wanted not in known:
            names = ", ".join(map(str, sorted(known))) or "none"
            raise ValueError(f"no device {wanted} in this snapshot; it has {names}")
        return wanted
    sizes = {
        one: sum(number(s, "total_size") for s in segments if number(s, "device", 0) == one)
        for one in known
    }
    lengths = {one: len(traces[one]) if one < len(traces) else 0 for one in known}
    return max(sorted(known), key=lambda one: (lengths[one], sizes[one]), default=0)


def _times(trace: list[Any]) -> tuple[int, list[float]]:
    """Give the log's start and each entry's seconds since; old files have numbers instead.

    Clocks tick in microseconds and differ between threads: an entry is after the one before it.
    """
    if not trace or not all(isinstance(one, dict) and "time_us" in one for one in trace):
        return 0, [float(index + 1) for index in range(len(trace))]
    start, now, times = number(trace[0], "time_us"), -TICK_S, list[float]()
    for one in trace:
        now = max(now + TICK_S, (number(one, "time_us") - start) / 1e6)
        times.append(now)
    return start, times


def _segment(segment: Any) -> SegmentMap:
    blocks = tuple((number(one, "size"), _state(one)) for one in segment["blocks"])
    sums = {state: sum(size for size, own in blocks if own == state) for state in STATES}
    allocated = number(segment, "allocated_size", sums["active_allocated"])
    return SegmentMap(
        device=number(segment, "device", 0),
        address=number(segment, "address", 0),
        total_bytes=number(segment, "total_size"),
        allocated_bytes=allocated,
        active_bytes=number(
            segment, "active_size", sums["active_allocated"] + sums["active_pending_free"]
        ),
        requested_bytes=number(segment, "requested_size", allocated),
        stream=number(segment, "stream", 0),
        kind=text(segment, "segment_type"),
        is_expandable=segment.get("is_expandable") is True,
        blocks=blocks,
    )


def _state(block: Any) -> str:
    """Give a block's state; one that waits has other names in other versions."""
    state = text(block, "state")
    if state in STATES:
        return state
    return "active_pending_free" if state.startswith("active") else "inactive"


def _settings(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        for name, value in found.items():
            if isinstance(value, str | int | float) and value not in ("", False):
                yield f"{name}={value}"


def _notes(
    found: dict[str, Any], device: int, wanted: int | None, trace: list[Any], played: Replay
) -> Iterator[str]:
    others = {number(one, "device", 0) for one in found["segments"]} - {device}
    if others and wanted is None:
        yield f"Totals are of all GPUs; times and lines are those of GPU {device}."
    if not trace:
        yield (
            "There is no log: call torch.cuda.memory._record_memory_history() before what is to be "
            "seen."
        )
        return
    before = sum(one.size_bytes for one in played.allocations if one.start_s is None and one.end_s)
    if before:
        yield "Some blocks were allocated before the log began; who asked for them is not known."
    if "time_us" not in trace[0]:
        yield "This old file has no times: where seconds stand, read numbers of entries."
