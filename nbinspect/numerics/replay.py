"""Runs a step again to find the operation that a check of its outcome cannot name."""

from __future__ import annotations

import copy
import struct
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from nbinspect import _torch, notebook
from nbinspect.numerics.check import bad_ones, can_be_bad
from nbinspect.numerics.events import Event
from nbinspect.numerics.flow import Flow, own_failure
from nbinspect.numerics.pinned import Buffer, harmless, set_aside, slot
from nbinspect.numerics.sites import Spot
from nbinspect.numerics.starts import Starts, running
from nbinspect.numerics.steps import Steps
from nbinspect.numerics.turn import RefusedError, SideEffectError, one_turn
from nbinspect.numerics.undisturbed import undisturbed
from nbinspect.tensors import is_tensor


class _Enough(BaseException):
    """Ends the run where the first one was when something bad was found."""


@dataclass(slots=True)
class Outcome:
    """What came of running a step again.

    Attributes:
        events: the last event of what was bad, by (place, id of the tensor or of the leaf; of a
            buffer, its `slot`).
        writers: the line that writes each buffer in place, by its `slot`.
        n_ops: operations seen.
        ran: whether it was run.
        same: whether it gave the same loss, bit by bit; None if there is no loss to compare.
        says: a sentence for the report.
        may_be_forced: whether it was not run only for its side effects.
        flow: what followed the operations.
    """

    events: dict[tuple[str, int], Event] = field(default_factory=dict)
    writers: dict[int, Spot] = field(default_factory=dict)
    n_ops: int = 0
    ran: bool = False
    same: bool | None = None
    says: str = ""
    may_be_forced: bool = False
    flow: Flow | None = None

    def event_for(self, place: str, key: int) -> Event | None:
        """Give the event behind a bad tensor, else the earliest of its place, else of all."""
        exact = self.events.get((place, key))
        if exact is not None:
            return exact
        same_place = [event for (where, _), event in self.events.items() if where == place]
        found = same_place or list(self.events.values())
        return min(found, key=lambda event: event.origin.index, default=None)


