"""A call's gradients in float64: torch's verdict, and the entries that disagree."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError

from nbinspect import _torch, notebook
from nbinspect.blocks import Unavailable
from nbinspect.numerics.copied_call import CopiedCall, Leaf
from nbinspect.numerics.custom_functions import SeenFunctions, check_each
from nbinspect.numerics.derivatives import Evaluation, all_entries, differentiable, places
from nbinspect.numerics.disagreement import badness, cause, finished
from nbinspect.numerics.gradcheck_records import (
    CheckedInput,
    CustomFunction,
    GradcheckReport,
    GradientEntry,
)
from nbinspect.numerics.own_dtype import OwnRun
from nbinspect.numerics.random_state import RandomState
from nbinspect.ops import OpStream, user_site

MOST_LEAVES = 64  # more parameters are not all given to torch's check
MOST_ENTRIES = 20_000  # of the Jacobian, that torch is asked to look at one by one
KEPT = 200  # entries in the record
NARROW = (torch.float32, torch.float16, torch.bfloat16)


class Float64Check:
    """The check in float64 of one call.

    Args:
        call: the call, converted.
        run: what came of it at its own dtype.
        tolerances: eps, atol, rtol and nondet_tol, as torch's check takes them.

    Attributes:
        tolerances: for torch's check; wider where the function leaves float64.
        fast_mode: whether torch checks random directions.
        functions: the custom functions that ran.
        notes: what was left out or assumed.
    """

    def __init__(self, call: CopiedCall, run: OwnRun, tolerances: dict[str, Any]) -> None:
        self._call, self._run = call, run
        self._state = RandomState.now()
        self._casts: list[str] = []
        self._values = [leaf.value for leaf in call.leaves]
        self.tolerances = tolerances
        self.fast_mode = False
        self.functions: tuple[CustomFunction, ...] = ()
        self.notes = list(_notes(call, run))

    def outputs(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call with the same random numbers each time; `values` are the first leaves."""
        self._state.put_back()
        return differentiable(self._call(*values, *self._values[len(values) :]))

    def report(self, name: str, top: int) -> GradcheckReport:
        """Run the check, and put down what came of it.

        Args:
            name: what the function is called.
            top: how many rows the tables show.
        """
        passed, message = self._verdict()
        inputs, entries = self._table() if isinstance(passed, bool) or message else ((), ())
        return GradcheckReport(
            name=name,
            passed=passed,
            message=message,
            eps=self.tolerances["eps"],
            atol=self.tolerances["atol"],
            rtol=self.tolerances["rtol"],
            fast_mode=self.fast_mode,
            entries=entries,
            inputs=inputs,
            dtype=self._run.dtype,
            nonfinite=self._run.nonfinite,
            born_at=self._run.born_at,
            functions=self.functions,
            notes=tuple(self.notes),
            n_top=top,
        )

    def _verdict(self) -> tuple[bool | Unavailable, str]:
        """Ask torch, and give what it says where the check fails."""
        try:
            with SeenFunctions() as seen, OpStream(self._note_casts):
                outputs = self.outputs()
        except Exception as error:
            return Unavailable(f"in float64 it raises {_said(error)}"), ""
        if not outputs:
            return Unavailable("none of its outputs can be differentiated"), ""
        self._widen()
        checked = self._values[:MOST_LEAVES]
        if len(checked) < len(self._values):
            self.notes.append(f"torch's check took {len(checked)} of {len(self._values)} tensors.")
        if any(value.layout != torch.strided for value in checked):
            self.tolerances["masked"] = True
            self.notes.append("Of sparse arguments only the values that they hold were checked.")
        n_entries = sum(v.numel() for v in checked) * sum(out.numel() for out in outputs)
        self.fast_mode = n_entries > MOST_ENTRIES
        del outputs
        try:
            torch.autograd.gradcheck(
                self.outputs, checked, fast_mode=self.fast_mode, **self.tolerances
            )
            found: tuple[bool | Unavailable, str] = (True, "")
        except GradcheckError as error:
            found = (False, _said(error).partition(": ")[2])
            if "incorrect layout" in found[1]:  # it takes no sparse gradient of a dense tensor
                found = (Unavailable("torch's check takes no sparse gradients"), found[1])
        except Exception as error:
            found = (Unavailable(f"torch's check raises {_said(error)}"), "")
        self.functions = check_each(seen, self.tolerances)
        return found

    def _note_casts(self, func: Any, args: Any, _kwargs: Any, result: Any) -> None:
        """Note where the function itself leaves float64."""
        if _torch.op_name(func) != "aten::_to_copy":
            return
        if result.dtype in NARROW and args[0].dtype == torch.float64:
            site = user_site(sys._getframe(1))
            where = notebook.source_line(*site).label if site is not None else "a library"
            self._casts.append(f"{str(result.dtype).removeprefix('torch.')} in {where}")

    def _widen(self) -> None:
        if self._casts:
            for key, least in (("eps", 1e-3), ("atol", 1e-2), ("rtol", 1e-2)):
                self.tolerances[key] = max(self.tolerances[key], least)
            self.notes.append(
                f"It casts to {self._casts[0]}, so steps and tolerances are wider: eps 1e-3, 1 %."
            )

    def _table(self) -> tuple[tuple[CheckedInput, ...], tuple[GradientEntry, ...]]:
        """Take derivatives both ways, by value and by tensor."""
        leaves = self._call.leaves
        if any(value.layout != torch.strided for value in self._values):
            self.notes.append("There is no table of entries: an argument is sparse.")
            return (), ()
        evaluation = Evaluation(self.outputs, leaves, self.tolerances["eps"])
        generator = torch.Generator().manual_seed(0)
        chosen = places(leaves, generator)
        found: list[list[GradientEntry]] = [[] for _ in leaves]
        n_checked = [0] * len(leaves)
        for at, entries in all_entries(evaluation, chosen):
            found[at] += finished(entries, self.tolerances["atol"], self.tolerances["rtol"])
            n_checked[at] += 1
        own_errors = self._run.errors(evaluation.total_gradients)
        inputs = tuple(
            _input(leaf, found[at], n_checked[at], evaluation.along(at, generator), own_errors[at])
            for at, leaf in enumerate(leaves)
        )
        every = sorted((one for several in found for one in several), key=badness)
        return inputs, tuple(every[:KEPT])


def _input(
    leaf: Leaf,
    entries: Sequence[GradientEntry],
    n_checked: int,
    along: tuple[float, float],
    own_error: float | Unavailable,
) -> CheckedInput:
    n_real = leaf.value.numel() * (2 if leaf.value.is_complex() else 1)
    return CheckedInput(
        name=leaf.name,
        description=leaf.description,
        is_parameter=leaf.is_parameter,
        n_values=n_real,
        n_checked=n_checked,
        n_wrong=len({one.index for one in entries if not one.agrees}),
        analytic=along[0],
        numeric=along[1],
        own_dtype_error=own_error,
        cause=cause(entries),
    )


def _notes(call: CopiedCall, run: OwnRun) -> Iterator[str]:
    if call.chosen:
        yield "No argument requires gradients, so all floating-point ones were checked."
    if call.was_compiled:
        yield "What runs is the function behind the compiled one, eagerly."
    if run.draws_random:
        yield "It draws random numbers; every call got the same."


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
