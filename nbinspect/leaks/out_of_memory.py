"""What a failed allocation asked for, what there was, and what could be let go of first."""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from nbinspect import _torch
from nbinspect.blocks import Reading, Unavailable
from nbinspect.heapgraph.letting_go import is_assignable
from nbinspect.heapgraph.objects import isinstance_of
from nbinspect.holders import Claim, HeldStorage, census
from nbinspect.leaks.records import SHARED_MEMORY, LetGo, OutOfMemory
from nbinspect.memory.holdings import holdings
from nbinspect.memory.records import Waste
from nbinspect.memory.system import host_memory
from nbinspect.memory.waste import wasted

SIZE = r"(\d+(?:\.\d+)?) ?(bytes|[KMGT]i?B)"
ASKED = rf"(?:[Tt]ried to allocate|Unable to allocate|unable to mmap) {SIZE}"
TOTAL = (  # torch 2.1 spells it "capacty"
    rf"total capac\w+ of {SIZE}",
    rf"{SIZE} total capacity",
    rf"max allowed: {SIZE}",
)
FREE = (rf"of which {SIZE} is free", rf"{SIZE} free")
ALLOCATED = (
    rf"{SIZE} is allocated by PyTorch",
    rf"{SIZE} already allocated",
    rf"MPS allocated: {SIZE}",
)
UNALLOCATED = (rf"{SIZE} is reserved by PyTorch but unallocated", rf"{SIZE} cached")
RESERVED = (rf"{SIZE} reserved in total",)
REFUSED = re.compile(r"out of memory|allocate memory|not enough memory|Unable to allocate")
# The driver and its libraries do not say how much was asked for; nor does torch beyond 1 EB.
OF_DRIVER = re.compile(
    r"(CUDA|HIP) error: out of memory|_STATUS_ALLOC_FAILED|Tried to allocate more than 1EB"
)
OF_SHARED = re.compile(r"unable to allocate shared memory|out of shared memory")
ACCELERATOR = re.compile(r"\b(CUDA|XPU|MPS|HIP)\b|_STATUS_ALLOC_FAILED")
SHARED_FILES = "/dev/shm"
CONF = re.compile(r"PYTORCH_(?:\w+_)?ALLOC_CONF")
CONFS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
SETTING = "expandable_segments:True"
N_FIRST = 3
CLEARED = {"list", "dict", "OrderedDict", "defaultdict", "deque"}
N_HOLDINGS = 10
NAMES = {"XPU": "xpu", "MPS": "mps"}
UNITS = {"bytes": 0, "KB": 10, "MB": 20, "GB": 30, "TB": 40}


def out_of_memory(
    errors: Iterable[BaseException], pinned_bytes: Mapping[str, int]
) -> OutOfMemory | None:
    """Read the first of `errors` that is for want of memory; None if none is.

    Args:
        errors: the last error and those that it is chained to.
        pinned_bytes: what the error itself keeps that nothing else does, by device.

    Cost: a census, if there is such an error.
    Blind to: what was freed between the error and this question; the error keeps most of it.
    Source: the error's message; the figures in it are the allocator's own.
    """
    refused = next(filter(is_refusal, errors), None)
    if refused is None:
        return None
    said = _text(refused)
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
        setting=_setting(said, device, unallocated),
        holdings=held[:N_HOLDINGS],
        let_go=tuple(_first(pinned_bytes.get(device, 0), wasted(here, device), here)),
    )


def _counters(said: str, device: str, held_bytes: int) -> tuple[Reading, Reading, Reading]:
    """Give (free, total, allocated): as the error says, else as the system does."""
    if device == SHARED_MEMORY:
        return _shared_memory()
    if device != "cpu":
        return _size(said, *FREE), _size(said, *TOTAL), _size(said, *ALLOCATED)
    host = host_memory()
    free = host.total_bytes
    if isinstance(free, int) and isinstance(host.used_bytes, int):
        free = max(0, free - host.used_bytes)
    return free, host.total_bytes, held_bytes


