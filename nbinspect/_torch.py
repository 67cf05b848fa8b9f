"""Every private or version-dependent call into torch, found by feature, with a fallback.

A fallback is `Unavailable(reason)` or an empty answer; nothing here raises because a torch is
older, newer or built without an accelerator. Nothing here synchronises a device, creates a
context on one, or resets a counter.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch.utils import _python_dispatch

from nbinspect.blocks import Reading, Unavailable


def _nothing(*_: object) -> None:
    """Stand in for a function that this torch does not have."""


def _never(*_: object) -> bool:
    """Stand in for one that counts or tells."""
    return False


@dataclass(frozen=True, slots=True)
class AllocatorCounters:
    """What torch's caching allocator says of one device.

    Attributes:
        total_bytes: the device's memory.
        free_bytes: of it, free for anybody.
        allocated_bytes: held by tensors.
        reserved_bytes: held by the allocator, so allocated plus cached.
        inactive_split_bytes: cached in pieces of blocks that are partly in use.
        peak_allocated_bytes: the most that was allocated since the process started or the
            counter was last reset.
    """

    total_bytes: Reading
    free_bytes: Reading
    allocated_bytes: Reading
    reserved_bytes: Reading
    inactive_split_bytes: Reading
    peak_allocated_bytes: Reading


def accelerators() -> tuple[str, ...]:
    """Name the accelerators of this process, e.g. ``("cuda:0", "cuda:1")``; () on a CPU build."""
    api = getattr(torch, "accelerator", None)
    try:
        if api is None or not api.is_available():
            return ()
        kind = api.current_accelerator().type
        return tuple(f"{kind}:{index}" for index in range(api.device_count()))
    except RuntimeError:  # a driver that is there but broken
        return ()


def in_use(device: torch.device) -> bool:
    """Say whether this process has already opened `device`, so that asking costs no context."""
    module = getattr(torch, device.type, None)
    opened = getattr(module, "is_initialized", None)
    return bool(opened()) if opened is not None else True


def allocator_counters(device: torch.device) -> AllocatorCounters:
    """Read the allocator's counters of one accelerator.

    Cost: no synchronisation and no device memory; an unopened device stays unopened.
    Source: ``torch.cuda.memory_stats``, ``torch.cuda.mem_get_info``, ``torch.accelerator``.
    """
    if not in_use(device):
        closed = Unavailable(f"this process has not used {device.type} yet")
        return AllocatorCounters(closed, closed, 0, 0, 0, 0)
    stats = _memory_stats(device)
    if isinstance(stats, Unavailable):
        return AllocatorCounters(*_mem_get_info(device, opened=True), *(stats,) * 4)

    def stat(name: str) -> Reading:
        return int(stats.get(f"{name}.all.current", 0))

    allocated, reserved = stat("allocated_bytes"), stat("reserved_bytes")
    peak = int(stats.get("allocated_bytes.all.peak", 0))
    total, free = _mem_get_info(device, opened=bool(reserved))
    inactive = stat("inactive_split_bytes")
    return AllocatorCounters(total, free, allocated, reserved, inactive, peak)


def _memory_stats(device: torch.device) -> dict[str, Any] | Unavailable:
    module: Any = getattr(torch, device.type, None)
    for owner in (module, getattr(torch, "accelerator", None)):
        stats = getattr(owner, "memory_stats", None)
        if stats is not None:
            try:
                return dict(stats(device))
            except (RuntimeError, NotImplementedError, AssertionError, ValueError):
                continue
    return _mps_stats(module)


def _mps_stats(module: Any) -> dict[str, Any] | Unavailable:
    """Apple's allocator has two counters of its own and no peak."""
    if not hasattr(module, "current_allocated_memory"):
        return Unavailable("this device's allocator keeps no statistics")
    allocated = module.current_allocated_memory()
    reserved = module.driver_allocated_memory()
    return {
        "allocated_bytes.all.current": allocated,
        "reserved_bytes.all.current": reserved,
        "allocated_bytes.all.peak": allocated,
    }


