"""What the last error keeps alive: call by call, and what of it nothing else leads to."""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from nbinspect import notebook
from nbinspect.blocks import Unavailable
from nbinspect.heapgraph.graph import HeapGraph, collector_paused
from nbinspect.heapgraph.objects import instance_dict, isinstance_of
from nbinspect.leaks.last_error import ErrorStores, error_text, held_by_error, steps, traceback_of
from nbinspect.leaks.out_of_memory import out_of_memory
from nbinspect.leaks.records import PinnedFrame, TracebackMemory
from nbinspect.records import SourceLine
from nbinspect.render.format import bytes_text
from nbinspect.tensors import Storage, class_dict, looking, storages

MOST_FRAMES = 200  # looked at one by one; a runaway recursion leaves thousands
MOST_NAMES = 8
CALLS = (FrameType, TracebackType, BaseException)
PRINTERS = ("stack_data", "executing")  # IPython's own way of printing a traceback
Key = tuple[str, int]
NOTHING: frozenset[Key] = frozenset()


def traceback_memory(*, drop: bool = False) -> TracebackMemory:
    """Answer what the last error still keeps in memory, and let go of it if asked.

    IPython keeps the last error for ``%debug`` and ``%tb``; the error keeps the calls that it
    left, and those keep their variables. So the memory of a failed cell does not come back.

    Args:
        drop: let go: empty the places that keep the error and cut its traceback off, then see by
            weak references what died. Errors that you keep under a name of your own stay whole.
            ``%debug`` has nothing to look at afterwards.

    Returns:
        A record of plain values.

    Cost: one scan of the heap, as `gpumem`. Synchronises nothing, collects nothing.
    Blind to: memory that no tensor shows, e.g. NumPy arrays of the calls; errors that threads or
    tasks keep for themselves.
    Source: ``sys.last_value`` and its like, IPython's ``InteractiveTB`` and
    ``last_execution_result``, ``BaseException.__context__`` and ``__traceback__``.
    """
    stores = ErrorStores()
    try:
        if not stores.errors and not stores.tracebacks:
            return TracebackMemory("", (), 0, 0, ())
        text = error_text(stores.errors[0]) if stores.errors else "an error"
        pinned = _pinned(stores)
        oom = out_of_memory(stores.errors, pinned.bytes_by_device())
        dropped_bytes, notes = 0, pinned.notes
        if drop:
            stores.let_go(pinned.whole)
            _let_go_of_calls(pinned.printers)
            dropped_bytes = sum(size for ref, size in pinned.refs if ref() is None)
            notes += _left(pinned, pinned.only_here_bytes - dropped_bytes)
        return TracebackMemory(
            error=text,
            frames=pinned.frames,
            total_bytes=pinned.total_bytes,
            only_here_bytes=pinned.only_here_bytes,
            held_by=stores.labels,
            dropped=drop and dropped_bytes == pinned.only_here_bytes,
            dropped_bytes=dropped_bytes,
            oom=oom,
            n_more_frames=pinned.n_more_frames,
            notes=notes,
        )
    finally:
        stores.close()


def _let_go_of_calls(printers: list[Any]) -> None:
    """Cut off what printing the error has left behind: cycles that hold the calls it printed."""
    while printers:
        own = instance_dict(printers.pop())
        if own is not None:
            own.pop("frame", None)


def _left(pinned: Pinned, left_bytes: int) -> tuple[str, ...]:
    """Say why not all is gone."""
    notes = []
    if left_bytes > 0:
        notes.append(
            f"{bytes_text(left_bytes)} are still there: objects that refer to each other, which "
            "gc.collect() frees, or something that cannot be seen from Python."
        )
    if pinned.is_users:
        notes.append("An error that you keep under a name of your own was left whole.")
    return tuple(notes)


