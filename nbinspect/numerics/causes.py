"""Why an operation gave a NaN or Inf, and what mends it: a table with a condition for each cause.

A cause is claimed only where its condition holds on the values that were seen; else it is said
what was seen, and no more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from nbinspect import notebook
from nbinspect.numerics.phrasing import (
    at_index,
    number,
    operand_text,
    rewritten,
    some_of,
    wrapped,
)
from nbinspect.numerics.records import Operand
from nbinspect.render.format import count

if TYPE_CHECKING:
    from nbinspect.numerics.events import Event

Losses = tuple[tuple[int, float], ...]
_SUMS = {"add", "sub", "mul"}  # of finite values these are infinite only by their size
_GREW = 1e4  # a loss that grew by this factor is one that runs away


class Cause(NamedTuple):
    """Why, and what to do.

    Attributes:
        why: sentences.
        mend: what to do, code where possible; "" if that is not known.
        certain: a condition of the table held, and it is no overflow that a scale can cause.
    """

    why: str
    mend: str = ""
    certain: bool = False


class Seen:
    """An event as the table asks about it."""

    def __init__(self, event: Event, losses: Losses) -> None:
        self.event = event
        self.losses = losses
        self.result = self.arg("result")
        where = event.where
        self.line = "" if where is None else notebook.source_line(*where).text
        self.source = event.spot.source

    def arg(self, *names: str) -> Operand | None:
        """Give the operand with one of these names."""
        for one in self.event.operands:
            if one.name in names or one.name.partition("[")[0] in names:
                return one
        return None

    def tensors(self) -> list[Operand]:
        """Give the operands whose values are known, without the result."""
        return [one for one in self.event.operands if one.n_values and one.name != "result"]

    def user(self, base: str, otherwise: str = "x") -> str:
        """Give the user's own expression for the operand."""
        return operand_text(self.source, base) or operand_text(self.line, base) or otherwise

    @property
    def limit(self) -> float:
        """The largest number that the result's type can hold."""
        dtype = self.dtype
        holds_inf = dtype.is_floating_point or dtype.is_complex
        return torch.finfo(dtype).max if holds_inf else math.inf

    @property
    def dtype(self) -> torch.dtype:
        """The result's type."""
        name = self.result.what.rpartition(" ")[2] if self.result else "float32"
        dtype = getattr(torch, name, torch.float32)
        return dtype if isinstance(dtype, torch.dtype) else torch.float32

    @property
    def is_narrow(self) -> bool:
        """Whether the result is of half precision."""
        return self.dtype in {torch.float16, torch.bfloat16}

    @property
    def type_name(self) -> str:
        """The type as torch calls it."""
        return str(self.dtype).removeprefix("torch.")


Rule = Callable[[Seen], Cause | None]
FORWARD: dict[str, tuple[Rule, ...]] = {}
BACKWARD: dict[str, tuple[Rule, ...]] = {}


def explain(event: Event, losses: Losses) -> Cause:
    """Give the cause of an event and its mend."""
    seen = Seen(event, losses)
    if event.kind == "leaf":
        return _leaf(seen)
    if event.op == "unknown":
        return _UNKNOWN
    if event.kind == "literal":
        return _literal(seen)
    for rule in _rules(event):
        cause = rule(seen)
        if cause is not None:
            return _with_history(_for_complex(cause, seen), seen)
    return _with_history(_only_seen(seen), seen)


def _for_complex(cause: Cause, seen: Seen) -> Cause:
    """Leave out a mend that clamps: complex numbers have no order."""
    if not seen.dtype.is_complex or ".clamp(" not in cause.mend:
        return cause
    return cause._replace(mend="take those entries out first: torch.where on their size, x.abs()")


def _rules(event: Event) -> tuple[Rule, ...]:
    from nbinspect.numerics import rules_backward, rules_forward, rules_layers

    found: tuple[Rule, ...] = ()
    if event.node is not None:
        family = event.node.rstrip("0123456789").removesuffix("Backward").lower()
        found = rules_backward.RULES.get(family, ())
        if event.ran is not None:  # no line of the user's says what is divided here
            found += rules_backward.INSIDE
    found += rules_layers.RULES.get(event.base, ())
    return (*found, *rules_forward.RULES.get(event.base, ()), *rules_forward.ANY)


def _leaf(seen: Seen) -> Cause:
    event = seen.event
    name = event.leaf or "A tensor that was given"
    what = f"`{name}`" if event.leaf else name
    values = "NaN" if event.shows_nan else "Inf"
    if event.n_values == 1 and not event.leaf:
        return Cause(f"The number that is written here is {values}.", certain=True)
    start = f"{what} holds {values} before any operation of the watched code has written it"
    if event.n_bad:
        start += f": {count(event.n_bad)} of {count(event.n_values)} values{at_index(event.at)}"
    if event.place == "buffer":
        made = f"it was averaged from a batch that held {values}, or loaded so."
        if event.where is not None:
            made = (
                f"a batch since the last backward pass wrote it, whose own loss was not used. The "
                f"batch that is running now writes it too, and no {values}."
            )
        return Cause(
            f"{what} holds {values}: {made}",
            "reset it, e.g. module.reset_running_stats(), and check each batch before the forward pass",
            certain=True,
        )
    if event.place == "parameter":
        return Cause(
            f"{what} holds {values}, though the loss and the gradients that were looked at were "
            "finite: it was written outside of them, by an update by hand or through NumPy.",
            "run the cell under %%nanwatch without --light, which sees each operation",
        )
    if name.endswith(".grad"):
        return Cause(f"{start}.", "optimizer.zero_grad(set_to_none=True)", certain=True)
    if _is_parameter(seen):
        return Cause(
            f"{start}. It was never initialised (memory of torch.empty), or an earlier step or "
            "a loaded checkpoint left it so.",
            f"torch.nn.init.ones_({name}), or load the last good checkpoint",
            certain=True,
        )
    return Cause(
        f"{start}. It came with the data.",
        f"{name if event.leaf else 'x'} = torch.nan_to_num({name if event.leaf else 'x'}), or drop"
        " such samples: x[x.isfinite().all(dim=-1)]",
        certain=True,
    )


