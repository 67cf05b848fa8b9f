"""Collects where bad values were found, and makes findings of their origins."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from nbinspect import _torch, notebook
from nbinspect.numerics.causes import explain
from nbinspect.numerics.check import bad_ones, can_be_bad, flags
from nbinspect.numerics.flow import Event, Flow, is_mask
from nbinspect.numerics.naming import Names
from nbinspect.numerics.operands import first_bad
from nbinspect.numerics.records import REACHES, Link, NanFinding, NanReport, Reached
from nbinspect.ops import Site
from nbinspect.records import SourceLine
from nbinspect.tensors import describe

_MOST_LOSSES = 200
_MOST_ABSORBED = 50
_MOST_NAMES = 64


@dataclass(eq=False, slots=True)
class _Case:
    """An origin whose values were found somewhere."""

    origin: Event
    step: int
    last: Event  # the event of the first tensor found
    end: str  # that tensor's name
    names: dict[str, dict[int, str]] = field(default_factory=dict)
    n_of: dict[str, int] = field(default_factory=dict)
    written: tuple[str, ...] = ()


class Findings:
    """What reached, what did not, and how the loss went.

    Attributes:
        n_steps: optimizer steps taken.
        n_backwards: backward passes run.
        skipped_steps: steps that a GradScaler skipped.
        losses: (step, value) of the last backward passes.
        notes: what the reader must know.
    """

    def __init__(self, flow: Flow) -> None:
        self.n_steps = 0
        self.n_backwards = 0
        self.skipped_steps = 0
        self.losses: deque[tuple[int, float]] = deque(maxlen=_MOST_LOSSES)
        self.notes: dict[str, None] = {}
        self._flow = flow
        self._cases: dict[tuple[Any, ...], _Case] = {}
        self._fresh: list[_Case] = []
        self._of_loss: _Case | None = None  # the case of the loss whose backward ran last
        self._excused: set[tuple[Any, ...]] = set()
        self._buffers: list[tuple[weakref.ref[nn.Module], str]] | None = None

    def __len__(self) -> int:
        return len(self._cases)

    @property
    def in_this_step(self) -> bool:
        """Whether something was found in the running step."""
        return any(case.step == self.n_steps for case in self._cases.values())

    def next_step(self) -> None:
        """Count a step that has ended."""
        self.n_steps += 1
        self._flow.next_step()

    def note_loss(self, roots: list[torch.Tensor]) -> None:
        """Remember the value of a loss, for the history.

        Cost: one synchronisation.
        """
        self.n_backwards += 1
        self._of_loss = None
        for root in roots[:1]:
            plain = _torch.unwrapped(root)
            if plain.numel() == 1 and not plain.is_complex() and can_be_bad(plain):
                self.losses.append((self.n_steps, float(plain.detach())))

    # Where bad values are.

    def look(self, place: str, tensors: list[torch.Tensor], *, grads: bool = False) -> None:
        """Look at the tensors of one place, or at their gradients, and note the bad ones."""
        pairs = [(one.grad, one) for one in tensors] if grads else [(one, one) for one in tensors]
        owners = {id(value): owner for value, owner in pairs if value is not None}
        bad = bad_ones(value for value, _ in pairs if value is not None)
        if not bad:
            return
        names = Names()
        try:
            for one in bad:
                owner = owners[id(one)]
                name = names.gradient(owner) if grads else names(owner)
                self._found(place, one, name or _plain_name(place, one), len(owners))
        finally:
            names.close()

    def look_at_buffers(self) -> None:
        """Look at the buffers of the modules that the user has names for."""
        if self._buffers is None:
            self._buffers = list(_buffers_in_sight())
        found = []
        for ref, name in self._buffers:
            module = ref()
            value = None if module is None else module._buffers.get(name)  # noqa: SLF001 - no property is run
            if value is not None:
                found.append(value)
        meant = {id(one) for one in bad_ones(found) if not flags(one)[0] and is_mask(one)}
        self.look("buffer", [one for one in found if id(one) not in meant])

    def forget_buffers(self) -> None:
        """Look for modules anew the next time."""
        self._buffers = None

    def _found(self, place: str, tensor: torch.Tensor, name: str, n_of: int) -> None:
        event = self._flow.event_of(tensor) or self._unseen(place, tensor, name)
        case = self._case_of(place, event, name)
        if case.step == self._flow.step:
            case.names.setdefault(place, {}).setdefault(id(tensor), name)
            case.n_of[place] = max(n_of, case.n_of.get(place, 0))
        if place == "loss":
            self._of_loss = case

    def _case_of(self, place: str, event: Event, name: str) -> _Case:
        """Give the case of an origin, a new one if need be.

        Where the loss is bad already, what its own backward makes anew is part of that.
        """
        if place == "grad" and event.origin.phase == "backward" and self._of_loss is not None:
            self._excused.add(event.origin.key)
            return self._of_loss
        case = self._cases.get(event.origin.key)
        if case is None:
            case = _Case(event.origin, self._flow.step, event, name)
            self._cases[event.origin.key] = case
            self._fresh.append(case)
        return case

    def _unseen(self, place: str, tensor: torch.Tensor, name: str) -> Event:
        """Stand in for what no operation was seen to make."""
        is_leaf = place in {"parameter", "buffer"}
        phase = "leaf" if is_leaf else "backward" if place == "grad" else "forward"
        event = self._flow.unseen(tensor, "leaf" if is_leaf else "unknown", phase, name)
        event.at, event.n_bad = first_bad(tensor)
        return event

    def skipped(self, parameters: list[torch.Tensor]) -> None:
        """Note a step that a GradScaler skipped: what overflowed in it is the scaler's business.

        What its scale cannot have caused is a finding all the same: values that were bad before
        the backward pass, and a backward whose operands show another cause.
        """
        self.skipped_steps += 1
        for one in bad_ones(p.grad for p in parameters if p.grad is not None):
            event = self._flow.event_of(one)
            if event is None:
                continue
            origin = event.origin
            if origin.phase == "backward" and not explain(origin, ()).certain:
                self._excused.add(origin.key)
            else:
                self.look("grad", [p for p in parameters if p.grad is one], grads=True)

    def fresh(self) -> list[NanFinding]:
        """Give the findings that are new since the last time."""
        cases, self._fresh = self._fresh, []
        return [self._finding(case) for case in cases]

    def mark_written(self, names: Iterable[str]) -> None:
        """Note for the fresh findings which parameters the optimizer has already written."""
        for case in self._fresh:
            if case.origin.phase == "optimizer":
                case.written = tuple(names)

    # Records.

    def report(self, *, mode: str, stopped: bool, error: str) -> NanReport:
        """Give what was seen, as plain values."""
        found = sorted(self._cases.values(), key=lambda case: case.origin.index)
        findings = tuple(self._finding(case) for case in found)
        return NanReport(
            findings=findings,
            absorbed=tuple(self._absorbed()),
            mode=mode,
            n_ops=self._flow.n_ops,
            n_steps=self.n_steps,
            n_backwards=self.n_backwards,
            step=findings[0].step if findings else self.n_steps,
            stopped=stopped,
            skipped_steps=self.skipped_steps,
            losses=tuple(self.losses),
            error=error,
            notes=tuple(self.notes),
        )

    def _absorbed(self) -> Iterator[NanFinding]:
        """Give what never reached, one of each kind, the alarming ones first."""
        rest: dict[tuple[Any, ...], Event] = {}
        for event in self._flow.origins:
            if event.key not in self._cases:
                rest.setdefault(event.key, event)
        listed = sorted(rest.values(), key=lambda event: (not is_alarming(event), event.index))
        for event in listed[:_MOST_ABSORBED]:
            yield self._record(event, event.step, {}, {}, ())

    def _finding(self, case: _Case) -> NanFinding:
        chain = tuple(_chain(case.origin, case.last, case.end))
        return self._record(case.origin, case.step, case.names, case.n_of, chain, case.written)

    def _record(
        self,
        event: Event,
        step: int,
        names: dict[str, dict[int, str]],
        n_of: dict[str, int],
        chain: tuple[Link, ...],
        written: tuple[str, ...] = (),
    ) -> NanFinding:
        cause = explain(event, tuple(self.losses))
        places = [place for place in REACHES if place in names]
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
            written=written,
        )


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
    swallows = ("rsqrt", "reciprocal", "div", "tanh", "sigmoid", "erf", "exp", "clamp", "nan_to_num")
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
            role, event.op if event.kind != "leaf" else event.leaf or "a tensor", event.phase,
            event.node, _line(event.where), event.module, shows(event),
        )
    yield Link("reached", end, last.phase, None, None, "", shows(last))


def _plain_name(place: str, tensor: torch.Tensor) -> str:
    return place if place == "loss" else f"a {place} of {describe(tensor)}"


def _buffers_in_sight() -> Iterator[tuple[weakref.ref[nn.Module], str]]:
    names = Names()
    try:
        modules = {id(one): one for module in names.modules for one in module.modules()}
        for one in modules.values():
            for name, value in one._buffers.items():  # noqa: SLF001 - what `buffers()` reads
                if value is not None and can_be_bad(value):
                    yield weakref.ref(one), name
    finally:
        names.close()

