"""What a watched forward has shown: every operation, what it took, and where a gradient stops.

All is plain numbers and text but for weak references, so nothing of the user's is kept alive.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

from torch.nn import Parameter

from nbinspect import notebook
from nbinspect.autograd_graph.facts import Origin
from nbinspect.records import SourceLine
from nbinspect.tensors import storage_key

Place = tuple[CodeType, int, int]
"""A code object, its line, and the instruction that was running."""
Ref = weakref.ref[Any]
MOST_STEPS = 256  # the latest ones; older nodes are hardly in the graph of a loss
OUTPUTS = 8  # outputs of one operation that are told apart


@dataclass(slots=True)
class Event:
    """One operation of the forward.

    Attributes:
        op: its name, e.g. ``aten::addmm``.
        module: the module whose forward ran it, as the watch names it.
        place: an index into `Watched.places`, -1 outside of the user's code.
        around: of an operation without gradients, the user's calls that led to it, nearest first.
        inputs: values that it took: each is an event's number and output, see `value_of`.
        externals: what it took that no event made, as indices into `Watched.externals`.
        takes_grad: some input required grad.
        gives: by output whether it required grad, as far as somebody looked.
        grad_enabled: gradients were recorded when it ran.
        is_number: its output is of a dtype, or a Python number, that has no gradient.
        is_bool: that dtype is bool.
        number: what the user's own code gave it, after some had left torch.
    """

    op: str
    module: str
    place: int
    inputs: tuple[int, ...] = ()
    externals: tuple[int, ...] = ()
    takes_grad: bool = False
    gives: dict[int, bool] = field(default_factory=dict)
    grad_enabled: bool = True
    around: tuple[int, ...] = ()
    is_number: bool = False
    is_bool: bool = False
    number: float | None = None


def value_of(event: int, output: int) -> int:
    """Number an output of an event."""
    return event * OUTPUTS + min(output, OUTPUTS - 1)


def event_of(value: int) -> int:
    """Give the event that made a value."""
    return value // OUTPUTS


class Flow(NamedTuple):
    """How far gradients come: the events that pass them on, and those where they stop."""

    carried: set[int]
    stopped: list[int]


@dataclass(frozen=True, slots=True)
class Write:
    """An operation that wrote into a tensor; `version` is the tensor's after it."""

    event: int
    storage: Any
    version: int


