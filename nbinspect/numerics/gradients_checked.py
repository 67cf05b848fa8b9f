"""Analytic against numeric gradients, and whether all is finite at the user's own dtype."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from nbinspect.numerics.copied_call import CopiedCall, NothingToCheckError, as_it_is, to_float64
from nbinspect.numerics.float64_check import Float64Check
from nbinspect.numerics.gradcheck_records import GradcheckReport
from nbinspect.numerics.own_dtype import run_at_own_dtype
from nbinspect.numerics.random_state import RandomState
from nbinspect.ops import variable_name


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
            return Float64Check(call, run, tolerances).report(name, top)


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
