"""What is in memory, who holds it, and what a cell did to it.

The records are here at once; the two functions, which need torch, come when first used. So a
saved record can be read and shown where there is no torch.
"""

import importlib
import typing

from nbinspect.memory.records import (
    Change,
    DeviceMemory,
    DevicePeak,
    LineMemory,
    MemoryDiff,
    MemoryReport,
    MemorySnapshot,
    ModuleMemory,
    Waste,
)

if typing.TYPE_CHECKING:
    from nbinspect.memory.snapshot import gpumem
    from nbinspect.memory.watch import memwatch

__all__ = [
    "Change",
    "DeviceMemory",
    "DevicePeak",
    "LineMemory",
    "MemoryDiff",
    "MemoryReport",
    "MemorySnapshot",
    "ModuleMemory",
    "Waste",
    "gpumem",
    "memwatch",
]

_HOMES = {"gpumem": "nbinspect.memory.snapshot", "memwatch": "nbinspect.memory.watch"}


def __getattr__(name: str) -> typing.Any:
    """Import `gpumem` or `memwatch` when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return __all__
