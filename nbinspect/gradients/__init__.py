"""What gradients do, step by step and layer by layer, and whether they are well.

The records are here at once; the functions, which need torch, come when first used.
"""

import typing

from nbinspect import _lazy
from nbinspect.gradients.records import GradientComparison, GradientFinding, GradientHistory, Rules
from nbinspect.gradients.step_records import GradientStep, ParameterGradient
from nbinspect.gradients.table_records import GradientTable

if typing.TYPE_CHECKING:
    from nbinspect.gradients.now import gradtable
    from nbinspect.gradients.watch import gradwatch

__all__ = [
    "GradientComparison",
    "GradientFinding",
    "GradientHistory",
    "GradientStep",
    "GradientTable",
    "ParameterGradient",
    "Rules",
    "gradtable",
    "gradwatch",
]

_HOMES = {"gradtable": "nbinspect.gradients.now", "gradwatch": "nbinspect.gradients.watch"}


__getattr__, __dir__ = _lazy.lazily(__name__, _HOMES, __all__)
