"""How a call of an operation runs: modes, the compiler, autocast, and what it writes."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
from torch import overrides
from torch.utils import _python_dispatch

from nbinspect._torch.absent import never, nothing


class _NoOverrides:
    """See `no_overrides`; a class, since entering a generator takes longer than all it does."""

    __slots__ = ("_guards", "_modes", "_tracers")

    def __enter__(self) -> None:
        guards = self._guards = tuple(map(operator.call, _OVERRIDE_GUARDS))
        for guard in guards:
            guard.__enter__()
        # Those of a tracer come first: they are told apart by where they are kept.
        n_tracers = _n_tracers()
        self._tracers = [_pop_tracer() for _ in range(n_tracers)] if n_tracers else ()
        n_modes = _n_modes()
        self._modes = [_pop_mode() for _ in range(n_modes)] if n_modes else ()

    def __exit__(self, *_: object) -> None:
        if self._modes or self._tracers:
            for mode in (*reversed(self._modes), *reversed(self._tracers)):
                _python_dispatch._push_mode(mode)
        for guard in reversed(self._guards):
            guard.__exit__(None, None, None)


class _Aside(_NoOverrides):
    """See `aside`."""

    __slots__ = ("_had_grad",)

    def __enter__(self) -> None:
        super().__enter__()
        self._had_grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # without the object that `torch.no_grad` makes

    def __exit__(self, *_: object) -> None:
        torch._C._set_grad_enabled(self._had_grad)
        super().__exit__()


def aside() -> AbstractContextManager[None]:
    """Keep what is called out of sight of modes, as `no_overrides` does, and of autograd.

    Cost: 2 µs.
    """
    return _Aside()


def no_overrides() -> AbstractContextManager[None]:
    """Keep subclasses' functions, all active modes and functorch out of what is called.

    Cost: 2 µs.
    """
    return _NoOverrides()


_OVERRIDE_GUARDS = tuple(
    getattr(torch._C, name)
    for name in ("DisableTorchFunction", "_DisableFuncTorch")
    if hasattr(torch._C, name)
)

_n_modes = getattr(torch._C, "_len_torch_dispatch_stack", never)

_pop_mode: Any = getattr(_python_dispatch, "_pop_mode", None)

_n_tracers = getattr(torch._ops, "_len_torch_dispatch_stack_pre_dispatch", never)

_pop_tracer: Any = getattr(torch._ops, "_pop_mode_from_pre_dispatch", None)


@contextmanager
def with_function_modes(modes: Sequence[Any]) -> Iterator[None]:
    """Push function modes onto those that are active, the lowest first; none that is active."""
    pushed = [one for one in modes if all(one is not it for it in function_modes())]
    for one in pushed:
        overrides._push_mode(one)
    try:
        yield
    finally:
        for _ in pushed:
            overrides._pop_mode()


def function_modes() -> list[Any]:
    """Give the function modes that are active, the lowest first."""
    return list(overrides._get_current_function_mode_stack())


def module_call_code() -> CodeType:
    """Give the code that runs a module's hooks and forward; its `self` is the module."""
    code: CodeType = torch.nn.Module._call_impl.__code__
    return code


def leave_mode(mode: Any) -> None:
    """Take a dispatch mode off the stack, also if the user's code left another above it."""
    stack = list(_python_dispatch._get_current_dispatch_mode_stack())
    above = stack[stack.index(mode) + 1 :] if mode in stack else []
    for _ in above:
        _python_dispatch._pop_mode()
    if mode in stack:
        mode.__exit__(None, None, None)
    for other in above:
        _python_dispatch._push_mode(other)


def take_off(mode: Any) -> bool:
    """Take a dispatch mode off the stack of this moment only; say whether it was there."""
    modes = [_pop_mode() for _ in range(_n_modes())]
    for one in reversed(modes):
        if one is not mode:
            _python_dispatch._push_mode(one)
    return any(one is mode for one in modes)


def put_on(mode: Any) -> None:
    """Undo `take_off`."""
    _python_dispatch._push_mode(mode)


