"""Follows every NaN and Inf from the operation that made it to where it is found.

Each operation's results are looked at. A bad one is an event: it has parents (the events that made
its bad operands) and an origin (the first of them, unless it is one itself). A storage that holds
bad values points at its last event, so of any tensor it can be told where its values came from.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nbinspect import _torch
from nbinspect.numerics.check import PLAIN, WIDE, can_be_bad, dense_parts, flags, is_bad
from nbinspect.numerics.deferred import Deferred
from nbinspect.numerics.events import Circumstances, Event, Place, judged, numbers_in, unseen
from nbinspect.numerics.operands import first_bad, operand, operands
from nbinspect.numerics.phrasing import labelled
from nbinspect.numerics.plans import Plan, is_exchange, plan, written_values
from nbinspect.numerics.sites import NOWHERE, ForwardSites, Spot, runs_users_code, spot
from nbinspect.numerics.taints import Taints, storage_of
from nbinspect.ops import ModuleNames, OpStream
from nbinspect.tensors import tensors_in

_DEPTH = 1  # from a subscriber up to the dispatch mode, above which a device's thread has nothing
_MOST_DETAILS = 200  # of a step, described value by value
_MOST_LINKS = 2000  # of a chain; beyond that it is the same story


class _Call(NamedTuple):
    """An operation that has run."""

    plan: Plan
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that it was given."""
        return tensors_in([self.args, self.kwargs])

    def written(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that it wrote to."""
        return tensors_in(written_values(self.plan, self.args, self.kwargs))


@dataclass(slots=True)
class _Source:
    """A bad operand."""

    tensor: torch.Tensor
    shows_nan: bool
    shows_inf: bool
    event: Event


class _AboutTo(threading.local):
    """The operation that is about to run in this thread.

    Attributes:
        overwritten: tensors that it writes to, and whether they held NaN and Inf.
    """

    func: Any = None
    plan: Any = None

    def __init__(self) -> None:
        self.overwritten: list[tuple[torch.Tensor, bool, bool]] = []


class Flow:
    """Subscribes to an `OpStream`.

    Args:
        name_of: gives the user's name of a tensor.
        waits_for: whether the values on a device are looked at at once; elsewhere they are when
            `read_verdicts` is called.

    Attributes:
        n_ops: operations seen.
        step: the optimizer steps taken before now; set by who counts them.
        in_optimizer: whether an optimizer is writing; set likewise.
        trusts_optimizer: whether all that it was given is finite; set likewise.
        ran_module: whether the forward of a module has run.
        had_backward: whether a backward pass has run since the last step; set likewise.
        origins: events that are origins, in order, one a key and step.
        counts: how often each key was met.
        modules: names of modules.
        defers: whether there is a device whose values are looked at later.
        writers: the last line that wrote to each of the tensors of `note_writes_to`, by id.
        failed: what went wrong in here, "" for nothing; then no more is looked at.
    """

    def __init__(
        self,
        name_of: Callable[[torch.Tensor], str],
        waits_for: Callable[[torch.device], bool],
    ) -> None:
        self.n_ops = 0
        self.step = 0
        self.in_optimizer = False
        self.trusts_optimizer = False
        self.ran_module = False
        self.had_backward = False
        self.origins: list[Event] = []
        self.counts: dict[tuple[Any, ...], int] = {}
        self.modules = ModuleNames()
        self.sites = ForwardSites()
        self.writers: dict[int, Spot | None] = {}
        self.failed = ""
        self._name_of = name_of
        self._waits_for = waits_for
        devices = map(torch.device, (*_torch.accelerators(), "cpu"))
        self.defers = not all(map(waits_for, devices))
        self._about_to = _AboutTo()
        self._deferred = Deferred(self._known_or_new)
        self._leaves: dict[int, weakref.ref[torch.Tensor]] = {}
        self._taints = Taints(self._deferred.event)
        self._open: set[int] = set()  # origins whose absorption is looked out for
        self._number: Event | None = None  # the event of the last bad number given to Python
        self._n_details = 0

    def next_step(self) -> None:
        """Begin another step."""
        self.step += 1
        self.had_backward = False
        self._n_details = 0
        self._open.clear()
        self.sites.next_step()
        self._taints.forget_gone()

    def stream(self, *, eager: bool = False) -> OpStream:
        """Make the stream that this subscribes to.

        Args:
            eager: run compiled functions eagerly.
        """
        return OpStream(self, before=self.before, eager=eager)

    def note_writes_to(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note which lines write to these from now on."""
        self.writers = dict.fromkeys(map(id, tensors))

    def close(self) -> None:
        """Hold nothing any longer but what the report is made of."""
        self._taints.clear()
        self._about_to = _AboutTo()
        self._leaves.clear()

    # The stream calls these two.

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at what an operation is about to overwrite."""
        about_to = self._about_to
        about_to.func, about_to.plan = func, plan(func)
        seen = about_to.plan
        if not seen.written or self.in_optimizer or self.failed:
            return
        about_to.overwritten = [
            (one, *flags(one))
            for one in tensors_in(written_values(seen, args, kwargs))
            if can_be_bad(one) and self._waits_for(one.device)
        ]

    def __call__(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Look at what an operation gave; an error of our own is no business of the user's loop."""
        if self.failed:
            return
        try:
            self.n_ops += 1
            about_to = self._about_to
            seen = about_to.plan if about_to.func is func else plan(func)
            number = _torch.next_sequence_number()
            if number != self.sites.last:
                self._note_forward(number, args)
            if self._needs_no_look(seen, args, kwargs, result):
                return
            if seen.reads_number:
                self._note_number(args[0], result)
                return
            if self.defers and self._is_deferred(seen, args, kwargs, result):
                return
            bad = self._bad_results(seen, args, kwargs, result)
            if bad:
                self._happened(_Call(seen, func, args, kwargs), bad)
            elif self._open:
                self._note_absorbed(_Call(seen, func, args, kwargs))
            if about_to.overwritten:
                about_to.overwritten = []
        except Exception as error:
            self.failed = own_failure(error)

    def _needs_no_look(
        self, seen: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> bool:
        if self.writers and seen.written:
            self._note_writes(written_values(seen, args, kwargs))
        if seen.skip and self.defers and "empty" in seen.base:
            self._deferred.forget(tensors_in(result))
        return seen.skip or (seen.tame and self.in_optimizer and self.trusts_optimizer)

    def _is_deferred(
        self, seen: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> bool:
        """Log an operation of a device that is not waited for."""
        first = result if type(result) is torch.Tensor else next(tensors_in([result, args]), None)
        if first is None or self._waits_for(first.device):
            return False
        call = _Call(seen, None, args, kwargs)
        gives = {id(one): one for one in tensors_in([result, written_values(seen, args, kwargs)])}
        circumstances = self._circumstances(call, self._place(call, _DEPTH + 2))
        self._deferred.note(
            circumstances, list(call.tensors()), list(gives.values()), self._name_of
        )
        return True

    def read_verdicts(self) -> None:
        """Judge what was put off; called when a step needs to know.

        Cost: one synchronisation a device and dtype, if anything was put off.
        """
        self._deferred.read()

    def _bad_results(
        self, seen: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> list[torch.Tensor]:
        if seen.sends:
            return self._to_come(seen, args, kwargs, result)
        if not seen.written and type(result) is torch.Tensor:
            return [result] if is_bad(result) else []
        written = written_values(seen, args, kwargs)
        if len(written) == 1 and result is written[0] and type(result) in PLAIN:
            bad = [result] if is_bad(result) else []
        else:  # the same tensor is often both: once is enough
            each = {id(one): one for one in tensors_in([written, result])}
            bad = [one for one in each.values() if is_bad(one)]
        if self._taints and written and not bad:
            self._taints.cleaned(tensors_in(written))
        return bad

    def _to_come(
        self, seen: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> list[torch.Tensor]:
        """Give what will be bad once other processes' values are there: all, if a part of ours is."""
        if not any(self.event_of(one) is not None for one in tensors_in([args, kwargs])):
            return []
        written = tensors_in([written_values(seen, args, kwargs), result])
        return [one for one in written if can_be_bad(one)]

    def _note_forward(self, number: int | None, args: tuple[Any, ...]) -> None:
        if number is None or _torch.current_autograd_node() is not None:
            return
        frame = sys._getframe(_DEPTH + 1)
        module = self.modules.running(frame)
        self.ran_module = self.ran_module or bool(module)
        self.sites.add(number, spot(frame), module)
        for one in args:
            if type(one) in PLAIN and one.requires_grad and one.is_leaf:
                self.know_leaf(one)

    def _note_writes(self, written: list[Any]) -> None:
        for one in tensors_in(written):
            if id(one) in self.writers:
                self.writers[id(one)] = spot(sys._getframe(_DEPTH + 2))

    def know_leaf(self, leaf: torch.Tensor) -> None:
        """Take a leaf whose gradient counts; holds it weakly."""
        if id(leaf) not in self._leaves:
            self._leaves[id(leaf)] = weakref.ref(leaf)

    def known_leaves(self) -> list[torch.Tensor]:
        """Give the trainable leaves that were read and are still there."""
        found = {key: ref() for key, ref in list(self._leaves.items())}
        self._leaves = {key: self._leaves[key] for key, one in found.items() if one is not None}
        return [one for one in found.values() if one is not None]

    def _note_number(self, tensor: torch.Tensor, result: Any) -> None:
        if isinstance(result, float) and not math.isfinite(result):
            self._deferred.read()
            self._number = self.event_of(tensor)

    # What a bad result means.

    def event_of(self, tensor: torch.Tensor) -> Event | None:
        """Give the event that put bad values into a tensor's storage, None if none was seen."""
        return self._taints.event_of(tensor)

    def know(self, tensor: torch.Tensor, event: Event) -> None:
        """Take it from elsewhere where a tensor's bad values come from."""
        self._taints.note(tensor, event, flags(tensor))

    def _happened(self, call: _Call, bad: list[torch.Tensor]) -> None:
        kinds = [flags(one) for one in bad]
        place = self._place(call, _DEPTH + 2)
        shows_nan, shows_inf = any(n for n, _ in kinds), any(i for _, i in kinds)
        sources = self._sources(call, place)
        event = self._classified(call, bad, sources, place)
        event.shows_nan, event.shows_inf = shows_nan, shows_inf
        if call.plan.sends and not (shows_nan or shows_inf):
            event.shows_nan = any(one.shows_nan for one in sources)
            event.shows_inf = any(one.shows_inf for one in sources)
        if place.phase == "optimizer":
            self.trusts_optimizer = False  # from here on operations are given what is bad
        if event.origin is event:
            event = self._add_origin(event, call, bad)
        elif event.depth > _MOST_LINKS:
            event = event.parents[0]
        for one, known in zip(bad, kinds, strict=True):
            self._taints.note(one, event, known, lasts=not call.plan.sends)

    def _place(self, call: _Call, depth: int) -> Place:
        """Say where the operation belongs: phase, autograd node, line and module."""
        frame = sys._getframe(depth)
        node = _torch.current_autograd_node()
        here = spot(frame)
        if node is None:
            module = self.modules.running(frame)
            return Place(self._phase(call, module), None, here, None, module)
        made, module = self.sites.find(node)
        if runs_users_code(frame):  # a backward of the user's own, or a recomputed forward
            module = self.modules.running(frame) or module
            return Place("backward", node.name(), here, None, module)
        if made.site is None:
            return Place("backward", node.name(), here, None, module)
        return Place("backward", node.name(), made, here.site, module)

    def _phase(self, call: _Call, module: str) -> str:
        if self.in_optimizer:
            return "optimizer"
        if any(one.is_leaf and one.requires_grad for one in call.written()):
            return "optimizer"  # one written by hand: p -= lr * p.grad
        if not module and self.had_backward and self._is_update(call):
            return "optimizer"
        if module or any(one.requires_grad for one in call.tensors()):
            return "forward"
        if not torch.is_grad_enabled() and self.ran_module:
            return "forward"
        return "data"

    def _is_update(self, call: _Call) -> bool:
        """Say whether this looks like an optimizer of the user's own: it works on gradients."""
        if not torch.is_grad_enabled():
            return True
        gradients = {id(one.grad) for one in self.known_leaves()}
        return any(id(one) in gradients for one in call.tensors())

    def _sources(self, call: _Call, place: Place) -> list[_Source]:
        """Give the operands that were bad before the operation ran."""
        written = {id(one): (nan, inf) for one, nan, inf in self._about_to.overwritten}
        overwritten = {id(one) for one in call.written()}
        found, met = [], set()
        for one in call.tensors():
            if id(one) in met or not can_be_bad(one):
                continue
            if call.plan.overwrites and id(one) in overwritten:
                continue
            met.add(id(one))
            known = self.event_of(one)
            if id(one) in written:
                nan, inf = written[id(one)]
            elif id(one) in overwritten:  # in an optimizer: finite unless it was seen to be bad
                nan, inf = (known.shows_nan, known.shows_inf) if known else (False, False)
            else:
                nan, inf = self._taints.flags(one)
            if (nan or inf) and known is None and _is_number(one) and self._writes_plain(call):
                continue  # a number that the code writes: the operation is the origin
            if nan or inf:
                event = known or self._awaited(call)
                if event is None:
                    event = self._leaf(one, (nan, inf), call, place, id(one) in overwritten)
                found.append(_Source(one, nan, inf, event))
        return found

    def _awaited(self, call: _Call) -> Event | None:
        """Give what is known of values that arrive from other processes, by way of unseen memory."""
        if call.plan.base != "copy":
            return None
        events = filter(None, map(self.event_of, call.written()))
        return next((one for one in events if is_exchange(one.op)), None)

    def _writes_plain(self, call: _Call) -> bool:
        """Say whether an operation writes to something that is no parameter, also by its `.data`."""
        trained = {storage_of(one) for one in self.known_leaves()}
        return all(
            storage_of(one) not in trained and "." not in self._name_of(one)
            for one in call.written()
        )

    def _leaf(
        self, tensor: torch.Tensor, known: tuple[bool, bool], call: _Call, place: Place, gone: bool
    ) -> Event:
        """Note bad values that no operation made: they came in with a tensor."""
        event = self._circumstances(call, place).leaf()
        event.shows_nan, event.shows_inf = known
        event.meant = not event.shows_nan and (gone or is_mask(tensor))
        event.leaf = self._name_of(tensor)
        event.n_values = tensor.numel()
        if not gone:
            event.at, event.n_bad = first_bad(tensor)
            event.operands = (operand(event.leaf or "tensor", tensor, event.at),)
            self._taints.note(tensor, event, known)
        self._register(event)
        return event

    def unseen(
        self, tensor: torch.Tensor, op: str, phase: str, name: str, where: Spot = NOWHERE
    ) -> Event:
        """Note bad values that no operation was seen to make."""
        event = unseen(op, phase, step=self.step, index=self.n_ops, spot=where)
        event.shows_nan, event.shows_inf = flags(tensor)
        event.n_values, event.leaf = tensor.numel(), name
        self._taints.note(tensor, event, (event.shows_nan, event.shows_inf))
        self._register(event)
        return event

    def _classified(
        self, call: _Call, bad: list[torch.Tensor], sources: list[_Source], place: Place
    ) -> Event:
        """Say what the operation did: made it, turned an Inf into it, or passed it on."""
        seen = self._circumstances(call, place)
        shows_nan = any(nan for nan, _ in map(flags, bad))
        # A mask's -inf that goes through another operation is told by its sign: enough for a type
        # that finite values do not overflow.
        plain_mask = (
            not shows_nan
            and bad[0].dtype in WIDE
            and all(one.event.origin.meant for one in sources)
        )
        if sources and call.plan.pointwise and len(bad) == 1 and not plain_mask:
            sources, news = _at_first_bad(bad[0], sources)
            if news:
                return seen.event("born")
        return judged(seen, [(one.event, one.shows_nan) for one in sources], shows_nan=shows_nan)

    def _circumstances(self, call: _Call, place: Place) -> Circumstances:
        numbers = (*numbers_in((call.args, call.kwargs)), *_written_numbers(call))
        return Circumstances(call.plan, place, self.step, self.n_ops, numbers, self._number)

    def _known_or_new(self, event: Event) -> Event:
        """Note an origin; a forward that checkpointing runs again is the same one as before."""
        twin = self._twin(event)
        if twin is None:
            self._register(event)
        return twin or event

    def _add_origin(self, event: Event, call: _Call, bad: list[torch.Tensor]) -> Event:
        """Note an origin, with the values that it was made of."""
        known = self._known_or_new(event)
        if known is not event:
            return known
        if event.kind != "literal" and self._n_details < _MOST_DETAILS:
            self._n_details += 1
            event.at, event.n_bad = first_bad(bad[0])
            event.n_values = bad[0].numel()
            written = {id(one) for one in call.written()}
            before = operands(call.func, call.args, call.kwargs, written, event.at)
            found = (*before, operand("result", bad[0], event.at))
            source = event.spot.source if event.node is None else ""
            event.operands = labelled(found, event.base, source)
            if event.phase != "backward":
                self._open.add(id(event))
        else:
            event.n_values = bad[0].numel()
        return event

    def _register(self, event: Event) -> None:
        self.counts[event.key] = self.counts.get(event.key, 0) + 1
        self.origins.append(event)

    def _twin(self, event: Event) -> Event | None:
        """Find the same forward operation of this step, if this is its recomputation."""
        if event.phase != "backward" or event.ran is not None:
            return None
        for one in reversed(self.origins):
            if one.step != event.step:
                return None
            if one.op == event.op and one.where == event.where and one.phase == "forward":
                return one
        return None

    def _note_absorbed(self, call: _Call) -> None:
        for tensor in call.tensors():
            event = self.event_of(tensor)
            if event is not None and id(event.origin) in self._open:
                origin = event.origin
                self._open.discard(id(origin))
                origin.absorber = call.plan.op
                node = _torch.current_autograd_node()
                origin.absorber_phase = "forward" if node is None else "backward"


def own_failure(error: Exception) -> str:
    """Say where nbinspect itself failed, and let go of what the error holds."""
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    where = (
        ""
        if entry is None
        else f" ({Path(entry.tb_frame.f_code.co_filename).name}:{entry.tb_lineno})"
    )
    what = f"{type(error).__name__}: {error}{where}"
    error.__traceback__ = None
    return what


def _is_number(tensor: torch.Tensor) -> bool:
    """Say whether a tensor is a single number that nobody has a use for but one operation."""
    return tensor.dim() == 0 and tensor.device.type == "cpu" and not tensor.requires_grad


def _written_numbers(call: _Call) -> Iterator[float]:
    """Yield the numbers that an operation writes somewhere, which torch wraps as tensors first."""
    if call.plan.written and call.plan.base in {"copy", "fill", "index_put", "masked_fill"}:
        for one in call.tensors():
            if _is_number(one) and can_be_bad(one):
                yield float(one)


def is_mask(tensor: torch.Tensor) -> bool:
    """Say whether a tensor with infinities looks meant: all that is finite in it is one value."""
    values = torch.cat([part.reshape(-1) for part in dense_parts(tensor)])
    finite = values[values.isfinite()]
    return not finite.numel() or bool((finite == finite[0]).all())


def _at_first_bad(result: torch.Tensor, sources: list[_Source]) -> tuple[list[_Source], bool]:
    """Of a pointwise operation, give the operands that are bad where its result is.

    Returns:
        Those, and whether the result is bad somewhere although all operands are finite there.
    """
    try:
        bad = ~result.isfinite()
        explained = torch.zeros_like(bad)
        here = []
        for one in sources:
            theirs = (~one.tensor.isfinite()).broadcast_to(bad.shape)
            if bool((theirs & bad).any()):
                here.append(one)
            explained |= theirs
        return here or sources, bool((bad & ~explained).any())
    except RuntimeError:  # overwritten in place with another shape, sparse, nested
        return sources, False
