"""The watch: the first operation whose NaN or Inf matters, while the user's own loop runs."""

from __future__ import annotations

import math
import sys
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

import torch
from torch.optim import Optimizer

from nbinspect import _torch, notebook
from nbinspect.heapgraph.native import node_cap, walk
from nbinspect.numerics.check import WIDE
from nbinspect.numerics.error import NonFiniteError
from nbinspect.numerics.finding import Bad, Findings
from nbinspect.numerics.flow import Flow, own_failure
from nbinspect.numerics.naming import Names
from nbinspect.numerics.records import NanReport
from nbinspect.numerics.replay import Outcome, Replay, loss_value, same_bits, update_again
from nbinspect.numerics.starts import Starts
from nbinspect.numerics.steps import Steps, parameters
from nbinspect.numerics.undisturbed import undisturbed
from nbinspect.tensors import is_tensor


def nanwatch(
    *,
    light: bool = False,
    stop: bool = True,
    every: int = 1,
    max_findings: int = 5,
    grads: float | None = None,
    replay: bool = False,
    eager: bool = False,
    sync: bool = False,
) -> NanWatch:
    """Answer which operation made the first NaN or Inf that reaches what matters, and why.

    What matters is the loss (what backward starts from), the gradients, the parameters and the
    buffers. Anything else that is not finite, such as an attention mask's -Inf, is no finding.

    Args:
        light: look at the loss and the gradients once a step, before they are written, and find
            the operation by running that step again from the state it started from.
        stop: raise `NonFiniteError` in the watched code at a finding, before the optimizer writes;
            for a fault that is born inside the optimizer, right after.
        every: look at one step of so many; a fault in between turns up at the next one, as a
            parameter that came in bad.
        max_findings: after so many nothing more is looked at.
        grads: a gradient norm above this is a finding too.
        replay: with `light`, run the step again also where that repeats the user's side effects.
        eager: run compiled functions eagerly, so that their operations are seen.
        sync: on an accelerator, wait for each operation, so that the values of operands are known.

    Returns:
        A context manager whose `report` is a `NanReport` once it has ended.

    Raises:
        ValueError: a number is below 1, or an option needs `light`.
        NonFiniteError: raised in the watched code, if `stop`.

    Cost: exact mode looks at every result, but for torch's own optimizers in float32, whose outcome
    is looked at and whose update runs again if it was bad: 1.1 to 1.3 times a training step, more
    for one of a few ms; `make bench` tells. Light: within a few percent. Either synchronises with the
    device for the loss, the gradients and the parameters of a step; between them exact mode leaves
    its verdicts there, unless `sync`. Results are bit-identical, but for one case in exact mode:
    ``svdvals``, ``eigvalsh`` and ``cond`` of a matrix that needs no gradient, called by a name of the
    user's own (``from torch.linalg import svdvals``). Torch then takes the vectors too, so that the
    last bit may differ.
    Blind to: operations in other threads, in NumPy and inside compiled functions unless `eager`
    (what they make is found, but not where); kernels' insides. A faulty value that is finite.
    In light mode the operation is unknown where the step cannot be run again, which the report
    says. Hidden states, random generators of the user's own and environments are not rewound.
    Source: a dispatch mode, ``register_optimizer_step_pre_hook``, ``torch.autograd.backward``.
    """
    if max_findings < 1 or every < 1 or (grads is not None and not grads > 0):
        raise ValueError("max_findings and every must be at least 1, and grads above 0")
    if replay and not light:
        raise ValueError("replay belongs to light=True")
    return NanWatch(
        light=light, stop=stop, every=every, max_findings=max_findings, grads=grads, replay=replay,
        eager=eager, sync=sync,
    )  # fmt: skip


