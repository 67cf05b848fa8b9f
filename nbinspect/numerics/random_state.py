"""The random numbers' state, of torch, Python and NumPy, taken and put back."""

from __future__ import annotations

import ctypes
import random
import sys
from dataclasses import dataclass
from typing import Any

import torch

from nbinspect import _torch


@dataclass(frozen=True, slots=True)
class RandomState:
    """The state of every generator that a function may draw from.

    Devices that this process has not opened stay unopened.
    """

    cpu: torch.Tensor
    devices: list[tuple[str, torch.Tensor]]
    python: Any
    numpy: Any

    @classmethod
    def now(cls) -> RandomState:
        """Take it."""
        devices = _torch.generator_states()
        return cls(torch.get_rng_state(), devices, random.getstate(), _numpy_state())

    def put_back(self) -> None:
        """Let the same numbers come again."""
        torch.set_rng_state(self.cpu)
        _torch.set_generator_states(self.devices)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy.random"].set_state(self.numpy)

    def was_used(self) -> bool:
        """Say whether torch or Python has drawn a number since."""
        now = RandomState.now()
        pairs = zip(self.of_torch, now.of_torch, strict=False)
        return self.python != now.python or any(not torch.equal(a, b) for a, b in pairs)

    @property
    def of_torch(self) -> list[torch.Tensor]:
        """The states of torch's own generators."""
        return [self.cpu, *(state for _, state in self.devices)]


_MT19937_BYTES = 4 * 624 + 4  # its numbers and where it stands among them
_last: tuple[Any, bytes, Any] = (None, b"", None)  # generator, its memory, the state


def _numpy_state() -> Any:
    """Give the state of NumPy's global generator, None if it was never imported.

    NumPy takes 30 µs for it, so the one from before is given again while the generator's memory is
    the same. That does not hold the second of two normal numbers drawn at once, if there is one.
    """
    global _last
    module = sys.modules.get("numpy.random")
    if module is None:
        return None
    get = getattr(module, "get_bit_generator", None)
    generator: Any = get() if get is not None else None
    if type(generator).__name__ != "MT19937":
        return module.get_state()
    memory = ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
    of, known, state = _last
    if of is not generator or known != memory or state[3]:
        state = module.get_state()
        _last = generator, memory, state
    return state
