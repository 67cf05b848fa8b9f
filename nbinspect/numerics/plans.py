"""What an operation's schema says: what it writes to, and whether its result needs a look."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch

# Their results hold values that were there before, or none yet. `lift_fresh` is how a literal
# tensor such as `torch.tensor(inf)` comes into a graph.
_MOVES_ONLY = frozenset(
    {
        "detach",
        "alias",
        "lift_fresh",
        "lift_fresh_copy",
        "_unsafe_view",
        "_reshape_alias",
        "resize_",
        "resize_as_",
        "set_",
        "requires_grad_",
    }
)
# In an optimizer these get averages, squares and decays of finite values, of which they cannot
# make a NaN or Inf; they are half of its work.
_STAYS_IN_RANGE = frozenset({"lerp", "mul", "sqrt", "maximum", "neg", "zero"})
# See `formulas`.
_BY_TWO_WAYS = frozenset(
    {
        "aten.prod.default", "aten.prod.dim_int", "aten.cumprod.default", "aten.cumprod_.default",
        "aten.max.default", "aten.min.default", "aten.median.default", "aten.nanmedian.default",
        "aten.masked_fill.Tensor", "aten.masked_fill_.Tensor", "aten.linalg_eig.default",
        "aten._linalg_eigh.default",
    }
)  # fmt: skip
READS_NUMBER = "_local_scalar_dense"


class Plan(NamedTuple):
    """What to do around an operation.

    Attributes:
        op: its name without the overload, e.g. ``aten.div``.
        base: its family, e.g. ``div`` for ``aten.div_`` and ``aten._foreach_div``.
        skip: its result needs no look.
        written: the positions of the arguments that it writes to.
        written_names: the same for those given by keyword.
        pointwise: each value of its result comes from the values at the same place.
        reads_number: gives a Python number.
        tame: makes nothing bad of what an optimizer gives it.
        by_two_ways: its backward is another one under a dispatch mode.
    """

    op: str
    base: str
    skip: bool
    written: tuple[int, ...]
    written_names: tuple[str, ...]
    pointwise: bool
    reads_number: bool
    tame: bool
    by_two_ways: bool


@lru_cache(maxsize=4096)
def plan(func: Any) -> Plan:
    """Read an operation's schema, once."""
    op = str(func.overloadpacket) if hasattr(func, "overloadpacket") else str(func)
    name = op.rpartition(".")[2]
    schema = getattr(func, "_schema", None)
    arguments = list(schema.arguments) if schema is not None else []
    written = [(i, one.name) for i, one in enumerate(arguments) if _is_written(one)]
    base = name.removeprefix("_foreach_").strip("_")
    return Plan(
        op,
        base,
        name in _MOVES_ONLY or "empty" in name or bool(getattr(func, "is_view", False)),
        tuple(i for i, _ in written),
        tuple(name for _, name in written),
        torch.Tag.pointwise in getattr(func, "tags", ()),
        name == READS_NUMBER,
        base in _STAYS_IN_RANGE,
        str(func) in _BY_TWO_WAYS,
    )


def _is_written(argument: Any) -> bool:
    """Say whether an argument is written to.

    The running statistics of batch norm are, though torch's schema does not say so.
    """
    alias = argument.alias_info
    return bool(alias is not None and alias.is_write) or argument.name.startswith("running_")


def written_values(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Give the arguments that the operation writes to."""
    found = [args[i] for i in plan.written if i < len(args)]
    return found + [kwargs[name] for name in plan.written_names if name in kwargs]
