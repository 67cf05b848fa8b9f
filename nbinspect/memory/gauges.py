"""Counters that are cheap enough to be read many times a second, as bars."""

from __future__ import annotations

import sys

from nbinspect.blocks import Bar, Segment, Unavailable
from nbinspect.memory.system import host_memory


def gauges() -> tuple[Bar, ...]:
    """Read every device's counters now: accelerators first, ``cpu`` last.

    Returns:
        One bar per device, in bytes. A device whose counters cannot be read has no segments and
        its reason as `note`.

    Cost: under 1 ms; synchronises nothing, allocates nothing on a device.
    Blind to: who holds the bytes; that is the census of `gpumem`.
    Source: ``torch.cuda.memory_stats`` and ``mem_get_info`` or their ``torch.accelerator``
    counterparts; psutil; cgroup files.
    """
    # A notebook that has not imported torch yet has nothing on an accelerator.
    return (*(_accelerators() if "torch" in sys.modules else ()), _host())


def _host() -> Bar:
    host = host_memory()
    if isinstance(host.total_bytes, Unavailable) or isinstance(host.process_bytes, Unavailable):
        reading = host.total_bytes if isinstance(host.total_bytes, Unavailable) else None
        return Bar("cpu", (), note=reading.reason if reading else "process size unknown")
    segments = [Segment("this process", host.process_bytes, "PROCESS")]
    if isinstance(host.used_bytes, int) and host.used_bytes > host.process_bytes:
        others = host.used_bytes - host.process_bytes
        segments.append(Segment("other processes", others, "OTHERS"))
    return Bar("cpu", tuple(segments), host.total_bytes, host.total_note)


def _accelerators() -> tuple[Bar, ...]:
    import torch

    from nbinspect import _torch

    return tuple(_accelerator(torch.device(name)) for name in _torch.accelerators())


def _accelerator(device: object) -> Bar:
    from nbinspect import _torch

    counters = _torch.allocator_counters(device)  # type: ignore[arg-type]  # torch stays lazy
    allocated, reserved = counters.allocated_bytes, counters.reserved_bytes
    if isinstance(allocated, Unavailable) or isinstance(reserved, Unavailable):
        reading = allocated if isinstance(allocated, Unavailable) else reserved
        return Bar(str(device), (), note=getattr(reading, "reason", ""))
    segments = [
        Segment("tensors", allocated, "ALLOCATED"),
        Segment("cached, free for reuse", reserved - allocated, "CACHED"),
    ]
    total, free = counters.total_bytes, counters.free_bytes
    if isinstance(total, Unavailable) or isinstance(free, Unavailable):
        return Bar(str(device), tuple(segments), None, getattr(total, "reason", ""))
    others = max(0, total - free - reserved)
    segments.append(Segment("contexts and other processes", others, "OTHERS"))
    return Bar(str(device), tuple(segments), total, "the device's memory")
