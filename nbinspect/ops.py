"""A running cell as a stream of operations: the only dispatch mode, shared by all who watch ops.

A subscriber is called after every operation with what ran and what came out. Where in the user's
code and in which module that was is looked up only when a subscriber asks, since most operations
interest nobody.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from torch import nn
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from nbinspect import _torch, notebook

Subscriber = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
"""Called as ``subscriber(func, args, kwargs, result)`` after each operation."""

Site = tuple[CodeType, int] | None
"""A line of the user's code: its code object and line number; None outside of it."""


class _Mode(TorchDispatchMode):
    """Passes every operation on, then tells the stream; compiled functions run as compiled."""

    def __init__(self, subscriber: Subscriber) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self._subscriber = subscriber

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._subscriber(func, args, kwargs, result)
        return result


class _EagerMode(_Mode):
    """The same, but compiled functions run eagerly, so that their operations are seen."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return False


@dataclass(slots=True)
class ModulePath:
    """Which module's forward is running, by name; one per watch and thread.

    Attributes:
        calls: how often each module was called, by name.
        type_names: the type of each module, by name.
    """

    calls: dict[str, int] = field(default_factory=dict)
    type_names: dict[str, str] = field(default_factory=dict)
    _stack: list[str] = field(default_factory=list)
    _names: weakref.WeakKeyDictionary[nn.Module, str] = field(
        default_factory=weakref.WeakKeyDictionary
    )

    @property
    def current(self) -> str:
        """The innermost running module's name, "" outside of any."""
        return self._stack[-1] if self._stack else ""

    def enter(self, module: nn.Module) -> None:
        """Note that a module's forward begins."""
        name = self._names.get(module)
        if name is None:
            self._learn(module)
            name = self._names[module]
        self._stack.append(name)
        self.calls[name] = self.calls.get(name, 0) + 1

    def leave(self) -> None:
        """Note that the innermost forward ends."""
        if self._stack:
            self._stack.pop()

    def _learn(self, root: nn.Module) -> None:
        """Name a module that was not met as part of another, and all its parts."""
        prefix = self._stack[-1] if self._stack else variable_name(root)
        for name, part in root.named_modules():
            full = f"{prefix}.{name}" if name else prefix
            if part not in self._names:
                self._names[part] = full
                self.type_names[full] = type(part).__name__


def variable_name(value: object) -> str:
    """Give the name that the running function or the notebook has for an object, else its type's."""
    frame = notebook.user_frame(sys._getframe(1))
    local = notebook.frame_locals(frame) if frame is not None else {}
    for name, known in (*local.items(), *list(notebook.user_namespace().items())):
        if known is value and not name.startswith("_"):
            return name
    return type(value).__name__


class OpStream:
    """Calls a subscriber for each operation of this thread while it is entered.

    Args:
        subscriber: called after every operation.
        eager: run compiled functions eagerly, so that their operations are seen.

    Attributes:
        modules: the running forward, for operations inside modules.

    Cost: 14 µs an operation, plus what the subscriber does.
    Blind to: other threads' operations, what a kernel allocates inside, NumPy, and the inside of
    compiled functions unless `eager`.
    Source: ``torch.utils._python_dispatch.TorchDispatchMode``, global module forward hooks.
    """

    def __init__(self, subscriber: Subscriber, *, eager: bool = False) -> None:
        self.modules = ModulePath()
        self._mode = (_EagerMode if eager else _Mode)(subscriber)
        self._handles: list[Any] = []
        self._thread = 0

    def __enter__(self) -> OpStream:
        self._thread = threading.get_ident()
        with ExitStack() as undo:
            undo.callback(self._unhook)
            before = module_hooks.register_module_forward_pre_hook(self._entering)
            self._handles.append(before)
            after = module_hooks.register_module_forward_hook(self._left, always_call=True)
            self._handles.append(after)
            self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch has not typed it
            undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            _torch.leave_mode(self._mode)
        finally:
            self._unhook()

    def _unhook(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    # A hook that raises would change the user's forward; a name is not worth that.
    def _entering(self, module: nn.Module, _inputs: Any) -> None:
        if threading.get_ident() == self._thread:
            with suppress(Exception):
                self.modules.enter(module)

    def _left(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if threading.get_ident() == self._thread:
            self.modules.leave()


def user_site(depth: int = 2) -> Site:
    """Give the line of the user's own code that is running, from `depth` calls above.

    Cost: about 2 µs; keeps the code object, not the frame.
    """
    frame = notebook.user_frame(sys._getframe(depth))
    return (frame.f_code, frame.f_lineno) if frame is not None else None