class NanWatch:
    """The context manager that `nanwatch` gives; enter it once."""

    def __init__(
        self,
        *,
        light: bool,
        stop: bool,
        every: int,
        max_findings: int,
        grads: float | None,
        replay: bool,
        eager: bool,
        sync: bool,
    ) -> None:
        self._report: NanReport | None = None
        self._light, self._stop, self._every = light, stop, every
        self._max_findings, self._most_grads = max_findings, grads
        self._force_replay = replay
        waits_for = _always if sync else _is_cpu
        self._flow = Flow(_name_now, waits_for)
        # Where verdicts are put off the values are gone, and running the step again shows them.
        self._replays = light or self._flow.defers
        self._stream = self._flow.stream(eager=eager)
        self._findings = Findings(self._flow)
        self._steps = Steps(self)
        self._undo = ExitStack()
        self._rests = False  # while an optimizer writes unwatched
        self._on = self._stopped = self._in_closure = False
        self._eager, self._sync = eager, sync
        # For running a step again: where steps began.
        self._starts = Starts(None, 0)
        self._loss: float | None = None
        self._backwards_of_step = 0
        self._adds_up = False  # gradients of several backward passes
        self._outcome: Outcome | None = None

    @property
    def report(self) -> NanReport:
        """What was seen.

        Raises:
            RuntimeError: the watch has not ended yet.
        """
        if self._report is None:
            raise RuntimeError("the watch has not ended yet; its report comes after the block")
        return self._report

    def __enter__(self) -> Self:
        frame = notebook.user_frame(sys._getframe(1))
        if frame is not None:
            self._starts = Starts(frame.f_code, frame.f_lineno)
        del frame
        with ExitStack() as undo:
            self._steps.install()
            undo.callback(self._steps.remove)
            if not self._light:
                undo.enter_context(self._stream)
            self._undo = undo.pop_all()
        self._on = True
        with undisturbed():
            self._findings.note_start()
        self._pin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._undo.close()
        try:
            if self._on:
                with suppress(Exception) if error is not None else ExitStack():
                    self._audit()
        finally:
            self._starts.clear()
            self._report = self._made(kind.__name__ if kind else "")
            self._flow.close()
        if error is None:
            self._settle()
        elif isinstance(error, NonFiniteError):
            error.end_in_users_line()

    def _made(self, error: str) -> NanReport:
        outcome = self._outcome
        if self._flow.failed:
            self._findings.notes[_FAILED.format(self._flow.failed)] = None
        if not self._eager and _torch.has_compiled():
            self._findings.notes[_COMPILED] = None
        return self._findings.report(
            mode="light" if self._light else "exact",
            stopped=self._stopped,
            error=error,
            outcome=outcome,
        )

    # Called by `Steps`.

    def before_backward(self, roots: list[torch.Tensor]) -> None:
        """Remember the loss while it is there."""
        self._wake()  # an optimizer that raised has not told that it ended
        if self._on:
            with undisturbed():
                self._loss = loss_value(roots)
                self._findings.note_loss(self._loss)
                if self._light:
                    self._learn(roots)

    def after_backward(self, roots: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        """Look at the loss and, unless a GradScaler has yet to, at the gradients."""
        __tracebackhide__ = True
        self._backwards_of_step += 1
        self._adds_up = self._adds_up or self._backwards_of_step > 1
        self._flow.had_backward = True
        if not self._looks_now():
            return
        found: list[Bad] = []
        with undisturbed():
            self._flow.read_verdicts()
            if len(roots) > 1 or self._loss is None or not math.isfinite(self._loss):
                found += self._findings.bad("loss", [_torch.unwrapped(one) for one in roots])
            if not self._steps.scaled:
                found += self._bad_gradients(self._leaves())
                found += self._findings.bad("grad", [_torch.unwrapped(one) for one in results])
            if self._light:  # while the step can still be run again
                found += self._findings.bad_buffers()
        self._take(found, "backward")
        self._settle()
        if self._adds_up or not self._findings.n_steps:  # each micro-batch is a turn of its own
            self._pin()

    def before_write(self, optimizer: Optimizer) -> None:
        """Look at the gradients as they are now, clipped or unscaled."""
        __tracebackhide__ = True
        found: list[Bad] = []
        if self._looks_now():
            with undisturbed():
                self._flow.read_verdicts()
                found = self._bad_gradients(list(parameters(optimizer)))
            self._take(found, "write")
            self._settle()
        self._flow.in_optimizer = True
        self._flow.trusts_optimizer = self._on and not (found or self._findings.in_this_step)
        if self._flow.trusts_optimizer and self._looks_now() and not self._light:
            self._rest(optimizer)

    def after_write(self, optimizer: Optimizer) -> None:
        """Look at what was written."""
        __tracebackhide__ = True
        self._flow.in_optimizer = self._in_closure = False
        if not self._looks_now():
            self._next_step()
            return
        with undisturbed():
            self._flow.read_verdicts()
            found = self._findings.bad_parameters(list(parameters(optimizer)), written=True)
            if not self._light:
                found += self._findings.bad_buffers()
        self._take(found, "", optimizer)
        self._wake()
        self._settle()
        self._next_step()

    def in_closure(self, inside: bool) -> None:
        """Tell the user's closure from the optimizer around it."""
        self._flow.in_optimizer = not inside
        self._in_closure = inside
        if self._on and inside:
            self._pin()

    def skipped(self, optimizer: Optimizer) -> None:
        """A GradScaler saw to it: nothing is written, and an overflow is no finding."""
        __tracebackhide__ = True
        if self._on:
            with undisturbed():
                self._flow.read_verdicts()
                found = self._findings.bad("grad", list(parameters(optimizer)), grads=True)
            outcome = None
            if self._replays and found and not self._findings.explained:
                outcome = self._ran_again(found, "backward", None)
            with undisturbed():
                excused = self._findings.skipped(found, outcome)
            if not excused and outcome is not None:
                self._outcome = outcome
            self._settle()
        self._next_step()

    def failed(self, error: Exception) -> None:
        """Look at nothing any longer: what went wrong here must not end the user's cell."""
        self._flow.failed = self._flow.failed or own_failure(error)
        self._pause()

    # What is done then.

    def _looks_now(self) -> bool:
        return self._on and self._findings.n_steps % self._every == 0

    def _bad_gradients(self, leaves: list[torch.Tensor]) -> list[Bad]:
        if self._most_grads is not None:
            self._findings.look_at_size(leaves, self._most_grads)
        return self._findings.bad("grad", leaves, grads=True)

    def _take(self, found: list[Bad], until: str, optimizer: Optimizer | None = None) -> None:
        """Make cases of what was found, after running the step again if that may tell more."""
        if not found:
            return
        outcome = None
        again = self._replays or (self._rests and found[0].place == "parameter")
        if again and not self._findings.explained:
            outcome = self._outcome = self._ran_again(found, until, optimizer)
        with undisturbed():
            self._findings.take(found, outcome, optimizer)

    def _ran_again(self, found: list[Bad], until: str, optimizer: Optimizer | None) -> Outcome:
        """Run the step again, under a stream of its own."""
        outcome = Outcome()
        if optimizer is not None and found[0].place == "parameter":
            outcome = update_again(optimizer, found[0].tensor, self._new_flow(), self._steps)
        elif not until:
            outcome.says = _WRITTEN
        else:
            outcome = self._replay(found, until)
        return outcome

    def _replay(self, found: list[Bad], until: str) -> Outcome:
        replay = Replay(
            self._new_flow(), self._leaves(), self._findings.buffers.here(),
            self._findings.n_backwards, self._findings.n_steps, writing=until == "write",
            guesses=all(one.place == "buffer" for one in found),
        )  # fmt: skip
        if not self._light:
            self._stream.pause()  # what runs again is no part of the cell
        try:
            outcome = replay.run(self._starts, self._steps, force=self._force_replay)
        finally:
            if not self._light:
                self._stream.resume()
        if outcome.ran and self._loss is not None and replay.loss is not None:
            outcome.same = same_bits(self._loss, replay.loss)
        return outcome

    def _new_flow(self) -> Flow:
        flow = Flow(_name_now, _always)
        flow.step = self._flow.step
        return flow

    def _settle(self) -> None:
        """Stop the cell at a finding, if that is wanted."""
        __tracebackhide__ = True
        found = self._findings.fresh()
        if len(self._findings) >= self._max_findings or (found and self._stop):
            self._pause()
        if found and self._stop:
            self._stopped = True
            raise NonFiniteError(found[0].sentence)

    def _pause(self) -> None:
        """Look at nothing any longer."""
        self._on = False
        if not self._light:
            self._stream.pause()

    def _rest(self, optimizer: Optimizer) -> None:
        """Let one of torch's optimizers, given finite values only, write without a look at its ops.

        They are half of a small step's, and what was written is looked at in any case; an update
        that went wrong runs again. Half precision stays watched: a sum alone can overflow it, and
        the values that it was added to would be gone.
        """
        if _is_plain(optimizer):
            self._stream.pause()
            self._rests = True

    def _wake(self) -> None:
        if self._rests:
            self._rests = False
            self._stream.resume()

    def _next_step(self) -> None:
        self._findings.next_step()
        self._backwards_of_step = 0
        if self._on:
            self._pin()
            self._stream_or_not()

    def _stream_or_not(self) -> None:
        """Watch operations in the steps that are looked at, and let the others run plain."""
        if self._light or self._every == 1:
            return
        self._stream.pause()
        if self._looks_now():
            self._stream.resume()

    def _pin(self) -> None:
        """Keep what the next step starts from."""
        if not self._replays:
            return
        with undisturbed():
            self._starts.mark(
                self._findings.buffers.here(), self._findings.n_backwards, self._findings.n_steps,
                closure=self._in_closure,
            )  # fmt: skip

    def _audit(self) -> None:
        """Look at all that is there when the cell has ended."""
        with undisturbed():
            self._flow.read_verdicts()
            self._findings.ended = True
            self._findings.buffers.learn()
            found = self._findings.bad_buffers()
            owned = self._steps.scaled or self._findings.last_skipped  # by a GradScaler
            if self._findings.n_backwards and not owned:
                found += self._bad_gradients(self._leaves())
            trained = self._leaves()
            found += self._findings.bad_parameters(trained, written=False)
            known = set(map(id, trained))
            found += [one for one in self._findings.spoilt() if id(one.tensor) not in known]
            outcome = Outcome(says=_AT_END) if self._light else None
            if found and outcome is not None and self._outcome is None:
                self._outcome = outcome
            self._findings.take(found, outcome, None)

    def _learn(self, roots: list[torch.Tensor]) -> None:
        """Find the buffers in sight and, where no optimizer tells, what backward will reach."""
        n = self._findings.n_backwards
        if n & (n - 1):  # the first time, then ever more rarely
            return
        self._findings.buffers.learn()
        if self._steps.optimizers:
            return
        nodes = [one.grad_fn for one in roots if one.grad_fn is not None]
        for one in walk(nodes, min(node_cap(), 5000)).found.values():
            if is_tensor(one) and one.is_leaf and one.requires_grad:
                self._flow.know_leaf(one)

    def _leaves(self) -> list[torch.Tensor]:
        found = [one for each in self._steps.optimizers for one in parameters(each)]
        others = self._flow.known_leaves()
        if others or len(self._steps.optimizers) > 1:
            found = list({id(one): one for one in (*found, *others)}.values())
        return found


_FAILED = "nbinspect itself failed, not your code, and looked no further: {}."
_COMPILED = (
    "Compiled functions ran as compiled: what was made inside them is found, but not where; "
    "--light finds it by running the step eagerly, --eager runs all of them so."
)
_WRITTEN = "The step was not run again: the optimizer has written the parameters it started from."
_AT_END = "The step was not run again: this was found after the last one."


def _always(_device: torch.device) -> bool:
    """Wait for every device."""
    return True


def _is_plain(optimizer: Optimizer) -> bool:
    """Say whether all that an optimizer does is what torch wrote, in a type with room to spare."""
    if not type(optimizer).__module__.startswith("torch.optim."):
        return False
    hooks = vars(optimizer).get("_optimizer_step_pre_hooks")
    return not hooks and all(one.dtype in WIDE for one in parameters(optimizer))


def _is_cpu(device: torch.device) -> bool:
    """Wait for the CPU alone: it has the values already."""
    return device.type == "cpu"


def _name_now(tensor: torch.Tensor) -> str:
    """Name a tensor by the frames that are running."""
    names = Names()
    names.close()
    return names(tensor)
