"""Custom autograd functions that run inside a call: found on the stack, and checked one by one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from nbinspect import notebook
from nbinspect.blocks import Unavailable
from nbinspect.numerics.gradcheck_records import CustomFunction
from nbinspect.tensors import is_tensor

MOST = 8
MOST_VALUES = 4096  # of the arguments of one that is checked by itself
_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
_GENERATED = "GeneratedBackwardFor_"  # how torch.library names what it makes


class SeenFunctions:
    """Notes each custom function that is applied while it is entered, with copies of its arguments.

    It looks at calls as a profiler does, so that ``f = MyFunction.apply`` is seen too; a profiler
    that the user has set comes back at the end.
    """

    def __init__(self) -> None:
        self.seen: dict[type, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def __enter__(self) -> SeenFunctions:
        self._before = sys.getprofile()
        if self._before is None:
            sys.setprofile(self._look)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is None:
            sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call" and frame.f_code is _APPLY and len(self.seen) < MOST:
            # While a profiler looks, Python writes these back: they must not be emptied.
            values = dict(frame.f_locals)
            if values["cls"] not in self.seen:
                with suppress(Exception):  # an argument that cannot be copied
                    self.seen[values["cls"]] = _copied((values["args"], values["kwargs"]))


def _copied(values: Any) -> Any:
    return pytree.tree_map(
        lambda one: (
            one.detach().clone().requires_grad_(one.requires_grad) if is_tensor(one) else one
        ),
        values,
    )


def check_each(seen: SeenFunctions, options: dict[str, Any]) -> tuple[CustomFunction, ...]:
    """Ask torch about each custom function by itself."""
    found = []
    for kind, (args, kwargs) in seen.seen.items():
        name = kind.__name__
        if name.startswith(_GENERATED):
            name = name.removeprefix(_GENERATED)
        found.append(CustomFunction(name, _where(kind), _verdict(kind, args, kwargs, options)))
    return tuple(found)


def _verdict(
    kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
) -> bool | Unavailable:
    tensors = [one for one in args if is_tensor(one) and one.requires_grad]
    if not tensors:
        return Unavailable("no argument of it asks for gradients")
    if sum(one.numel() for one in tensors) > MOST_VALUES:
        return Unavailable("its arguments are too large to check it by itself")
    run = _runner(kind, args, kwargs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.autograd.gradcheck(run, tensors, **options, raise_exception=False)
    except Exception as error:  # it may not run by itself
        return Unavailable(f"alone it raises {type(error).__name__}")


def _runner(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    def run(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left = list(given)
        filled = [left.pop(0) if is_tensor(one) and one.requires_grad else one for one in args]
        made = kind.apply(*filled, **kwargs)
        return tuple(
            one for one in pytree.tree_leaves(made) if is_tensor(one) and one.requires_grad
        )

    return run


def _where(kind: Any) -> Any:
    code = getattr(getattr(kind, "backward", None), "__code__", None)
    if code is None or not notebook.is_users_file(code.co_filename):
        return None
    return notebook.source_line(code, code.co_firstlineno)
