"""The allocator's own account of a cell, as the profiler records it."""

from __future__ import annotations

import time
from typing import Any

from nbinspect import _torch
from nbinspect.blocks import Unavailable
from nbinspect.memory.tracker import Curve


class AllocatorRecording:
    """Records every call of torch's CPU and CUDA allocators between `start` and `stop`.

    Attributes:
        why_not: why nothing could be recorded, "" if it could.

    Cost: about that of ``torch.profiler.profile(profile_memory=True)``.
    Blind to: blocks from before the start that are freed; the profiler does not know their size.
    Source: ``torch.profiler``.
    """

    def __init__(self) -> None:
        self.why_not = ""
        self._profiler: Any = None
        self._start_ns = 0

    def start(self) -> None:
        """Begin; another profiler that is running already is left alone."""
        from torch.profiler import ProfilerActivity, profile

        self._start_ns = time.time_ns()
        self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        try:
            self._profiler.__enter__()
        except RuntimeError as error:
            self._profiler, self.why_not = None, str(error).splitlines()[0]

    def stop(self) -> dict[str, list[_torch.AllocatorEvent]]:
        """End, and give the events of each device, the first first."""
        if self._profiler is None:
            return {}
        self._profiler.__exit__(None, None, None)
        events = _torch.allocator_events(self._profiler)
        self._profiler = None
        if isinstance(events, Unavailable):
            self.why_not = events.reason
            return {}
        by_device: dict[str, list[_torch.AllocatorEvent]] = {}
        for event in events:
            by_device.setdefault(event.device, []).append(event)
        return by_device


def curve(
    events: list[_torch.AllocatorEvent], old_frees: list[tuple[int, int]], start_ns: int
) -> Curve:
    """Add up what the allocator gave and took.

    Args:
        events: its calls, in order.
        old_frees: (time in ns, bytes) of storages from before the start that ended meanwhile.
        start_ns: when the curve begins.
    """
    steps: list[tuple[int, int]] = [(when, -size) for when, size in old_frees]
    mine: set[int] = set()
    for event in events:
        if event.size_bytes >= 0:
            mine.add(event.address)
            steps.append((event.time_ns, event.size_bytes))
        elif event.address in mine:  # others began before us and are among `old_frees`
            mine.discard(event.address)
            steps.append((event.time_ns, event.size_bytes))
    found, held = Curve(start_ns), 0
    for when, change in sorted(steps, key=lambda step: step[0]):
        held += change
        found.add(when, held)
    return found
