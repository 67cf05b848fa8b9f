"""Hooks on parameters and optimizers: put on once, taken off without a trace."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.optim import optimizer as optimizers

from nbinspect import _torch


class ParameterHooks:
    """Calls `arrived` with each parameter whose gradient backward has just added to.

    Args:
        arrived: called within backward, maybe in a device's own thread.
    """

    def __init__(self, arrived: Callable[[torch.Tensor], None]) -> None:
        self._arrived = arrived
        self._handles: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}
        self._early: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}

    def attach(self, parameters: Iterable[torch.Tensor]) -> None:
        """Hook those that have no hook yet and can have one."""
        for one in parameters:
            if is_lazy(one):
                continue  # until it has a shape
            if one.requires_grad and one.is_leaf and self.get(id(one)) is not one:
                handle = one.register_post_accumulate_grad_hook(self._arrived)
                self._handles[id(one)] = (weakref.ref(one), handle)

    def attach_early(
        self, parameter: torch.Tensor, arriving: Callable[[torch.Tensor], None]
    ) -> None:
        """Call `arriving` with each gradient of a parameter before backward adds it."""
        known = self._early.get(id(parameter))
        if known is None or known[0]() is not parameter:
            handle = parameter.register_hook(arriving)
            self._early[id(parameter)] = (weakref.ref(parameter), handle)

    def get(self, key: int) -> torch.Tensor | None:
        """Give a hooked parameter by its id, if it is still there."""
        known = self._handles.get(key)
        return known[0]() if known is not None else None

    def remove(self) -> None:
        """Take all hooks off."""
        for handles in (self._handles, self._early):
            while handles:
                _, (ref, handle) = handles.popitem()
                handle.remove()
                if (one := ref()) is not None:
                    _torch.drop_gradient_hooks(one)


def hook_optimizers(
    undo: ExitStack, before: Callable[[Any, Any, Any], Any], after: Callable[[Any, Any, Any], Any]
) -> None:
    """Call `before` and `after` around each step of each optimizer, until `undo`."""
    undo.callback(optimizers.register_optimizer_step_pre_hook(before).remove)
    undo.callback(optimizers.register_optimizer_step_post_hook(after).remove)


def hook_new_parameters(undo: ExitStack, hooks: ParameterHooks) -> None:
    """Hook the parameters of modules that are made from now on, until `undo`."""

    def made(_module: nn.Module, _name: str, parameter: Any) -> None:
        if isinstance(parameter, torch.Tensor):
            hooks.attach((parameter,))

    undo.callback(register_module_parameter_registration_hook(made).remove)
