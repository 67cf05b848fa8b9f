"""Collects where bad values were found, and makes findings of their origins."""

from __future__ import annotations

import math
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from nbinspect import _torch, notebook
from nbinspect.numerics.buffers import Buffers
from nbinspect.numerics.causes import Cause, explain
from nbinspect.numerics.check import bad_ones, can_be_bad, flags
from nbinspect.numerics.events import Event
from nbinspect.numerics.flow import Flow, is_mask
from nbinspect.numerics.naming import Names
from nbinspect.numerics.operands import first_bad
from nbinspect.numerics.pinned import slot
from nbinspect.numerics.records import REACHES, Link, NanFinding, NanReport, Reached
from nbinspect.numerics.replay import Outcome, is_in_a_group
from nbinspect.numerics.sites import NOWHERE, spot
from nbinspect.ops import Site
from nbinspect.records import SourceLine
from nbinspect.tensors import describe

_MOST_LOSSES = 200
_MOST_ABSORBED = 50
_MOST_NAMES = 64
_PHASE_OF = {"loss": "forward", "grad": "backward", "parameter": "optimizer"}
_MANY_SKIPS = 15  # a scale of 2**16 is 2 after so many


class Bad(NamedTuple):
    """A tensor with bad values, at a place that matters.

    Attributes:
        place: loss, grad, parameter or buffer.
        tensor: the tensor itself.
        key: id of the tensor; of a gradient, of the leaf; of a buffer, its `slot`.
        name: the user's name of it.
        n_of: how many tensors of that place were looked at.
    """

    place: str
    tensor: torch.Tensor
    key: int
    name: str
    n_of: int


@dataclass(eq=False, slots=True)
class _Case:
    """An origin whose values were found somewhere."""

    origin: Event
    step: int
    last: Event  # the event of the first tensor found
    end: str  # that tensor's name
    names: dict[str, dict[int, str]] = field(default_factory=dict)
    n_of: dict[str, int] = field(default_factory=dict)


