"""Where in the user's code an operation stands, and which forward line made an autograd node."""

from __future__ import annotations

from bisect import bisect_right
from types import FrameType
from typing import Any, NamedTuple

from nbinspect import _torch, notebook
from nbinspect.ops import Site, running_user_frame


class Spot(NamedTuple):
    """A place in the user's code, to the instruction."""

    site: Site
    instruction: int

    @property
    def source(self) -> str:
        """The expression that ran there, "" if that is not known."""
        return "" if self.site is None else notebook.source_segment(self.site[0], self.instruction)


NOWHERE = Spot(None, 0)


def spot(frame: FrameType | None) -> Spot:
    """Give the nearest place in the user's own code, from `frame` outwards.

    Cost: about 2 µs.
    """
    found = running_user_frame(frame)
    if found is None:
        return NOWHERE
    return Spot((found.f_code, found.f_lineno), found.f_lasti)


class ForwardSites:
    """Remembers which line and module made each autograd node of this step and the one before.

    Attributes:
        last: the number up to which nodes are known.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._places: list[tuple[Spot, str]] = []
        self._n_old = 0
        self.last = -1

    def add(self, number: int, place: Spot, module: str) -> None:
        """Note that the nodes up to `number` were made here."""
        self.last = number
        if self._numbers and number <= self._numbers[-1]:  # another thread counts on its own
            return
        self._numbers.append(number)
        self._places.append((place, module))

    def find(self, node: Any) -> tuple[Spot, str]:
        """Give the forward line and module of a node."""
        number = _torch.sequence_number(node)
        if number is None:
            return NOWHERE, ""
        at = bisect_right(self._numbers, number)  # noted when the number was already past it
        near = [i for i in (at, at - 1) if 0 <= i < len(self._numbers)]
        return self._places[near[0]] if near else (NOWHERE, "")

    def next_step(self) -> None:
        """Forget what is older than the step that has just ended."""
        del self._numbers[: self._n_old], self._places[: self._n_old]
        self._n_old = len(self._numbers)


def runs_users_code(frame: FrameType | None) -> bool:
    """Say whether a backward runs Python of the user's, below the line that called it.

    So it is in a custom ``Function.backward``, in a hook, and where checkpointing runs the forward
    again. The engine calls these from C++, so between them and `Tensor.backward` stands no frame.
    """
    while frame is not None:
        if notebook.is_users_file(frame.f_code.co_filename):
            return True
        if frame.f_code in _torch.engine_codes():
            return False
        frame = frame.f_back
    return False