def _mem_get_info(device: torch.device, *, opened: bool) -> tuple[Reading, Reading]:
    """Give (total, free) of a device that this process already holds memory on."""
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, "recommended_max_memory"):
        total = int(module.recommended_max_memory())
        return total, total - int(module.driver_allocated_memory())
    if not opened:  # asking would create a context of some hundred MB there
        why = Unavailable(f"this process holds nothing on {device}")
        return why, why
    try:
        free, total = module.mem_get_info(device)
        return int(total), int(free)
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        why = Unavailable(f"{device.type} does not say: {error}")
        return why, why


def allocator_peaks(devices: Iterable[str]) -> dict[str, int]:
    """Give the most that was ever allocated, by device; devices without such a counter are left out."""
    peaks = {}
    for name in devices:
        if name != "cpu":
            peak = allocator_counters(torch.device(name)).peak_allocated_bytes
            if isinstance(peak, int):
                peaks[name] = peak
    return peaks


def free_blocks(device: torch.device) -> tuple[int, ...] | Unavailable:
    """Give the sizes of the cached blocks that nothing uses, the largest first.

    Cost: one walk over the allocator's segments, some ms; no synchronisation.
    Source: ``torch.cuda.memory_snapshot``.
    """
    if device.type != "cuda" or not in_use(device):
        return Unavailable(f"{device.type}'s allocator does not list its blocks")
    segments = [one for one in torch.cuda.memory_snapshot() if one["device"] == device.index]
    blocks = [block for one in segments for block in one["blocks"] if block["state"] == "inactive"]
    return tuple(sorted((int(block["size"]) for block in blocks), reverse=True))


def expandable_segments() -> bool:
    """Say whether the CUDA allocator already grows its segments; False where it does not say.

    Source: the allocator's settings in ``torch.cuda.memory._snapshot``.
    """
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return False
    try:
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        return bool(settings["expandable_segments"])
    except (AttributeError, KeyError, RuntimeError):
        return False


def nvml_name(device: torch.device) -> str | int | None:
    """Give the name under which NVML knows a CUDA device; None for other devices."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    if in_use(device):
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        if uuid is not None:
            return f"GPU-{uuid}"
    number = getattr(torch.cuda, "_get_nvml_device_index", None)
    try:
        return int(number(device.index)) if number is not None else device.index
    except RuntimeError:
        return None


def use_count(tensor: torch.Tensor) -> int | None:
    """Count the C++ owners of a tensor, its Python wrapper being one; None if torch is silent."""
    count = getattr(tensor, "_use_count", None)
    try:
        return int(count()) if count is not None else None
    except (RuntimeError, TypeError):
        return None


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Give the tensor inside functorch's wrappers, which a function under ``vmap`` or ``grad`` sees."""
    functorch = getattr(torch._C, "_functorch", None)
    is_wrapped = getattr(functorch, "is_functorch_wrapped_tensor", None)
    inside = getattr(functorch, "get_unwrapped", None)
    while is_wrapped is not None and inside is not None and is_wrapped(tensor):
        tensor = inside(tensor)
    return tensor


def raw_saved(node: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (slot, saved value, its unpack hook or None) of an autograd node, running no hook.

    ``_saved_x``, even ``hasattr`` of it, would call the unpack hook, which under
    ``torch.utils.checkpoint`` runs the forward again; ``_raw_saved_x.data`` never does.
    """
    for name in _raw_slots(type(node)):
        try:
            got = getattr(node, name)
        except RuntimeError:  # released by backward
            continue
        for saved in got if isinstance(got, tuple | list) else (got,):
            data = getattr(saved, "data", None)
            if data is not None:
                yield name[len("_raw_saved_") :], data, saved.unpack_hook


def saved_tensor_type() -> type:
    """Give the type of what ``ctx`` and ``torch.utils.checkpoint`` keep a saved tensor in."""
    found: type = getattr(torch._C._autograd, "SavedTensor", type(None))
    return found


SCRIPT_MEMBERS = ("parameter ", "buffer ")
"""How the names begin that `script_tensors` gives."""


def script_module_type() -> type:
    """Give the type of TorchScript's modules, made by script, trace or load."""
    from torch.jit import ScriptModule

    return ScriptModule


def script_tensors(module: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield ("parameter weight", tensor) for what a TorchScript module itself holds in C++.

    A tensor that C++ alone holds gets a Python side by this, which goes when it is let go.
    """
    native = module.__dict__.get("_c")
    lists: tuple[Any, Any] = (torch._C.ParameterDict, torch._C.BufferDict)
    for prefix, members in zip(SCRIPT_MEMBERS, lists, strict=True):
        if isinstance(native, torch._C.ScriptModule):
            yield from ((prefix + name, tensor) for name, tensor in members(native).items())


_slots: dict[type, tuple[str, ...]] = {}


def _raw_slots(kind: type) -> tuple[str, ...]:
    """List a node class's raw slots; built-in classes live for ever, so they are remembered."""
    if kind not in _slots:
        names = tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))
        if kind.__flags__ & 1 << 9:  # Py_TPFLAGS_HEAPTYPE: the user's own Function, may die
            return names
        _slots[kind] = names
    return _slots[kind]


