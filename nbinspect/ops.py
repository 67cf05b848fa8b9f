"""A running cell as a stream of operations: the only dispatch mode, shared by all who watch ops.

A subscriber is called after every operation with what ran and what came out. Where in the user's
code and in which module that was is looked up only when a subscriber asks, since most operations
interest nobody.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import CodeType, FrameType
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nbinspect import _torch, notebook
from nbinspect.formulas import Formulas

Subscriber = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
"""Called as ``subscriber(func, args, kwargs, result)`` after each operation."""

Before = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
"""Called as ``before(func, args, kwargs)`` ahead of each operation, e.g. of one in place.

What it keeps for the subscriber must be kept for each thread."""

Site = tuple[CodeType, int] | None
"""A line of the user's code: its code object and line number; None outside of it."""


class _Mode(TorchDispatchMode):
    """Passes every operation on, then tells the stream; compiled functions run as compiled."""

    def __init__(self, subscriber: Subscriber, before: Before | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self._subscriber = subscriber
        self._before = before
        # A backward pass over several accelerators runs in a thread for each.
        self._one_at_a_time = threading.RLock()
        self.formulas = Formulas(self, subscriber, self._one_at_a_time)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would wrap our method so as to keep its compiler away, and import that compiler,
        # which takes 2 s, at the first operation. `__torch_dispatch__` keeps it away itself.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        __tracebackhide__ = True  # an error of the user's code is not ours to appear in
        compiler = _torch.pause_compiler(None)
        try:
            kwargs = kwargs or {}
            if self._before is not None:
                with self._one_at_a_time:
                    self._before(func, args, kwargs)
            if args and type(args[0]) is Tensor and args[0].is_complex():
                with _torch.conjugating():
                    result = func(*args, **kwargs)
            else:
                result = func(*args, **kwargs)
            with self._one_at_a_time:
                self._subscriber(func, args, kwargs, result)
            self.formulas.follow(func, result)
            return result
        finally:
            _torch.pause_compiler(compiler)


_torch.never_compile(_Mode.__torch_dispatch__.__code__)


class _EagerMode(_Mode):
    """The same, but compiled functions run eagerly, so that their operations are seen."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return False


class ModuleNames:
    """Names the module whose forward is running, from the stack alone.

    Hooks would do it too, but global module hooks change what ``torch.compile`` compiles.

    Attributes:
        type_names: the type of each module that was named.
    """

    def __init__(self) -> None:
        self.type_names: dict[str, str] = {}
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()

    def running(self, frame: FrameType | None) -> str:
        """Name the innermost module that `frame` is called from, "" if there is none.

        Cost: about 5 µs, once a module is known.
        """
        module = _next_module(frame)
        if module is None:
            return ""
        name = self._names.get(module)
        return name if name is not None else self._learned(module, frame)

    def named(self) -> list[tuple[nn.Module, str]]:
        """Give the modules that were named, as far as they live."""
        return list(self._names.items())

    def _learned(self, module: nn.Module, frame: FrameType | None) -> str:
        """Name all parts of the outermost running module, then `module`."""
        *_, outermost = _running_modules(frame)
        prefix = variable_name(outermost)
        for name, part in outermost.named_modules():
            self._name(part, f"{prefix}.{name}" if name else prefix)
        if module not in self._names:  # called by another module without being part of it
            self._name(module, variable_name(module))
        return self._names[module]

    def _name(self, module: nn.Module, name: str) -> None:
        if module not in self._names:
            self._names[module] = name
            self.type_names[name] = type(module).__name__


_CALL = _torch.module_call_code()


def _running_modules(frame: FrameType | None) -> Iterator[nn.Module]:
    """Yield the modules whose forward is running, the innermost first."""
    while frame is not None:
        if frame.f_code is _CALL:
            module: nn.Module = notebook.frame_locals(frame)["self"]
            yield module
        frame = frame.f_back


def _next_module(frame: FrameType | None) -> nn.Module | None:
    return next(_running_modules(frame), None)


def variable_name(value: object) -> str:
    """Give the name that a running function or the notebook has for an object, else its type's."""
    frame = running_user_frame(sys._getframe(1))
    while frame is not None:
        for name, known in notebook.frame_locals(frame).items():
            if known is value and name != "self" and not name.startswith("_"):
                return name
        frame = notebook.user_frame(frame.f_back)
    for name, known in list(notebook.user_namespace().items()):
        if known is value and not name.startswith("_"):
            return name
    return type(value).__name__


class OpStream:
    """Calls a subscriber for each operation of this thread while it is entered.

    Args:
        subscriber: called after every operation.
        before: called ahead of every operation.
        eager: run compiled functions eagerly, so that their operations are seen.

    Cost: 10 µs an operation, plus what the subscriber does.
    Blind to: other threads' operations, what a kernel allocates inside, NumPy, and the inside of
    compiled functions unless `eager`.
    Source: ``torch.utils._python_dispatch.TorchDispatchMode``.
    """

    def __init__(
        self, subscriber: Subscriber, *, before: Before | None = None, eager: bool = False
    ) -> None:
        self._mode = (_EagerMode if eager else _Mode)(subscriber, before)
        self._undo = ExitStack()

    def __enter__(self) -> OpStream:
        with ExitStack() as undo:
            self._mode.formulas.watch(undo)
            undo.callback(self.pause)
            self.resume()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    def pause(self) -> None:
        """Hear nothing for a while.

        Cost: 1 µs.
        """
        _torch.leave_mode(self._mode)

    def resume(self) -> None:
        """Hear again."""
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch has not typed it


def running_user_frame(frame: FrameType | None) -> FrameType | None:
    """Give the nearest frame of the user's own code, from `frame` outwards.

    Backward passes of an accelerator run in threads of the autograd engine's own, which no frame of
    the user's called: there it is the one that waits for the pass.

    Cost: about 2 µs, and 2 more in such a thread.
    Blind to: which of several threads that wait for a pass each has called this one.
    """
    found = notebook.user_frame(frame)
    if found is None and frame is not None and _torch.current_autograd_node() is not None:
        waiting = [top for top in sys._current_frames().values() if _waits_for_backward(top)]
        return notebook.user_frame(waiting[0]) if len(waiting) == 1 else None
    return found


def _waits_for_backward(top: FrameType) -> bool:
    return top.f_code in _torch.engine_codes()


def user_site(frame: FrameType | None) -> Site:
    """Give the line of the user's own code that is running, from `frame` outwards.

    Cost: about 2 µs; keeps the code object, not the frame.
    """
    found = running_user_frame(frame)
    return (found.f_code, found.f_lineno) if found is not None else None
