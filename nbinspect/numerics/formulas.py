"""Backward formulas that torch works out in another way while any dispatch mode is active.

Some avoid steps that a tensor without memory could not take, as torch then expects one. The result
is the same but for the last bit, the sign of a zero or, where the gradient is infinite, NaN in the
other places; and two do not check their input. So a watch leaves the stack while such a node runs,
and looks at what the node gave as if it were one operation.

Which operations these are, `plans` says. Source: the callers of ``dispatch_mode_enabled`` in torch's library, and torch's test database.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch

from nbinspect import _torch
from nbinspect.numerics.check import tensors_in
from nbinspect.ops import OpStream
from nbinspect.tensors import is_tensor, looking


class Formula:
    """Stands for the operation that a node is, where one is asked for."""

    def __init__(self, node_name: str) -> None:
        family = node_name.rstrip("0123456789").removesuffix("Backward")
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", family).lower()
        self._name = f"aten.{snake}_backward"
        self._schema = SimpleNamespace(arguments=[SimpleNamespace(name="grad", alias_info=None)])

    def __str__(self) -> str:
        return self._name


formula = lru_cache(maxsize=64)(Formula)

Told = Callable[[Formula, tuple[Any, ...], dict[str, Any], Any], None]


class Formulas:
    """Keeps a stream out of those nodes.

    Args:
        told: called with (formula, (gradients given,), values saved by name, result) after each.

    Attributes:
        stream: that one.
        fresh: results whose nodes are still to be adopted.
    """

    def __init__(self, told: Told) -> None:
        self.stream: OpStream | None = None
        self._told = told
        self.fresh: list[weakref.ref[torch.Tensor]] = []
        self._handles: list[Any] = []

    def follow(self, result: Any) -> None:
        """Take the result of a forward operation; its node will be there at the next one."""
        self.adopt()
        self.fresh += [weakref.ref(one) for one in tensors_in(result)]

    def adopt(self) -> None:
        """Watch out for the nodes of the results that were noted."""
        if not self.fresh:
            return
        fresh, self.fresh = self.fresh, []
        nodes = {}
        for ref in fresh:
            tensor = ref()
            node = None if tensor is None else tensor.grad_fn
            if node is not None:
                nodes[id(node)] = node
        for node in nodes.values():
            self._adopt(node)

    def _adopt(self, node: Any) -> None:
        aside: list[bool] = []

        def before(_given: Any) -> None:
            aside[:] = [self.stream is not None and self.stream.step_aside()]

        def after(gave: Any, given: Any) -> None:
            if self.stream is None or not aside or not aside.pop():
                return
            try:
                self._tell(_torch.current_autograd_node(), gave, given)
            finally:
                self.stream.come_back()

        self._handles += [node.register_prehook(before), node.register_hook(after)]

    def _tell(self, node: Any, gave: Any, given: Any) -> None:
        if node is None:
            return
        with looking():
            saved = {name: one for name, one, _ in _torch.raw_saved(node) if is_tensor(one)}
            grads = given[0] if len(given) == 1 else list(given)
            self._told(formula(node.name()), (grads,), saved, list(gave))

    def release(self) -> None:
        """Leave the nodes as they were."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.fresh.clear()

    def forget_old(self) -> None:
        """Forget the nodes that are gone."""
        self._handles = [one for one in self._handles if one.hooks_dict_ref() is not None]
