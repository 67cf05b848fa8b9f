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
READS_NUMBER = "_local_scalar_dense"
# They write without reading what was there; so does everything that is given `out=`.
_OVERWRITES = frozenset(
    {
        "copy", "fill", "zero", "normal", "uniform", "bernoulli", "exponential", "random",
        "geometric", "log_normal", "cauchy",
    }
)  # fmt: skip


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
        sends: exchanges values with other processes, and its results may come later.
        overwrites: what it writes to is not read.
    """

    op: str
    base: str
    skip: bool
    written: tuple[int, ...]
    written_names: tuple[str, ...]
    pointwise: bool
    reads_number: bool
    tame: bool
    sends: bool
    overwrites: bool


@lru_cache(maxsize=4096)
def plan(func: Any) -> Plan:
    """Read an operation's schema, once."""
    op = str(func.overloadpacket) if hasattr(func, "overloadpacket") else str(func)
    name = op.rpartition(".")[2]
    schema = getattr(func, "_schema", None)
    arguments = list(schema.arguments) if schema is not None else []
    written = [(i, one.name) for i, one in enumerate(arguments) if _is_written(name, one)]
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
        is_exchange(op),
        base in _OVERWRITES or (bool(written) and all(_is_out(arguments[i]) for i, _ in written)),
    )


def is_exchange(op: str) -> bool:
    """Say whether an operation exchanges values with other processes."""
    return op.startswith(("c10d.", "_c10d_functional."))


def _is_out(argument: Any) -> bool:
    return bool(argument.kwarg_only and argument.is_out)


def _is_written(name: str, argument: Any) -> bool:
    """Say whether an argument is written to.

    The running statistics of batch norm are, going forward, though torch's schema does not say so.
    """
    alias = argument.alias_info
    if alias is not None:
        return bool(alias.is_write)
    return not name.endswith("_backward") and argument.name.startswith("running_")


def written_values(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Give the arguments that the operation writes to."""
    found = [args[i] for i in plan.written if i < len(args)]
    return found + [kwargs[name] for name in plan.written_names if name in kwargs]
