"""What a NaN or Inf means where it comes out of an operation: made, turned, written or passed on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nbinspect.blocks import Unavailable
from nbinspect.numerics.operands import Index
from nbinspect.numerics.plans import Plan
from nbinspect.numerics.records import Operand
from nbinspect.numerics.sites import NOWHERE, Spot
from nbinspect.ops import Site

GONE = (Operand("values", "", missing=Unavailable("gone by then; --sync keeps them")),)


@dataclass(eq=False, slots=True)
class Event:
    """A NaN or Inf that came out of an operation, or into it from outside.

    Attributes:
        kind: born, inf_to_nan, literal, leaf or passed.
        spot: the user's line; for an operation of backward, the forward line it belongs to.
        ran: the line that was running, if that is another one.
        parents: the events that made its bad operands.
        origin: where its values come from: itself unless it is `passed`.
        shows_nan: whether there is a NaN among the values.
        shows_inf: whether there is an Inf.
        meant: an infinity that the code asked for.
        operands: what went in and came out; () if nobody looked.
        leaf: for a leaf, the tensor's name.
        place: for what no operation was seen to make, where it was found.
        absorber: the operation that took it in and gave finite values.
    """

    op: str
    base: str
    kind: str
    phase: str
    node: str | None
    spot: Spot
    ran: Site
    module: str
    step: int
    index: int
    parents: tuple[Event, ...] = ()
    origin: Event = field(init=False)
    shows_nan: bool = False
    shows_inf: bool = False
    meant: bool = False
    at: Index | None = None
    n_bad: int = 0
    n_values: int = 0
    operands: tuple[Operand, ...] = ()
    leaf: str = ""
    place: str = ""
    absorber: str = ""
    absorber_phase: str = ""
    depth: int = 0

    def __post_init__(self) -> None:
        self.origin = self if self.kind != "passed" else self.parents[0].origin

    @property
    def where(self) -> Site:
        """The user's line."""
        return self.spot.site

    @property
    def is_gone(self) -> bool:
        """Whether its values were no longer there when it was judged."""
        return self.operands == GONE

    @property
    def key(self) -> tuple[Any, ...]:
        """The same operation of the same line, whenever it runs."""
        return self.op, self.kind, self.node, self.where, self.leaf


class Place(NamedTuple):
    """Where an operation ran."""

    phase: str
    node: str | None
    spot: Spot
    ran: Site
    module: str


class Circumstances(NamedTuple):
    """What an event is judged by.

    Attributes:
        plan: the operation.
        place: where it ran.
        step: in which step.
        n_op: its number.
        numbers: the Python numbers that it was given.
        last_number: the event behind the last bad number that a tensor gave to Python.
    """

    plan: Plan
    place: Place
    step: int
    n_op: int
    numbers: Sequence[float | complex]
    last_number: Event | None

    def event(self, kind: str, **more: Any) -> Event:
        """Make an event of this operation."""
        return Event(
            op=self.plan.op, base=self.plan.base, kind=kind, step=self.step, index=self.n_op,
            **self.place._asdict(), **more,
        )  # fmt: skip

    def leaf(self) -> Event:
        """Make the event of an operand that was bad before any operation wrote it."""
        place = self.place._replace(phase="leaf", node=None)
        return Event(
            op="leaf", base="leaf", kind="leaf", step=self.step, index=self.n_op,
            **place._asdict(),
        )  # fmt: skip


# An infinity that is written or added stands for something; nobody means to multiply by one.
_SCALES = frozenset({"mul", "div", "true_divide", "pow"})


def judged(seen: Circumstances, sources: Sequence[tuple[Event, bool]], *, shows_nan: bool) -> Event:
    """Say what an operation with a bad result did.

    Args:
        seen: the operation.
        sources: for each bad operand its event, and whether it holds a NaN.
        shows_nan: whether the result holds a NaN.
    """
    if not sources:
        return _without_sources(seen, shows_nan=shows_nan)
    meant = all(event.origin.meant for event, _ in sources)
    if meant and shows_nan and not any(nan for _, nan in sources):
        return seen.event("inf_to_nan", parents=tuple(event for event, _ in sources))
    # What somebody meant is the last to be blamed, and the earliest fault the first.
    parents = sorted(
        {id(event): event for event, _ in sources}.values(),
        key=lambda event: (event.origin.meant, event.origin.index),
    )
    return seen.event("passed", parents=tuple(parents[:3]), depth=1 + parents[0].depth)


def _without_sources(seen: Circumstances, *, shows_nan: bool) -> Event:
    bad = [one for one in seen.numbers if not is_finite(one)]
    if not bad:
        return seen.event("born")
    has_nan = any(one != one for one in bad)  # noqa: PLR0124 - only a NaN differs from itself
    if shows_nan and not has_nan:
        return seen.event("inf_to_nan")
    if has_nan and seen.last_number is not None:
        return seen.event("passed", parents=(seen.last_number,))
    return seen.event("literal", meant=seen.plan.base not in _SCALES)


def unseen(op: str, phase: str, *, step: int, index: int, spot: Spot = NOWHERE) -> Event:
    """Make an event for bad values that no operation was seen to make."""
    kind = "leaf" if op == "leaf" else "born"
    return Event(
        op=op, base=op, kind=kind, phase=phase, node=None, spot=spot, ran=None, module="",
        step=step, index=index,
    )  # fmt: skip


def is_finite(value: float | complex) -> bool:
    """Say whether a number is finite."""
    return math.isfinite(value.real) and math.isfinite(value.imag)


def numbers_in(value: Any) -> Iterable[float | complex]:
    """Yield the Python numbers among an operation's arguments."""
    if isinstance(value, float | complex):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from numbers_in(one)
    elif isinstance(value, dict):
        yield from numbers_in(list(value.values()))
