"""What is in memory, who holds it, and what a cell did to it.

The records are here at once; the two functions, which need torch, come when first used. So a
saved record can be read and shown where there is no torch.
"""

import typing

from nbinspect import _lazy
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


__getattr__, __dir__ = _lazy.lazily(__name__, _HOMES, __all__)
