"""Tells when a training step runs backward, is about to write, has written, or was skipped.

It needs nothing of the user's loop: optimizers have hooks for all of them, and the few functions
that start a backward pass are wrapped while the watch is on.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from nbinspect import _torch
from nbinspect.tensors import tensors_in
from nbinspect.wrapping import wrap


class Listener(Protocol):
    """What is told of a step."""

    def before_backward(self, roots: list[torch.Tensor], /) -> None:
        """A backward pass is about to start from these."""

    def after_backward(self, roots: list[torch.Tensor], results: list[torch.Tensor], /) -> None:
        """It has ended; `results` are gradients that were returned and not accumulated."""

    def before_write(self, optimizer: Optimizer, /) -> Optimizer | None:
        """An optimizer is about to write its parameters; another may be given to step instead."""

    def after_write(self, optimizer: Optimizer, /) -> None:
        """It has written them."""

    def in_closure(self, inside: bool, /) -> None:
        """An optimizer calls the user's closure, or that has returned."""

    def failed(self, error: Exception, /) -> None:
        """One of these has raised, which is a mistake of nbinspect's."""

    def skipped(self, optimizer: Optimizer, /) -> None:
        """A GradScaler found a gradient that is not finite and did not call the optimizer."""


class Steps:
    """Installs what tells the listener, and takes it out.

    Attributes:
        scaled: whether a GradScaler has scaled a loss since the last step: until it has had its
            say, a gradient that overflowed is its business.
        optimizers: those that were met.
        scalers: the GradScalers that were met.
        listener: who is told.

    Source: ``register_optimizer_step_pre_hook`` and ``_post_hook``; ``torch.autograd.backward``,
    ``torch.autograd.grad``, ``GradScaler.scale`` and ``.step``, wrapped meanwhile.
    """

    def __init__(self, listener: Listener) -> None:
        self.scaled = False
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.scalers: weakref.WeakSet[torch.amp.GradScaler] = weakref.WeakSet()
        self.listener = listener
        self._undo = ExitStack()
        self._wrote = False
        self._depth = 0

    def install(self) -> None:
        """Start telling."""
        with ExitStack() as undo:
            undo.callback(register_optimizer_step_pre_hook(self._before_step).remove)
            undo.callback(register_optimizer_step_post_hook(self._after_step).remove)
            put = functools.partial(wrap, undo)
            put(torch.autograd, "backward", self._backward)
            put(torch.autograd, "grad", self._grad)
            put(torch.amp.GradScaler, "scale", self._scale)
            put(torch.amp.GradScaler, "step", self._scaler_step)
            self._undo = undo.pop_all()

    def remove(self) -> None:
        """Stop telling."""
        self._undo.close()

    @contextmanager
    def told_to(self, listener: Listener) -> Iterator[None]:
        """Tell another listener meanwhile."""
        before = self.listener, self.scaled, self._wrote, self._depth
        self.listener, self._depth = listener, 0
        try:
            yield
        finally:
            self.listener, self.scaled, self._wrote, self._depth = before

    def _tell(self, method: Callable[..., Any], *args: Any) -> Any:
        """Tell the listener; an error of our own is no business of the user's loop."""
        __tracebackhide__ = True
        try:
            return method(*args)
        except Exception as error:
            if getattr(type(error), "ends_the_cell", False):
                raise
            self.listener.failed(error)
            return None

    # Backward passes. A pass within a pass (checkpointing, double backward) is part of the outer.

    def _backward(self, original: Any, args: Any, kwargs: Any) -> Any:
        __tracebackhide__ = True
        return self._run(original, args, kwargs, kwargs.get("tensors", args[0] if args else ()))

    def _grad(self, original: Any, args: Any, kwargs: Any) -> Any:
        __tracebackhide__ = True
        return self._run(original, args, kwargs, kwargs.get("outputs", args[0] if args else ()))

    def _run(self, original: Any, args: Any, kwargs: Any, roots: Any) -> Any:
        __tracebackhide__ = True
        if self._depth or _torch.is_tracing():
            return original(*args, **kwargs)
        found = list(tensors_in(list(roots) if not torch.is_tensor(roots) else roots))
        self._tell(self.listener.before_backward, found)
        self._depth += 1
        try:
            results = original(*args, **kwargs)
        finally:
            self._depth -= 1
        self._tell(self.listener.after_backward, found, list(tensors_in(results)))
        return results

    # Optimizers.

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        __tracebackhide__ = True
        self._wrote = True
        self.optimizers.add(optimizer)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is not None:
            self.listener.in_closure(False)  # until it is called, all is as if it had returned
            return self._with_closure(args, kwargs, closure)
        instead = self._tell(self.listener.before_write, optimizer)
        return None if instead is None else ((instead, *args[1:]), kwargs)

    def _with_closure(self, args: Any, kwargs: Any, closure: Callable[[], Any]) -> Any:
        """Wrap the closure: what runs inside is forward and backward, not the optimizer."""

        @functools.wraps(closure)
        def told() -> Any:
            __tracebackhide__ = True
            return _call_closure(self.listener, closure)

        if "closure" in kwargs:
            return args, {**kwargs, "closure": told}
        return (args[0], told, *args[2:]), kwargs

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        __tracebackhide__ = True
        self.scaled = False
        self._tell(self.listener.after_write, optimizer)

    # GradScaler.

    def _scale(self, original: Any, args: Any, kwargs: Any) -> Any:
        __tracebackhide__ = True
        self.scaled = bool(args[0].is_enabled())
        self.scalers.add(args[0])
        return original(*args, **kwargs)

    def _scaler_step(self, original: Any, args: Any, kwargs: Any) -> Any:
        __tracebackhide__ = True
        self._wrote = False
        result = original(*args, **kwargs)
        optimizer = kwargs.get("optimizer", args[1] if len(args) > 1 else None)
        if not self._wrote and optimizer is not None:
            self.scaled = False
            self.optimizers.add(optimizer)
            self._tell(self.listener.skipped, optimizer)
        return result


def _call_closure(listener: Listener, closure: Callable[[], Any]) -> Any:
    __tracebackhide__ = True
    listener.in_closure(True)
    try:
        return closure()
    finally:
        listener.in_closure(False)


CLOSURE = _call_closure.__code__
"""The code whose frame stands between an optimizer and the user's closure."""


def parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Yield what an optimizer trains."""
    for group in optimizer.param_groups:
        yield from group["params"]
