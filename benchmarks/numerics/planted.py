"""Training with one known numerical fault, or with something that only looks like one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import nn

Formula = Callable[[Any, torch.Tensor], torch.Tensor]


class Model(nn.Module):
    """A loss written as a formula over named parts: modules, and tensors that are trained.

    The formula is its `forward`, so that no frame of ours stands between a tool and the line.
    """

    def __init__(self, formula: Formula, parts: dict[str, nn.Module | torch.Tensor]) -> None:
        super().__init__()
        self.forward = MethodType(formula, self)
        for name, part in parts.items():
            setattr(self, name, part if isinstance(part, nn.Module) else nn.Parameter(part))


@dataclass
class Training:
    """A loss, what trains it, and the batches."""

    model: Model
    optimizer: torch.optim.Optimizer
    batches: tuple[torch.Tensor, ...]
    prepare: Callable[[torch.Tensor], torch.Tensor]

    def run(self) -> None:
        """Train on every batch, as it is always written."""
        for batch in self.batches:
            inputs = self.prepare(batch)
            self.optimizer.zero_grad()
            loss = self.model(inputs)
            loss.backward()
            self.optimizer.step()


@dataclass(frozen=True)
class Planted:
    """A training and what should be said of it.

    Attributes:
        make: makes it, the same each time.
        ops: the operations that may be named; () for a healthy control.
        lines: a part of the line to be named; several where several may be.
        absorbed: the values vanish again, so this is to be listed but is no finding.
    """

    name: str
    make: Callable[[], Training]
    ops: tuple[str, ...]
    lines: tuple[str, ...]
    absorbed: bool


FAULTS: list[Planted] = []
CONTROLS: list[Planted] = []


def fault(
    *ops: str, line: str | tuple[str, ...], absorbed: bool = False
) -> Callable[[Callable[[], Training]], Callable[[], Training]]:
    """Add a training with a fault, whose docstring says which."""

    def add(make: Callable[[], Training]) -> Callable[[], Training]:
        lines = (line,) if isinstance(line, str) else line
        FAULTS.append(Planted(make.__name__, make, ops, lines, absorbed))
        return make

    return add


def control(make: Callable[[], Training]) -> Callable[[], Training]:
    """Add a healthy training, whose docstring says why."""
    CONTROLS.append(Planted(make.__name__, make, (), (), False))
    return make


def training(
    formula: Formula,
    *batches: torch.Tensor,
    optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer] | None = None,
    prepare: Callable[[torch.Tensor], torch.Tensor] | None = None,
    **parts: nn.Module | torch.Tensor,
) -> Training:
    """Put a training together.

    Args:
        formula: the loss, given the model and what `prepare` made of a batch.
        batches: what is trained on, in turn.
        optimizer: makes it; plain SGD by default.
        prepare: works on the data before the model does.
        parts: attributes of the model.
    """
    model = Model(formula, parts)
    make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    return Training(model, make(list(model.parameters())), batches, prepare or (lambda x: x))
