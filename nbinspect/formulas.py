"""What torch works out in another way while any dispatch mode is active, and how to keep ours out.

Some backward formulas then avoid steps that a tensor without memory could not take, as torch
expects one. The result is the same but for the last bit, the sign of a zero or, where the gradient
is infinite, NaN in the other places; and two do not check their input. Singular values and
eigenvalues of what needs no gradient are taken with their vectors, which changes the last bit. So
the mode leaves the stack meanwhile, and its subscriber is told of the result as of one operation.

Source: the callers of ``dispatch_mode_enabled`` and ``isTensorSubclassLike`` in torch's library,
and torch's test database.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch

from nbinspect import _torch
from nbinspect.tensors import is_tensor, looking, tensors_in
from nbinspect.wrapping import wrap

# Operations with such a backward.
_FORWARD = (
    "prod.default", "prod.dim_int", "cumprod.default", "cumprod_.default", "max.default",
    "min.default", "median.default", "nanmedian.default", "masked_fill.Tensor",
    "masked_fill_.Tensor", "linalg_eig.default", "_linalg_eigh.default",
)  # fmt: skip
# Functions that are themselves made of other operations then.
_WHOLE = ("svdvals", "eigvalsh", "cond", "matrix_norm", "norm", "matrix_rank")


@lru_cache(maxsize=1)
def _forward_ids() -> frozenset[int]:
    """Give the ids of those operations, which live for ever."""
    found = []
    for name in _FORWARD:
        packet, _, overload = name.partition(".")
        found.append(getattr(getattr(torch.ops.aten, packet, None), overload, None))
    return frozenset(id(one) for one in found if one is not None)


class StandIn:
    """Stands for the operation that a whole formula is, where one is asked for."""

    namespace = "aten"
    is_view = False

    def __init__(self, name: str, argument: str) -> None:
        self._name = name
        arguments = [SimpleNamespace(name=argument, alias_info=None, kwarg_only=False)]
        self._schema = SimpleNamespace(name=f"aten::{name}", arguments=arguments)

    def __str__(self) -> str:
        return f"aten.{self._name}"


@lru_cache(maxsize=64)
def _backward_of(node_name: str) -> StandIn:
    family = node_name.rstrip("0123456789").removesuffix("Backward")
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", family).lower()
    return StandIn(f"{snake}_backward", "grad")


@lru_cache(maxsize=64)
def _whole(name: str) -> StandIn:
    return StandIn(f"linalg_{name}", "self")


Told = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]


class Formulas:
    """Keeps a dispatch mode out of them.

    Args:
        mode: that mode.
        told: called with (operation, arguments, keyword arguments, result) after each; of a backward
            formula, the gradients given and the values saved, by name.
        one_at_a_time: held meanwhile; accelerators run backward in a thread each.
    """

    def __init__(self, mode: Any, told: Told, one_at_a_time: AbstractContextManager[Any]) -> None:
        self._mode = weakref.ref(mode)  # which holds this
        self._told = told
        self._one_at_a_time = one_at_a_time
        self._ids = _forward_ids()
        self._fresh: list[weakref.ref[torch.Tensor]] = []  # results without a node as yet
        self._handles: list[Any] = []
        self._most = 64  # handles, until those of nodes that are gone are dropped

    def watch(self, undo: ExitStack) -> None:
        """Begin; `undo` leaves torch and the user's nodes as they were."""
        wrap(undo, torch.autograd, "backward", self._backward)
        wrap(undo, torch.autograd, "grad", self._backward)
        for name in _WHOLE:
            wrap(undo, torch.linalg, name, self._run_whole)
        undo.callback(self._release)

    def follow(self, func: Any, result: Any) -> None:
        """Take what an operation gave; its node will be there at the next one."""
        if self._fresh:
            self._adopt_fresh()
        if id(func) in self._ids:
            self._fresh += [weakref.ref(one) for one in tensors_in(result)]

    # Backward formulas.

    def _backward(self, original: Any, args: Any, kwargs: Any) -> Any:
        __tracebackhide__ = True
        self._adopt_fresh()
        return original(*args, **kwargs)

    def _adopt_fresh(self) -> None:
        """Watch out for the nodes of the results that were noted."""
        fresh, self._fresh = self._fresh, []
        tensors = [one for ref in fresh if (one := ref()) is not None]
        nodes = {id(one.grad_fn): one.grad_fn for one in tensors if one.grad_fn is not None}
        for node in nodes.values():
            self._adopt(node)

    def _adopt(self, node: Any) -> None:
        aside: list[bool] = []

        def before(_given: Any) -> None:
            aside[:] = [_torch.take_off(self._mode())]  # torch puts it back if the node raises

        def after(gave: Any, given: Any) -> None:
            if not aside or not aside.pop():
                return
            try:
                self._tell(_torch.current_autograd_node(), gave, given)
            finally:
                _torch.put_on(self._mode())

        if len(self._handles) > self._most:
            self._handles = [one for one in self._handles if one.hooks_dict_ref() is not None]
            self._most = 64 + 2 * len(self._handles)
        self._handles += [node.register_prehook(before), node.register_hook(after)]

    def _tell(self, node: Any, gave: Any, given: Any) -> None:
        if node is None:
            return
        with looking():
            saved = {name: one for name, one, _ in _torch.raw_saved(node) if is_tensor(one)}
            grads = given[0] if len(given) == 1 else list(given)
            with self._one_at_a_time:
                self._told(_backward_of(node.name()), (grads,), saved, list(gave))

    def _release(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._fresh.clear()

    # Whole functions.

    def _run_whole(self, original: Any, args: Any, kwargs: Any) -> Any:
        __tracebackhide__ = True
        given = list(tensors_in([args, kwargs]))
        differentiates = torch.is_grad_enabled() and any(one.requires_grad for one in given)
        plain = all(type(one) in {torch.Tensor, torch.nn.Parameter} for one in given)
        if differentiates or not plain or _torch.is_tracing() or not _torch.take_off(self._mode()):
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
            with self._one_at_a_time:
                self._told(_whole(original.__name__.removeprefix("linalg_")), args, kwargs, result)
        finally:
            _torch.put_on(self._mode())
        return result
