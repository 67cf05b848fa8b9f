"""The watch: the first operation whose NaN or Inf matters, while the user's own loop runs."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self

import torch
from torch.optim import Optimizer

from nbinspect import _torch, notebook
from nbinspect.numerics.check import bad_ones
from nbinspect.numerics.finding import Findings
from nbinspect.numerics.flow import Flow
from nbinspect.numerics.naming import Names
from nbinspect.numerics.records import NanReport, NonFiniteError
from nbinspect.numerics.steps import Steps, parameters
from nbinspect.ops import OpStream
from nbinspect.tensors import looking


def nanwatch(
    *, light: bool = False, stop: bool = True, max_findings: int = 5, every: int = 1
) -> NanWatch:
    """Answer which operation made the first NaN or Inf that reaches what matters, and why.

    Args:
        light: look at loss and gradients once a step only, and find the operation by running the
            step again.
        stop: raise `NonFiniteError` at a finding, before the optimizer writes.
        max_findings: after so many nothing more is looked at.
        every: in light mode, look at one step of so many.

    Returns:
        A context manager whose `report` is a `NanReport` once it has ended.

    Raises:
        ValueError: a number is below 1.
        NonFiniteError: raised in the watched code, if `stop`.
    """
    if max_findings < 1 or every < 1:
        raise ValueError("max_findings and every must be at least 1")
    return NanWatch(light=light, stop=stop, max_findings=max_findings, every=every)


class NanWatch:
    """The context manager that `nanwatch` gives; enter it once."""

    def __init__(self, *, light: bool, stop: bool, max_findings: int, every: int) -> None:
        self._report: NanReport | None = None
        self._light, self._stop = light, stop
        self._max_findings, self._every = max_findings, every
        self._flow = Flow(_name_now)
        self._stream = OpStream(self._flow, before=self._flow.before)
        self._steps = Steps(self)
        self._findings = Findings(self._flow)
        self._undo = ExitStack()
        self._stopped = False
        self._on = False

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
        with ExitStack() as undo:
            self._steps.install()
            undo.callback(self._steps.remove)
            if not self._light:
                self._stream.__enter__()
                undo.callback(self._stream.__exit__)
            self._undo = undo.pop_all()
        self._on = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._undo.close()
        ended_well = error is None
        if self._on and (ended_well or not self._stopped):
            with suppress(Exception) if error else ExitStack():
                self._audit_end()
        self._report = self._findings.report(
            mode="light" if self._light else "exact",
            stopped=self._stopped,
            error=kind.__name__ if kind else "",
        )
        self._flow.close()

    # Called by `Steps`.

    def before_backward(self, roots: list[torch.Tensor]) -> None:
        """Remember the loss while it is there."""
        if self._on:
            with looking():
                self._findings.note_loss(roots)

    def after_backward(self, roots: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        """Look at the loss and, unless a GradScaler has yet to, at the gradients."""
        __tracebackhide__ = True
        if not self._on:
            return
        with looking():
            self._findings.look("loss", [_torch.unwrapped(one) for one in roots])
            if not self._steps.scaled:
                self._look_at_gradients(self._leaves())
                self._findings.look("grad", [_torch.unwrapped(one) for one in results])
        self._settle()

    def before_write(self, optimizer: Optimizer) -> None:
        """Look at the gradients as they are now, clipped or unscaled."""
        __tracebackhide__ = True
        if self._on:
            with looking():
                self._look_at_gradients(list(parameters(optimizer)))
            self._settle()
        self._flow.in_optimizer = True
        self._flow.trusts_optimizer = self._on and not self._findings.in_this_step

    def after_write(self, optimizer: Optimizer) -> None:
        """Look at what was written."""
        __tracebackhide__ = True
        self._flow.in_optimizer = False
        if self._on:
            with looking():
                self._findings.look("parameter", list(parameters(optimizer)))
                self._findings.look_at_buffers()
            self._settle(written=True)
        self._findings.next_step()

    def in_closure(self, inside: bool) -> None:
        """Tell the user's closure from the optimizer around it."""
        self._flow.in_optimizer = not inside

    def skipped(self, optimizer: Optimizer) -> None:
        """A GradScaler saw to it: nothing is written, and an overflow is no finding."""
        __tracebackhide__ = True
        if self._on:
            with looking():
                self._findings.skipped(list(parameters(optimizer)))
            self._settle()
        self._findings.next_step()

    def _look_at_gradients(self, leaves: list[torch.Tensor]) -> None:
        self._findings.look("grad", leaves, grads=True)

    def _settle(self, *, written: bool = False) -> None:
        """Stop the cell at a finding, if that is wanted."""
        __tracebackhide__ = True
        found = self._findings.fresh()
        if len(self._findings) >= self._max_findings:
            self._pause()
        if found and self._stop:
            self._pause()
            self._stopped = True
            raise NonFiniteError(found[0].sentence)

    def _pause(self) -> None:
        """Look at nothing any longer."""
        self._on = False
        if not self._light:
            self._stream.__exit__()
            self._light = self._light

    def _audit_end(self) -> None:
        """Look at all that is there when the cell has ended."""
        with looking():
            self._findings.forget_buffers()
            self._findings.look_at_buffers()
            if not self._steps.scaled:
                self._look_at_gradients(self._leaves())
            self._findings.look("parameter", self._leaves())

    def _leaves(self) -> list[torch.Tensor]:
        known = {id(one): one for each in self._steps.optimizers for one in parameters(each)}
        for key, ref in list(self._flow.leaves.items()):
            leaf = ref()
            if leaf is not None:
                known[key] = leaf
            else:
                del self._flow.leaves[key]
        return list(known.values())


def _name_now(tensor: torch.Tensor) -> str:
    """Name a tensor by the frames that are running."""
    names = Names()
    names.close()
    return names(tensor)