current_autograd_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", _nothing)
"""Gives the autograd node that is running in this thread, None outside backward."""


def engine_codes() -> frozenset[CodeType]:
    """Give the code through which every backward pass goes into torch's engine."""
    run = getattr(torch.autograd.graph, "_engine_run_backward", None)
    return frozenset({run.__code__} if run is not None else ())


def is_fake(tensor: torch.Tensor) -> bool:
    """Say whether a tensor is a fake one, which has a shape and no values."""
    kind = getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensor", None)
    return kind is not None and issubclass(type(tensor), kind)


def handle(storage: torch.UntypedStorage) -> int:
    """Give a number that is this storage's own for as long as it lives."""
    return int(storage._cdata)


def is_pinned(storage: torch.UntypedStorage) -> bool:
    """Say whether host memory is page-locked; asks nothing where CUDA is not in use."""
    if not torch.cuda.is_initialized():
        return False
    try:
        return bool(storage.is_pinned())
    except RuntimeError:
        return False


def n_tensors_over(storage: torch.UntypedStorage) -> int | None:
    """Count the tensors that look into a storage; None if torch is silent."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    return int(count(storage._cdata)) - 1 if count is not None else None  # 1 is this object


class _NoOverrides:
    """See `no_overrides`; a class, since entering a generator takes longer than all it does."""

    __slots__ = ("_guards", "_modes", "_tracers")

    def __enter__(self) -> None:
        self._guards = [kind() for kind in _OVERRIDE_GUARDS]
        for guard in self._guards:
            guard.__enter__()
        # Those of a tracer come first: they are told apart by where they are kept.
        self._tracers = [_pop_tracer() for _ in range(_n_tracers())]
        self._modes = [_pop_mode() for _ in range(_n_modes())]

    def __exit__(self, *_: object) -> None:
        for mode in (*reversed(self._modes), *reversed(self._tracers)):
            _python_dispatch._push_mode(mode)
        for guard in reversed(self._guards):
            guard.__exit__(None, None, None)


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
_n_modes = getattr(torch._C, "_len_torch_dispatch_stack", _never)
_pop_mode: Any = getattr(_python_dispatch, "_pop_mode", None)
_n_tracers = getattr(torch._ops, "_len_torch_dispatch_stack_pre_dispatch", _never)
_pop_tracer: Any = getattr(torch._ops, "_pop_mode_from_pre_dispatch", None)


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
_is_excluded = getattr(torch._C, "_dispatch_tls_is_dispatch_key_excluded", _never)
_set_excluded = getattr(torch._C, "_dispatch_tls_set_dispatch_key_excluded", _nothing)


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


def is_profiling() -> bool:
    """Say whether a profiler is running: a second one would take its events away."""
    running = getattr(torch.autograd, "_profiler_enabled", None)
    return bool(running()) if running is not None else False


class AllocatorEvent(NamedTuple):
    """One call of an allocator; `size_bytes` is below zero where a block was freed."""

    time_ns: int
    address: int
    size_bytes: int
    device: str


def allocator_events(profiler: Any) -> list[AllocatorEvent] | Unavailable:
    """Read the allocator's calls from a stopped ``torch.profiler.profile(profile_memory=True)``.

    Source: the profiler's event tree, whose allocation events have addresses.
    """
    try:
        roots = profiler.profiler.kineto_results.experimental_event_tree()
        wanted = torch._C._profiler._EventType.Allocation
    except AttributeError as error:
        return Unavailable(f"this torch's profiler has no event tree: {error}")
    events, todo = [], list(roots)
    while todo:
        one = todo.pop()
        todo.extend(one.children)
        if one.typed[0] == wanted:
            what = one.extra_fields
            device = str(what.device)
            events.append(AllocatorEvent(one.start_time_ns, what.ptr, what.alloc_size, device))
    return sorted(events, key=lambda one: one.time_ns)


HISTORY_ENTRIES = 200_000  # some 40 MB; older entries make room for newer ones


class AllocatorHistory:
    """The CUDA allocator's own log of what it gave and took.

    A log that the user keeps already is read and left as it is. Stacks are not recorded, so it
    costs under 1 µs an allocation.

    Attributes:
        why_not: why there is no log, "" if there is.
    """

    def __init__(self) -> None:
        self.why_not = ""
        self._is_ours = False

    def start(self) -> None:
        """Begin to log, where this process uses CUDA and its torch can."""
        enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        if not torch.cuda.is_initialized():
            self.why_not = "CUDA was not in use when the cell began"
        elif enabled is None:
            self.why_not = "this torch keeps no log of its CUDA allocator"
        elif not enabled():
            torch.cuda.memory._record_memory_history(
                "all", context=None, stacks="python", max_entries=HISTORY_ENTRIES
            )
            self._is_ours = True

    def stop(self, since_ns: int) -> dict[str, list[AllocatorEvent]]:
        """End the log if it is ours, and give each device's events since a moment."""
        if self.why_not:
            return {}
        try:
            traces = torch.cuda.memory._snapshot()["device_traces"]
        finally:
            if self._is_ours:
                torch.cuda.memory._record_memory_history(None)
        found = {}
        for index, trace in enumerate(traces):
            if len(trace) >= HISTORY_ENTRIES and trace[0]["time_us"] * 1000 > since_ns:
                self.why_not = f"the cell made more than {HISTORY_ENTRIES} allocations"
            elif events := history_events(trace, since_ns, f"cuda:{index}"):
                found[f"cuda:{index}"] = events
        return found


