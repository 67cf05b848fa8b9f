"""See what fills memory in a PyTorch notebook, who keeps it there, and what to do about it.

In a notebook::

    %load_ext nbinspect
    %gpumem

and in Python `nbinspect.gpumem()`. Names are imported when they are first used, so importing
this package costs next to nothing and brings in neither torch nor IPython.
"""

import typing

from nbinspect import _lazy

if typing.TYPE_CHECKING:
    from nbinspect.autograd_graph.answer import autograd
    from nbinspect.autograd_graph.records import GraphReport
    from nbinspect.autograd_graph.watch import graphwatch
    from nbinspect.blocks import Unavailable
    from nbinspect.gradients import gradtable, gradwatch
    from nbinspect.gradients.records import (
        GradientComparison,
        GradientFinding,
        GradientHistory,
        Rules,
    )
    from nbinspect.gradients.step_records import GradientStep, ParameterGradient
    from nbinspect.gradients.table_records import GradientTable
    from nbinspect.leaks import assert_no_growth, leakwatch, traceback_memory
    from nbinspect.leaks.records import (
        Growth,
        LeakReport,
        OutOfMemory,
        PinnedFrame,
        TracebackMemory,
    )
    from nbinspect.memory import gpumem, memwatch
    from nbinspect.memory.records import DeviceMemory, MemoryDiff, MemoryReport, MemorySnapshot
    from nbinspect.numerics.error import NonFiniteError
    from nbinspect.numerics.gradcheck_records import GradcheckReport
    from nbinspect.numerics.gradients_checked import gradcheck
    from nbinspect.numerics.headroom_records import HeadroomReport
    from nbinspect.numerics.margins import headroom
    from nbinspect.numerics.records import NanFinding, NanReport
    from nbinspect.numerics.watch import nanwatch
    from nbinspect.records import Holding, Record, SourceLine
    from nbinspect.referrers.answer import refchain
    from nbinspect.referrers.records import Chain, Link, ReferenceReport, ReferenceSurvey
    from nbinspect.referrers.survey import refchain_largest
    from nbinspect.snapshots import AllocatorSnapshot, memsnapshot
    from nbinspect.type_counts import TypeCount, TypeCounts, count_types
    from nbinspect.widgets import explore

__version__ = "0.1.0"

__all__ = [
    "AllocatorSnapshot",
    "Chain",
    "DeviceMemory",
    "GradcheckReport",
    "GradientComparison",
    "GradientFinding",
    "GradientHistory",
    "GradientStep",
    "GradientTable",
    "GraphReport",
    "Growth",
    "HeadroomReport",
    "Holding",
    "LeakReport",
    "Link",
    "MemoryDiff",
    "MemoryReport",
    "MemorySnapshot",
    "NanFinding",
    "NanReport",
    "NonFiniteError",
    "OutOfMemory",
    "ParameterGradient",
    "PinnedFrame",
    "Record",
    "ReferenceReport",
    "ReferenceSurvey",
    "Rules",
    "SourceLine",
    "TracebackMemory",
    "TypeCount",
    "TypeCounts",
    "Unavailable",
    "__version__",
    "assert_no_growth",
    "autograd",
    "count_types",
    "explore",
    "gpumem",
    "gradcheck",
    "gradtable",
    "gradwatch",
    "graphwatch",
    "headroom",
    "leakwatch",
    "load_ipython_extension",
    "memsnapshot",
    "memwatch",
    "nanwatch",
    "refchain",
    "refchain_largest",
    "traceback_memory",
    "unload_ipython_extension",
]

_HOMES = {
    "AllocatorSnapshot": "nbinspect.snapshots",
    "Chain": "nbinspect.referrers.records",
    "DeviceMemory": "nbinspect.memory.records",
    "GradcheckReport": "nbinspect.numerics.gradcheck_records",
    "GradientComparison": "nbinspect.gradients.records",
    "GradientFinding": "nbinspect.gradients.records",
    "GradientHistory": "nbinspect.gradients.records",
    "GradientStep": "nbinspect.gradients.step_records",
    "GradientTable": "nbinspect.gradients.table_records",
    "GraphReport": "nbinspect.autograd_graph.records",
    "Growth": "nbinspect.leaks.records",
    "HeadroomReport": "nbinspect.numerics.headroom_records",
    "Holding": "nbinspect.records",
    "LeakReport": "nbinspect.leaks.records",
    "Link": "nbinspect.referrers.records",
    "MemoryDiff": "nbinspect.memory.records",
    "MemoryReport": "nbinspect.memory.records",
    "MemorySnapshot": "nbinspect.memory.records",
    "NanFinding": "nbinspect.numerics.records",
    "NanReport": "nbinspect.numerics.records",
    "NonFiniteError": "nbinspect.numerics.error",
    "OutOfMemory": "nbinspect.leaks.records",
    "ParameterGradient": "nbinspect.gradients.step_records",
    "PinnedFrame": "nbinspect.leaks.records",
    "Record": "nbinspect.records",
    "ReferenceReport": "nbinspect.referrers.records",
    "ReferenceSurvey": "nbinspect.referrers.records",
    "Rules": "nbinspect.gradients.records",
    "SourceLine": "nbinspect.records",
    "TracebackMemory": "nbinspect.leaks.records",
    "TypeCount": "nbinspect.type_counts",
    "TypeCounts": "nbinspect.type_counts",
    "Unavailable": "nbinspect.blocks",
    "assert_no_growth": "nbinspect.leaks",
    "autograd": "nbinspect.autograd_graph.answer",
    "count_types": "nbinspect.type_counts",
    "explore": "nbinspect.widgets",
    "gpumem": "nbinspect.memory",
    "gradcheck": "nbinspect.numerics.gradients_checked",
    "gradtable": "nbinspect.gradients",
    "gradwatch": "nbinspect.gradients",
    "graphwatch": "nbinspect.autograd_graph.watch",
    "headroom": "nbinspect.numerics.margins",
    "leakwatch": "nbinspect.leaks",
    "memsnapshot": "nbinspect.snapshots",
    "memwatch": "nbinspect.memory",
    "nanwatch": "nbinspect.numerics.watch",
    "refchain": "nbinspect.referrers.answer",
    "refchain_largest": "nbinspect.referrers.survey",
    "traceback_memory": "nbinspect.leaks",
}


def load_ipython_extension(shell: typing.Any) -> None:
    """Add the magics to `shell`; IPython calls this for ``%load_ext nbinspect``."""
    from nbinspect import magics

    magics.load_ipython_extension(shell)


def unload_ipython_extension(shell: typing.Any) -> None:
    """Take everything out of `shell` again; IPython calls this for ``%unload_ext nbinspect``."""
    from nbinspect import magics

    magics.unload_ipython_extension(shell)


__getattr__, __dir__ = _lazy.lazily(__name__, _HOMES, __all__)
