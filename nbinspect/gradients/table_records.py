"""The gradients of one moment as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from nbinspect.blocks import View
from nbinspect.gradients.records import GradientFinding
from nbinspect.records import Record

FROZEN, NOT_REACHED = "frozen", "no backward has reached it"


@dataclass(frozen=True, slots=True)
class TableRow:
    """A parameter and its `.grad` at this moment; None for what does not exist."""

    name: str
    shape: tuple[int, ...]
    grad_norm: float | None
    max_abs: float | None
    mean: float | None
    std: float | None
    zero_share: float | None
    n_nan: int | None
    n_inf: int | None
    weight_norm: float | None
    requires_grad: bool
    why_not: str = ""
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GradientTable(Record):
    """The current `.grad` of every parameter.

    Attributes:
        parameters: one row each, in module order.
        grad_norm: the norm over all of them.
        findings: what is wrong with them at this moment.
    """

    parameters: tuple[TableRow, ...]
    grad_norm: float
    findings: tuple[GradientFinding, ...] = ()

    def __getitem__(self, name: str) -> TableRow:
        """Give a parameter by its name.

        Raises:
            KeyError: there is none of that name.
        """
        for one in self.parameters:
            if name == one.name or name in one.also:
                return one
        raise KeyError(name)

    def view(self) -> View:
        """Say whether the gradients are well, and list them."""
        from nbinspect.gradients.view import table_view

        return table_view(self)