def _shared_memory() -> tuple[Reading, Reading, Reading]:
    """Give (free, total, used) of the memory that processes share, where Linux keeps it."""
    try:
        found = shutil.disk_usage(SHARED_FILES)
    except OSError:
        unknown = Unavailable("the system does not say")
        return unknown, unknown, unknown
    return found.free, found.total, found.used


def is_refusal(error: BaseException) -> bool:
    """Say whether an error is an allocator's refusal: torch's, the driver's, NumPy's, Python's."""
    return isinstance_of(error, MemoryError) or is_about_memory(_text(error))


def is_about_memory(text: str) -> bool:
    """Say whether an error's message is an allocator's refusal."""
    is_refused = REFUSED.search(text) is not None and re.search(ASKED, text) is not None
    return is_refused or any(one.search(text) for one in (OF_DRIVER, OF_SHARED))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a message that cannot be printed
        return ""


def _device(said: str) -> str:
    if OF_SHARED.search(said):
        return SHARED_MEMORY
    kind = _kind(said)
    if not kind or "CPUAllocator" in said:
        return "cpu"
    index = re.search(r"\b(?:GPU|device) (\d+)", said)
    return f"{kind}:{index[1] if index else 0}"


def _kind(said: str) -> str:
    """Give the type of accelerator that a message names, "" if none."""
    if known := ACCELERATOR.search(said):
        return NAMES.get(known[1], "cuda")
    # A backend outside of torch spells its own name in the manner of these.
    here = dict.fromkeys(name.partition(":")[0] for name in _torch.accelerators())
    return next((one for one in here if re.search(rf"\b{re.escape(one.upper())}\b", said)), "")


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


def _setting(said: str, device: str, unallocated: Reading) -> str:
    """Give the setting against fragmentation, where that is the reason and it is not on."""
    asked, named = _size(said, ASKED), CONF.search(said)
    if isinstance(unallocated, Unavailable) or isinstance(asked, Unavailable):
        return ""
    if named is None and not device.startswith("cuda:"):  # others need not have such a setting
        return ""
    now = {name: os.environ[name] for name in CONFS if os.environ.get(name)}
    is_on = _torch.expandable_segments() or any(SETTING in text for text in now.values())
    if is_on or unallocated < asked:
        return ""
    name = next(iter(now), named[0] if named else CONFS[1])
    value = ",".join(filter(None, (now.get(name, ""), SETTING)))
    return f"import os; os.environ[{name!r}] = {value!r}"


def _first(
    pinned_bytes: int, waste: tuple[Waste, ...], here: Iterable[HeldStorage]
) -> Iterator[LetGo]:
    """Give the largest things that can be let go of, waste before what is in use."""
    found = [LetGo(one.what, one.mend, one.size_bytes) for one in waste]
    if pinned_bytes:
        what = "kept by nothing but this error"
        found.append(LetGo(what, "%traceback_memory --drop", pinned_bytes))
    found.sort(key=lambda one: -one.size_bytes)
    yield from found[:N_FIRST]
    named = sorted(_named(here), key=lambda one: -one.size_bytes)
    yield from named[: max(0, N_FIRST - len(found))]


def _named(here: Iterable[HeldStorage]) -> Iterator[LetGo]:
    """Give what has a name of the user's: several items of a container together."""
    places: dict[str, list[HeldStorage]] = defaultdict(list)
    for one in here:
        claim = one.claims[0]
        if claim.kind == "VARIABLE":
            places[_emptied(claim) or claim.owner].append(one)
    for name, group in places.items():
        size_bytes = sum(one.size_bytes for one in group)
        owner = group[0].claims[0].owner
        if len(group) > 1 and name != owner:
            if is_assignable(name):
                what = f"the {len(group)} tensors in `{name}`, if they are needed no more"
                yield LetGo(what, f"{name}.clear()", size_bytes)
        elif is_assignable(owner):
            yield LetGo(f"`{owner}`, if it is needed no more", f"del {owner}", size_bytes)


def _emptied(claim: Claim) -> str:
    """Name the container that holds a tensor as its item, if it can be emptied; "" if not."""
    whole, bracket, _ = claim.owner.rpartition("[")
    return whole if bracket and claim.container in CLEARED else ""
