"""Where an operation of a training step stands: phase, line and module."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import NamedTuple

from nbinspect import _torch, notebook
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

    Attributes:
        modules: the names of the modules.
    """

    def __init__(self) -> None:
        self.modules = ModuleNames()
        self._sites = ForwardSites()

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
        if _in_optimizer(frame):
            return Place("optimizer", user_site(frame), ""), None, False
        return self._forward(frame), None, False

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


def _in_optimizer(frame: FrameType | None) -> bool:
    """Say whether a step of an optimizer runs, and not the closure that it was given."""
    while frame is not None:
        if _is_optimizer_step(frame):
            return True
        if notebook.is_users_file(frame.f_code.co_filename):
            return frame.f_back is not None and _is_optimizer_step(frame.f_back)
        frame = frame.f_back
    return False


def _is_optimizer_step(frame: FrameType) -> bool:
    """Say whether a frame is the wrapper that torch puts around every optimizer's `step`."""
    return (
        frame.f_globals.get("__name__") == "torch.optim.optimizer"
        and frame.f_code.co_name == "wrapper"
    )