class Replay:
    """Runs one step again, under an operation stream; a listener of `Steps` while it does.

    Args:
        flow: follows the operations.
        leaves: what is trained.
        buffers: those of the user's modules.
        n_backwards: backward passes until now; at the last of them this stops.
        n_writes: optimizer steps until now. Those of the turn itself are left out when it runs
            again, since the parameters hold them already.
        writing: whether an optimizer is about to write; then this goes on until there.
        guesses: whether buffers whose start was not kept begin with 0 for what is not finite.
    """

    def __init__(
        self,
        flow: Flow,
        leaves: list[torch.Tensor],
        buffers: list[Buffer],
        n_backwards: int,
        n_writes: int,
        *,
        writing: bool,
        guesses: bool,
    ) -> None:
        self._flow = flow
        self._leaves = leaves
        self._buffers = buffers
        self._n_backwards, self._n_writes = n_backwards, n_writes
        self._writing, self._guesses = writing, guesses
        self.outcome = Outcome(flow=flow)
        self.loss: float | None = None

    def run(self, starts: Starts, steps: Steps, *, force: bool) -> Outcome:
        """Run it; parameters, gradients, generators and buffers are afterwards as before.

        Args:
            starts: where steps began.
            steps: tell what happens.
            force: also where the user's side effects would be repeated.
        """
        outcome = self.outcome
        frames = running(starts.code)
        try:
            turn = one_turn(frames, starts.code, starts.line, starts.since, force=force)
            _must_be_alone(force)
            start = starts.of(turn, frames)
            if start is None:
                raise RefusedError("its start was not kept")
        except RefusedError as reason:
            outcome.says = f"The step was not run again: {reason}."
            outcome.may_be_forced = isinstance(reason, SideEffectError)
            return outcome
        finally:
            frames.clear()
        self._n_backwards -= start.n_backwards
        self._n_writes -= start.n_writes
        outcome.ran = True
        if self._guesses:
            with undisturbed():
                start.pinned.add_finite(self._buffers)
        with ExitStack() as undo:
            undo.enter_context(
                set_aside(start.pinned, self._leaves, steps.scalers, steps.optimizers)
            )
            undo.enter_context(_torch.running_eagerly())
            undo.enter_context(_torch.with_function_modes(list(_handling_modes())))
            if not force:
                undo.enter_context(harmless())
            undo.enter_context(steps.told_to(self))
            self._flow.note_writes_to(one.owner[one.name] for one in self._buffers)
            undo.enter_context(self._flow.stream(eager=True))
            outcome.says = self._run(turn.run, turn.what)
            self._note_writers()
        outcome.n_ops = self._flow.n_ops
        return outcome

    def _run(self, run: Callable[[], Any], what: str) -> str:
        try:
            run()
        except _Enough:
            return f"To find the operation, {what} ran again."
        except SideEffectError as reason:
            self.outcome.ran = False
            self.outcome.may_be_forced = True
            return f"The step was run again but broken off: {reason}."
        except Exception as error:
            return f"The step was run again but failed there: {type(error).__name__}: {error}."
        return f"To find the operation, {what} ran again, to its end."

    # Called by `Steps` meanwhile.

    def before_backward(self, roots: list[torch.Tensor]) -> None:
        """Keep the loss."""
        with undisturbed():
            self.loss = loss_value(roots)

    def after_backward(self, roots: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        """Note where the bad values come from, and stop if this was the place."""
        self._flow.had_backward = True
        with undisturbed():
            self._note("loss", [_torch.unwrapped(one) for one in roots])
            self._note("grad", [_torch.unwrapped(one) for one in results])
            self._note_gradients()
            self._note_buffers()
        self._n_backwards -= 1
        if not self._writing and self._n_backwards <= 0:
            raise _Enough

    def before_write(self, optimizer: Optimizer) -> Optimizer:
        """Stop before anything is written; what was written already is not written again."""
        if self._n_writes > 0:
            return _idle(optimizer)
        with undisturbed():
            self._note_gradients()
        raise _Enough

    def after_write(self, _optimizer: Optimizer) -> None:
        """One that was written before is behind us."""
        self._flow.next_step()
        self._flow.step -= 1
        self._n_writes -= 1

    def in_closure(self, _inside: bool) -> None:
        """An optimizer with a closure is about to begin: stop before it."""
        raise _Enough

    def skipped(self, _optimizer: Any) -> None:
        """A GradScaler would have skipped the optimizer."""
        if self._n_writes <= 0:
            raise _Enough
        self._n_writes -= 1

    def failed(self, error: Exception) -> None:
        """Stop; the user's loop goes on from where it was."""
        self._flow.failed = own_failure(error)
        raise _Enough

    def _note_gradients(self) -> None:
        owners = {id(one.grad): one for one in self._leaves if one.grad is not None}
        for gradient in bad_ones(one.grad for one in self._leaves if one.grad is not None):
            self._note_one("grad", gradient, id(owners[id(gradient)]))

    def _note(self, place: str, tensors: list[torch.Tensor]) -> None:
        for one in bad_ones(tensors):
            self._note_one(place, one, id(one))

    def _note_buffers(self) -> None:
        slots = {id(one.owner.get(one.name)): slot(one) for one in self._buffers}
        values: list[Any] = [one.owner.get(one.name) for one in self._buffers]
        for one in bad_ones(one for one in values if is_tensor(one)):
            self._note_one("buffer", one, slots[id(one)])

    def _note_writers(self) -> None:
        for one in self._buffers:
            spot = self._flow.writers.get(id(one.tensor))
            if spot is not None:
                self.outcome.writers[slot(one)] = spot

    def _note_one(self, place: str, tensor: torch.Tensor, key: int) -> None:
        event = self._flow.event_of(tensor)
        if event is not None:
            self.outcome.events[place, key] = event


def _handling_modes() -> Iterator[Any]:
    """Yield the function modes that handle the call this is in, the innermost first.

    While one does, torch has it switched off: ``torch.device("cuda")`` in all of `Tensor.backward`.
    The user's own lines are outside of that call.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__torch_function__" and frame.f_code.co_argcount:
            mode = notebook.frame_locals(frame).get(frame.f_code.co_varnames[0])
            if issubclass(type(mode), TorchFunctionMode):
                yield mode
        frame = frame.f_back


class _Deaf:
    """Listens to nothing, while an optimizer of ours takes its step."""

    def _nothing(self, *_: object) -> None:
        """Do nothing."""

    before_backward = after_backward = before_write = after_write = _nothing
    in_closure = skipped = failed = _nothing


def update_again(
    optimizer: Optimizer, parameter: torch.Tensor, flow: Flow, steps: Steps
) -> Outcome:
    """Let an optimizer update a copy of one parameter, to see which of its operations fails.

    The values from before are gone, so the copy has 0 where the parameter is no longer finite; its
    gradient and the optimizer's state are those of now. What fails by the gradient or the state
    fails again.

    Args:
        optimizer: has written a NaN or Inf.
        parameter: one that it was written to.
        flow: follows the operations.
        steps: tell nobody meanwhile.
    """
    outcome = Outcome(flow=flow)
    with ExitStack() as undo:
        undo.enter_context(torch.no_grad())
        copied = _copied(optimizer, parameter)
        undo.enter_context(steps.told_to(_Deaf()))
        undo.enter_context(flow.stream())
        flow.in_optimizer = True
        try:
            copied.step()
        except Exception as error:
            outcome.says = f"The update could not be run again: {type(error).__name__}: {error}."
            return outcome
    with undisturbed():
        event = flow.event_of(copied.param_groups[0]["params"][0])
    outcome.ran, outcome.n_ops = True, flow.n_ops
    outcome.says = "To find the operation, the update ran again on a copy of one parameter."
    if event is not None:
        outcome.events["parameter", id(parameter)] = event
    return outcome


def _idle(optimizer: Optimizer) -> Optimizer:
    """Give an optimizer of the same type that has nothing to write."""
    idle = copy.copy(optimizer)
    idle.param_groups = []
    return idle


def _copied(optimizer: Optimizer, parameter: torch.Tensor) -> Optimizer:
    """Copy an optimizer for one parameter, without the user's hooks."""
    twin = torch.nn.Parameter(torch.where(parameter.isfinite(), parameter, 0).detach())
    twin.grad = None if parameter.grad is None else parameter.grad.detach().clone()
    group = next(
        one for one in optimizer.param_groups if any(p is parameter for p in one["params"])
    )
    copied = copy.copy(optimizer)
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(copied, name, OrderedDict())
    copied.param_groups = [{**group, "params": [twin]}]
    copied.state = defaultdict(dict, {twin: copy.deepcopy(optimizer.state[parameter])})
    return copied


def loss_value(roots: list[torch.Tensor]) -> float | None:
    """Give the loss, None if there is no single real number.

    Cost: one synchronisation.
    """
    for root in roots[:1]:
        plain = _torch.unwrapped(root)
        if plain.numel() == 1 and plain.dtype.is_floating_point and can_be_bad(plain):
            return float(plain)
    return None


def same_bits(first: float, second: float) -> bool:
    """Say whether two numbers are the same, a NaN too."""
    return struct.pack("d", first) == struct.pack("d", second)


def is_in_a_group() -> bool:
    """Say whether other processes take part in this training."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return False
    return distributed.get_world_size() > 1


def _must_be_alone(force: bool) -> None:
    if not force and is_in_a_group():
        raise RefusedError("other processes take part in this step, and would not run theirs again")
