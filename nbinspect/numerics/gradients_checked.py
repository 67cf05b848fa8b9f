"""Analytic against numeric gradients, and whether all is finite at the user's own dtype."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError

from nbinspect import _torch, notebook
from nbinspect.blocks import Unavailable
from nbinspect.numerics.copied_call import (
    CopiedCall,
    Leaf,
    NothingToCheckError,
    as_it_is,
    to_float64,
)
from nbinspect.numerics.custom_functions import SeenFunctions, check_each
from nbinspect.numerics.derivatives import Evaluation, all_entries, differentiable, places
from nbinspect.numerics.disagreement import badness, cause, finished
from nbinspect.numerics.gradcheck_records import (
    CheckedInput,
    CustomFunction,
    GradcheckReport,
    GradientEntry,
)
from nbinspect.numerics.own_dtype import OwnRun, run_at_own_dtype
from nbinspect.numerics.random_state import RandomState
from nbinspect.ops import OpStream, user_site, variable_name

MOST_LEAVES = 64  # more parameters are not all given to torch's check
MOST_ENTRIES = 20_000  # of the Jacobian, that torch is asked to look at one by one
KEPT = 200  # entries in the record
NARROW = (torch.float32, torch.float16, torch.bfloat16)


def gradcheck(
    fn: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    names: Mapping[int | str, str] | None = None,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    nondet_tol: float = 0.0,
    top: int = 10,
) -> GradcheckReport:
    """Answer whether the gradients of a function are right, and finite at its own dtype.

    The verdict is `torch.autograd.gradcheck`'s, on copies in float64: of the inputs, of a module's
    parameters and buffers, and of the modules and tensors that functions of yours use as global or
    enclosing variables. The function then runs once more at its own dtype, because float64 holds
    values, e.g. exp(100), that float32 does not.

    Args:
        fn: a function, a module, a method of one, or ``MyFunction.apply``.
        inputs: its argument, or a tuple of them. Those that require gradients are checked, and
            parameters that do; if nothing does, all floating-point arguments.
        kwargs: its keyword arguments.
        name: what it is called, "" for its own name.
        names: what each argument is called, by position or keyword.
        eps: the size of a change.
        atol: absolute tolerance.
        rtol: relative tolerance.
        nondet_tol: how far two backward passes may differ.
        top: how many rows the tables show; the record has more.

    Returns:
        The verdict, the worst entries of the Jacobian, what the numbers say of the cause, each
        custom function's own verdict, and what is not finite at the user's dtype.

    Raises:
        ValueError: there is nothing to take a gradient of.
        Exception: what `fn` raises at its own dtype.

    Cost: for small inputs two calls for each value, and one backward pass for each output; else
    some hundred calls. Copies the inputs and the modules twice.
    Blind to: errors that show in other outputs than those that gradients can be taken of; modules
    and tensors that are attributes of other objects, which stay as they are.
    Source: ``torch.autograd.gradcheck``, and `nanwatch` at the function's own dtype.
    """
    __tracebackhide__ = True
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    name = name or _name(fn)
    made = {"name": name, "names": dict(names or _names(fn, len(args)))}
    tolerances: dict[str, Any] = {"eps": eps, "atol": atol, "rtol": rtol, "nondet_tol": nondet_tol}
    with _put_back():
        own = CopiedCall(fn, args, dict(kwargs or {}), convert=as_it_is, **made)  # type: ignore[arg-type]
        if not own.leaves:
            raise NothingToCheckError(
                f"{name} has no floating-point argument or parameter to check"
            )
        run = run_at_own_dtype(own)
        with _as_float64():
            call = CopiedCall(fn, args, dict(kwargs or {}), convert=to_float64, **made)  # type: ignore[arg-type]
            check = _Check(call, run, tolerances)
            passed, message = check.verdict()
            inputs, entries = check.table() if isinstance(passed, bool) or message else ((), ())
    return GradcheckReport(
        name=name,
        passed=passed,
        message=message,
        eps=tolerances["eps"],
        atol=tolerances["atol"],
        rtol=tolerances["rtol"],
        fast_mode=check.fast_mode,
        entries=entries,
        inputs=inputs,
        dtype=run.dtype,
        nonfinite=run.nonfinite,
        born_at=run.born_at,
        functions=check.functions,
        notes=tuple(check.notes),
        n_top=top,
    )


def _name(fn: Any) -> str:
    if isinstance(fn, torch.nn.Module):
        return variable_name(fn)
    return getattr(fn, "__qualname__", type(fn).__name__)


def _names(fn: Any, n_args: int) -> dict[int | str, str]:
    """Name arguments as the function does."""
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return {n: f"input {n}" for n in range(n_args)}
    positional = [
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    found: dict[int | str, str] = {p.name: p.name for p in parameters}
    found |= {n: positional[n] if n < len(positional) else f"input {n}" for n in range(n_args)}
    return found


@contextmanager
def _put_back() -> Iterator[None]:
    """Let random numbers, gradient mode and warnings be after as before."""
    before = RandomState.now()
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        before.put_back()


@contextmanager
def _as_float64() -> Iterator[None]:
    """Let what a function makes without naming a dtype be double precision too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _Check:
    """The check in float64 of one call.

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

    def verdict(self) -> tuple[bool | Unavailable, str]:
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

    def table(self) -> tuple[tuple[CheckedInput, ...], tuple[GradientEntry, ...]]:
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
