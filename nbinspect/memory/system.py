"""Memory as the operating system and NVML see it; knows nothing of torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import psutil

from nbinspect.blocks import Reading, Unavailable

CGROUP = Path("/sys/fs/cgroup")
STATM, MEMINFO = "/proc/{}/statm", "/proc/meminfo"  # Linux alone has them, see proc(5)
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

    Cost: three small files, under 1 ms.
    Blind to: swap, and a limit that a parent cgroup sets lower than the one read here.
    Source: proc(5), elsewhere psutil; cgroup v2 ``memory.max`` and v1 ``memory.limit_in_bytes``; ``MEM_LIMIT``,
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
    nearest = min(limits, key=_total, default=None)
    if nearest is not None and _total(nearest) < _ram_bytes():
        return nearest
    total, in_use = _ram()
    if isinstance(total, Unavailable):
        return nearest or HostMemory(total, "", in_use, mine)
    return HostMemory(total, "the machine's RAM", in_use, mine)


def _total(host: HostMemory) -> int:
    return host.total_bytes if isinstance(host.total_bytes, int) else 0


def _ram() -> tuple[Reading, Reading]:
    """Give the machine's RAM and what is used of it."""
    with suppress(OSError, ValueError, IndexError):
        words = _content(MEMINFO).split(None, 9)  # MemTotal: n kB MemFree: n kB MemAvailable: n kB
        if words[0] == b"MemTotal:" and words[6] == b"MemAvailable:":
            return int(words[1]) << 10, (int(words[1]) - int(words[7])) << 10
    ram = _reading(psutil.virtual_memory)
    return (ram, ram) if isinstance(ram, Unavailable) else (ram.total, ram.total - ram.available)


@cache
def _ram_bytes() -> int:
    """Give the machine's RAM, which stays; 0 where the system does not say."""
    total, _ = _ram()
    return total if isinstance(total, int) else 0


def process_bytes() -> Reading:
    """Read the resident set of this process."""
    with suppress(OSError, IndexError, ValueError):
        return int(_content(STATM.format(os.getpid())).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    info = _reading(lambda: psutil.Process().memory_info())
    return info if isinstance(info, Unavailable) else int(info.rss)


def proportional_bytes(process: psutil.Process) -> Reading:
    """Read what a process has for itself, and its part of the pages that it shares (PSS).

    Cost: the system adds it up page by page, 1 to 10 ms per GiB.
    Source: ``smaps_rollup`` of proc(5); on other systems the unshared part alone (USS).
    """
    info = _reading(process.memory_full_info)
    if isinstance(info, Unavailable):
        return info
    found = getattr(info, "pss", getattr(info, "uss", 0))
    if not found:  # a kernel without smaps tells 0
        return Unavailable("the system does not say what its processes share")
    return int(found)


def _content(file: str) -> bytes:
    """Read one of the system's small files."""
    opened = _opened(file)  # first: Windows has neither such files nor `pread`
    return os.pread(opened, 4096, 0)


@lru_cache(maxsize=8)
def _opened(file: str) -> int:
    """Open a file for good, since opening it takes four fifths of a reading."""
    return os.open(file, os.O_RDONLY)


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
        number = _number(_content(str(file)).decode())
    except (OSError, UnicodeDecodeError) as error:
        return Unavailable(f"{file} cannot be read: {error}")
    return Unavailable(f"{file} holds no number") if number is None else number


@cache
def _cgroup_files() -> tuple[tuple[Path, Path], ...]:
    """List where limit and use stand: own group first, then the root that containers see."""
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
    return tuple((limit, used) for limit, used in dict.fromkeys(v2 + v1) if limit.exists())


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
