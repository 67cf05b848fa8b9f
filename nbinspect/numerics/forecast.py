"""Follows a step and works out which of its operations would overflow if it ran in float16.

Every tensor of the step is given the dtype that it would have. Autocast casts what matrix products
and convolutions take to float16, keeps others in float32, and leaves the rest in what their inputs
come in; a backward operation runs in what its forward one gave. Inside, products and sums
accumulate in float32, so what counts is the result after rounding, and the inputs after their cast.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from nbinspect import _torch
from nbinspect.numerics.autocast_lists import policy
from nbinspect.numerics.exponents import Spread, spread, values_of
from nbinspect.numerics.phases import ACCUMULATION

LARGEST, LIMIT = 65504.0, 65520.0  # of float16; what rounds to infinity
_FILLS = frozenset({"masked_fill", "fill", "full_like", "new_full", "constant_pad_nd"})
_CLEAR = 1.001  # a scale of results may be off by a rounding
_NORMS = frozenset(
    {
        "native_layer_norm",
        "native_batch_norm",
        "native_group_norm",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "_fused_rms_norm",
        "_batch_norm_with_update",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
    }
)
"""What follows in dtype its first input, and gives statistics in float32 beside its result."""


class Setting(NamedTuple):
    """A way to run in float16: autocast on a type of device, or all of the model in it."""

    label: str
    device: str | None


class Event(NamedTuple):
    """An operation that has run, as far as the forecast needs it.

    Attributes:
        name: without namespace and overload.
        caller: the function that it is a part of, e.g. ``l1_loss``, "" if that is not known.
        inputs: its floating-point tensors.
        outputs: those it made or changed.
        spreads: the values of each output, None where they cannot be read.
        scalars: its numbers.
        dtype: the dtype that it was asked for, if any.
        node: the number of the autograd node it runs for, None in the forward pass.
        phase: ``forward``, ``backward`` or ``optimizer``.
    """

    name: str
    caller: str
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    spreads: Sequence[Spread | None]
    scalars: Sequence[float]
    dtype: Any
    node: int | None
    phase: str


@dataclass(frozen=True, slots=True)
class Overflow:
    """What would overflow.

    Attributes:
        at: the number of the operation.
        largest: the magnitude that float16 cannot hold.
        of: ``result`` or, if it is lost when cast, ``input``.
    """

    at: int
    largest: float
    of: str


class Noted(NamedTuple):
    """What was found of an operation.

    Attributes:
        overflows: whether it would overflow in any setting.
        is_gradient: whether its results grow with the loss; a backward operation may also work out
            something else first, such as ``2 * x`` for ``x ** 2``.
        refused: a bit for each setting in which torch raises, because a number in the code, e.g.
            of ``masked_fill(mask, -1e9)``, does not fit into float16.
    """

    overflows: bool
    is_gradient: bool
    refused: int


class _Known(weakref.ref[torch.UntypedStorage]):
    """A storage that the step has met.

    Attributes:
        key: its handle.
        half: a bit for each setting in which it would be float16.
        largest: its largest finite magnitude when it was last looked at.
        meant: the magnitude of a mask's values, 0 if it holds none.
        finite: whether all of it is finite.
        is_gradient: whether it grows with the loss.
    """

    __slots__ = ("finite", "half", "is_gradient", "key", "largest", "meant")

    key: int
    half: int
    largest: float
    meant: float
    finite: bool
    is_gradient: bool


class Forecast:
    """What would be in float16, and what of it would overflow.

    Holds weak references to storages only.

    Attributes:
        settings: the ways to run that are looked at.
        overflows: for each, the overflows in the order of the step.
        cast_gradients: for each, the largest gradient that is cast to float16 on its way.
        half_losses: a bit for each setting in which a loss would be in float16 itself.
    """

    def __init__(self, settings: Sequence[Setting]) -> None:
        self.settings = tuple(settings)
        self.overflows: tuple[list[Overflow], ...] = tuple([] for _ in settings)
        self.cast_gradients = [0.0] * len(self.settings)
        self.half_losses = 0
        self._storages: dict[int, _Known] = {}
        self._nodes: dict[int, int] = {}
        self._phase = ""
        self._ended: deque[_Known] = deque()

    def runs_half(self, event: Event) -> int:
        """Give a bit for each setting in which the operation would give float16."""
        if not any(out.dtype in (torch.float32, torch.float16) for out in event.outputs):
            return 0
        return sum(
            1 << i for i, one in enumerate(self.settings) if self._is_half(event, one, 1 << i)
        )

    def _is_half(self, event: Event, setting: Setting, bit: int) -> bool:
        if event.dtype is not None and event.dtype.is_floating_point:
            return bool(event.dtype == torch.float16)
        if setting.device is None:
            return True
        if event.node == ACCUMULATION or event.phase == "optimizer":
            return False  # parameters and their gradients stay in float32
        if event.node in self._nodes:
            return bool(self._nodes[event.node] & bit)
        rule = policy(event.name, setting.device)
        if event.phase == "forward" and _is_kept_wide(event, setting.device):
            rule = "float32"
        if event.phase == "backward" and rule == "half":  # autocast is no longer on in there
            rule = "inputs"
        if rule == "inputs":
            return self._from_inputs(event, bit)
        return rule == "half" and any(one.dtype != torch.float64 for one in event.inputs)

    def _from_inputs(self, event: Event, bit: int) -> bool:
        """Say whether type promotion gives float16: a scalar does not decide beside a vector."""
        deciding = event.inputs[:1] if event.name in _NORMS else event.inputs
        deciding = [one for one in deciding if one.dim()] or deciding
        return bool(deciding) and all(self._half(one) & bit for one in deciding)

    def _half(self, tensor: Any) -> int:
        known = self._find(tensor)
        if tensor.dtype == torch.float16:
            return -1
        return known.half if known is not None else 0

    def reserve(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any], dtype: Any) -> None:
        """Note the dtype of what is made without values yet, as dropout does for its mask."""
        nothing = [None] * len(outputs)
        event = Event(name, "", inputs, outputs, nothing, (), dtype, None, "forward")
        half = self.runs_half(event)
        for out in outputs:
            if self._find(out) is None:
                self._remember(out, None, half, 0.0)

    def meant(self, event: Event, largest: float) -> float:
        """Give the magnitude of a mask's values in a result that is as large as that, 0 if none.

        Such values are put there by a number in the code, as in ``masked_fill(mask, -1e9)``.
        """
        if largest < LIMIT:
            return 0.0
        sources = [abs(one) for one in event.scalars]
        sources += [known.meant for one in event.inputs if (known := self._find(one))]
        sources += [self._lone(one) for one in event.inputs if one.dim() == 0]
        mask = max((one for one in sources if math.isfinite(one)), default=0.0)
        return largest if mask >= LIMIT and largest <= 2 * mask * _CLEAR else 0.0

    def _lone(self, tensor: Any) -> float:
        """Give the magnitude of a number that the step did not work out itself."""
        return 0.0 if self._find(tensor) is not None else self._look(tensor).largest

    def note(self, at: int, event: Event, half: int, meant: Sequence[float]) -> Noted:
        """Remember what an operation gave, and whether that or an input would overflow."""
        self._forget()
        n_before = sum(map(len, self.overflows))
        lost = self._lost_input(event, half) if half else 0.0
        had_finite = all(self._is_finite(one) for one in event.inputs)
        of_norm = event.name in _NORMS
        is_gradient = self._is_gradient(event)
        if is_gradient and half:
            self._note_casts(event, half)
        for n, (out, found) in enumerate(zip(event.outputs, event.spreads, strict=True)):
            bits = 0 if n and of_norm else half
            known = self._find(out)
            if known is not None and known.half != bits and found is not None:
                bits = known.half  # written in place, or into `out`: it stays what it is
            kept = self._remember(out, found, bits, meant[n])
            if kept is not None:
                kept.is_gradient = is_gradient
            if found is not None:
                born = bool(found.n_nonfinite) and had_finite and not _puts_infinity(event)
                largest = math.inf if born else 0.0 if meant[n] else found.largest
                self._flag(at, bits, largest, "result")
        if lost:
            self._flag(at, half, lost, "input", only_float32=event)
        self._know_node(event, half)
        refused = half if event.name.rstrip("_") in _FILLS and _too_large(event.scalars) else 0
        return Noted(sum(map(len, self.overflows)) > n_before, is_gradient, refused)

    def _is_gradient(self, event: Event) -> bool:
        """Say whether the results come from the 1 that autograd begins with at a loss."""
        if event.phase != "backward":
            return event.name == "ones_like" and event.outputs[0].numel() == 1
        return any(known.is_gradient for one in event.inputs if (known := self._find(one)))

    def _note_casts(self, event: Event, half: int) -> None:
        for one in event.inputs:
            known = self._find(one)
            if known is not None and known.is_gradient:
                for i, so_far in enumerate(self.cast_gradients):
                    if half & ~known.half & 1 << i:
                        self.cast_gradients[i] = max(so_far, known.largest)

    def _know_node(self, event: Event, half: int) -> None:
        """Remember for the backward pass what the operation's autograd node belongs to."""
        if event.node in self._nodes and self._phase != "backward":
            self.half_losses |= self._nodes[event.node]
        self._phase = event.phase
        number = _torch.next_sequence_number()
        if number is not None and (event.phase != "backward" or torch.is_grad_enabled()):
            self._nodes.setdefault(number - 1, half)

    def _flag(
        self, at: int, bits: int, largest: float, of: str, only_float32: Event | None = None
    ) -> None:
        if largest < LIMIT:
            return
        for i, overflows in enumerate(self.overflows):
            if bits >> i & 1 and (only_float32 is None or self._casts(only_float32, i)):
                if of == "input" and overflows and overflows[-1].at == at:
                    overflows.pop()  # the cast of an input comes before the result
                overflows.append(Overflow(at, largest, of))

    def _casts(self, event: Event, i: int) -> bool:
        """Say whether this operation has its inputs cast: not if it takes them as they come."""
        device = self.settings[i].device
        if device is None or event.node in self._nodes:
            return True
        return policy(event.name, device) == "half"

    def _lost_input(self, event: Event, half: int) -> float:
        """Give the largest magnitude of an input that would be lost when it is cast."""
        largest = 0.0
        for one in event.inputs:
            known = self._find(one)
            if one.dtype != torch.float32 or (known is not None and half & ~known.half == 0):
                continue
            if known is None:
                known = self._meet(one)
            if known is not None and known.largest >= LIMIT and not known.meant:
                largest = max(largest, self._look(one).largest)  # it may be a part of the storage
        return largest if largest >= LIMIT else 0.0

    def _is_finite(self, tensor: Any) -> bool:
        known = self._find(tensor) or self._meet(tensor)
        return known is None or known.finite

    def _look(self, tensor: Any) -> Spread:
        total = Spread()
        parts = values_of(tensor)
        for part in () if isinstance(parts, str) else parts:
            total.add(spread(part))
        return total

    def _meet(self, tensor: Any) -> _Known | None:
        """Take in a tensor from before the step."""
        found = self._look(tensor)
        meant = found.largest if tensor.dim() == 0 and found.largest >= LIMIT else 0.0
        return self._remember(tensor, found, 0, meant)

    def _find(self, tensor: Any) -> _Known | None:
        handle = _handle(tensor)
        known = self._storages.get(handle) if handle is not None else None
        return known if known is not None and known() is not None else None

    def _remember(
        self, tensor: Any, found: Spread | None, half: int, meant: float
    ) -> _Known | None:
        handle = _handle(tensor)
        if handle is None:
            return None
        known = self._find(tensor)
        if known is None:
            known = _Known(tensor.untyped_storage(), self._ended.append)
            known.key, known.half, known.largest, known.meant = handle, half, 0.0, 0.0
            known.finite, known.is_gradient = True, False
            self._storages[handle] = known
        if found is not None:
            known.largest, known.meant = found.largest, meant
            known.finite = not found.n_nonfinite
        return known

    def _forget(self) -> None:
        while self._ended:
            one = self._ended.popleft()
            if self._storages.get(one.key) is one:
                del self._storages[one.key]

    def close(self) -> None:
        """Stop listening: storages that die later tell nobody."""
        self._storages.clear()


def _handle(tensor: Any) -> int | None:
    """Name the storage of a tensor, None if it has none of its own."""
    try:
        return _torch.handle(tensor.untyped_storage())
    except (RuntimeError, NotImplementedError):  # sparse, or half made
        return None


def _too_large(numbers: Sequence[float]) -> bool:
    return any(LARGEST < abs(one) < math.inf for one in numbers)


def _is_kept_wide(event: Event, device: str) -> bool:
    """Say whether an operation is a part of a function that runs in float32 as a whole.

    Attention does where torch works it out step by step, in spite of autocast.
    """
    if event.caller == "scaled_dot_product_attention":
        return not event.name.startswith("_scaled_dot_product")
    return bool(event.caller) and policy(event.caller, device) == "float32"


def _puts_infinity(event: Event) -> bool:
    return any(not math.isfinite(one) for one in event.scalars)
