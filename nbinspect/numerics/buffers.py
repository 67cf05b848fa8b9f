"""The buffers of the user's modules: which there are, what they are called, which were good."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from nbinspect.numerics.check import bad_ones, can_be_bad
from nbinspect.numerics.naming import Names
from nbinspect.numerics.pinned import Buffer
from nbinspect.ops import ModuleNames


class _Known(NamedTuple):
    """A buffer that was met.

    Attributes:
        module: the one that holds it.
        name: its name there.
        full_name: the user's name of it.
    """

    module: weakref.ref[nn.Module]
    name: str
    full_name: str

    def tensor(self) -> tuple[dict[str, torch.Tensor | None], torch.Tensor | None]:
        """Give the dictionary that holds it, and what is there now."""
        module = self.module()
        owner = {} if module is None else module._buffers  # noqa: SLF001 - no property is run
        return owner, owner.get(self.name)


class Buffers:
    """The buffers of the modules that the user has names for, and of those that were seen to run.

    Args:
        modules: those that were seen to run.
    """

    def __init__(self, modules: ModuleNames) -> None:
        self._modules = modules
        self._known: dict[tuple[int, str], _Known] = {}
        self._good: dict[int, weakref.ref[torch.Tensor]] = {}  # when they were met
        self._n_looks = 0

    def here(self) -> list[Buffer]:
        """Give those that are known.

        Cost: 1 µs each; looks for modules, ever more rarely, while none is known.
        """
        self._n_looks += 1
        if not self._known and not self._n_looks & (self._n_looks - 1):
            self.learn()
        found = []
        for one in self._known.values():
            owner, value = one.tensor()
            if value is not None:
                found.append(Buffer(owner, one.name, value))
        return found

    def learn(self) -> None:
        """Look for modules that have names now."""
        met: list[torch.Tensor] = []
        for key, one in _in_sight(self._modules.named()):
            if key not in self._known:
                self._known[key] = one
                met += [value for value in one.tensor()[1:] if value is not None]
        values = [one for one in met if can_be_bad(one)]
        bad = set(map(id, bad_ones(values)))
        self._good.update((id(one), weakref.ref(one)) for one in values if id(one) not in bad)

    def was_good(self, tensor: torch.Tensor) -> bool:
        """Say whether a buffer was finite when it was met."""
        ref = self._good.get(id(tensor))
        return ref is not None and ref() is tensor

    def name(self, tensor: torch.Tensor) -> str:
        """Name a buffer as it was called when it was met, since its owner's name may be gone."""
        found = (one.full_name for one in self._known.values() if one.tensor()[1] is tensor)
        return next(found, "")


def _in_sight(ran: list[tuple[nn.Module, str]]) -> Iterator[tuple[tuple[int, str], _Known]]:
    """Yield the buffers of the modules that have names, and of those that were seen to run."""
    names = Names()
    try:
        modules = {id(one): one for module in names.modules for one in module.modules()}
        own_names = {id(one): name for one, name in ran}
        modules.update((id(one), one) for one, _ in ran)
        for one in modules.values():
            for name, value in one._buffers.items():  # noqa: SLF001 - what `buffers()` reads
                if value is not None:
                    own = own_names.get(id(one), "")
                    full_name = names(value) or (f"{own}.{name}" if own else "")
                    yield (id(one), name), _Known(weakref.ref(one), name, full_name)
    finally:
        names.close()