def _is_parameter(seen: Seen) -> bool:
    return seen.event.leaf.count(".") > 0


_UNKNOWN = Cause(
    "The operation that made it was not seen: it ran inside a compiled function, in another "
    "thread, or outside of torch."
)


def _literal(seen: Seen) -> Cause:
    event = seen.event
    what = "NaN" if event.shows_nan else "Inf"
    text = f"The code writes {what} here itself"
    if event.base in {"masked_fill", "where", "full", "full_like", "fill"}:
        return Cause(
            f"{text}, to stand for something that must not be chosen, and it was chosen all the same: "
            "nothing else was left, or the label itself is masked.",
            "skip the rows in which everything or the label is masked, or fill with "
            "torch.finfo(x.dtype).min",
            certain=True,
        )
    if event.phase == "optimizer" and "step" in seen.line:
        return Cause(
            f"The optimizer was given {what} as a setting, such as its learning rate or a decay.",
            "look at optimizer.param_groups: a schedule that divides by 0, say, gives such a rate",
            certain=True,
        )
    if event.base in {"mul", "add", "sub", "rsub", "div", "pow"}:
        return Cause(
            f"A Python number in this line is {what}.",
            "find where that number comes from, or skip the step: math.isfinite(number)",
            certain=True,
        )
    return Cause(
        f"{text}, and nothing takes it away again before it counts.",
        "write a finite number, e.g. torch.finfo(x.dtype).max, or leave those entries out",
        certain=True,
    )


def _only_seen(seen: Seen) -> Cause:
    event = seen.event
    parts = [_range(one) for one in seen.tensors()[:3]]
    name = event.op.rpartition(".")[2].strip("_")
    if event.kind == "inf_to_nan":
        start = f"`{name}` turned an infinity into NaN."
    else:
        result = "NaN" if event.shows_nan else "Inf"
        start = f"`{name}` was given finite values and returned {result}."
    if event.is_gone:
        return _gone(seen, start)
    return Cause(" ".join([start, *filter(None, parts)]))


def _gone(seen: Seen, start: str) -> Cause:
    """Tell what is known without the values: nobody waited for the device."""
    event = seen.event
    if event.phase == "optimizer" and event.base in _SUMS and not event.shows_nan:
        return Cause(
            f"{start} The update is larger than its type can hold.",
            "lower the learning rate, or clip: torch.nn.utils.clip_grad_norm_(params, 1.0)",
        )
    return Cause(start, "run it again under %%nanwatch --sync, which shows the values it was given")


def _range(operand: Operand) -> str:
    if operand.low is None or operand.high is None:
        return ""
    infinite = f", {count(operand.n_inf)} infinite" if operand.n_inf else ""
    return (
        f"`{operand.name}` lies between {number(operand.low)} and {number(operand.high)}{infinite}."
    )


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _with_history(cause: Cause, seen: Seen) -> Cause:
    """Add how the loss ran away before, which makes the step size the likeliest cause."""
    sizes = [abs(value) for _, value in seen.losses if math.isfinite(value) and value]
    if cause.certain or len(sizes) < 2 or seen.event.node is not None:
        return cause
    tail = sizes[-8:]
    rising = sum(b > a for a, b in itertools.pairwise(tail)) >= 0.8 * (len(tail) - 1)
    if not rising or tail[-1] < _GREW * tail[0]:
        return cause
    grew = (
        f"The loss grew from {number(tail[0])} to {number(tail[-1])} within {len(tail)} steps: each "
        "update overshoots."
    )
    return Cause(
        f"{cause.why} {grew}",
        "lower the learning rate (try a tenth), scale the inputs, or clip: "
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        certain=True,
    )


def zeros(operand: Operand | None, seen: Seen) -> str:
    """Say that an operand holds zeros, "" if it does not."""
    if operand is None or not operand.n_zero or (operand.at is not None and operand.at != 0):
        return ""
    return _upper(f"{some_of(operand.n_zero, operand, '0')}{at_index(seen.event.at)}.")


def nonzero(operand: Operand) -> str:
    """Give what to put in the place of a divisor ``{x}``, which clamping would change below 0."""
    below_zero = operand.low is not None and operand.low < 0
    return "torch.where({x} == 0, 1e-6, {x})" if below_zero else "{x}.clamp(min=1e-6)"


def text_of(seen: Seen, base: str) -> str:
    """Give the user's operand, ready to be put before a dot or after a sign."""
    return wrapped(seen.user(base))


def as_number(text: str) -> float | None:
    """Read an operand that is written as a number, None for any other."""
    try:
        return float(text)
    except ValueError:
        return None


def with_operand(seen: Seen, base: str, better: str, otherwise: str) -> str:
    """Give the user's line with a better operand, else advice.

    Args:
        seen: the event.
        base: the operation whose operand is meant.
        better: what to put in its place, with ``{x}`` for what stands there.
        otherwise: the advice, likewise.
    """
    x = seen.user(base)
    line = rewritten(seen.line, seen.source, seen.user(base, ""), better.format(x=wrapped(x)))
    return line or otherwise.format(x=wrapped(x))