def history_events(
    trace: Iterable[dict[str, Any]], since_ns: int, device: str
) -> list[AllocatorEvent]:
    """Read a CUDA allocator's trace: what tensors got, and what they gave back.

    A block counts as freed when its free is requested, as torch's ``allocated_bytes`` counts it.
    """
    signs = {"alloc": 1, "free_requested": -1}
    return [
        AllocatorEvent(
            one["time_us"] * 1000, one["addr"], signs[one["action"]] * one["size"], device
        )
        for one in trace
        if one["action"] in signs and one.get("time_us", 0) * 1000 >= since_ns
    ]


def is_view(tensor: torch.Tensor) -> bool:
    """Say whether autograd knows the tensor as a view of another."""
    return bool(tensor._is_view())


is_zero_tensor: Callable[[torch.Tensor], bool] = getattr(torch.Tensor, "_is_zerotensor", _never)
"""Says whether a tensor is torch's stand-in for zeros, which has no memory: reading it crashes."""


def is_copy_on_write(tensor: torch.Tensor) -> bool:
    """Say whether asking for the address would copy the data."""
    lazy = getattr(torch._C, "_is_cow_tensor", None)
    return bool(lazy(tensor)) if lazy is not None else False


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
    getattr(torch._C, "_autograd", None), "_get_sequence_nr", _nothing
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
    for name in _raw_slots(type(node)):
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
    for name in _raw_slots(type(node)):
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
                yield name[len("_raw_saved_") :], changed, str(error).splitlines()[0]
            error.__traceback__ = None


def _unpacked(node: Any, raw_name: str) -> Any:
    name = raw_name.removeprefix("_raw")
    functions = getattr(torch._C, "_FunctionBase", None)
    if name == "_saved_tensors" and functions is not None and isinstance(node, functions):
        return functions.saved_tensors.__get__(node)
    return getattr(node, name)


