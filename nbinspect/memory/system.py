"""Memory as the operating system and NVML see it; knows nothing of torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from nbinspect.blocks import Reading, Unavailable

CGROUP = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60  # cgroup v1 writes a huge page-rounded number for "no limit"


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The memory that this process shares with others, and the limit that ends it.

    Attributes:
        total_bytes: the nearest limit: container, hub or the machine's RAM.
        total_note: which of them it is.
        used_bytes: what is used of it, by everybody under the same limit.
        process_bytes: resident set of this process.
    """

    total_bytes: Reading
    total_note: str
    used_bytes: Reading
    process_bytes: Reading


def host_memory() -> HostMemory:
    """Read the limit, what is used of it, and this process's share.

    Cost: two small files and one system call, under 1 ms.
    Blind to: swap, and a limit that a parent cgroup sets lower than the one read here.
    Source: psutil; cgroup v2 ``memory.max`` and v1 ``memory.limit_in_bytes``; ``MEM_LIMIT``,
    which JupyterHub and Binder set.
    """
    mine = process_bytes()
    limits = []
    limit, used = _cgroup()
    if limit is not None:
        limits.append(HostMemory(limit, "the container's limit", used, mine))
    hub = _number(os.environ.get("MEM_LIMIT", ""))
    if hub:
        limits.append(HostMemory(hub, "the hub's limit", mine, mine))
    ram = _reading(psutil.virtual_memory)
    if not isinstance(ram, Unavailable):
        in_use = ram.total - ram.available
        limits.append(HostMemory(ram.total, "the machine's RAM", in_use, mine))
    return min(limits, key=_total, default=HostMemory(ram, "", ram, mine))


def _total(host: HostMemory) -> int:
    return host.total_bytes if isinstance(host.total_bytes, int) else 0


def process_bytes() -> Reading:
    """Read the resident set of this process."""
    info = _reading(lambda: psutil.Process().memory_info())
    return info if isinstance(info, Unavailable) else int(info.rss)


def _reading(read: Callable[[], Any]) -> Any:
    """Call `read`; give the reason where the system refuses."""
    try:
        return read()
    except (psutil.Error, OSError, RuntimeError) as error:
        return Unavailable(f"the system does not say: {error}")


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None


def _cgroup() -> tuple[int | None, Reading]:
    """Give (limit, used) of this process's cgroup; no limit is None."""
    for limit_file, used_file in _cgroup_files():
        limit = _file_number(limit_file)
        if isinstance(limit, int) and limit < UNLIMITED:
            return limit, _file_number(used_file)
    return None, Unavailable("no cgroup limit")


def _file_number(file: Path) -> Reading:
    try:
        number = _number(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        return Unavailable(f"{file} cannot be read: {error}")
    return Unavailable(f"{file} holds no number") if number is None else number


@cache
def _cgroup_files() -> tuple[tuple[Path, Path], ...]:
    """List where limit and use may stand: own group first, then the root that containers see."""
    own = ""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "" or "memory" in controllers.split(","):
                own = path.lstrip("/")
    v2 = [(group / "memory.max", group / "memory.current") for group in (CGROUP / own, CGROUP)]
    v1 = [
        (group / "memory.limit_in_bytes", group / "memory.usage_in_bytes")
        for group in (CGROUP / "memory" / own, CGROUP / "memory")
    ]
    return tuple(v2 + v1)


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """One GPU as NVML sees it, over all processes.

    Attributes:
        total_bytes: the GPU's memory.
        free_bytes: what nobody uses.
        process_bytes: what this process uses, its CUDA context included.
    """

    total_bytes: Reading
    free_bytes: Reading
    process_bytes: Reading


def gpu_memory(uuid_or_index: str | int) -> GpuMemory:
    """Ask NVML about one GPU, without creating a CUDA context.

    Cost: about 1 ms; does not touch the device.
    Blind to: this process's own share inside a container with its own process numbers, and MIG.
    Source: ``nvmlDeviceGetMemoryInfo``, ``nvmlDeviceGetComputeRunningProcesses``.
    """
    try:
        with _nvml() as nvml:
            find = "UUID" if isinstance(uuid_or_index, str) else "Index"
            handle = getattr(nvml, f"nvmlDeviceGetHandleBy{find}")(uuid_or_index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            mine = [
                process.usedGpuMemory
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                if process.pid == os.getpid() and process.usedGpuMemory is not None
            ]
    except Exception as error:  # NVML's errors share no public base; any of them means no reading
        why = Unavailable(f"NVML: {error}")
        return GpuMemory(why, why, why)
    missing = Unavailable("NVML lists no such process; containers hide process numbers")
    return GpuMemory(int(memory.total), int(memory.free), sum(mine) if mine else missing)


@contextmanager
def _nvml() -> Iterator[Any]:
    """Open NVML for one question; it counts its openings, so others' use is not disturbed."""
    import pynvml

    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()
