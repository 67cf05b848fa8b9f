"""What gradients do, step by step and layer by layer, and whether they are well.

The records are here at once; the functions, which need torch, come when first used.
"""

import importlib
import typing

from nbinspect.gradients.records import (
    GradientComparison,
    GradientFinding,
    GradientHistory,
    GradientStep,
    GradientTable,
    ParameterGradient,
    Rules,
)

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


def __getattr__(name: str) -> typing.Any:
    """Import `gradtable` or `gradwatch` when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return __all__