class Findings:
    """What reached, what did not, and how the loss went.

    Attributes:
        n_steps: optimizer steps taken.
        n_backwards: backward passes run.
        skipped_steps: steps that a GradScaler skipped.
        last_skipped: whether the last step was one of them.
        losses: (step, value) of the last backward passes.
        notes: what the reader must know.
        buffers: those of the user's modules.
        ended: whether the watched code has; no line of it runs any longer.
    """

    def __init__(self, flow: Flow) -> None:
        self.n_steps = 0
        self.n_backwards = 0
        self.skipped_steps = 0
        self.last_skipped = False
        self.ended = False
        self._skips_in_a_row = 0
        self.losses: deque[tuple[int, float]] = deque(maxlen=_MOST_LOSSES)
        self.notes: dict[str, None] = {}
        self._flow = flow
        self._cases: dict[tuple[Any, ...], _Case] = {}
        self._fresh: list[_Case] = []
        self._untold: dict[tuple[Any, ...], Cause] = {}  # why an operation is unknown
        self._of_loss: _Case | None = None  # the case of the loss whose backward ran last
        self._merged: dict[tuple[Any, ...], _Case] = {}  # parts of a case
        self._bad_grads: set[int] = set()  # parameters whose gradient was bad before
        self._told: set[int] = set()  # buffers that need no replay any more, by their `slot`
        # Keys of what a step gave, and of the same when it ran again.
        self._seen_again: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._old: dict[int, int] = {}  # versions of what was bad before
        self._were_good: list[weakref.ref[torch.Tensor]] = []
        self.buffers = Buffers(flow.modules)

    def __len__(self) -> int:
        return len(self._cases)

    @property
    def in_this_step(self) -> bool:
        """Whether something was found in the running step."""
        return any(case.step == self.n_steps for case in self._cases.values())

    @property
    def explained(self) -> bool:
        """Whether what is found now must follow from what was found before."""
        return self.in_this_step or self._spreads

    @property
    def _spreads(self) -> bool:
        """Whether parameters are bad, so that everything will be."""
        return any("parameter" in case.names for case in self._cases.values())

    def next_step(self) -> None:
        """Count a step that has ended."""
        self.n_steps += 1
        if not self.last_skipped:
            self._skips_in_a_row = 0
        self._flow.next_step()

    def note_loss(self, value: float | None) -> None:
        """Count a backward pass and remember its loss, for the history."""
        self.n_backwards += 1
        self.last_skipped = False
        self._of_loss = None
        if value is not None:
            self.losses.append((self.n_steps, value))

    # Where bad values are.

    def bad(self, place: str, tensors: list[torch.Tensor], *, grads: bool = False) -> list[Bad]:
        """Give the bad ones among the tensors of one place, or among their gradients.

        Cost: one pass over them and, while all is well, one synchronisation a device and dtype.
        """
        values = [one.grad for one in tensors] if grads else tensors
        found = bad_ones(value for value in values if value is not None)
        if not found:
            return []
        pairs = zip(values, tensors, strict=True)
        owners = {id(value): owner for value, owner in pairs if value is not None}
        names = Names()
        names.close()
        made = []
        for one in found:
            owner = owners[id(one)]
            name = names.gradient(owner) if grads else names(owner) or self._other_name(place, one)
            made.append(Bad(place, one, id(owner), name, len(owners)))
        return made

    def bad_buffers(self) -> list[Bad]:
        """Look at the buffers of the modules that the user has names for.

        One that was bad before the watch began, and that nothing has read since, is no news.
        """
        here = [one for one in self.buffers.here() if can_be_bad(one.tensor)]
        slots = {id(one.tensor): slot(one) for one in here}
        news = [one for one in here if self._is_news(one.tensor) and slot(one) not in self._told]
        found = self.bad("buffer", [one.tensor for one in news])
        return [
            one._replace(key=slots[id(one.tensor)])
            for one in found
            if self.buffers.was_good(one.tensor) or not self._is_meant(one.tensor)
        ]

    def _is_meant(self, buffer: torch.Tensor, event: Event | None = None) -> bool:
        """Say whether a buffer with infinities is a mask or a best value so far."""
        event = event or self._flow.event_of(buffer)
        if event is not None and not event.origin.meant:
            return False
        return not flags(buffer)[0] and is_mask(buffer)

    def _other_name(self, place: str, tensor: torch.Tensor) -> str:
        name = self.buffers.name(tensor) if place == "buffer" else ""
        return name or (place if place == "loss" else f"a {place} of {describe(tensor)}")

    def note_start(self) -> None:
        """Remember which buffers and parameters are bad already, and which parameters are not."""
        seen = _parameters_in_sight()
        buffers = [one.tensor for one in self.buffers.here() if can_be_bad(one.tensor)]
        bad = bad_ones((*buffers, *seen))
        self._old = {id(one): _torch.version(one) for one in bad}
        owners = {id(one.grad): id(one) for one in seen if one.grad is not None}
        graded = [one.grad for one in seen if one.grad is not None]
        self._bad_grads = {owners[id(one)] for one in bad_ones(graded)}
        self._were_good = [weakref.ref(one) for one in seen if id(one) not in self._old]

    def bad_parameters(self, tensors: list[torch.Tensor], *, written: bool) -> list[Bad]:
        """Look at parameters.

        One that was bad before, and that nothing has read or written since, is no news.

        Args:
            tensors: the parameters.
            written: whether an optimizer has just written those that have a gradient.
        """
        found = self.bad("parameter", tensors)
        for one in found:
            if written and one.tensor.grad is None and self._flow.event_of(one.tensor) is None:
                self._old.setdefault(id(one.tensor), _torch.version(one.tensor))
        return [one for one in found if self._is_news(one.tensor)]

    def _is_news(self, tensor: torch.Tensor) -> bool:
        same = self._old.get(id(tensor)) == _torch.version(tensor)
        return not same or self._flow.event_of(tensor) is not None

    def spoilt(self) -> list[Bad]:
        """Look at all parameters that were good at the start, also those that nothing trains."""
        here = [one for ref in self._were_good if (one := ref()) is not None]
        return self.bad("parameter", here)

    def look_at_size(self, leaves: list[torch.Tensor], most: float) -> None:
        """Note gradients whose norm is above `most`; the values themselves may be finite."""
        gradients = [one.grad for one in leaves if one.grad is not None and can_be_bad(one.grad)]
        norms = [float(torch.linalg.vector_norm(one.float())) for one in gradients]
        norm = math.sqrt(sum(one * one for one in norms))
        if not norm > most or not math.isfinite(norm):
            return
        event = self._flow.unseen(gradients[norms.index(max(norms))], "limit", "backward", "")
        event.leaf = f"{norm:.4g} > {most:g}"
        self._case_of("grad", event, "gradients")

    def skipped(self, found: list[Bad], outcome: Outcome | None) -> bool:
        """Note a step that a GradScaler skipped: what overflowed in it is the scaler's business.

        What its scale cannot have caused is a finding all the same: values that were bad before
        the backward pass, and a backward whose operands show another cause. Nor can it be the
        scale that fails many times in a row.

        Args:
            found: the bad gradients.
            outcome: what running the step again told.

        Returns:
            Whether all of it is the scaler's.
        """
        self.skipped_steps += 1
        self._skips_in_a_row += 1
        self.last_skipped = True
        rest = [one for one in found if not self._is_scalers(one, outcome)]
        self.take(rest, outcome, None)
        return not rest

    def _is_scalers(self, bad: Bad, outcome: Outcome | None) -> bool:
        event = self._event(bad, outcome)
        if event is None:
            return self._skips_in_a_row < _MANY_SKIPS and not self.explained
        if event.origin.phase != "backward" or explain(event.origin, ()).certain:
            return False
        if self._of_loss is not None:  # the loss was bad before any scale could make it so
            return False
        event.origin.absorber = "GradScaler"
        return True

    # Cases.

    def take(self, found: list[Bad], outcome: Outcome | None, optimizer: Optimizer | None) -> None:
        """Make cases of what was found.

        Args:
            found: the bad tensors.
            outcome: what running the step again told.
            optimizer: the optimizer that has just written, if it is its parameters.
        """
        if outcome is not None and outcome.flow is not None:
            self._flow.origins += outcome.flow.origins
            self._flow.counts.update(outcome.flow.counts)
        unseen: dict[str, Event] = {}
        for one in found:
            event = self._event(one, outcome)
            if one.place == "buffer":
                if not self._flow.n_ops:
                    self._told.add(one.key)
                if self._is_meant(one.tensor, event):
                    continue
            if event is None and (one.place != "buffer" or self._spreads):
                event = self._known_in_step()
            if event is None:
                event = unseen.get(one.place) or self._unseen(one, optimizer, outcome)
                unseen[one.place] = event
                if outcome is not None:
                    self._untold[event.key] = _why_unknown(outcome)
            self._found(one, event)

    def _event(self, bad: Bad, outcome: Outcome | None) -> Event | None:
        """Give the event behind a bad tensor: the one whose values were seen, if there are two."""
        event = self._flow.event_of(bad.tensor)
        if outcome is not None and (event is None or event.origin.is_gone):
            again = outcome.event_for(bad.place, bad.key)
            if again is not None and event is not None:
                self._seen_again[event.origin.key] = again.origin.key
            if again is not None and bad.place == "parameter":  # what reads it later passes it on
                self._flow.know(bad.tensor, again)
            return again or event
        return event

    def _known_in_step(self) -> Event | None:
        """Without a stream, what turns up later in a step is laid to what was found before."""
        if self._flow.n_ops or not self.explained:
            return None
        return list(self._cases.values())[-1].last

    def _found(self, bad: Bad, event: Event) -> None:
        case = self._case_of(bad.place, event, bad.name)
        if case.step == self._flow.step:
            case.names.setdefault(bad.place, {}).setdefault(id(bad.tensor), bad.name)
            case.n_of[bad.place] = max(bad.n_of, case.n_of.get(bad.place, 0))
        if bad.place == "loss":
            self._of_loss = case

    def _case_of(self, place: str, event: Event, name: str) -> _Case:
        """Give the case of an origin, a new one if need be.

        Where the loss is bad already, what its own backward makes anew is part of that.
        """
        if place == "grad" and event.origin.phase == "backward" and self._of_loss is not None:
            self._merged[event.origin.key] = self._of_loss
        key = self._seen_again.get(event.origin.key, event.origin.key)
        case = self._merged.get(event.origin.key) or self._cases.get(key)
        if case is None:
            case = _Case(event.origin, self._flow.step, event, name)
            self._cases[event.origin.key] = case
            self._fresh.append(case)
        return case

    def _unseen(self, bad: Bad, optimizer: Optimizer | None, outcome: Outcome | None) -> Event:
        """Stand in for what no operation was seen to make."""
        never_written = optimizer is None and self._flow.n_ops > 0
        is_leaf = bad.place == "buffer" or (bad.place == "parameter" and never_written)
        is_leaf = is_leaf or (bad.place == "grad" and bad.key in self._bad_grads)
        op, phase = ("leaf", "leaf") if is_leaf else ("unknown", _PHASE_OF[bad.place])
        where = NOWHERE if is_leaf or self.ended else spot(sys._getframe())
        if is_leaf and outcome is not None:
            where = outcome.writers.get(bad.key, where)
        event = self._flow.unseen(bad.tensor, op, phase, bad.name, where)
        event.at, event.n_bad = first_bad(bad.tensor)
        event.place = bad.place
        return event

    def fresh(self) -> list[NanFinding]:
        """Give the findings that are new since the last time."""
        cases, self._fresh = self._fresh, []
        return [self._finding(case) for case in cases]

    # Records.

    def report(self, *, mode: str, stopped: bool, error: str, outcome: Outcome | None) -> NanReport:
        """Give what was seen, as plain values."""
        found = sorted(self._cases.values(), key=lambda case: (case.step, case.origin.index))
        findings = tuple(self._finding(case) for case in found)
        return NanReport(
            findings=findings,
            absorbed=tuple(self._absorbed()),
            mode=mode,
            n_ops=self._flow.n_ops + (outcome.n_ops if outcome else 0),
            n_steps=self.n_steps,
            n_backwards=self.n_backwards,
            step=findings[0].step if findings else self.n_steps,
            stopped=stopped,
            replayed=outcome is not None and outcome.ran,
            replay=_replay_says(outcome),
            skipped_steps=self.skipped_steps,
            losses=tuple(self.losses),
            error=error,
            notes=tuple(self.notes),
        )

    def _absorbed(self) -> Iterator[NanFinding]:
        """Give what never reached, one of each kind, the alarming ones first."""
        rest: dict[tuple[Any, ...], Event] = {}
        for event in self._flow.origins:
            if event.key not in self._cases and event.key not in self._merged:
                rest.setdefault(event.key, event)
        listed = sorted(rest.values(), key=lambda event: (not is_alarming(event), event.index))
        for event in listed[:_MOST_ABSORBED]:
            yield self._record(event, None, ())

    def _finding(self, case: _Case) -> NanFinding:
        chain = tuple(_chain(case.origin, case.last, case.end))
        return self._record(case.origin, case, chain)

    def _record(self, event: Event, case: _Case | None, chain: tuple[Link, ...]) -> NanFinding:
        names = case.names if case else {}
        n_of = case.n_of if case else {}
        told = explain(event, tuple(self.losses))
        cause = self._untold.get(event.key, told) if event.op == "unknown" else told
        if set(names) & {"grad", "loss"} == {"grad"} and is_in_a_group():
            cause = _from_others(event) or cause
        places = [place for place in REACHES if place in names]
        is_optimizers = event.phase == "optimizer"
        return NanFinding(
            op=event.op,
            phase=event.phase,
            node=event.node,
            kind=event.kind,
            reaches=tuple(places),
            reached=tuple(
                Reached(one, tuple(dict.fromkeys(names[one].values()))[:_MOST_NAMES], n_of[one])
                for one in places
            ),
            where=_line(event.where),
            ran=_line(event.ran),
            module=event.module,
            step=event.step,
            index=event.at,
            n_bad=event.n_bad,
            n_values=event.n_values,
            shows=shows(event),
            operands=event.operands,
            source=event.leaf,
            why=cause.why,
            mend=cause.mend,
            chain=chain,
            n_seen=self._flow.counts.get(event.key, 1),
            absorbed_by="" if names else event.absorber,
            alarming=not names and is_alarming(event),
            written=tuple(names.get("parameter", {}).values()) if is_optimizers else (),
        )


