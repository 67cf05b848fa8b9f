"""The allocator's own account of a cell, as the profiler records it."""

from __future__ import annotations

from typing import Any

from nbinspect import _torch
from nbinspect.blocks import Unavailable
from nbinspect.memory.stderr_lines import without_lines
from nbinspect.memory.tracker import Curve

# torch's profiler tells of each start and stop on standard error; only a log level that hides its
# errors too would silence that.
_CHATTER = b"SyncActivityProfilerHandler.cpp"


class AllocatorRecording:
    """Records every call of torch's CPU allocator between `start` and `stop`, by its profiler.

    Attributes:
        why_not: why nothing could be recorded, "" if it could.

    Cost: about that of ``torch.profiler.profile(profile_memory=True)``.
    Blind to: blocks from before the start that are freed; the profiler does not know their size.
    Source: ``torch.profiler``.
    """

    def __init__(self) -> None:
        self.why_not = ""
        self._profiler: Any = None

    def start(self) -> None:
        """Begin; another profiler that is running already is left alone."""
        from torch.profiler import ProfilerActivity, profile

        if _torch.is_profiling():
            self.why_not = "another profiler is running"
            return
        self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        with without_lines(_CHATTER):
            self._profiler.__enter__()

    def stop(self, _since_ns: int) -> dict[str, list[_torch.AllocatorEvent]]:
        """End, and give the events, the first first, by device."""
        if self._profiler is None:
            return {}
        with without_lines(_CHATTER):
            self._profiler.__exit__(None, None, None)
        events = _torch.allocator_events(self._profiler)
        self._profiler = None
        if isinstance(events, Unavailable):
            self.why_not = events.reason
            return {}
        return {"cpu": own_blocks([one for one in events if one.device == "cpu"])}


def curve(
    events: list[_torch.AllocatorEvent], old_frees: list[tuple[int, int]], start_ns: int
) -> Curve:
    """Add up what the allocator gave and took.

    Args:
        events: its calls, in order.
        old_frees: (time in ns, bytes) of storages from before the start that ended meanwhile, for
            an allocator that does not log them itself.
        start_ns: when the curve begins.
    """
    steps = [(one.time_ns, one.size_bytes) for one in events]
    steps += [(when, -size) for when, size in old_frees]
    found, held = Curve(start_ns), 0
    for when, change in sorted(steps, key=lambda step: step[0]):
        held += change
        found.add(when, held)
    return found


def own_blocks(events: list[_torch.AllocatorEvent]) -> list[_torch.AllocatorEvent]:
    """Leave out frees of blocks that were given before the recording began.

    The profiler knows some of them, from an earlier recording, and not others, so none can be
    relied on.
    """
    mine: set[int] = set()
    found = []
    for event in events:
        if event.size_bytes >= 0:
            mine.add(event.address)
        elif event.address not in mine:
            continue
        else:
            mine.discard(event.address)
        found.append(event)
    return found