@contextmanager
def conjugating() -> Iterator[None]:
    """Let kernels take complex conjugates and negatives, which torch cannot below a dispatch mode.

    A kernel that is made of other operations would give another result otherwise, such as that of
    ``linalg.pinv``.
    """
    keys = [key for key in _LAZY_KEYS if _is_excluded(key)]
    for key in keys:
        _set_excluded(key, False)
    try:
        yield
    finally:
        for key in keys:
            _set_excluded(key, True)


_keys = getattr(torch._C, "DispatchKey", None)

_LAZY_KEYS = [getattr(_keys, name) for name in ("Conjugate", "Negative") if hasattr(_keys, name)]

_is_excluded = getattr(torch._C, "_dispatch_tls_is_dispatch_key_excluded", never)

_set_excluded = getattr(torch._C, "_dispatch_tls_set_dispatch_key_excluded", nothing)


def _no_compiler(_callback: Any) -> Any:
    """Stand in where this torch has no hook for its compiler."""


_eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)

pause_compiler: Callable[[Any], Any] = getattr(_eval_frame, "set_eval_frame", _no_compiler)
"""Sets the compiler that looks at this thread's frames, None for none; gives the one before."""


def never_compile(code: CodeType) -> None:
    """Tell the compiler to pass over a function and what it calls; does not import it."""
    try:
        skip = _eval_frame._FrameAction.SKIP
        strategy = _eval_frame._FrameExecStrategy(skip, skip)
        _eval_frame.set_code_exec_strategy(code, strategy)
    except AttributeError:  # a torch without it looks at the frame and decides by itself
        return


def compiles_under_modes() -> bool:
    """Say whether this torch runs compiled functions as compiled while our mode is active."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return hasattr(TorchDispatchMode, "ignore_compile_internals")


def is_tracing() -> bool:
    """Say whether ``torch.compile`` is building a graph: what runs has no values then."""
    context = getattr(sys.modules.get("torch._guards"), "TracingContext", None)
    return context is not None and context.try_get() is not None


def has_compiled() -> bool:
    """Say whether ``torch.compile`` has compiled anything in this process."""
    return n_compiled_graphs() > 0


def n_compiled_graphs() -> int:
    """Say how many graphs ``torch.compile`` has compiled in this process."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return int(counters.get("stats", {}).get("unique_graphs") or 0)


@contextmanager
def running_eagerly() -> Iterator[None]:
    """Let compiled functions run eagerly meanwhile; does not import the compiler."""
    stance = getattr(torch.compiler, "set_stance", None)
    if stance is None or "torch._dynamo" not in sys.modules:
        yield
        return
    with stance("force_eager"):
        yield


def op_name(func: Any) -> str:
    """Name the operation that a dispatch mode was called for: ``aten::addmm``."""
    return str(func._schema.name)


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """List the arguments that an operation writes into; [] for one that writes into none."""
    found: list[Any] = []
    for position, name in _written_arguments(func):
        value = args[position] if position < len(args) else kwargs.get(name)
        found += value if isinstance(value, list | tuple) else [value]
    return found


@lru_cache(maxsize=4096)  # operations live for ever
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def autocast_operations(device: str) -> frozenset[str]:
    """Name the operations that autocast treats in a way of their own, without their overloads.

    Source: the dispatcher's registrations for ``AutocastCPU``, ``AutocastCUDA`` and so on.
    """
    if device not in _autocast:
        listed = getattr(torch._C, "_dispatch_get_registrations_for_dispatch_key", None)
        try:
            names = listed(f"Autocast{_key_part(device)}") if listed is not None else ()
        except RuntimeError:  # no such key
            names = ()
        _autocast[device] = frozenset(n.partition("::")[2].partition(".")[0] for n in names)
    return _autocast[device]


_autocast: dict[str, frozenset[str]] = {}


def _key_part(device: str) -> str:
    """Give the part of a dispatch key's name that stands for a type of device."""
    own = getattr(torch._C, "_get_privateuse1_backend_name", None)  # of a backend outside of torch
    return "PrivateUse1" if own is not None and device == own() else device.upper()