def version(tensor: torch.Tensor) -> int:
    """Count the in-place operations on a tensor's bytes; 0 where there is no count."""
    try:
        return int(tensor._version)
    except RuntimeError:  # made in inference mode
        return 0


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


def norms(tensors: list[torch.Tensor]) -> list[float]:
    """Give the 2-norm of each of some tensors of one device and dtype, by one read."""
    dense = [one._values() if one.layout is torch.sparse_coo else one for one in tensors]
    found: list[float] = torch.stack([n.float() for n in torch._foreach_norm(dense)]).tolist()
    return found


def autocast_operations(device: str) -> frozenset[str]:
    """Name the operations that autocast treats in a way of their own, without their overloads.

    Source: the dispatcher's registrations for ``AutocastCPU``, ``AutocastCUDA`` and so on.
    """
    if device not in _autocast:
        listed = getattr(torch._C, "_dispatch_get_registrations_for_dispatch_key", None)
        try:
            names = listed(f"Autocast{device.upper()}") if listed is not None else ()
        except RuntimeError:  # no such key
            names = ()
        _autocast[device] = frozenset(n.partition("::")[2].partition(".")[0] for n in names)
    return _autocast[device]


_autocast: dict[str, frozenset[str]] = {}


def backward_code() -> CodeType | None:
    """Give the code that runs the autograd engine, None if this torch has another."""
    run = getattr(torch.autograd.graph, "_engine_run_backward", None)
    code: CodeType | None = getattr(run, "__code__", None)
    return code


def graph_task() -> int:
    """Give the number of the backward pass that runs in this thread, -1 outside of one."""
    current = getattr(torch._C, "_current_graph_task_id", None)
    return int(current()) if current is not None else -1


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
    """Take away the empty dictionary that the first gradient hook of a tensor leaves behind."""
    if getattr(parameter, "_post_accumulate_grad_hooks", None) == {}:
        parameter._post_accumulate_grad_hooks = None  # type: ignore[assignment]  # its own default


_flatten = getattr(torch._C._nn, "flatten_dense_tensors", None)


def in_a_row(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Copy the values of tensors of one kind into one row."""
    if _flatten is None or len(tensors) == 1:  # of a single one it gives a view
        return torch.cat([one.reshape(-1) for one in tensors])
    row: torch.Tensor = _flatten(tensors)
    return row


HALVES = (torch.float16, torch.bfloat16)


def fused_norms(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Give the 2-norm of each tensor, by fused kernels; of half-precision ones in float32."""
    fused = getattr(torch, "_foreach_norm", None)
    if fused is None or not tensors:
        wide = (torch.float32 if t.dtype in HALVES else None for t in tensors)
        return [torch.linalg.vector_norm(t, dtype=d) for t, d in zip(tensors, wide, strict=True)]
    if not any(t.dtype in HALVES for t in tensors):
        return list(fused(tensors))
    found: dict[int, torch.Tensor] = {}
    for dtype, numbers in _by_half(tensors).items():
        some = fused([tensors[n] for n in numbers], 2, dtype)
        found.update(zip(numbers, some, strict=True))
    return [found[n] for n in range(len(tensors))]


def _by_half(tensors: list[torch.Tensor]) -> dict[torch.dtype | None, list[int]]:
    kinds: dict[torch.dtype | None, list[int]] = {}
    for number, tensor in enumerate(tensors):
        dtype = torch.float32 if tensor.dtype in HALVES else None
        kinds.setdefault(dtype, []).append(number)
    return kinds


def copy_all(to: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
    """Copy tensors into others of the same kind, by fused kernels."""
    if tensors:
        torch._foreach_copy_(to, tensors)


def subtract_all(of: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
    """Subtract tensors from others in place, by fused kernels."""
    if tensors:
        torch._foreach_sub_(of, tensors)


def allocator_snapshot() -> dict[str, Any]:
    """Give the CUDA allocator's segments and its log, as its snapshot files have them.

    Source: ``torch.cuda.memory._snapshot``.
    """
    found: dict[str, Any] = dict(torch.cuda.memory._snapshot())
    return {**found, "device_traces": found.get("device_traces") or []}
