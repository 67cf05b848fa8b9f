"""What `nanwatch` found: plain values, read without torch."""

from __future__ import annotations

from dataclasses import dataclass

from nbinspect.blocks import Unavailable, View
from nbinspect.records import Record, SourceLine

REACHES = ("loss", "grad", "parameter", "buffer")


@dataclass(frozen=True, slots=True)
class Operand:
    """What an operation was given, or what it returned.

    Attributes:
        name: the argument's name in torch's schema, e.g. ``other``; ``result`` for what came out.
        what: shape and type, e.g. ``4x16 float32``; the value itself for a number.
        at: the value at the first bad index, None where the shapes do not match.
        low: smallest finite value, None if there is none.
        high: largest finite value.
        n_values: how many values there are.
        n_zero: how many are 0.
        n_nan: how many are NaN.
        n_inf: how many are infinite.
        excerpt: up to seven values along the last dimension, around the first bad one.
        at_excerpt: which of them is the one at the first bad index.
        missing: why the values are not known, None if they are.
        label: the user's own expression for it, or what it is in words, e.g. ``divisor``.
    """

    name: str
    what: str
    at: float | None = None
    low: float | None = None
    high: float | None = None
    n_values: int = 0
    n_zero: int = 0
    n_nan: int = 0
    n_inf: int = 0
    excerpt: tuple[float, ...] = ()
    at_excerpt: int = 0
    missing: Unavailable | None = None
    label: str = ""

    @property
    def words(self) -> str:
        """What the reader calls it: the label, else the name."""
        return self.label or self.name


@dataclass(frozen=True, slots=True)
class Link:
    """One operation on the way from where a value was born to where it was found.

    Attributes:
        role: born, spread or reached.
        op: the operation; for ``reached`` the place, e.g. ``model.fc.weight.grad``.
        phase: forward, backward, optimizer, data or leaf.
        node: the autograd node that ran it, None in the forward pass.
        where: the user's line, None if there is none.
        module: the module whose forward ran, "" for none.
        shows: ``NaN``, ``Inf`` or ``NaN and Inf``.
    """

    role: str
    op: str
    phase: str
    node: str | None
    where: SourceLine | None
    module: str
    shows: str


@dataclass(frozen=True, slots=True)
class Reached:
    """Where non-finite values were found when the step ended.

    Attributes:
        place: loss, grad, parameter or buffer.
        names: the tensors, by the user's names.
        n_of: how many tensors of that kind were looked at.
    """

    place: str
    names: tuple[str, ...]
    n_of: int


@dataclass(frozen=True, slots=True)
class NanFinding:
    """The operation that made a NaN or Inf that matters.

    Attributes:
        op: without its overload, e.g. ``aten.div``; ``leaf`` if no operation made the value;
            ``unknown`` if it was made where no operation is seen.
        phase: forward, backward, optimizer, data (nothing trainable feeds it) or leaf.
        node: the autograd node that ran it, None outside of backward.
        kind: born (finite in, non-finite out), inf_to_nan, literal (the code asked for it) or leaf.
        reaches: loss, grad, parameter, buffer: where it was found when the step ended.
        reached: the same with names.
        where: the user's line; for an operation of backward, the forward line it belongs to.
        ran: the line that was running, where it is another one, e.g. that of ``loss.backward()``.
        module: the module whose forward it belongs to, "" for none.
        step: optimizer steps before it, so the first is 0.
        index: first bad index of the result, None where that says nothing.
        n_bad: how many values of the result are NaN or Inf.
        n_values: how many it has.
        shows: ``NaN``, ``Inf`` or ``NaN and Inf``.
        operands: what it was given and returned, looked at when it ran.
        source: for a leaf, the user's name of the tensor; "" otherwise.
        why: the cause, in sentences.
        mend: what to do, code where possible.
        chain: from birth to the first place reached.
        n_seen: how often the same operation of the same line did it in the watch.
        absorbed_by: for what never reached: the operation that took it in and gave finite values.
        alarming: absorbed, but probably an error all the same.
        written: for a fault inside the optimizer, the parameters already written.
    """

    op: str
    phase: str
    node: str | None
    kind: str
    reaches: tuple[str, ...]
    reached: tuple[Reached, ...]
    where: SourceLine | None
    ran: SourceLine | None
    module: str
    step: int
    index: tuple[int, ...] | None
    n_bad: int
    n_values: int
    shows: str
    operands: tuple[Operand, ...]
    source: str
    why: str
    mend: str
    chain: tuple[Link, ...] = ()
    n_seen: int = 1
    absorbed_by: str = ""
    alarming: bool = False
    written: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The finding as a person would say it."""
        from nbinspect.numerics.view import sentence

        return sentence(self)


@dataclass(frozen=True, slots=True)
class NanReport(Record):
    """What `nanwatch` saw of a cell.

    Attributes:
        findings: the first operation that went wrong, for each place it reached; earliest first.
        absorbed: what was made but never reached a loss, gradient, parameter or buffer.
        mode: exact or light.
        n_ops: operations looked at.
        n_steps: optimizer steps taken.
        n_backwards: backward passes run.
        step: the step of the first finding, else the number of steps taken.
        stopped: whether the cell was stopped at the finding.
        replayed: whether the step was run again to find the operation.
        replay: what came of it, in a sentence; "" if there was no need.
        skipped_steps: steps that a GradScaler skipped.
        losses: (step, value) of the last backward passes.
        error: the type of the exception that ended the cell, "" for none.
        notes: what was met that the watch cannot see.
    """

    findings: tuple[NanFinding, ...]
    absorbed: tuple[NanFinding, ...]
    mode: str
    n_ops: int
    n_steps: int
    n_backwards: int
    step: int
    stopped: bool = False
    replayed: bool = False
    replay: str = ""
    skipped_steps: int = 0
    losses: tuple[tuple[int, float], ...] = ()
    error: str = ""
    notes: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether no NaN or Inf reached a loss, gradient, parameter or buffer."""
        return not self.findings

    def view(self) -> View:
        """The sentence, the mend, the chain, the values."""
        from nbinspect.numerics.view import report_view

        return report_view(self)
