"""The state that a step starts from, and putting it back."""

from __future__ import annotations

import builtins
import copy
import io
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from nbinspect import _torch, notebook
from nbinspect.numerics.check import can_be_bad, is_bad
from nbinspect.numerics.random_state import RandomState
from nbinspect.numerics.surroundings import Surroundings
from nbinspect.numerics.turn import SideEffectError
from nbinspect.numerics.undisturbed import undisturbed
from nbinspect.tensors import is_tensor


class Buffer(NamedTuple):
    """A buffer, and the dictionary of its module that holds it by name."""

    owner: dict[str, Any]
    name: str
    tensor: torch.Tensor


def slot(buffer: Buffer) -> int:
    """Give a number for where a buffer is kept, whichever tensor is there."""
    return hash((id(buffer.owner), buffer.name))


class Pinned:
    """Random generators and buffers as they were when it was made.

    Cost: some 50 µs and a copy of the buffers; parameters are not copied.
    """

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self._random = RandomState.now()
        self._rows: dict[tuple[torch.device, torch.dtype], list[Buffer]] = defaultdict(list)
        self._others: list[tuple[Buffer, torch.Tensor]] = []
        for one in buffers:
            if type(one.tensor) is torch.Tensor and one.tensor.layout is torch.strided:
                self._rows[one.tensor.device, one.tensor.dtype].append(one)
            else:
                self._others.append((one, one.tensor.detach().clone()))
        self._kept = [
            _torch.in_a_row([one.tensor for one in row]).detach() for row in self._rows.values()
        ]

    def add_finite(self, buffers: Iterable[Buffer]) -> None:
        """Take those that it lacks as they are, with 0 for what is not finite: the best guess."""
        known = {slot(one) for one, _ in self._copies()}
        for one in buffers:
            if slot(one) not in known and can_be_bad(one.tensor) and is_bad(one.tensor):
                self._others.append((one, torch.nan_to_num(one.tensor.detach(), 0.0, 0.0, 0.0)))

    def restore(self) -> None:
        """Put all of it back."""
        self._random.put_back()
        with torch.no_grad():
            for one, kept in self._copies():
                one.owner[one.name] = one.tensor  # a forward may have put another in its place
                one.tensor.data.copy_(kept)  # `.data`: graphs that saved it must not notice

    def _copies(self) -> Iterator[tuple[Buffer, torch.Tensor]]:
        yield from self._others
        for row, kept in zip(self._rows.values(), self._kept, strict=True):
            parts = kept.split([one.tensor.numel() for one in row])
            for one, part in zip(row, parts, strict=True):
                yield one, part.reshape(one.tensor.shape)

    def as_now(self) -> Pinned:
        """Give the present state of the same."""
        return Pinned(
            one._replace(tensor=one.owner[one.name])
            for one, _ in self._copies()
            if is_tensor(one.owner.get(one.name))
        )


@contextmanager
def set_aside(
    pinned: Pinned,
    leaves: list[torch.Tensor],
    scalers: Iterable[torch.amp.GradScaler],
    optimizers: Iterable[Optimizer],
) -> Iterator[None]:
    """Go back to `pinned`, without gradients, and return to the present afterwards.

    The scalers keep their scale, but know of no step that has begun.
    """
    around = Surroundings(optimizers)
    now = pinned.as_now()
    gradients = [(leaf, leaf.grad) for leaf in leaves]
    states = [(scaler, dict(vars(scaler))) for scaler in scalers]
    try:
        pinned.restore()
        for scaler, state in states:
            vars(scaler).update((name, _fresh(value)) for name, value in state.items())
        for leaf in leaves:
            leaf.grad = None
        yield
    finally:
        with undisturbed():
            for leaf, gradient in gradients:
                leaf.grad = gradient
            for scaler, state in states:
                vars(scaler).update(state)
            now.restore()
            around.restore()


def _fresh(value: Any) -> Any:
    """Give a part of a scaler's state as a new step finds it."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):  # what it knows of each optimizer's step
        empty = copy.copy(value)
        empty.clear()
        return empty
    return value


@contextmanager
def harmless() -> Iterator[None]:
    """Let the user's code print to nobody, and stop it before it reads, writes or advances.

    Functions called from the step are not read beforehand, so what they do is caught when they
    do it.
    """
    with ExitStack() as undo:
        undo.enter_context(redirect_stdout(io.StringIO()))
        names = notebook.user_namespace()  # IPython puts an `open` of its own there
        for space in (vars(builtins), vars(io), names):
            if callable(space.get("open")):
                _replace(undo, space, "open", _guarded_open(space["open"]))
        _replace(undo, vars(builtins), "input", _refuse_input)
        _replace(undo, vars(builtins), "next", _guarded_next(builtins.next))
        yield


def _replace(
    undo: ExitStack, space: dict[str, Any], name: str, function: Callable[..., Any]
) -> None:
    undo.callback(space.__setitem__, name, space[name])
    space[name] = function


def _refuse_input(*_: object) -> str:
    raise SideEffectError("it asks for input")


def _guarded_open(original: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wax+"):
            raise SideEffectError(f"it writes the file {file}")
        return original(file, mode, *args, **kwargs)

    return guarded


def _guarded_next(original: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(iterator: Any, *default: Any) -> Any:
        frame = sys._getframe(1)
        # One that nobody else holds was made for this call: next(iter(x)), next(m.parameters()).
        if notebook.is_users_file(frame.f_code.co_filename) and sys.getrefcount(iterator) > 3:
            raise SideEffectError(f"line {frame.f_lineno} advances an iterator")
        return original(iterator, *default)

    return guarded
