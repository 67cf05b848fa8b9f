"""What grows with each repetition, and what the last error still keeps in memory.

The records are here at once; what needs torch comes when first used.
"""

import typing

from nbinspect import _lazy
from nbinspect.leaks.records import (
    Growth,
    LeakReport,
    OutOfMemory,
    PartGrowth,
    PinnedFrame,
    TracebackMemory,
)

if typing.TYPE_CHECKING:
    from nbinspect.leaks.assertion import assert_no_growth
    from nbinspect.leaks.pinned import traceback_memory
    from nbinspect.leaks.watching import leakwatch

__all__ = [
    "Growth",
    "LeakReport",
    "OutOfMemory",
    "PartGrowth",
    "PinnedFrame",
    "TracebackMemory",
    "assert_no_growth",
    "leakwatch",
    "traceback_memory",
]

_HOMES = {
    "assert_no_growth": "nbinspect.leaks.assertion",
    "leakwatch": "nbinspect.leaks.watching",
    "traceback_memory": "nbinspect.leaks.pinned",
}


__getattr__, __dir__ = _lazy.lazily(__name__, _HOMES, __all__)
