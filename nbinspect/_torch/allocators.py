"""What the allocators of devices have given, and to whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from nbinspect.blocks import Reading, Unavailable


@dataclass(frozen=True, slots=True)
class AllocatorCounters:
    """What torch's caching allocator says of one device.

    Attributes:
        total_bytes: the device's memory.
        free_bytes: of it, free for anybody.
        allocated_bytes: held by tensors.
        reserved_bytes: held by the allocator, so allocated plus cached.
        inactive_split_bytes: cached in pieces of blocks that are partly in use.
        peak_allocated_bytes: the most that was allocated since the process started or the
            counter was last reset.
    """

    total_bytes: Reading
    free_bytes: Reading
    allocated_bytes: Reading
    reserved_bytes: Reading
    inactive_split_bytes: Reading
    peak_allocated_bytes: Reading


def accelerators() -> tuple[str, ...]:
    """Name the accelerators of this process, e.g. ``("cuda:0", "cuda:1")``; () on a CPU build."""
    api = getattr(torch, "accelerator", None)
    try:
        if api is None or not api.is_available():
            return ()
        kind = api.current_accelerator().type
        return tuple(f"{kind}:{index}" for index in range(api.device_count()))
    except RuntimeError:  # a driver that is there but broken
        return ()


def in_use(device: torch.device) -> bool:
    """Say whether this process has already opened `device`, so that asking costs no context."""
    module = getattr(torch, device.type, None)
    opened = getattr(module, "is_initialized", None)
    return bool(opened()) if opened is not None else True


def allocator_counters(device: torch.device) -> AllocatorCounters:
    """Read the allocator's counters of one accelerator.

    Cost: no synchronisation and no device memory; an unopened device stays unopened.
    Source: ``torch.cuda.memory_stats``, ``torch.cuda.mem_get_info``, ``torch.accelerator``.
    """
    if not in_use(device):
        closed = Unavailable(f"this process has not used {device.type} yet")
        return AllocatorCounters(closed, closed, 0, 0, 0, 0)
    stats = _memory_stats(device)
    if isinstance(stats, Unavailable):
        return AllocatorCounters(*_mem_get_info(device, opened=True), *(stats,) * 4)

    def stat(name: str) -> Reading:
        return int(stats.get(f"{name}.all.current", 0))

    allocated, reserved = stat("allocated_bytes"), stat("reserved_bytes")
    peak = int(stats.get("allocated_bytes.all.peak", 0))
    total, free = _mem_get_info(device, opened=bool(reserved))
    inactive = stat("inactive_split_bytes")
    return AllocatorCounters(total, free, allocated, reserved, inactive, peak)


def _memory_stats(device: torch.device) -> dict[str, Any] | Unavailable:
    module: Any = getattr(torch, device.type, None)
    for owner in (module, getattr(torch, "accelerator", None)):
        stats = getattr(owner, "memory_stats", None)
        if stats is not None:
            try:
                return dict(stats(device))
            except (RuntimeError, NotImplementedError, AssertionError, ValueError):
                continue
    return _mps_stats(module)


def _mps_stats(module: Any) -> dict[str, Any] | Unavailable:
    """Apple's allocator has two counters of its own and no peak."""
    if not hasattr(module, "current_allocated_memory"):
        return Unavailable("this device's allocator keeps no statistics")
    allocated = module.current_allocated_memory()
    reserved = module.driver_allocated_memory()
    return {
        "allocated_bytes.all.current": allocated,
        "reserved_bytes.all.current": reserved,
        "allocated_bytes.all.peak": allocated,
    }