def _from_others(event: Event) -> Cause | None:
    """Say where bad gradients come from that nothing here made: a group of processes shares them."""
    if event.op != "unknown" and (event.kind != "leaf" or event.leaf):
        return None
    return Cause(
        "The loss is finite here, and gradients are averaged over all processes: another one may have "
        "made it.",
        "look at the reports of the other processes"
        + ("" if event.kind == "leaf" else "; without --light each names the operation it ran"),
    )


def _why_unknown(outcome: Outcome) -> Cause:
    mend = "%%nanwatch without --light looks at every operation, and names it"
    if outcome.may_be_forced:
        mend += "; --light --replay runs the step again all the same"
    if outcome.ran:
        return Cause(f"{_replay_says(outcome)} It did not turn up there.", mend)
    return Cause(f"Light mode sees where a value ends up, not what made it. {outcome.says}", mend)


def _replay_says(outcome: Outcome | None) -> str:
    if outcome is None:
        return ""
    if not outcome.ran or outcome.same is None:
        return outcome.says
    if outcome.same:
        return f"{outcome.says} It gave the same loss, bit by bit."
    return f"{outcome.says} Its loss was another one: the step depends on something that is not rewound."


def shows(event: Event) -> str:
    """Say what the values are."""
    if event.shows_nan and event.shows_inf:
        return "NaN and Inf"
    return "NaN" if event.shows_nan else "Inf"