class Pinned(NamedTuple):
    """What hangs on the errors.

    Attributes:
        refs: weak references to the storages that nothing else leads to, with their bytes.
        whole: ids of errors whose tracebacks are not to be cut.
        is_users: the user keeps one of the errors too.
        printers: what IPython printed the calls with, where only a cycle keeps that.
    """

    frames: tuple[PinnedFrame, ...]
    n_more_frames: int
    total_bytes: int
    only_here_bytes: int
    refs: list[tuple[weakref.ref[Any], int]]
    whole: set[int]
    is_users: bool
    printers: list[Any]
    notes: tuple[str, ...]

    def bytes_by_device(self) -> dict[str, int]:
        """Sum what nothing else leads to, by device."""
        sums: dict[str, int] = defaultdict(int)
        for ref, size_bytes in self.refs:
            if (one := ref()) is not None:
                sums[str(one.device)] += size_bytes
        return dict(sums)


def _pinned(stores: ErrorStores) -> Pinned:
    with collector_paused(), looking():
        graph = HeapGraph(gc.get_objects())
        try:
            return _Weighing(graph, stores).pinned()
        finally:
            graph.close()


class _Weighing:
    """Adds up what can be reached through a graph: from here, from there, from nowhere else."""

    def __init__(self, graph: HeapGraph, stores: ErrorStores) -> None:
        self._graph = graph
        self._stores = stores
        self._sizes: dict[Key, int] = {}
        self._keys: dict[int, tuple[Key, ...]] = {}  # of each tensor's storages, by its id
        self._tensors: dict[Key, list[Any]] = {}
        for tensor in graph.tensors():
            found = storages(tensor)
            if not isinstance(found, Unavailable):
                self._add(tensor, found)
        self._below: dict[int, frozenset[Key]] = {}
        self._elsewhere = self._reached_without_stores()
        live = (self._keys.get(one, ()) for one in self._elsewhere)
        self._live = {key for keys in live for key in keys}

    def _add(self, tensor: Any, found: Iterable[Storage]) -> None:
        self._keys[id(tensor)] = tuple(one.key for one in found)
        for one in found:
            self._sizes[one.key] = max(self._sizes.get(one.key, 0), one.size_bytes)
            self._tensors.setdefault(one.key, []).append(tensor)

    def pinned(self) -> Pinned:
        kept = [*self._stores.errors, *self._stores.tracebacks]
        all_keys = self._storages_below(map(id, kept), through=CALLS)
        alone = all_keys - self._live
        steps_of = list(self._steps())
        frames = [self._frame(error, step) for error, step in _ends(steps_of)]
        frames += map(self._of_error, self._stores.errors)
        return Pinned(
            frames=tuple(one for one in frames if one.size_bytes),
            n_more_frames=max(0, len(steps_of) - MOST_FRAMES),
            total_bytes=self._bytes(all_keys),
            only_here_bytes=self._bytes(alone),
            refs=[self._ref(key) for key in alone],
            whole={id(one) for one in self._stores.errors if self._stays_whole(one)},
            is_users=any(id(one) in self._elsewhere for one in self._stores.errors),
            printers=[one for one in self._graph.objects.values() if self._is_printer(one)],
            notes=self._notes(),
        )

    def _is_printer(self, value: Any) -> bool:
        module = class_dict(type(value)).get("__module__")
        is_printers = type(module) is str and module.partition(".")[0] in PRINTERS
        return is_printers and id(value) not in self._elsewhere

    def _notes(self) -> tuple[str, ...]:
        if self._graph.complete:
            return ()
        return ("The autograd graph is larger than can be walked safely; not all was seen.",)

    def _stays_whole(self, error: BaseException) -> bool:
        """Say whether an error is not ours to cut; one that leads to no tensor need not be."""
        return id(error) not in self._graph.objects or id(error) in self._elsewhere

    def _ref(self, key: Key) -> tuple[weakref.ref[Any], int]:
        tensor = self._tensors[key][0]
        try:
            return weakref.ref(tensor.untyped_storage()), self._sizes[key]
        except (RuntimeError, NotImplementedError):  # sparse: the tensor goes with its parts
            return weakref.ref(tensor), self._sizes[key]

    def _steps(self) -> Iterator[tuple[str, TracebackType]]:
        """Yield the entries of all tracebacks, each call once."""
        seen = set[int]()
        owned = [(type(one).__name__, traceback_of(one)) for one in self._stores.errors]
        alone = [("", one) for one in self._stores.tracebacks]
        for error, traceback in [*owned, *alone]:
            for step in steps(traceback):
                if id(step.tb_frame) not in seen:
                    seen.add(id(step.tb_frame))
                    yield error, step

    def _frame(self, error: str, step: TracebackType) -> PinnedFrame:
        frame = step.tb_frame
        children = [one.child for one in self._graph.children.get(id(frame), ())]
        keys = NOTHING.union(*map(self._keys_of, children))
        return PinnedFrame(
            function=frame.f_code.co_name,
            where=notebook.source_line(frame.f_code, step.tb_lineno),
            names=self._names(frame) if keys else (),
            size_bytes=self._bytes(keys),
            only_here_bytes=self._bytes(keys - self._live),
            error=error,
        )

    def _names(self, frame: FrameType) -> tuple[str, ...]:
        return self._largest(notebook.frame_locals(frame))

    def _of_error(self, error: BaseException) -> PinnedFrame:
        """Say what an error holds itself: what it was called with, and its attributes."""
        values = held_by_error(error)
        keys = NOTHING.union(*(self._keys_of(id(one)) for one in values.values()))
        last = next(reversed(list(steps(traceback_of(error)))), None)
        where = SourceLine(None, "", 0, "")
        if last is not None:
            where = notebook.source_line(last.tb_frame.f_code, last.tb_lineno)
        return PinnedFrame(
            function="",
            where=where,
            names=self._largest(values),
            size_bytes=self._bytes(keys),
            only_here_bytes=self._bytes(keys - self._live),
            error=type(error).__name__,
        )

    def _largest(self, values: dict[str, Any]) -> tuple[str, ...]:
        sizes = {str(name): self._bytes(self._keys_of(id(one))) for name, one in values.items()}
        found = sorted((name for name, size in sizes.items() if size), key=lambda n: -sizes[n])
        return tuple(found[:MOST_NAMES])

    def _keys_of(self, key: int) -> frozenset[Key]:
        """Give the storages that one object leads to, not through calls or what has a name."""
        if key not in self._below:
            self._below[key] = frozenset(self._storages_below([key], through=()))
        return self._below[key]

    def _storages_below(self, starts: Iterable[int], through: tuple[type, ...]) -> set[Key]:
        graph, seen, found = self._graph, set[int](), set[Key]()
        todo = list(starts)
        while todo:
            key = todo.pop()
            if key in seen or key in graph.roots or key not in graph.objects:
                continue
            if not through and isinstance_of(graph.objects[key], *CALLS):
                continue
            seen.add(key)
            found.update(self._keys.get(key, ()))
            todo += [one.child for one in graph.children.get(key, ())]
        return found

    def _reached_without_stores(self) -> set[int]:
        """Give the ids of all that the user's names and running calls lead to otherwise."""
        graph, reached = self._graph, set[int]()
        whole, partly = self._stores.cut()
        kept = {*map(id, self._stores.errors), *map(id, self._stores.tracebacks)}
        todo = [key for key in graph.roots if key not in whole] + list(graph.frame_ids())
        while todo:
            key = todo.pop()
            for one in graph.children.get(key, ()):
                is_cut = one.child in whole or (key in partly and one.child in kept)
                if not is_cut and one.child not in reached:
                    reached.add(one.child)
                    todo.append(one.child)
        return reached

    def _bytes(self, keys: Iterable[Key]) -> int:
        return sum(self._sizes[key] for key in keys)


def _ends(steps_of: list[tuple[str, TracebackType]]) -> list[tuple[str, TracebackType]]:
    """Keep the two ends of a very long traceback."""
    if len(steps_of) <= MOST_FRAMES:
        return steps_of
    return steps_of[: MOST_FRAMES // 4] + steps_of[-(MOST_FRAMES * 3 // 4) :]
