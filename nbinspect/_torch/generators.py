"""The random generators of accelerators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from nbinspect._torch.allocators import accelerators, in_use


def generator_states() -> list[tuple[str, torch.Tensor]]:
    """Give each accelerator's default generator as it stands now, by name.

    An unopened device stays unopened: nobody has drawn from it.

    Cost: some µs a device; the state is kept on the host, so nothing is waited for.
    Source: ``get_rng_state`` of the device's module.
    """
    return list(_states())


def _states() -> Iterator[tuple[str, torch.Tensor]]:
    for name in accelerators():
        device = torch.device(name)
        read = getattr(getattr(torch, device.type, None), "get_rng_state", None)
        if read is not None and in_use(device):
            yield name, read(*_which(device))


def set_generator_states(states: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Put `generator_states` back."""
    for name, state in states:
        device = torch.device(name)
        module: Any = getattr(torch, device.type)
        module.set_rng_state(state, *_which(device))


def _which(device: torch.device) -> tuple[torch.device, ...]:
    """Give the argument that names a device; Apple's module has but one and takes none."""
    return () if device.type == "mps" else (device,)
