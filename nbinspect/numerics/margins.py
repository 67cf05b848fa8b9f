"""How near a step's values come to what float16 and bfloat16 can hold, and what would overflow."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

from nbinspect import _torch
from nbinspect.numerics.call_sites import CallSites
from nbinspect.numerics.exponents import Spread, spread, values_of
from nbinspect.numerics.forecast import Event, Forecast, Setting
from nbinspect.numerics.headroom_records import HeadroomReport
from nbinspect.numerics.phases import Phases, Place, is_module_call
from nbinspect.numerics.steps import Steps
from nbinspect.ops import OpStream
from nbinspect.tensors import is_tensor, looking

_DEPTH = 2  # from `Collector._see` up to the dispatch mode
_UNWRITTEN = frozenset(
    ["empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "resize"]
)
_SAME = frozenset(["detach", "alias", "lift_fresh", "_unsafe_view", "set_"])


def headroom(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> HeadroomReport:
    """Answer how near the values of a call come to overflow and to 0 in float16 and bfloat16.

    Args:
        fn: what to run, once: a training step, a model.
        *args: its arguments.
        **kwargs: its keyword arguments.

    Returns:
        The room per operation and module, forward and backward; what would overflow first under
        autocast to float16 and in a model in float16; and the loss scale that gradients need.

    Raises:
        Exception: what `fn` raises.

    Cost: some 0.3 ms an operation, and a few passes over every result: 1.6 times a step of a
    4-layer GPT-2, 10 to 20 times one of a few ms. On an accelerator each operation is waited for.
    Needs up to 64 MiB while it looks at a large result.
    Blind to: the inside of compiled functions and of fused kernels; ``x.float()`` of what is
    float32 already, and ``autocast(enabled=False)``, which keep the rest in float32 under autocast;
    what rounding in float16 would make of later values; products that accumulate in float16.
    Source: a dispatch mode, torch's registrations for autocast, and the bits of the values.
    """
    with HeadroomWatch() as watch:
        fn(*args, **kwargs)
    return watch.report


class HeadroomWatch:
    """Watches what runs while it is entered; enter it once.

    Args:
        top: how many rows the tables show.
    """

    def __init__(self, top: int = 10) -> None:
        self._top = top
        self._report: HeadroomReport | None = None
        self._collector = Collector()
        self._stream = OpStream(self._collector)
        self._steps = Steps(self._collector.phases)
        self._undo = ExitStack()

    @property
    def report(self) -> HeadroomReport:
        """What was seen.

        Raises:
            RuntimeError: it has not ended yet.
        """
        if self._report is None:
            raise RuntimeError("the watch has not ended yet; its report comes after the block")
        return self._report

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self._steps.install()
            undo.callback(self._steps.remove)
            undo.enter_context(self._stream)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        from nbinspect.numerics.headroom_report import made

        try:
            self._undo.close()
            with suppress(Exception) if kind else nullcontext():  # never hide the user's own error
                self._report = made(self._collector, kind.__name__ if kind else "", self._top)
        finally:
            self._collector.close()


class Key(NamedTuple):
    """What is counted together."""

    op: str
    place: Place


@dataclass(slots=True)
class Tally:
    """What one operation gave at one place.

    Attributes:
        values: the spread of its values.
        n_calls: how often it ran.
        n_values: how many values it gave.
        n_meant: how many of them are a mask's.
        half: a bit for each setting in which it would give float16.
        dtype: what it gave.
    """

    values: Spread = field(default_factory=Spread)
    n_calls: int = 0
    n_values: int = 0
    n_meant: int = 0
    half: int = 0
    dtype: str = ""


class Run(NamedTuple):
    """One operation of the step, in its order, which a forecast may have to name."""

    key: Key
    caution: str


class Collector:
    """Subscribes to an `OpStream` and takes the spread of every result.

    Attributes:
        tallies: by operation and place, in the order in which they first ran.
        runs: those operations that would overflow, by number.
        skipped: results without such values, by what they are.
        dtypes: results by dtype.
        gradients: by setting, what would be float16 of what grows with the loss, and of all that
            backward operations give.
        refused: by setting, the first operation that torch would refuse.
        n_half: by setting, how many operations would give float16.
        n_recomputed: operations that a checkpoint ran once more, which are not counted again.
        scale: what the loss was scaled by.
        devices: results by type of device.
    """

    def __init__(self) -> None:
        here = _torch.accelerators()[:1] or ("cpu",)
        kinds = dict.fromkeys((here[0].partition(":")[0], "cuda", "cpu"))
        settings = [Setting(f"autocast on {kind}", kind) for kind in kinds]
        self.forecast = Forecast([*settings, Setting("the model in float16", None)])
        self.phases = Phases()
        self._sites = CallSites()
        self.tallies: dict[Key, Tally] = {}
        self.runs: dict[int, Run] = {}
        self.skipped: Counter[str] = Counter()
        self.dtypes: Counter[str] = Counter()
        self.devices: Counter[str] = Counter()
        self.gradients = [(Spread(), Spread()) for _ in self.forecast.settings]
        self.refused: dict[int, Key] = {}
        self.n_half = [0] * len(self.forecast.settings)
        self.n_ops = 0
        self.n_recomputed = 0
        self.scale = 1.0

    def close(self) -> None:
        """Let go of everything that was followed."""
        self.forecast.close()

    def __call__(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Look at an operation's results."""
        name = _torch.op_name(func).partition("::")[2]
        if func.is_view or name in _SAME:
            return
        with looking():
            outputs = self._outputs(
                _torch.written(func, args, kwargs) if result is None else result
            )
            if name == "_amp_foreach_non_finite_check_and_unscale_":
                self.scale = 1 / float(args[2])
            if outputs:
                given = (*args, *kwargs.values())
                if name.rstrip("_") in _UNWRITTEN:  # only its dtype is known yet
                    self.forecast.reserve(name, _floats(given), outputs, kwargs.get("dtype"))
                    return
                self._see(f"{func.namespace}.{name}", given, outputs, kwargs.get("dtype"))

    def _outputs(self, made: Any) -> list[Any]:
        """Give those of the results that hold floating-point values, and count the others."""
        outputs = []
        for one in _tensors(made):
            self.devices[one.device.type] += 1
            if one.is_floating_point() or one.is_complex():
                outputs.append(one)
                self.dtypes[str(one.dtype).removeprefix("torch.")] += 1
            else:
                self.skipped["integer or bool"] += 1
        return outputs

    def _see(self, op: str, given: tuple[Any, ...], outputs: list[Any], dtype: Any) -> None:
        """Take in an operation: what it was `given`, and its floating-point `outputs`."""
        frame = sys._getframe(_DEPTH)
        place, node, recomputed = self.phases.place(frame)
        self.n_recomputed += recomputed
        event = Event(
            op.partition(".")[2],
            self._sites.called_by(frame.f_back),
            _floats(given),
            outputs,
            [self._spread(one) for one in outputs],
            [float(one) for one in given if type(one) in {int, float}],
            dtype,
            node,
            place.phase,
        )
        meant = [0.0 if s is None else self.forecast.meant(event, s.largest) for s in event.spreads]
        half = self.forecast.runs_half(event)
        self.n_ops += 1
        key = Key(op, place)
        noted = self.forecast.note(self.n_ops, event, half, meant)
        if noted.overflows:
            self.runs[self.n_ops] = Run(key, _caution(frame))
        for i in range(len(self.n_half)):
            if noted.refused >> i & 1:
                self.refused.setdefault(i, key)
        if not recomputed:
            self._count(key, event, half, meant)
        if place.phase == "backward":
            self._add_gradients(event, half, noted.is_gradient)

    def _add_gradients(self, event: Event, half: int, is_gradient: bool) -> None:
        for i, (sure, all_) in enumerate(self.gradients):
            for found in event.spreads:
                if found is not None and half >> i & 1:
                    all_.add(found)
                    if is_gradient:
                        sure.add(found)

    def _count(self, key: Key, event: Event, half: int, meant: Sequence[float]) -> None:
        tally = self.tallies.setdefault(key, Tally())
        tally.n_calls += 1
        tally.half |= half
        tally.dtype = str(event.outputs[0].dtype).removeprefix("torch.")
        for i in range(len(self.n_half)):
            self.n_half[i] += half >> i & 1
        for out, found, mask in zip(event.outputs, event.spreads, meant, strict=True):
            if found is not None:
                real = self._spread(out, below=mask / 2) if mask else found
                tally.values.add(real or Spread())
                tally.n_values += out.numel()
                if mask:
                    tally.n_meant += found.n_nonzero - (real.n_nonzero if real else 0)

    def _spread(self, tensor: Any, below: float = float("inf")) -> Spread | None:
        """Take the spread of a result, None if its values cannot be read."""
        try:
            parts = values_of(tensor)
            if isinstance(parts, str):
                self.skipped[parts] += 1
                return None
            spreads = [spread(part, below) for part in parts]
        except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
            self.skipped[f"unreadable ({type(error).__name__})"] += 1
            return None
        for other in spreads[1:]:
            spreads[0].add(other)
        return spreads[0] if spreads else Spread()


def _tensors(value: Any) -> Iterator[Any]:
    if is_tensor(value):
        yield value
    elif type(value) in {tuple, list}:
        for one in value:
            yield from _tensors(one)


def _floats(given: Any) -> list[Any]:
    return [one for one in _tensors(given) if one.is_floating_point()]


def _caution(frame: FrameType) -> str:
    """Say what in a module's code may keep an operation in float32, unseen in a float32 run."""
    codes: list[CodeType] = []
    caller = frame.f_back
    while caller is not None and not is_module_call(caller) and len(codes) < 6:
        codes.append(caller.f_code)
        caller = caller.f_back
    if caller is None or not is_module_call(caller):
        return ""
    for code in codes:
        if {"float", "float32"} & set(code.co_names):
            return f"{code.co_qualname}() casts to float32 somewhere; before this, it would fit"
        if "autocast" in code.co_names:
            return f"{code.co_qualname}() sets autocast itself"
    return ""
