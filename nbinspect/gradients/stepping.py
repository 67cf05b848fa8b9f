"""From hooks to steps: which backward passes and which writes belong together.

A step begins with the first backward pass after a write and ends with the last write before the
next backward pass. So gradients may be accumulated over several passes, several optimizers may
share one step, and optimizers that take turns have steps of their own.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from nbinspect import _torch
from nbinspect.gradients import near, samples
from nbinspect.gradients.collect import Writer, skipped
from nbinspect.gradients.guard import Guarded, guarded
from nbinspect.gradients.history import Builder
from nbinspect.gradients.hooks import ParameterHooks, hook_new_parameters, hook_optimizers
from nbinspect.gradients.losses import roots
from nbinspect.gradients.names import Names, optimizer_name, parameters_of
from nbinspect.gradients.parts import Part
from nbinspect.gradients.passes import Heard
from nbinspect.gradients.records import GradientHistory, Rules
from nbinspect.gradients.scaling import watch_scaler
from nbinspect.tensors import class_name

NO_OPTIMIZER = "No optimizer was seen: each backward pass is taken for a step."
SOME_OPTIMIZER = (
    "A backward pass that reaches no optimizer's parameters and that no optimizer steps after is "
    "taken for a step."
)
ITSELF = 0  # the key of the loop that writes by itself


class Stepping(Guarded):
    """Hears of backward passes and writes, and makes steps of them.

    Args:
        model: see `gradwatch`, as for the rest.
        every: read every so many steps.
        hist: histograms every so many read steps.
        keep: steps to keep.
        light: make no copies.
        exact: copy whole tensors, not samples.
        rules: of health.

    Attributes:
        n_steps: how many steps have ended, read or not.
    """

    def __init__(
        self,
        model: nn.Module | str | None,
        every: int,
        hist: int,
        keep: int,
        *,
        light: bool,
        exact: bool,
        rules: Rules,
    ) -> None:
        super().__init__()
        self.n_steps = 0
        self._every, self._hist, self._light, self._exact = every, hist, light, exact
        self._names = Names(model)
        self._kernels = near.kernels()
        self._builder = Builder(rules, keep)
        self._hooks = ParameterHooks(self._arrived)
        self._writers: dict[int, Writer] = {}
        self._numbers: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._heard = Heard(self._kernels)
        self._parts: list[Part] = []
        self._stepped: set[int] = set()
        self._writing: dict[int, list[tuple[int, bool]]] = {}
        self._n_writes, self._n_evaluations = 0, 0
        self._scale: float | None = None
        self._asleep = False
        self._notes: dict[str, None] = {}
        self._beside: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._ended, self._error = False, ""

    def hook(self, undo: ExitStack) -> None:
        """Begin to listen, until `undo`."""
        undo.callback(self._hooks.remove)
        self._hooks.attach(self._names.scan())
        hook_new_parameters(undo, self._hooks)
        hook_optimizers(undo, self._before_write, self._after_write)
        watch_scaler(undo, self._scaled_write)

    def end(self, error: str) -> None:
        """Take the last step in, and let go of every copy."""
        self._error = error
        try:
            self._close()
            if not self.n_steps:
                self._flush()
            n_dropped = self._heard.n_dropped + self._heard.so_far.n_backward
            if n_dropped and not self.is_broken:
                passes = (
                    "One backward pass was"
                    if n_dropped == 1
                    else f"{n_dropped} backward passes were"
                )
                self._note(f"{passes} followed by no step.")
            if NO_OPTIMIZER in self._notes and len(self._writers) > 1:
                del self._notes[NO_OPTIMIZER]
                self._note(SOME_OPTIMIZER)
            self._builder.health.left = self._left_behind()
            self._look_beside()
            if missing := self._names.missing:
                self._note(f"No module is called `{missing}`, so nothing was watched.")
            self._tell_samples()
        finally:
            self._ended = True
            self._let_go()

    def _left_behind(self) -> set[int]:
        """Give the numbers of those that backward has reached since the last step."""
        known = (self._numbers.get(key) for key in self._heard.finals)
        return {one[1] for one in known if one is not None and one[0]() is not None}

    def _tell_samples(self) -> None:
        large = [one for one in self._builder.parameters if one.n_elements > samples.WHOLE]
        if large and not (self._light or self._exact):
            self._note(
                f"Updates and cosines of the {len(large)} parameters with more than "
                f"{samples.WHOLE:,} elements come from a sample of each; --exact takes them whole."
                if len(large) > 1
                else f"The updates and cosines of `{large[0].name}` come from a sample of its "
                f"{large[0].n_elements:,} elements; --exact takes them all."
            )

    def _note(self, words: str) -> None:
        self._notes[words] = None

    def _let_go(self) -> None:
        for each in (self._writers, self._writing, self._heard, self._kernels):
            each.clear()

    def failed(self, error: Exception) -> None:
        """Stop measuring, or only copying where there is no room for copies."""
        kind = class_name(type(error))
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) and not self._light:
            self._light = True
            for writer in self._writers.values():
                writer.forget_copies()
            note = f"From step {self.n_steps} on no updates and cosines: no room for copies."
        else:
            self.is_broken = True
            self._let_go()
            with contextlib.suppress(Exception):
                self._builder.settle()  # what was measured before stays
            said = " ".join(str(error).split())[:200]
            note = f"Nothing was measured from step {self.n_steps} on, by an error of nbinspect's own: {kind}: {said}"
        self._note(note)
        error.__traceback__ = None  # its frames hold tensors

    @property
    def _is_due(self) -> bool:
        return self.n_steps % self._every == 0

    def _arrived(self, parameter: torch.Tensor) -> None:
        """Hear that a gradient has been added to; called for each in each backward pass."""
        if self.is_broken or self._asleep:
            return
        task = _torch.graph_task()
        arrived = self._heard.running.get(task)
        if arrived is None:
            arrived = self._begin(task)
        if arrived is not None:
            arrived.append(id(parameter))

    def _arriving(self, _gradient: torch.Tensor) -> None:
        """Hear of a gradient before it is added: of a pass that has but one, to see it begin."""
        task = _torch.graph_task()
        if not (self.is_broken or self._asleep or task in self._heard.running):
            self._begin(task)

    @guarded
    def _begin(self, task: int) -> list[int]:
        """A backward pass has begun."""
        if not any(self._writing.values()):
            self._close()
            self._heard.drop_unused(_roots_now)
        for writer in self._writers.values():
            writer.look()
        arrived = self._heard.begin(task)
        if self._is_due and _torch.when_backward_ends(functools.partial(self._ending, task)):
            self._heard.note_loss(roots(sys._getframe(1)))
        return arrived

    def _ending(self, task: int) -> None:
        """A backward pass has ended; come back after all others that wait for its end."""
        _torch.when_backward_ends(functools.partial(self._has_ended, task))

    @guarded
    def _has_ended(self, task: int) -> None:
        """Measure the gradients that a backward pass has left."""
        left = self._heard.end(task, self._hooks.get, self._names.wanted)
        for writer in self._writers.values():
            writer.look_again()
        if not any(self._writing.values()) and not self._is_owned(left):
            self._write_itself(left)

    def _is_owned(self, parameters: list[torch.Tensor]) -> bool:
        """Say whether any of these is an optimizer's, so that a write will come."""
        keys = {id(one) for one in parameters}
        if not keys or keys & self._names.owned:
            return True
        if all(map(self._has_number, parameters)):  # looked for already
            return False
        self._hooks.attach(self._names.scan())
        return bool(keys & self._names.owned)

    def _write_itself(self, parameters: list[torch.Tensor]) -> None:
        """Make a step of a backward pass alone: the loop writes by itself, which nothing tells."""
        writer = self._writers.setdefault(ITSELF, Writer(None, "", self._kernels, light=True))
        self._parts = [one for one in self._parts if one.optimizer]
        self._measure_before(writer, parameters)
        self._measure_after(writer)
        self._stepped.add(ITSELF)
        self._note(NO_OPTIMIZER)

    @guarded
    def _before_write(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Hear that an optimizer is about to step; wrap its closure, if it has one."""
        key = id(optimizer)
        self._asleep = False
        task = _torch.graph_task()
        if (
            task >= 0 and task not in self._heard.running
        ):  # a hook of the user's writes within backward
            self._begin(task)
        if self._is_inner_write(key):
            return None
        if key in self._stepped:
            self._close()
        if ITSELF in self._stepped:
            self._not_itself()
        if not self._is_due:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._read_before(optimizer)
            return None
        writer = self._writer(optimizer)
        writer.hold(self._listed(optimizer, writer))
        wrapped = self._evaluating(weakref.ref(optimizer), closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapped}
        return (args[0], wrapped, *args[2:]), kwargs

    def _is_inner_write(self, key: int) -> bool:
        """Note a step, and tell one within another's, as of an optimizer around an optimizer."""
        writing = self._writing.setdefault(threading.get_ident(), [])
        if writing:
            running = _n_running_steps(sys._getframe(3))
            del writing[max(0, running - 1) :]  # of steps that failed
        writing.append((key, bool(writing)))
        return len(writing) > 1

    def _not_itself(self) -> None:
        """Take back what was taken for a loop that writes by itself."""
        self._stepped.discard(ITSELF)
        self._parts = [one for one in self._parts if one.optimizer]
        self._notes.clear()

    def _evaluating(self, ref: weakref.ref[Any], closure: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap a closure: its first call gives the gradients where the step starts."""
        calls = [0]
        self._n_evaluations = 0

        @functools.wraps(closure)
        def evaluate() -> Any:
            __tracebackhide__ = True  # an error of the user's code is not ours to appear in
            value = closure()
            calls[0] += 1
            optimizer = ref()
            if calls[0] == 1 and optimizer is not None:
                self._read_before(optimizer)
                self._asleep = True
            self._n_evaluations = calls[0]
            return value

        return evaluate

    @guarded
    def _read_before(self, optimizer: Any) -> None:
        writer = self._writer(optimizer)
        parameters = self._listed(optimizer, writer)
        writer.learning_rates = _learning_rates(optimizer)
        self._heard.note_written_within(parameters)
        self._measure_before(writer, parameters)

    def _writer(self, optimizer: Any) -> Writer:
        writer = self._writers.get(id(optimizer))
        if writer is None or not writer.is_alive:
            self._writers = {key: one for key, one in self._writers.items() if one.is_alive}
            name = optimizer_name(optimizer)
            writer = Writer(optimizer, name, self._kernels, light=self._light, exact=self._exact)
            self._writers[id(optimizer)] = writer
        return writer

    def _listed(self, optimizer: Any, writer: Writer) -> list[torch.Tensor]:
        """Give the parameters that an optimizer may write and that are to be watched, in order."""
        found = [
            one for one in parameters_of(optimizer) if one.requires_grad or one.grad is not None
        ]
        key = tuple(map(id, found))
        if key != writer.listed:
            self._names.learn(optimizer, found)
            self._hooks.attach(found)
            wanted = [at for at, one in enumerate(found) if self._names.wanted(one)]
            writer.order = sorted(wanted, key=lambda at: self._names.place(found[at]))
            writer.numbers = tuple(self._number(found[at]) for at in writer.order)
            writer.listed = key
        return [found[at] for at in writer.order]

    def _measure_before(self, writer: Writer, parameters: list[torch.Tensor]) -> None:
        if not writer.listed:  # of the loop itself
            writer.numbers = tuple(map(self._number, parameters))
        histogram = bool(self._hist) and (self.n_steps // self._every) % self._hist == 0
        writer.before(parameters, self._heard.finals, histogram=histogram)

    def _number(self, parameter: torch.Tensor) -> int:
        if self._has_number(parameter):
            return self._numbers[id(parameter)][1]
        about = self._names.about(parameter)
        known = self._names.of(parameter)
        model = known.model if known else ""
        number = self._builder.add(about, model, self._names.place(parameter))
        self._numbers[id(parameter)] = (weakref.ref(parameter), number)
        return number

    def _has_number(self, parameter: torch.Tensor) -> bool:
        """Say whether a parameter has one: it may be where one was that is gone."""
        known = self._numbers.get(id(parameter))
        return known is not None and known[0]() is parameter

    @guarded
    def _after_write(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Hear that an optimizer has stepped."""
        self._asleep = False
        if writing := self._writing.get(threading.get_ident()):
            key, is_inner = writing.pop()
            if key != id(optimizer) or is_inner:
                return
        self._n_writes += 1
        self._stepped.add(id(optimizer))
        writer = self._writers.get(id(optimizer))
        if self._is_due and writer is not None:
            self._measure_after(writer, optimizer)

    def _measure_after(self, writer: Writer, optimizer: Any = None) -> None:
        grad_scale, found_inf = _fused_scaling(optimizer)
        done = writer.after(self._heard.losses, self._scale, grad_scale)
        if done is None:
            return
        part, losses = done
        part.n_evaluations, self._n_evaluations = self._n_evaluations, 0
        part.skipped = found_inf
        self._take(part, losses, writer.keys)
        if writer.alone is not None:
            self._hooks.attach_early(writer.alone, self._arriving)
            writer.alone = None

    def _take(self, part: Part, losses: list[float], keys: Iterable[int]) -> None:
        self._parts.append(part)
        self._heard.used(losses, keys)

    def _scaled_write(self, optimizer: Any, scale: float) -> Callable[[], None]:
        """Hear that a gradient scaler is about to step, or to skip the step."""
        before, self._scale = self._n_writes, scale

        def ended() -> None:
            if self._n_writes == before:
                self._read_skipped(optimizer, scale)
            self._scale = None

        return ended

    @guarded
    def _read_skipped(self, optimizer: Any, scale: float) -> None:
        if id(optimizer) in self._stepped:
            self._close()
        self._stepped.add(id(optimizer))
        if not self._is_due:
            return
        writer = self._writer(optimizer)
        parameters = self._listed(optimizer, writer)
        writer.learning_rates = _learning_rates(optimizer)
        part, losses = skipped(
            writer, parameters, self._heard.finals, self._heard.losses, scale=scale
        )
        self._take(part, losses, map(id, parameters))

    @guarded
    def _close(self) -> None:
        """End the step, if there was a write."""
        if not self._stepped:
            return
        index = self.n_steps
        self.n_steps += 1
        self._stepped.clear()
        parts, passes = self._parts, self._heard.take()
        self._parts = []
        if parts and not self.is_broken:
            self._builder.step(index, parts, passes)

    @guarded
    def _flush(self) -> None:
        """Show what backward left although no step followed."""
        found = [self._hooks.get(key) for key in self._heard.finals]
        left = [one for one in found if one is not None and one.grad is not None]
        if left:
            self._names.scan()
            self._write_itself(sorted(left, key=self._names.place))
            self._close()
            self._notes.clear()
            self._note("No optimizer stepped: these are the gradients that backward left.")

    @guarded
    def _look_beside(self) -> None:
        """List what the watched models have besides: frozen, and left out by the optimizers."""
        if self._numbers:
            self._names.scan()  # a layer may have been replaced since
        self._builder.settle()
        alive = {key: n for key, (ref, n) in self._numbers.items() if ref() is not None}
        shown = self._builder.shown()
        stepped = [key for key, number in alive.items() if number in shown]
        reached = alive.keys() | {
            key for key in self._heard.finals if self._hooks.get(key) is not None
        }
        beside = list(self._names.beside(stepped, reached))
        frozen = [known.name for known, one in beside if not one.requires_grad]
        left_out = [
            known.name
            for known, one in beside
            if one.requires_grad
            and (one.grad is not None or id(one) in reached)
            and id(one) not in self._names.owned
        ]
        has_optimizer = any(key != ITSELF for key in self._writers)
        self._beside = (tuple(frozen), tuple(left_out) if has_optimizer else ())

    @guarded
    def _settle(self) -> None:
        self._builder.settle()

    def report(self) -> GradientHistory:
        """Give what there is so far."""
        self._settle()
        with self.lock:
            frozen, without = self._beside
            return self._builder.report(
                n_steps=self.n_steps,
                ended=self._ended,
                every=self._every,
                frozen=frozen,
                without_optimizer=without,
                notes=tuple(self._notes),
                error=self._error,
            )


def _roots_now() -> tuple[torch.Tensor, ...]:
    return roots(sys._getframe(1))


def _learning_rates(optimizer: Any) -> tuple[float, ...]:
    return tuple(float(group["lr"]) for group in optimizer.param_groups if "lr" in group)


def _fused_scaling(optimizer: Any) -> tuple[float | None, bool]:
    """Give what a fused optimizer divides the gradients by itself, and whether it then skips."""
    scale, found = (getattr(optimizer, name, None) for name in ("grad_scale", "found_inf"))
    return (
        float(scale) if isinstance(scale, torch.Tensor) else None,
        bool(found.item()) if isinstance(found, torch.Tensor) else False,
    )


def _n_running_steps(frame: Any) -> int:
    """Count the optimizers' steps that are running in this thread."""
    code = frame.f_code
    n = 0
    while frame is not None:
        n += frame.f_code is code
        frame = frame.f_back
    return n
