"""What backward was called on, read from the stack: no function is replaced for it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType

import torch

from nbinspect import notebook

_BACKWARD = torch.autograd.backward.__code__


def roots(frame: FrameType | None) -> tuple[torch.Tensor, ...]:
    """Give the tensors that the outermost running `backward` was called on, () if unknown.

    On the CPU, hooks run below that call. For a device, they run in a thread of its own while the
    one that called waits; then its stack is looked at, if no other thread runs a backward too.

    Cost: about 5 µs.
    Blind to: backward passes that C++ code starts.
    """
    call = _outermost(frame)
    if call is None:
        calls = [_outermost(top) for top in list(sys._current_frames().values())]
        running = [one for one in calls if one is not None]
        call = running[0] if len(running) == 1 else None
    if call is None:
        return ()
    tensors = notebook.frame_locals(call).get("tensors")
    found = (tensors,) if isinstance(tensors, torch.Tensor) else tensors
    if not isinstance(found, Sequence):
        return ()
    return tuple(one for one in found if isinstance(one, torch.Tensor))


def _outermost(frame: FrameType | None) -> FrameType | None:
    """Find the outermost one: checkpointing calls backward within backward."""
    found = None
    while frame is not None:
        if frame.f_code is _BACKWARD:
            found = frame
        frame = frame.f_back
    return found
