"""Listens to the operations of a running cell and notes what each took and gave."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from nbinspect import _torch, notebook
from nbinspect.autograd_graph.leaving import NUMPY, Left, read
from nbinspect.autograd_graph.mends import takes_a_number
from nbinspect.autograd_graph.watched import (
    OUTPUTS,
    Event,
    Watched,
    Write,
    event_of,
    value_of,
)
from nbinspect.ops import ModuleNames
from nbinspect.tensors import is_tensor, storage_key

NUMBERS = (float, int)
MOST_EVENTS = 30_000  # some 12 MB, kept until the next watch


class Recorder:
    """A subscriber of an `OpStream`.

    Args:
        on_backward: called with the tensor whose backward is about to begin, and whether that is
            `backward`, not `torch.autograd.grad`.

    Attributes:
        seen: what was noted.
        n_dropped: old events that made room for new ones.
        is_stepping: an optimizer's step is running; of its own operations only writes are noted.
        error: what ended the listening, "" if nothing did.

    Cost: about 50 µs an operation; keeps weak references alone.
    Blind to: Python numbers that were computed with before they came back into a tensor.
    """

    def __init__(self, on_backward: Callable[[Any, bool], None]) -> None:
        self.seen = Watched(first=_torch.next_sequence_number() or 0)
        self.modules = ModuleNames()
        self.n_dropped = 0
        self.is_stepping = False
        self.error = ""
        self._on_backward = on_backward
        self._places: dict[tuple[int, int], int] = {}
        self._left = Left()
        self._thread = threading.get_ident()
        self._n = 0

    def __call__(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Note one operation; after an error of our own, none any more."""
        if self.error:
            return
        try:
            self._heard(func, args, kwargs, result)
        except Exception as error:  # the user's cell goes on
            self.error = said_of(error)

    def _heard(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if _torch.current_autograd_node() is not None:
            return
        if self.is_stepping and not torch.is_grad_enabled():
            self._note_step(func, args, kwargs)
            return
        name = _torch.op_name(func)
        began = _began_by(sys._getframe(2)) if name == "aten::ones_like" else ""
        if began:
            user = notebook.user_frame(sys._getframe(2))
            place = -1 if user is None else self._place(user)
            self.seen.roots.append((weakref.ref(args[0]), place))
            self.seen.backwards.append(_torch.next_sequence_number() or 0)
            self._on_backward(args[0], began == "backward")
            return
        self._note(func, name, args, kwargs, result)

    def _note(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        seen, frame = self.seen, sys._getframe(4)
        number, event = self._begin(name, flat((args, kwargs)), frame)
        for tensor in _torch.written(func, args, kwargs):
            if is_tensor(tensor):
                self._write(tensor, number)
        self._give(result, number, event)
        if type(result) is float and not _is_for_text(frame):
            self._left.note([result], number)
        following = _torch.next_sequence_number()
        if following is not None:
            seen.numbers.append(following)
            seen.numbered.append(number)
        if len(seen.events) > MOST_EVENTS:
            self._drop()

    def _begin(self, name: str, values: Iterable[Any], frame: Any) -> tuple[int, Event]:
        """Note an event with what it takes; give its number, and the event."""
        number = self._n
        self._n += 1
        user = notebook.user_frame(frame)
        event = Event(name, self.modules.running(frame), -1 if user is None else self._place(user))
        event.grad_enabled = torch.is_grad_enabled()
        if not event.grad_enabled:
            event.around = tuple(self._around(user))
        inputs: set[int] = set()
        externals: set[int] = set()
        for value in values:
            if is_tensor(value):
                self._take(value, event, inputs, externals)
            elif type(value) in NUMBERS and self._left:
                if user is frame and (type(value) is float or takes_a_number(name)):
                    event.number = value
                origin = self._left.origin(value) if type(value) is float else None
                if origin is not None:
                    inputs.add(value_of(origin, 0))
        event.inputs, event.externals = tuple(sorted(inputs)), tuple(externals)
        self.seen.events[number] = event
        return number, event

    def left(self, name: str, tensor: Any, result: Any) -> None:
        """Note that a tensor's numbers were given to Python or NumPy."""
        if self.error or self.is_stepping or threading.get_ident() != self._thread:
            return
        try:
            frame = sys._getframe(3)
            if not _is_for_text(frame) and is_tensor(tensor):
                self._leave(name, tensor, result, frame)
        except Exception as error:  # the user's cell goes on
            self.error = said_of(error)

    def _leave(self, name: str, tensor: Any, result: Any, frame: Any) -> None:
        number, event = self._begin(name, [tensor], frame)
        event.is_number = True
        key = storage_key(tensor)
        if name != NUMPY:
            self._left.note(flat(result), number)
            return
        self._left.note(read(result), number)
        if key is not None:  # the array shares it, and what is made of the array
            self.seen.storages[key] = weakref.ref(tensor.untyped_storage()), number

    def _note_step(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note which parameters an optimizer's operation writes to."""
        for tensor in _torch.written(func, args, kwargs):
            if is_tensor(tensor) and tensor.requires_grad and tensor.is_leaf:
                external = self.seen.external(tensor)
                if external is not None:
                    self.seen.stepped(external, _torch.next_sequence_number() or 0)

    def _around(self, user: Any) -> Iterator[int]:
        """Yield the user's calls that led to here, the nearest first, but for the very nearest."""
        while user is not None and (user := notebook.user_frame(user.f_back)) is not None:
            yield self._place(user)

    def _place(self, user: Any) -> int:
        key = id(user.f_code), user.f_lasti
        if key not in self._places:
            self._places[key] = len(self.seen.places)
            self.seen.places.append((user.f_code, user.f_lineno, user.f_lasti))
        return self._places[key]

    def _take(self, tensor: Any, event: Event, inputs: set[int], externals: set[int]) -> None:
        """Note an input: the event that made it, and who wrote into its storage since."""
        requires, key = tensor.requires_grad, storage_key(tensor)
        event.takes_grad |= requires
        maker, giver = self.seen.maker(tensor), self.seen.giver(key)
        if maker is not None:
            inputs.add(maker)
            if not (requires and tensor.is_leaf):  # that was set, not computed
                self.seen.events[event_of(maker)].gives[maker % OUTPUTS] = requires
        elif giver is not None:  # how an array that shares memory with a tensor leads back
            inputs.add(value_of(giver, 0))
        writer = self.seen.written.get(key, -1) if giver is not None else -1
        if writer in self.seen.events and (maker is None or writer > event_of(maker)):
            inputs.add(value_of(writer, 0))
        if (requires and tensor.is_leaf) or (maker is None and giver is None):
            is_new = self.seen.external(tensor) is None
            externals.add(self._external(tensor))
            if is_new and self._left and not _torch.is_zero_tensor(tensor):
                inputs.update(value_of(one, 0) for one in self._left.origins(tensor))

    def _external(self, tensor: Any) -> int:
        known = self.seen.external(tensor)
        if known is None:
            known = self.seen.places_of[id(tensor)] = len(self.seen.externals)
            self.seen.externals.append(weakref.ref(tensor))
        return known

    def _write(self, tensor: Any, number: int) -> None:
        """Note what an in-place operation wrote to; torch counts the version up after it."""
        self._made(tensor, number, 0)
        key = storage_key(tensor)
        self.seen.writes.append(Write(number, key, _torch.version(tensor) + 1))
        self.seen.written[key] = number
        external = self.seen.external(tensor) if tensor.is_leaf and tensor.requires_grad else None
        if external is not None:
            self.seen.stepped(external, _torch.next_sequence_number() or 0)

    def _give(self, result: Any, number: int, event: Event) -> None:
        tensors = [one for one in flat(result) if is_tensor(one)]
        for output, tensor in enumerate(tensors):
            self._made(tensor, number, output)
        if tensors:
            event.is_number = not any(t.is_floating_point() or t.is_complex() for t in tensors)
            event.is_bool = all(t.dtype is torch.bool for t in tensors)
        elif type(result) in (float, int, bool, complex):
            event.is_number = True

    def _made(self, tensor: Any, number: int, output: int) -> None:
        if not (tensor.requires_grad and tensor.is_leaf):  # that stays what it is, whoever writes
            self.seen.makers[id(tensor)] = weakref.ref(tensor), value_of(number, output)
        key = storage_key(tensor)
        if key is not None:
            self.seen.storages[key] = weakref.ref(tensor.untyped_storage()), number

    def _drop(self) -> None:
        """Make room: forget the older half, and tensors that are gone."""
        seen = self.seen
        old = sorted(seen.events)[: MOST_EVENTS // 2]
        self.n_dropped += len(old)
        for number in old:
            del seen.events[number]
        seen.makers = {key: one for key, one in seen.makers.items() if one[0]() is not None}
        seen.storages = {key: one for key, one in seen.storages.items() if one[0]() is not None}
        self._left.drop(seen.events.__contains__)
        kept = [pair for pair in zip(seen.numbers, seen.numbered, strict=True) if pair[1] > old[-1]]
        seen.numbers = [number for number, _ in kept]
        seen.numbered = [event for _, event in kept]
        seen.written = {key: n for key, n in seen.written.items() if n in seen.events}
        seen.writes = [one for one in seen.writes if one.event > old[-1]]

    def so_far(self) -> Watched:
        """Give what was noted: with which outputs required grad that nobody took, and modules."""
        for ref, value in self.seen.makers.values():
            tensor = ref()
            if tensor is not None and event_of(value) in self.seen.events:
                self.seen.events[event_of(value)].gives[value % OUTPUTS] = (
                    tensor.requires_grad and not tensor.is_leaf  # that was set, not computed
                )
        self.seen.module_types = dict(self.modules.type_names)
        self.seen.module_names = [(weakref.ref(m), name) for m, name in self.modules.named()]
        return self.seen


def said_of(error: Exception) -> str:
    """Write an error of our own in a line, and let go of its frames, which hold tensors."""
    error.__traceback__ = None
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def flat(value: Any) -> Iterator[Any]:
    """Yield what stands in nested lists, tuples and dictionaries."""
    kind = type(value)
    if kind in (list, tuple):
        for one in value:
            yield from flat(one)
    elif kind is dict:
        for one in value.values():
            yield from flat(one)
    else:
        yield value


def _is_for_text(frame: Any) -> bool:
    """Say whether torch reads a number only to write it, as for ``print`` and f-strings."""
    module = str(frame.f_globals.get("__name__", ""))
    return module == "torch._tensor_str" or frame.f_code.co_name == "__format__"


def _began_by(frame: Any) -> str:
    """Name who is making the gradient of a root: ``backward`` or ``grad``; "" for nobody."""
    for _ in range(6):
        if frame is None:
            return ""
        if frame.f_code.co_name == "_make_grads":
            is_torchs = frame.f_globals.get("__name__", "") == "torch.autograd"
            return frame.f_back.f_code.co_name if is_torchs else ""
        frame = frame.f_back
    return ""
