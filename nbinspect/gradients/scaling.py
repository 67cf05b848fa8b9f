"""Gradient scalers: the factor on the loss, and the steps that they skip.

A skipped step calls no hook of the optimizer's, so `GradScaler.step` itself is wrapped while a
watch is open.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from nbinspect.wrapping import wrap

Told = Callable[[Any, float], Callable[[], None]]


def watch_scaler(undo: ExitStack, told: Told) -> None:
    """Tell of each `GradScaler.step`, until `undo`.

    Args:
        undo: puts the method back.
        told: called before with the optimizer and the scale; what it gives is called afterwards.
    """

    def around(original: Any, args: Any, kwargs: Any) -> Any:
        __tracebackhide__ = True  # an error of the user's code is not ours to appear in
        scaler, *rest = args
        optimizer = rest[0] if rest else kwargs.get("optimizer")
        if optimizer is None or not scaler.is_enabled():
            return original(*args, **kwargs)
        ended = told(optimizer, scaler.get_scale())
        try:
            return original(*args, **kwargs)
        finally:
            ended()

    wrap(undo, torch.amp.GradScaler, "step", around)
