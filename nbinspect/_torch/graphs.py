"""Autograd's nodes: what they keep, where they were made, when a backward pass ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import CodeType
from typing import Any, NamedTuple

import torch

from nbinspect._torch.absent import nothing


def raw_saved(node: Any) -> list[tuple[str, Any, Any]]:
    """List (slot, saved value, its unpack hook or None) of an autograd node, running no hook.

    ``_saved_x``, even ``hasattr`` of it, would call the unpack hook, which under
    ``torch.utils.checkpoint`` runs the forward again; ``_raw_saved_x.data`` never does.
    """
    found = []
    for name, slot in _raw_slots(type(node)):
        try:
            got = getattr(node, name)
        except RuntimeError:  # released by backward
            continue
        if got is None:
            continue
        for saved in got if type(got) in SEVERAL else (got,):
            data = getattr(saved, "data", None)
            if data is not None:
                found.append((slot, data, saved.unpack_hook))
    return found


SEVERAL = (tuple, list)


def saved_tensor_type() -> type:
    """Give the type of what ``ctx`` and ``torch.utils.checkpoint`` keep a saved tensor in."""
    found: type = getattr(torch._C._autograd, "SavedTensor", type(None))
    return found


def node_hooks(nodes: Iterable[Any]) -> list[tuple[Any, Any]]:
    """List (node, the dictionary of its hooks), which C++ alone holds; changes nothing.

    torch tells of that dictionary only to the function that would put one more hook into it. That
    function steps aside for the time, for this one hook: it takes note, and raises.
    """
    function, asked, known = torch.autograd.Function, object(), list[Any]()
    register = getattr(function, "_register_hook", None)
    functions: Any = getattr(torch._C, "_FunctionBase", None)
    if register is None or "_register_hook" in vars(function):
        return []

    def take_note(hooks: Any, hook: Any) -> Any:
        if hook is not asked:  # of another thread
            return register(hooks, hook)
        known.append(hooks)
        raise _NotedError

    function._register_hook = staticmethod(take_note)  # type: ignore[method-assign]  # until it is deleted
    found = list[tuple[Any, Any]]()
    try:
        for node in nodes:
            is_pythons = functions is not None and issubclass(type(node), functions)
            owner = functions if is_pythons else type(node)  # not a method of the user's own
            for ask in (owner.register_hook, owner.register_prehook):
                with suppress(_NotedError):
                    ask(node, asked)
            found += [(node, hooks) for hooks in known if hooks is not None]
            known.clear()
    finally:
        del function._register_hook
    return found


class _NotedError(Exception):
    """Leaves torch's function before anything is changed."""


_slots: dict[type, tuple[tuple[str, str], ...]] = {}


def _raw_slots(kind: type) -> tuple[tuple[str, str], ...]:
    """List (attribute, name) of a node class's raw slots; built-in classes are remembered."""
    if kind not in _slots:
        names = tuple(
            (name, name.removeprefix("_raw_saved_"))
            for name in dir(kind)
            if name.startswith("_raw_saved_")
        )
        if kind.__flags__ & 1 << 9:  # Py_TPFLAGS_HEAPTYPE: the user's own Function, may die
            return names
        _slots[kind] = names
    return _slots[kind]


current_autograd_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", nothing)
"""Gives the autograd node that is running in this thread, None outside backward."""


def engine_codes() -> frozenset[CodeType]:
    """Give the code through which every backward pass goes into torch's engine."""
    run = getattr(torch.autograd.graph, "_engine_run_backward", None)
    return frozenset({run.__code__} if run is not None else ())


class NodeOutput(NamedTuple):
    """What the operation behind an autograd node gave; a gradient of this shape comes back."""

    shape: tuple[int, ...]
    dtype: str
    device: str


def node_outputs(node: Any) -> tuple[NodeOutput, ...]:
    """Give shape, dtype and device of a node's outputs, () where this torch does not tell."""
    found = []
    for one in getattr(node, "_input_metadata", ()):
        try:
            shape = tuple(int(size) for size in one.shape)
            found.append(NodeOutput(shape, str(one.dtype).removeprefix("torch."), str(one.device)))
        except Exception:  # nested tensors and symbolic sizes have no plain shape
            found.append(NodeOutput((), "nested", ""))
    return tuple(found)


