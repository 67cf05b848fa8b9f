"""What is in memory now: counters of every device, and the census of what holds it."""

from __future__ import annotations

import torch

from nbinspect import _torch
from nbinspect.blocks import Reading, Unavailable
from nbinspect.heapgraph.graph import collector_paused
from nbinspect.holders import KINDS, Census, HeldStorage, census
from nbinspect.memory.holdings import holdings
from nbinspect.memory.records import DeviceMemory, MemorySnapshot, Waste
from nbinspect.memory.system import gpu_memory, host_memory
from nbinspect.memory.waste import wasted
from nbinspect.render.format import bytes_text

CPU_COUNT = Unavailable("PyTorch does not count CPU memory; tracked_bytes sums the live tensors")
WORTH_EMPTYING = 64 << 20  # cached bytes below this are the allocator's normal working


def gpumem(*, device: str | None = None, top: int = 10) -> MemorySnapshot:
    """Answer what fills my memory: every live storage once, with its holder, on every device.

    Args:
        device: look at one device only, e.g. ``cpu``, ``cuda``, ``cuda:1``.
        top: how many holders the tables show; the record has them all.

    Returns:
        A record of plain values. Sizes are bytes of whole storages, so a view adds nothing and
        tied weights count once.

    Raises:
        ValueError: no such device, or `top` below 1.

    Cost: one scan of Python's heap, 0.1 to 0.5 s in a fresh notebook, up to 1 s per million
    objects. Does not synchronise, allocate on a device, reset a counter, collect garbage or run
    any of your code.
    Blind to: memory that no Python object leads to: library workspaces, DDP's buckets, autocast's
    cache, what only C++ holds. On an accelerator it shows as the difference to torch's own count.
    Source: ``gc``, ``Tensor.untyped_storage``, ``torch.cuda.memory_stats`` or
    ``torch.accelerator``, NVML, psutil, cgroup files.
    """
    if top < 1:
        raise ValueError(f"top must be at least 1, not {top}")
    names = _devices(device)
    with collector_paused():  # a census leaves thousands of values that are about to go
        return assemble(census(), names, top)


def assemble(seen: Census, names: tuple[str, ...], top: int) -> MemorySnapshot:
    """Put a census and the devices' counters together."""
    here = {one.device for one in seen.storages}
    names = tuple(dict.fromkeys((*names, *sorted(here - {"cpu"})))) if "cpu" in names else names
    names = tuple(sorted(names, key=lambda name: name == "cpu"))
    devices, waste = [], list[Waste]()
    for name in names:
        storages = [one for one in seen.storages if one.device == name]
        devices.append(_device(name, storages, seen))
        waste += wasted(storages, name)
        waste += _allocator_waste(name)
    waste.sort(key=lambda one: -one.size_bytes)
    return MemorySnapshot(tuple(devices), tuple(waste), seen.complete, top)


def _devices(wanted: str | None) -> tuple[str, ...]:
    """List the devices to look at.

    Raises:
        ValueError: the wanted one is none of this process's.
    """
    known = (*_torch.accelerators(), "cpu")
    if wanted is None:
        return known
    names = [one for one in known if one == wanted or one.partition(":")[0] == wanted]
    if not names:
        raise ValueError(f"no device {wanted!r} here; this process has {', '.join(known)}")
    return (names[0],)


def _device(name: str, storages: list[HeldStorage], seen: Census) -> DeviceMemory:
    sums = dict.fromkeys(KINDS, 0)
    for one in storages:
        sums[one.claims[0].kind] += one.size_bytes
    by_kind = tuple((kind, size) for kind, size in sums.items() if size)
    counters = _host_counters() if name == "cpu" else _accelerator_counters(name)
    tracked = sum(sums.values())
    notes = seen.notes + _difference(counters["allocated_bytes"], tracked)
    return DeviceMemory(
        device=name,
        total_note=_total_note(name),
        tracked_bytes=tracked,
        by_kind=by_kind,
        holdings=holdings(storages),
        complete=seen.complete,
        notes=notes,
        **counters,
    )


def _total_note(name: str) -> str:
    return host_memory().total_note if name == "cpu" else "the device's memory"


def _host_counters() -> dict[str, Reading]:
    host = host_memory()
    return {
        "total_bytes": host.total_bytes,
        "free_bytes": _minus(host.total_bytes, host.used_bytes),
        "allocated_bytes": CPU_COUNT,
        "reserved_bytes": CPU_COUNT,
        "process_bytes": host.process_bytes,
        "others_bytes": _minus(host.used_bytes, host.process_bytes),
    }


def _accelerator_counters(name: str) -> dict[str, Reading]:
    device = torch.device(name)
    counters = _torch.allocator_counters(device)
    nvml = _torch.nvml_name(device)
    total, free = counters.total_bytes, counters.free_bytes
    process: Reading = Unavailable("only NVML knows, and it does not know this device")
    if nvml is not None:
        gpu = gpu_memory(nvml)
        process = gpu.process_bytes
        total = gpu.total_bytes if isinstance(total, Unavailable) else total
        free = gpu.free_bytes if isinstance(free, Unavailable) else free
    mine = counters.reserved_bytes if isinstance(process, Unavailable) else process
    return {
        "total_bytes": total,
        "free_bytes": free,
        "allocated_bytes": counters.allocated_bytes,
        "reserved_bytes": counters.reserved_bytes,
        "process_bytes": process,
        "others_bytes": _minus(_minus(total, free), mine),
    }


def _minus(whole: Reading, part: Reading) -> Reading:
    """Subtract readings; what is not known stays unknown."""
    if isinstance(whole, Unavailable):
        return whole
    return part if isinstance(part, Unavailable) else max(0, whole - part)


def _difference(allocated: Reading, tracked: int) -> tuple[str, ...]:
    """Explain what torch has allocated and the census has not seen."""
    if isinstance(allocated, Unavailable) or allocated - tracked < 1 << 20:
        return ()
    note = (
        f"{bytes_text(allocated - tracked)} are allocated but no live tensor shows them: workspaces "
        "of libraries such as cuBLAS, DDP buckets, autocast's cache, pools of captured graphs, "
        "rounding to whole blocks"
    )
    return (note,)


def _allocator_waste(name: str) -> list[Waste]:
    """Name what the caching allocator keeps for nothing."""
    if name == "cpu":
        return []
    device = torch.device(name)
    counters = _torch.allocator_counters(device)
    cached = _minus(counters.reserved_bytes, counters.allocated_bytes)
    if isinstance(cached, Unavailable) or cached < WORTH_EMPTYING:
        return []
    blocks = _torch.free_blocks(device)
    what = "cached by the allocator for reuse; other processes cannot have it"
    if not isinstance(blocks, Unavailable) and blocks and blocks[0] < sum(blocks) / 2:
        what += f", and its largest free block is {bytes_text(blocks[0])} of {bytes_text(cached)}"
    return [Waste(what, _torch.line_that_empties(device), cached, name)]