def _line(site: Site) -> SourceLine | None:
    return None if site is None else notebook.source_line(*site)


def is_alarming(event: Event) -> bool:
    """Say whether something absorbed is probably an error: an overflow that became a number.

    A division by an infinity, or a root of one, turns it into 0, and nobody sees it.
    """
    swallows = (
        "rsqrt",
        "reciprocal",
        "div",
        "tanh",
        "sigmoid",
        "erf",
        "exp",
        "clamp",
        "nan_to_num",
    )
    by = event.absorber.rpartition(".")[2].strip("_")
    forward = event.phase == "forward" and event.absorber_phase == "forward"
    return event.kind == "born" and forward and by.startswith(swallows)


def _chain(origin: Event, last: Event, end: str) -> Iterator[Link]:
    """Give the way from an origin to where it was found: first steps, last steps."""
    way = [last]
    while way[-1] is not origin and way[-1].parents:
        way.append(way[-1].parents[0])
    way.reverse()
    kept = way if len(way) <= 6 else [*way[:3], *way[-2:]]
    for event in kept:
        role = "born" if event is origin else "spread"
        yield Link(
            role,
            event.op if event.kind != "leaf" else event.leaf or "a tensor",
            event.phase,
            event.node,
            _line(event.where),
            event.module,
            shows(event),
        )
    yield Link("reached", end, last.phase, None, None, "", shows(last))


def _parameters_in_sight() -> list[torch.Tensor]:
    names = Names()
    try:
        found = {id(one): one for module in names.modules for one in module.parameters()}
        return [one for one in found.values() if can_be_bad(one)]
    finally:
        names.close()
