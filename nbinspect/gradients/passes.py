"""What backward passes have left since the last step: gradients as they were final, and losses."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from nbinspect import _torch
from nbinspect.gradients import measure, near
from nbinspect.gradients.collect import Final

MOST_OPEN = 8


@dataclass(slots=True)
class Passes:
    """The backward passes since the last step, as plain values.

    Attributes:
        losses: what they were called on.
        n_backward: how many they were.
        why_no_loss: why there is no loss, "" if there is.
        threads: those that ran them.
    """

    losses: list[float] = field(default_factory=list)
    n_backward: int = 0
    why_no_loss: str = ""
    threads: set[int] = field(default_factory=set)


class Heard:
    """Takes down backward passes, from when they begin to when a write has used what they left.

    Args:
        kernels: for what is near.

    Attributes:
        so_far: the passes since the last step.
        running: ids of the parameters that each running pass has come to, by its number.
        finals: gradients as backward left them, by the parameter's id.
        losses: scalars that backward was called on, until they are read.
        n_dropped: passes that no write has used.
    """

    def __init__(self, kernels: near.Kernels) -> None:
        self._kernels = kernels
        self.so_far = Passes()
        self.running: dict[int, list[int]] = {}
        self.finals: dict[int, Final] = {}
        self.losses: measure.Scalars = []
        self.n_dropped = 0
        self._threads: dict[int, int] = {}
        self._written: set[int] = set()
        self._root: weakref.ref[torch.Tensor] | None = None
        self._latest: tuple[int, weakref.ref[torch.Tensor]] | None = None

    def begin(self, task: int) -> list[int]:
        """Note that a pass has begun, and give the list of parameters that it will come to."""
        while len(self.running) >= MOST_OPEN:  # of passes that failed
            oldest = next(iter(self.running))
            del self.running[oldest], self._threads[oldest]
        self._written.clear()
        self._threads[task] = threading.get_ident()
        arrived = self.running[task] = []
        return arrived

    def note_loss(self, found: tuple[torch.Tensor, ...]) -> None:
        """Take down what backward was called on, once for all passes that it starts."""
        if self._is_noted(found):
            return
        self._root = weakref.ref(found[0]) if found else None
        self.so_far.n_backward += 1
        self.so_far.threads.add(threading.get_ident())
        if not found:
            self.so_far.why_no_loss = "what backward was called on could not be seen"
        elif any(one.numel() != 1 for one in found):
            self.so_far.why_no_loss = "backward was called on something that is no scalar"
        else:
            self.losses += map(measure.loss, found)

    def _is_noted(self, found: tuple[torch.Tensor, ...]) -> bool:
        return bool(found) and self._root is not None and self._root() is found[0]

    def drop_unused(self, roots: Callable[[], tuple[torch.Tensor, ...]]) -> None:
        """Forget passes whose gradients were set to None before any write: nothing adds to them.

        Args:
            roots: gives what the running backward was called on. If that is noted already, the pass
                that begins is within one whose gradients are still to come, as a checkpoint's is.
        """
        thread, ref = self._latest or (0, None)
        if {thread} != self.so_far.threads or thread != threading.get_ident():
            return  # another thread's backward may just be writing that gradient
        latest = ref() if ref is not None else None
        if latest is not None and latest.grad is None:
            if self.so_far.n_backward and self._is_noted(roots()):
                return
            self.n_dropped += self.so_far.n_backward
            self.take()
            self.finals.clear()

    def end(
        self,
        task: int,
        parameter: Callable[[int], torch.Tensor | None],
        is_wanted: Callable[[torch.Tensor], bool],
    ) -> list[torch.Tensor]:
        """Measure the gradients that a pass has left.

        Args:
            task: the pass's number.
            parameter: gives a parameter by its id.
            is_wanted: says whether one is watched.

        Returns:
            The parameters whose gradients could be read, in the order in which backward came to them.
        """
        thread = self._threads.pop(task, 0)
        solid: list[tuple[torch.Tensor, torch.Tensor]] = []
        for key in self.running.pop(task, ()):
            one = parameter(key) if key not in self._written else None
            if one is None or not is_wanted(one):
                continue
            grad = one.grad
            gradient = measure.dense(grad) if grad is not None else None
            if gradient is not None:
                solid.append((one, gradient))
            elif grad is not None:
                self.finals[key] = Final((), 0, thread)
        scalars = measure.final([gradient for _, gradient in solid], self._kernels)
        for rank, ((one, _), some) in enumerate(zip(solid, scalars, strict=True)):
            self.finals[id(one)] = Final(some, rank, thread)
        self._latest = (threading.get_ident(), weakref.ref(solid[-1][0])) if solid else None
        self._count_bad(solid)
        return [one for one, _ in solid]

    def _count_bad(self, solid: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Look into gradients whose norm is not finite, where that costs no wait for a device."""
        for one, gradient in solid:
            if gradient.is_cpu:
                final = self.finals[id(one)]
                if not math.isfinite(float(final.scalars[0])):
                    final.bad = measure.count_bad(gradient)
                    if not any(final.bad):
                        final.scalars = (measure.wide_norm(gradient), *final.scalars[1:])

    def note_written_within(self, parameters: Iterable[torch.Tensor]) -> None:
        """Take the gradients of a pass that still runs as it has left them so far.

        Blind to: a pass of another thread.
        """
        arrived = self.running.get(_torch.graph_task())
        if arrived is None:
            return
        now = getattr(_torch.current_autograd_node(), "variable", None)
        reached = {*arrived, id(now)}
        for one in parameters:
            if id(one) in reached and one.grad is not None:
                gradient = measure.dense(one.grad)
                scalars = (
                    measure.final([gradient], self._kernels)[0] if gradient is not None else ()
                )
                self.finals[id(one)] = Final(scalars, len(arrived), threading.get_ident())
                self._written.add(id(one))

    def used(self, losses: Iterable[float], keys: Iterable[int]) -> None:
        """Note that a write has used the gradients of some parameters, and what the losses were."""
        self.so_far.losses += losses
        self.losses.clear()
        for key in keys:
            self.finals.pop(key, None)

    def take(self) -> Passes:
        """Give the passes so far, and begin anew."""
        passes, self.so_far, self._root = self.so_far, Passes(), None
        self.losses.clear()
        return passes

    def clear(self) -> None:
        """Let go of everything."""
        for each in (self.running, self._threads, self.finals, self.losses):
            each.clear()
