"""Where an operation of a training step stands: phase, line and module."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import NamedTuple

import torch
from torch.optim import Optimizer

from nbinspect import _torch
from nbinspect.numerics.sites import ForwardSites, spot
from nbinspect.ops import ModuleNames, Site, user_site

ACCUMULATION = -1  # stands for the number of a node that adds to a leaf's gradient, and has none


class Place(NamedTuple):
    """Where an operation ran.

    Attributes:
        phase: ``forward``, ``backward`` or ``optimizer``.
        site: the user's line; in backward the forward line that made the node.
        module: the module's name, likewise.
    """

    phase: str
    site: Site
    module: str


class Phases:
    """Says of each operation where it stands, from the stack and the running autograd node.

    A listener of `Steps`, which tell when an optimizer writes.

    Attributes:
        modules: the names of the modules.
    """

    def __init__(self) -> None:
        self.modules = ModuleNames()
        self._sites = ForwardSites()
        self._in_optimizer = False

    def place(self, frame: FrameType) -> tuple[Place, int | None, bool]:
        """Give the place, the number of the node that runs, and whether a checkpoint recomputes.

        Args:
            frame: the dispatch mode's.

        Cost: about 10 µs.
        """
        node = _torch.current_autograd_node()
        if node is not None:
            number = _torch.sequence_number(node)
            made, module = self._sites.find(node)
            del node
            if self._recomputes(frame):
                return self._forward(frame), None, True
            number = ACCUMULATION if number is None else number
            return Place("backward", made.site or user_site(frame), module), number, False
        if self._in_optimizer:
            return Place("optimizer", user_site(frame), ""), None, False
        return self._forward(frame), None, False

    # Called by `Steps`.

    def before_backward(self, _roots: list[torch.Tensor]) -> None:
        """Leave an optimizer that was broken off."""
        self._in_optimizer = False

    def after_backward(self, _roots: list[torch.Tensor], _results: list[torch.Tensor]) -> None:
        """Nothing to note."""

    def before_write(self, _optimizer: Optimizer) -> None:
        """An optimizer begins."""
        self._in_optimizer = True

    def after_write(self, _optimizer: Optimizer) -> None:
        """It has ended."""
        self._in_optimizer = False

    def in_closure(self, inside: bool) -> None:
        """It calls the user's closure, or that has returned."""
        self._in_optimizer = not inside

    def skipped(self, _optimizer: Optimizer) -> None:
        """Nothing to note."""

    def failed(self, _error: Exception) -> None:
        """Nothing to give up."""

    def _forward(self, frame: FrameType) -> Place:
        here, module = spot(frame), self.modules.running(frame)
        number = _torch.next_sequence_number()
        if number is not None and number != self._sites.last:
            self._sites.add(number, here, module)
        return Place("forward", here.site, module)

    def _recomputes(self, frame: FrameType | None) -> bool:
        """Say whether a module's forward runs inside the backward pass, as checkpoints make it."""
        while frame is not None and frame.f_code is not _BACKWARD:
            if is_module_call(frame):
                return True
            frame = frame.f_back
        return False


_CALL: CodeType = _torch.module_call_code()
_BACKWARD = _torch.backward_code()


def is_module_call(frame: FrameType) -> bool:
    """Say whether a frame is the one in which torch calls a module's forward."""
    return frame.f_code is _CALL
