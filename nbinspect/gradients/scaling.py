"""Gradient scalers: the factor on the loss, and the steps that they skip.

A skipped step calls no hook of the optimizer's, so `GradScaler.step` itself is wrapped while a
watch is open.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any

import torch

Told = Callable[[Any, float], Callable[[], None]]


def watch_scaler(undo: ExitStack, told: Told) -> None:
    """Tell of each `GradScaler.step`, until `undo`.

    Args:
        undo: puts the method back.
        told: called before with the optimizer and the scale; what it gives is called afterwards.
    """
    kind = torch.amp.GradScaler
    original = kind.step
    listeners = [told]

    @wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # an error of the user's code is not ours to appear in
        if not (listeners and self.is_enabled()):
            return original(self, optimizer, *args, **kwargs)
        ended = listeners[0](optimizer, self.get_scale())
        try:
            return original(self, optimizer, *args, **kwargs)
        finally:
            ended()

    def put_back() -> None:
        listeners.clear()
        if kind.__dict__.get("step") is step:  # else somebody has wrapped it since
            kind.step = original  # type: ignore[method-assign]

    kind.step = step  # type: ignore[method-assign]
    undo.callback(put_back)
