"""What a failed allocation asked for, what there was, and what could be let go of first."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from nbinspect import _torch
from nbinspect.blocks import Reading, Unavailable
from nbinspect.heapgraph.letting_go import is_assignable
from nbinspect.holders import census
from nbinspect.leaks.records import LetGo, OutOfMemory
from nbinspect.memory.holdings import holdings
from nbinspect.memory.records import Waste
from nbinspect.memory.system import host_memory
from nbinspect.memory.waste import wasted
from nbinspect.records import Holding

SIZE = r"(\d+(?:\.\d+)?) ?(bytes|[KMGT]i?B)"
ASKED = rf"(?:[Tt]ried to allocate|Unable to allocate) {SIZE}"
TOTAL = (rf"total capacity of {SIZE}", rf"{SIZE} total capacity", rf"max allowed: {SIZE}")
FREE = (rf"of which {SIZE} is free", rf"{SIZE} free")
ALLOCATED = (
    rf"{SIZE} is allocated by PyTorch",
    rf"{SIZE} already allocated",
    rf"MPS allocated: {SIZE}",
)
UNALLOCATED = (rf"{SIZE} is reserved by PyTorch but unallocated",)
RESERVED = (rf"{SIZE} reserved in total",)
# The driver and its libraries do not say how much was asked for; nor does torch beyond 1 EB.
OF_DRIVER = re.compile(
    r"(CUDA|HIP) error: out of memory|_STATUS_ALLOC_FAILED|Tried to allocate more than 1EB"
)
CONF = re.compile(r"PYTORCH_(?:\w+_)?ALLOC_CONF")
CONFS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
SETTING = "expandable_segments:True"
N_FIRST = 3
N_HOLDINGS = 10
UNITS = {"bytes": 0, "KB": 10, "MB": 20, "GB": 30, "TB": 40}


def out_of_memory(errors: Iterable[BaseException], pinned_bytes: int) -> OutOfMemory | None:
    """Read the first of `errors` that is for want of memory; None if none is.

    Args:
        errors: the last error and those that it is chained to.
        pinned_bytes: what the error itself keeps that nothing else does.

    Cost: a census, if there is such an error.
    Blind to: what was freed between the error and this question; the error keeps most of it.
    Source: the error's message; the figures in it are the allocator's own.
    """
    said = next((text for text in map(_text, errors) if is_about_memory(text)), None)
    if said is None:
        return None
    device, unallocated = _device(said), _unallocated(said)
    here = [one for one in census().storages if one.device == device]
    free, total, allocated = _counters(said, device, sum(one.size_bytes for one in here))
    held = holdings(here)
    return OutOfMemory(
        device=device,
        asked_bytes=_size(said, ASKED),
        free_bytes=free,
        total_bytes=total,
        allocated_bytes=allocated,
        unallocated_bytes=unallocated,
        setting=_setting(said, unallocated),
        holdings=held[:N_HOLDINGS],
        let_go=tuple(_first(pinned_bytes, wasted(here, device), held)),
    )


def _counters(said: str, device: str, held_bytes: int) -> tuple[Reading, Reading, Reading]:
    """Give (free, total, allocated): as the error says, of the CPU as the system says."""
    if device != "cpu":
        return _size(said, *FREE), _size(said, *TOTAL), _size(said, *ALLOCATED)
    host = host_memory()
    free = host.total_bytes
    if isinstance(free, int) and isinstance(host.used_bytes, int):
        free = max(0, free - host.used_bytes)
    return free, host.total_bytes, held_bytes


def is_about_memory(text: str) -> bool:
    """Say whether an error's message is an allocator's refusal."""
    refused = "out of memory" in text or "allocate memory" in text or "Unable to allocate" in text
    return (refused and re.search(ASKED, text) is not None) or OF_DRIVER.search(text) is not None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a message that cannot be printed
        return ""


def _device(said: str) -> str:
    if "Unable to allocate" in said or "CPUAllocator" in said:
        return "cpu"
    kind = re.search(r"\b(CUDA|XPU|MPS|HIP)\b", said)
    names = {"XPU": "xpu", "MPS": "mps"}
    index = re.search(r"GPU (\d+)", said)
    return f"{names.get(kind[1], 'cuda') if kind else 'cuda'}:{index[1] if index else 0}"


def _size(said: str, *patterns: str) -> Reading:
    for one in patterns:
        if found := re.search(one, said):
            return round(float(found[1]) * (1 << UNITS[found[2].replace("iB", "B")]))
    return Unavailable("the error does not say")


def _unallocated(said: str) -> Reading:
    stated = _size(said, *UNALLOCATED)
    reserved, allocated = _size(said, *RESERVED), _size(said, *ALLOCATED)
    if isinstance(stated, Unavailable) and isinstance(reserved, int) and isinstance(allocated, int):
        return max(0, reserved - allocated)
    return stated


def _setting(said: str, unallocated: Reading) -> str:
    """Give the setting against fragmentation, where that is the reason and it is not on."""
    asked = _size(said, ASKED)
    if isinstance(unallocated, Unavailable) or isinstance(asked, Unavailable):
        return ""
    now = {name: os.environ[name] for name in CONFS if os.environ.get(name)}
    is_on = _torch.expandable_segments() or any(SETTING in text for text in now.values())
    if is_on or unallocated < asked:
        return ""
    named = CONF.search(said)
    name = next(iter(now), named[0] if named else CONFS[1])
    value = ",".join(filter(None, (now.get(name, ""), SETTING)))
    return f"import os; os.environ[{name!r}] = {value!r}"


def _first(
    pinned_bytes: int, waste: tuple[Waste, ...], held: tuple[Holding, ...]
) -> Iterator[LetGo]:
    """Give the largest things that can be let go of, waste before what is in use."""
    found = [LetGo(one.what, one.mend, one.size_bytes) for one in waste]
    if pinned_bytes:
        what = "kept by nothing but this error"
        found.append(LetGo(what, "%traceback_memory --drop", pinned_bytes))
    found.sort(key=lambda one: -one.size_bytes)
    yield from found[:N_FIRST]
    named = [one for one in held if one.kind == "VARIABLE" and is_assignable(one.owner)]
    for one in named[: max(0, N_FIRST - len(found))]:
        yield LetGo(f"`{one.owner}`, if it is needed no more", f"del {one.owner}", one.size_bytes)