def _mem_get_info(device: torch.device, *, opened: bool) -> tuple[Reading, Reading]:
    """Give (total, free) of a device that this process already holds memory on."""
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, "recommended_max_memory"):
        total = int(module.recommended_max_memory())
        return total, total - int(module.driver_allocated_memory())
    if not opened:  # asking would create a context of some hundred MB there
        why = Unavailable(f"this process holds nothing on {device}")
        return why, why
    asked = (
        getattr(module, "mem_get_info", None),
        getattr(getattr(torch, "accelerator", None), "get_memory_info", None),
    )
    for ask in filter(None, asked):
        try:
            free, total = ask(device)
            return int(total), int(free)
        except (RuntimeError, NotImplementedError):  # not this device's allocator
            continue
    why = Unavailable(f"{device.type} does not say how much memory it has")
    return why, why


def allocator_peaks(devices: Iterable[str]) -> dict[str, int]:
    """Give the most that was ever allocated, by device; devices without such a counter are left out."""
    peaks = {}
    for name in devices:
        if name != "cpu":
            peak = allocator_counters(torch.device(name)).peak_allocated_bytes
            if isinstance(peak, int):
                peaks[name] = peak
    return peaks


def free_blocks(device: torch.device) -> tuple[int, ...] | Unavailable:
    """Give the sizes of the cached blocks that nothing uses, the largest first.

    Cost: one walk over the allocator's segments, some ms; no synchronisation.
    Source: ``torch.cuda.memory_snapshot``.
    """
    unlisted = Unavailable(f"{device.type}'s allocator does not list its blocks")
    if device.type != "cuda" or not in_use(device):
        return unlisted
    try:
        found = torch.cuda.memory_snapshot()
    except RuntimeError:  # the driver's own allocator, or the user's
        return unlisted
    segments = [one for one in found if one["device"] == device.index]
    blocks = [block for one in segments for block in one["blocks"] if block["state"] == "inactive"]
    return tuple(sorted((int(block["size"]) for block in blocks), reverse=True))


def line_that_empties(device: torch.device) -> str:
    """Give the line of code that lets a device's allocator give back what it has cached."""
    module = getattr(torch, device.type, None)
    owner = f"torch.{device.type}" if hasattr(module, "empty_cache") else "torch.accelerator"
    return f"import torch; {owner}.empty_cache()"


def expandable_segments() -> bool:
    """Say whether the CUDA allocator already grows its segments; False where it does not say.

    Source: the allocator's settings in ``torch.cuda.memory._snapshot``.
    """
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return False
    try:
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        return bool(settings["expandable_segments"])
    except (AttributeError, KeyError, RuntimeError):
        return False


