"""The random numbers' state, of torch, Python and NumPy, taken and put back."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class RandomState:
    """The state of every generator that a function may draw from.

    Devices that this process has not opened stay unopened.
    """

    cpu: torch.Tensor
    cuda: list[torch.Tensor]
    python: Any
    numpy: Any

    @classmethod
    def now(cls) -> RandomState:
        """Take it."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        numpy = sys.modules.get("numpy")
        state = numpy.random.get_state() if numpy is not None else None
        return cls(torch.get_rng_state(), cuda, random.getstate(), state)

    def put_back(self) -> None:
        """Let the same numbers come again."""
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)

    def was_used(self) -> bool:
        """Say whether torch or Python has drawn a number since."""
        now = RandomState.now()
        pairs = zip([self.cpu, *self.cuda], [now.cpu, *now.cuda], strict=False)
        return self.python != now.python or any(not torch.equal(a, b) for a, b in pairs)