def sequence_number(node: Any) -> int | None:
    """Give the number that a node got when its operation ran, None for leaves and old torch.

    Numbers count up within a thread.
    """
    number = getattr(node, "_sequence_nr", None)
    found = int(number()) if number is not None else None
    return found if found is not None and found < 1 << 63 else None


next_sequence_number: Callable[[], int | None] = getattr(
    getattr(torch._C, "_autograd", None), "_get_sequence_nr", nothing
)
"""Gives the number that this thread's next autograd node will get; None on an old torch."""


def made_at(node: Any) -> list[tuple[str, int]]:
    """Give file and line of the calls in which a node was made, the outermost first.

    torch notes them under ``torch.autograd.set_detect_anomaly(True)`` alone; else there are none.
    """
    notes = getattr(node, "metadata", None)
    calls = notes.get("traceback_") if type(notes) is dict else None
    found = (_CALL.match(call) for call in calls or () if type(call) is str)
    return [(one[1], int(one[2])) for one in found if one is not None]


_CALL = re.compile(r'\s*File "(.*)", line (\d+)')


def saved_are_freed(node: Any) -> bool:
    """Say whether a backward has already released what a node had saved; runs no hook."""
    for name, _ in _raw_slots(type(node)):
        try:
            raw = getattr(node, name)
        except RuntimeError:  # an autograd function of the user's says it here
            return True
        for one in raw if isinstance(raw, tuple | list) else (raw,):
            if getattr(one, "data", True) is None and one.unpack_hook is None:
                try:  # nothing saved at all reads as None, what was released raises
                    _unpacked(node, name)
                except RuntimeError:
                    return True
    return False


def saved_changed(node: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield (slot, tensor, what torch says) for each saved tensor that was written to since.

    Only slots without hooks are unpacked, so no code of the user's runs.
    """
    for name, slot in _raw_slots(type(node)):
        try:
            raw = getattr(node, name)
        except RuntimeError:
            continue
        kept = [
            one for one in (raw if isinstance(raw, tuple | list) else (raw,)) if one is not None
        ]
        if any(one.unpack_hook is not None for one in kept) or all(
            one.data is None for one in kept
        ):
            continue
        try:
            _unpacked(node, name)
        except RuntimeError as error:
            if "modified by an inplace" in str(error):
                changed = next((one.data for one in kept if one.data is not None), None)
                yield slot, changed, str(error).splitlines()[0]
            error.__traceback__ = None


def _unpacked(node: Any, raw_name: str) -> Any:
    name = raw_name.removeprefix("_raw")
    functions = getattr(torch._C, "_FunctionBase", None)
    if name == "_saved_tensors" and functions is not None and isinstance(node, functions):
        return functions.saved_tensors.__get__(node)
    return getattr(node, name)


def backward_code() -> CodeType | None:
    """Give the code that runs the autograd engine, None if this torch has another."""
    run = getattr(torch.autograd.graph, "_engine_run_backward", None)
    code: CodeType | None = getattr(run, "__code__", None)
    return code


_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def graph_task() -> int:
    """Give the number of the backward pass that runs in this thread, -1 outside of one."""
    return int(_task())


def when_backward_ends(callback: Callable[[], None]) -> bool:
    """Have `callback` called when the running backward pass has ended; say whether it will be.

    One that is given within a callback comes after those that others had given, such as DDP's,
    which puts the reduced gradients in their place.
    """
    queue = getattr(torch.autograd.Variable._execution_engine, "queue_callback", None)
    if queue is None:
        return False
    queue(callback)
    return True


def drop_gradient_hooks(parameter: torch.Tensor) -> None:
    """Take away the empty dictionaries that the first gradient hooks of a tensor leave behind."""
    if parameter._backward_hooks == {}:
        parameter._backward_hooks = None
    if getattr(parameter, "_post_accumulate_grad_hooks", None) == {}:
        parameter._post_accumulate_grad_hooks = None  # type: ignore[assignment]  # its own default