def nvml_name(device: torch.device) -> str | int | None:
    """Give the name under which NVML knows a CUDA device; None for other devices."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    if in_use(device):
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        if uuid is not None:
            return f"GPU-{uuid}"
    number = getattr(torch.cuda, "_get_nvml_device_index", None)
    try:
        return int(number(device.index)) if number is not None else device.index
    except RuntimeError:
        return None


def is_profiling() -> bool:
    """Say whether a profiler is running: a second one would take its events away."""
    running = getattr(torch.autograd, "_profiler_enabled", None)
    return bool(running()) if running is not None else False


class AllocatorEvent(NamedTuple):
    """One call of an allocator; `size_bytes` is below zero where a block was freed."""

    time_ns: int
    address: int
    size_bytes: int
    device: str


def allocator_events(profiler: Any) -> list[AllocatorEvent] | Unavailable:
    """Read the allocator's calls from a stopped ``torch.profiler.profile(profile_memory=True)``.

    Source: the profiler's event tree, whose allocation events have addresses.
    """
    try:
        roots = profiler.profiler.kineto_results.experimental_event_tree()
        wanted = torch._C._profiler._EventType.Allocation
    except AttributeError as error:
        return Unavailable(f"this torch's profiler has no event tree: {error}")
    events, todo = [], list(roots)
    while todo:
        one = todo.pop()
        todo.extend(one.children)
        if one.typed[0] == wanted:
            what = one.extra_fields
            device = str(what.device)
            events.append(AllocatorEvent(one.start_time_ns, what.ptr, what.alloc_size, device))
    return sorted(events, key=lambda one: one.time_ns)


HISTORY_ENTRIES = 200_000  # some 40 MB; older entries make room for newer ones


class AllocatorHistory:
    """The CUDA allocator's own log of what it gave and took.

    A log that the user keeps already is read and left as it is. Stacks are not recorded, so it
    costs under 1 µs an allocation.

    Attributes:
        why_not: why there is no log, "" if there is.
    """

    def __init__(self) -> None:
        self.why_not = ""
        self._is_ours = False
        self._calls: dict[str, tuple[int, int]] = {}

    def start(self) -> None:
        """Begin to log, where this process uses CUDA and its torch can."""
        enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        if not torch.cuda.is_initialized():
            self.why_not = "CUDA was not in use when the cell began"
            return
        if enabled is None:
            self.why_not = "this torch keeps no log of its CUDA allocator"
            return
        try:
            if not enabled():
                torch.cuda.memory._record_memory_history(
                    "all", context=None, stacks="python", max_entries=HISTORY_ENTRIES
                )
                self._is_ours = True
        except RuntimeError:
            self.why_not = "the driver's own allocator, or one that was plugged in, keeps none"
            return
        self._calls = {name: _n_calls(name) for name in accelerators()}

    def stop(self, since_ns: int) -> dict[str, list[AllocatorEvent]]:
        """End the log if it is ours, and give each device's events since a moment."""
        if self.why_not:
            return {}
        # Counted first: what making the snapshot lets the collector free is no part of the cell.
        calls = {name: _n_calls(name) for name in self._calls}
        try:
            traces = torch.cuda.memory._snapshot()["device_traces"]
        finally:
            if self._is_ours:
                torch.cuda.memory._record_memory_history(None)
        found = {}
        for index, trace in enumerate(traces):
            name = f"cuda:{index}"
            events = history_events(trace, since_ns, name)
            before, now = self._calls.get(name, (0, 0)), calls.get(name, (0, 0))
            if lacks_calls(events, now[0] - before[0], now[1] - before[1]):
                self.why_not = "the log that is kept has not room for all that the cell allocated"
            elif events:
                found[name] = events
        return found


def _n_calls(device: str) -> tuple[int, int]:
    """Count what a device's allocator was asked for so far, and what it was given back."""
    stats = _memory_stats(torch.device(device))
    if isinstance(stats, Unavailable):
        return 0, 0
    return stats.get("allocation.all.allocated", 0), stats.get("allocation.all.freed", 0)


def lacks_calls(events: Iterable[AllocatorEvent], n_given: int, n_taken: int) -> bool:
    """Say whether a log lacks some of the allocator's calls, by the allocator's own count.

    The log is a ring whose size its owner chose, and may leave out kinds of calls; with ``"state"``
    it has room for one.
    """
    sizes = [one.size_bytes for one in events]
    return sum(size > 0 for size in sizes) < n_given or sum(size < 0 for size in sizes) < n_taken


def history_events(
    trace: Iterable[dict[str, Any]], since_ns: int, device: str
) -> list[AllocatorEvent]:
    """Read a CUDA allocator's trace: what tensors got, and what they gave back.

    A block counts as freed when its free is requested, as torch's ``allocated_bytes`` counts it.
    """
    signs = {"alloc": 1, "free_requested": -1}
    return [
        AllocatorEvent(
            one["time_us"] * 1000, one["addr"], signs[one["action"]] * one["size"], device
        )
        for one in trace
        if one["action"] in signs and one.get("time_us", 0) * 1000 + 999 >= since_ns
    ]


def allocator_snapshot() -> dict[str, Any]:
    """Give the CUDA allocator's segments and its log, as its snapshot files have them.

    Source: ``torch.cuda.memory._snapshot``.
    """
    found: dict[str, Any] = dict(torch.cuda.memory._snapshot())
    return {**found, "device_traces": found.get("device_traces") or []}
