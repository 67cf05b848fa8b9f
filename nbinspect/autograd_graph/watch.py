"""Watching a cell's forward: lines, modules, and where the way to a parameter is cut."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self

from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from nbinspect import _torch
from nbinspect.autograd_graph import leaving
from nbinspect.autograd_graph.answer import assemble
from nbinspect.autograd_graph.recorder import Recorder, said_of
from nbinspect.autograd_graph.records import GraphFinding, GraphReport
from nbinspect.autograd_graph.twice import went_twice
from nbinspect.autograd_graph.watched import Watched, remember
from nbinspect.ops import OpStream
from nbinspect.render.format import count


def graphwatch(
    *, depth: int | None = None, saved: bool = False, params: bool = False, eager: bool = False
) -> GraphWatch:
    """What graph does this cell's forward make, line by line, and where are its paths cut?

    Args:
        depth: how deep modules are unfolded in the picture; None for as deep as is readable.
        saved: draw a box for each saved tensor.
        params: draw views and leaves too.
        eager: run compiled functions eagerly, so that their operations are seen.

    Returns:
        A context manager whose `report` is a `GraphReport` once it has ended: of the tensor whose
        backward ran last, as it was right before, else of the last tensor that the cell made and
        took nowhere else. `autograd` then knows lines and modules of every tensor of the cell:
        plain facts about its last 30,000 operations are kept until the next watch, some 12 MB.

    Raises:
        ValueError: `depth` is below 1.

    Cost: a step of a small transformer takes 1.5 times as long, one of an MLP that takes 1 ms three
    times; and a walk of the graph (see `autograd`) before the first, second, fourth, eighth...
    backward. Reads no tensor but 256 numbers of each new one on the CPU, once some have left torch by
    `.item()`, `.tolist()` or `.numpy()`; results are bit-identical.
    Blind to: other threads' operations, and the inside of compiled functions unless `eager`. Numbers
    that were computed with in Python or NumPy, or went straight to an accelerator, are followed by
    the names in the code alone, and beyond that a path cut so is told as a guess.
    Source: a dispatch mode; autograd's own numbers of operations; ``Tensor.tolist`` and ``numpy``,
    wrapped meanwhile.
    """
    if depth is not None and depth < 1:
        raise ValueError(f"depth must be at least 1, not {depth}")
    return GraphWatch(depth=depth, saved=saved, params=params, eager=eager)


class GraphWatch:
    """The context manager that `graphwatch` gives; enter it once."""

    def __init__(self, *, depth: int | None, saved: bool, params: bool, eager: bool) -> None:
        self._options: dict[str, Any] = {"depth": depth, "saved": saved, "params": params}
        self._report: GraphReport | None = None
        self._eager = eager
        self._recorder: Recorder | None = None
        self._stream: OpStream | None = None
        self._undo = ExitStack()
        self._n_backwards = self._n_shown = 0
        self._had_backward = False
        self._last: weakref.ref[Any] | None = None

    @property
    def report(self) -> GraphReport:
        """What was seen.

        Raises:
            RuntimeError: the watch has not ended yet, or the cell made no tensor.
        """
        if self._report is None:
            raise RuntimeError("the watch has not ended yet; its report comes after the block")
        return self._report

    def __enter__(self) -> Self:
        recorder = self._recorder = Recorder(self._backward)
        stream = self._stream = OpStream(recorder, eager=self._eager)

        def began(*_: object) -> None:
            recorder.is_stepping = True

        def ended(*_: object) -> None:
            recorder.is_stepping = False

        with ExitStack() as undo:
            undo.callback(register_optimizer_step_pre_hook(began).remove)
            undo.callback(register_optimizer_step_post_hook(ended).remove)
            leaving.hear(undo, recorder.left)
            stream.__enter__()
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        recorder, stream = self._recorder, self._stream
        self._recorder = self._stream = None
        if recorder is None or stream is None:
            return
        try:
            stream.__exit__(kind, error, traceback)
        finally:
            self._undo.close()
        try:  # never in the way of the user's cell, nor of its own error
            seen = recorder.so_far()
            self._report = self._made(seen, recorder, failed=kind is not None)
            self._report = _with_error(self._report, went_twice(seen, error, traceback))
            seen.settle()
            remember(seen)
        except Exception as own:
            report = self._report or GraphReport("nothing", "no tensor", (), ())
            note = _own_error(said_of(own))
            self._report = dataclasses.replace(report, notes=(*report.notes, note))

    def _backward(self, tensor: Any, is_backward: bool) -> None:
        """Look at a graph before backward takes what it has saved: the 1st, 2nd, 4th... time.

        Once there is a `backward`, no `torch.autograd.grad` counts, as that of a penalty.
        """
        if is_backward and not self._had_backward:
            self._had_backward, self._n_backwards = True, 0
        elif self._had_backward and not is_backward:
            return
        self._n_backwards += 1
        self._last = weakref.ref(tensor)
        recorder = self._recorder
        if recorder is None or self._n_backwards & (self._n_backwards - 1):
            return
        with suppress(Exception):  # the report is then made of what is left afterwards
            self._report = assemble(tensor, recorder.so_far(), **self._options)
            self._n_shown = self._n_backwards

    def _made(self, seen: Watched, recorder: Recorder, *, failed: bool) -> GraphReport:
        report, root = self._report, self._root(seen)
        if root is not None:
            after = assemble(root, seen, **self._options)
            is_newer = failed and self._n_shown < self._n_backwards
            report = after if report is None or is_newer else _with_gradients(report, after)
        if report is None:
            report = GraphReport("nothing", "no tensor", (), (), notes=(NO_TENSOR,))
        return dataclasses.replace(report, notes=(*report.notes, *self._notes(recorder)))

    def _notes(self, recorder: Recorder) -> Iterator[str]:
        if recorder.error:
            yield _own_error(recorder.error)
        if recorder.n_dropped:
            yield f"{count(recorder.n_dropped)} older operations made room: their lines are not known."
        if self._n_backwards > 1:
            yield f"{self._n_backwards} backwards ran in this cell; this is number {self._n_shown}."
        if _torch.has_compiled() and not self._eager:
            yield "The inside of compiled functions is not seen; --eager runs them eagerly."

    def _root(self, seen: Watched) -> Any:
        """Give the tensor that the report is about, None if it is gone."""
        last = self._last() if self._last is not None else None
        return last if last is not None else seen.ends()


NO_TENSOR = "The cell made no tensor that is still alive: keep the loss in a variable."


def _own_error(said: str) -> str:
    return (
        f"An error of nbinspect's own cut the watch short, so lines and cuts may be missing: {said}"
    )


def _with_error(report: GraphReport, finding: GraphFinding | None) -> GraphReport:
    """Put first why backward raised an error, unless the graph itself has told."""
    told = any(one.kind == "JOINED" and one.is_fault for one in report.findings)
    if finding is None or told:
        return report
    others = (one for one in report.findings if one.kind != finding.kind)  # know less of it
    return dataclasses.replace(report, findings=(finding, *others))


def _with_gradients(before: GraphReport, after: GraphReport) -> GraphReport:
    """Add to what a graph was before backward the gradients that came of it."""
    if [n.name for n in before.nodes] != [n.name for n in after.nodes]:
        return before
    nodes = tuple(
        dataclasses.replace(old, grad_norm=new.grad_norm, problem=new.problem or old.problem)
        for old, new in zip(before.nodes, after.nodes, strict=True)
    )
    norms = {one.name: one.grad_norm for one in after.modules}
    modules = tuple(
        dataclasses.replace(one, grad_norm=norms.get(one.name)) for one in before.modules
    )
    known = {one.kind for one in before.findings}
    new = (one for one in after.findings if one.kind == "BAD_GRADIENT" and one.kind not in known)
    findings = tuple(sorted([*before.findings, *new], key=lambda one: not one.is_fault))
    return dataclasses.replace(before, nodes=nodes, modules=modules, findings=findings)
