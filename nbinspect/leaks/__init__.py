"""What grows with each repetition, and what the last error still keeps in memory.

The records are here at once; what needs torch comes when first used.
"""

import importlib
import typing

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


def __getattr__(name: str) -> typing.Any:
    """Import a function when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return __all__