@dataclass(slots=True)
class Watched:
    """Everything that a watch has seen, asked after it has ended.

    Attributes:
        events: by number, in the order they ran; the oldest may have been dropped.
        places: where in the user's code.
        numbers: the next autograd node's number when an event ran, in ascending order.
        numbered: the event of each of `numbers`.
        first: the next node's number when the watch began.
        makers: the value that a tensor is, by its id, and the tensor.
        storages: the event that last gave a tensor on a storage, by its key, and the storage.
        written: the event that last wrote into a storage in place.
        externals: tensors that no event made.
        places_of: the place of each of them, by its id.
        writes: what was changed in place.
        steps: for each external that was written as an optimizer does it: the next node's number.
        backwards: the next node's number when a backward began.
        roots: for each of those its tensor, and where in the user's code it was called, -1 for nowhere.
        module_names: the watch's names of modules.
        module_types: their classes.
    """

    events: dict[int, Event] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    numbered: list[int] = field(default_factory=list)
    first: int = 0
    makers: dict[int, tuple[Ref, int]] = field(default_factory=dict)
    storages: dict[Any, tuple[Ref, int]] = field(default_factory=dict)
    written: dict[Any, int] = field(default_factory=dict)
    externals: list[Ref] = field(default_factory=list)
    places_of: dict[int, int] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    steps: dict[int, deque[int]] = field(default_factory=dict)
    backwards: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    roots: deque[tuple[Ref, int]] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    module_names: list[tuple[Ref, str]] = field(default_factory=list)
    module_types: dict[str, str] = field(default_factory=dict)
    _lines: dict[int, tuple[SourceLine, str, str]] = field(default_factory=dict)

    def origins(self, modules: Mapping[int, str]) -> dict[int, Origin]:
        """Give where each node was made, by its number; `modules` are the names to use, by id."""
        rename = self._renamed(modules)
        found: dict[int, Origin] = {}
        low = self.first
        for number, event in zip(self.numbers, self.numbered, strict=True):
            one = self.events.get(event)
            if one is None:
                low = number
                continue
            for node in range(low, number):  # nodes made on the way to this operation
                module = rename.get(one.module, one.module)
                found[node] = Origin(one.op, module, self.line(one))
            low = number
        return found

    def types(self, modules: Mapping[int, str]) -> dict[str, str]:
        """Give the class of each module that ran, by the same names as `origins`."""
        rename = self._renamed(modules)
        return {rename.get(name, name): kind for name, kind in self.module_types.items()}

    def _renamed(self, modules: Mapping[int, str]) -> dict[str, str]:
        found = {}
        for ref, name in self.module_names:
            module = ref()
            if module is not None and id(module) in modules:
                found[name] = modules[id(module)]
        return found

    def parameters(self) -> Iterator[Any]:
        """Yield leaves that require grad and that the cell used, as far as they live."""
        for ref in self.externals:
            tensor = ref()
            if tensor is not None and tensor.requires_grad and tensor.is_leaf:
                yield tensor

    def used_frozen(self) -> bool:
        """Say whether the cell used parameters, all of which are frozen."""
        alive: Iterator[Any] = (ref() for ref in self.externals)
        required = [one.requires_grad for one in alive if issubclass(type(one), Parameter)]
        return bool(required) and not any(required)

    def stepped(self, external: int, number: int) -> None:
        """Note that an optimizer wrote to a parameter when `number` was the next node's."""
        self.steps.setdefault(external, deque(maxlen=MOST_STEPS)).append(number)

    def knows(self, tensor: Any) -> bool:
        """Say whether the cell made this tensor."""
        return self.maker(tensor) is not None

    def maker(self, tensor: Any) -> int | None:
        """Give the value that a tensor is, None if no event made it or that was dropped."""
        ref, value = self.makers.get(id(tensor), (None, -1))
        known = ref is not None and ref() is tensor and event_of(value) in self.events
        return value if known else None

    def giver(self, storage: Any) -> int | None:
        """Give the event that last gave a tensor on a storage, None for none that is known."""
        ref, event = self.storages.get(storage, (None, -1))
        return event if ref is not None and ref() is not None and event in self.events else None

    def external(self, tensor: Any) -> int | None:
        """Give the index of a tensor that came from outside, None if the cell did not use it."""
        known = self.places_of.get(id(tensor))
        return known if known is not None and self.externals[known]() is tensor else None

    def ends(self) -> Any:
        """Give the last tensor that the cell made and took nowhere else, None if none lives.

        One that requires grad comes before one that does not.
        """
        taken = {value for event in self.events.values() for value in event.inputs}
        best: tuple[bool, int] | None = None
        found = None
        for ref, value in self.makers.values():
            tensor = ref()
            if tensor is None or value in taken or event_of(value) not in self.events:
                continue
            rank = bool(tensor.requires_grad), value
            if best is None or rank > best:
                best, found = rank, tensor
        return found

    def line(self, event: Event) -> SourceLine | None:
        """Give the line of the user's code that an event ran from."""
        return self.at(event.place)[0] if event.place >= 0 else None

    def expression(self, event: Event) -> str:
        """Give the very piece of the user's line, e.g. ``h.detach()``; "" where Python is silent."""
        return self.at(event.place)[1] if event.place >= 0 else ""

    def at(self, place: int) -> tuple[SourceLine, str, str]:
        """Give a place's line, the piece of it that ran, and what Python calls its file or cell."""
        found = self._lines.get(place)
        if found is None:
            code, lineno, instruction = self.places[place]
            line = notebook.source_line(code, lineno)
            found = self._lines[place] = line, _piece(code, instruction), code.co_filename
        return found

    def settle(self) -> None:
        """Read all lines and let go of the user's code objects; called when the watch ends."""
        for place in range(len(self.places)):
            self.at(place)
        self.places.clear()

    def settings(self, storages: Collection[Any]) -> set[int]:
        """Give the events that wrote into some storages.

        What sets a parameter, as its initialization does, is no part of the way from it.
        """
        return {write.event for write in self.writes if write.storage in storages}

    def leaf_storages(self) -> set[Any]:
        """Give the storages of all leaves that require grad and that the cell used."""
        return {key for tensor in self.parameters() if (key := storage_key(tensor)) is not None}

    def carried_from(self, starts: Iterable[int], within: set[int]) -> Flow:
        """Follow gradients from the events that took something on to what was made of it.

        Outputs that go nowhere within carry none, as the values where only the indices of ``topk``
        are used. Where nobody looked at any, the operation is judged: it carries a gradient unless
        gradients were off or its dtype has none.
        """
        begins, end = set(starts), max(within, default=-1)
        taken = {value for number in within for value in self.events[number].inputs}
        carried: set[int] = set()
        values: set[int] = set()
        stopped: list[int] = []
        for number in sorted(within):
            event = self.events[number]
            if number not in begins and values.isdisjoint(event.inputs):
                continue
            gives = [output for output, required in event.gives.items() if required]
            gives = [n for n in gives if number == end or value_of(number, n) in taken]
            if not event.gives and event.grad_enabled and not event.is_number:
                gives = [0] if event.op != "aten::detach" else []
            if gives:
                carried.add(number)
                values.update(value_of(number, output) for output in gives)
            else:
                stopped.append(number)
        return Flow(carried, stopped)

    def made_from(self, starts: Iterable[int]) -> set[int]:
        """Give all events whose outputs were made from what some gave, those among them."""
        found = set(starts)
        first = min(found, default=0)
        for number in sorted(n for n in self.events if n > first):
            if any(event_of(value) in found for value in self.events[number].inputs):
                found.add(number)
        return found

    def behind(self, event: int, but: Collection[int] = ()) -> set[int]:
        """Give all events that an event's output was made from, itself among them.

        Args:
            event: its number.
            but: events that are left out, and what only they were made from.
        """
        found, todo = {event}, deque([event])
        while todo:
            for other in map(event_of, self.events[todo.popleft()].inputs):
                if other in self.events and other not in found and other not in but:
                    found.add(other)
                    todo.append(other)
        return found


def _piece(code: CodeType, instruction: int) -> str:
    """Give the source of the expression that an instruction belongs to, if it is on one line."""
    found = notebook.source_segment(code, instruction)
    return "" if "\n" in found else found.strip()


LAST = Watched()
"""What the last watch has seen, for `%autograd` in a later cell; replaced, never added to."""


def remember(seen: Watched) -> None:
    """Let later questions use what a watch has seen."""
    global LAST
    LAST = seen
