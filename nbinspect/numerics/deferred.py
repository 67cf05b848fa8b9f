"""Verdicts that stay on an accelerator until a step ends: no operation waits for the device.

For each operation the largest magnitude of each result is left on the device, with the numbers of
the storages that it read and wrote. When a step ends all verdicts are read at once. If one is not
finite the log is gone through in order, and each bad result is judged as it would have been at
once, with storages for tensors: a part of one counts as the whole.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from nbinspect import _torch
from nbinspect.numerics.check import can_be_bad, dense_parts
from nbinspect.numerics.events import GONE, Circumstances, Event, judged

MOST_ENTRIES = 5000  # then they are read, step or no step


class _Look(NamedTuple):
    """A storage, the verdict on what it holds, and whether that covers all of it."""

    handle: int
    verdict: int
    whole: bool


@dataclass(slots=True)
class _Entry:
    """An operation: what it read (verdicts only of what nobody had looked at) and what it gave."""

    seen: Circumstances
    reads: tuple[int, ...]
    fresh: tuple[tuple[_Look, str], ...]
    gives: tuple[_Look, ...]


class Deferred:
    """The log of a step.

    Args:
        known_or_new: takes an origin, and gives the one to use for it.
    """

    def __init__(self, known_or_new: Callable[[Event], Event]) -> None:
        self._known_or_new = known_or_new
        self._log: list[_Entry] = []
        self._verdicts: list[torch.Tensor] = []
        self._looked_at: set[int] = set()
        self._events: dict[int, Event] = {}

    def event(self, handle: int) -> Event | None:
        """Give the event that put bad values into a storage, as far as the log was read."""
        return self._events.get(handle)

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note storages that are new and empty: a number can come back."""
        for tensor in tensors:
            for handle in _handles(tensor):
                self._events.pop(handle, None)
                self._looked_at.discard(handle)

    def note(
        self,
        seen: Circumstances,
        reads: list[torch.Tensor],
        gives: list[torch.Tensor],
        name_of: Callable[[torch.Tensor], str],
    ) -> None:
        """Log an operation.

        Cost: one small kernel a result, no synchronisation.
        """
        written = {id(one) for one in gives}
        fresh = [
            (look, name_of(one))
            for one in reads
            if id(one) not in written and not self._looked_at.issuperset(_handles(one))
            for look in self._look(one)
        ]
        entry = _Entry(
            seen,
            tuple(handle for one in reads for handle in _handles(one)),
            tuple(fresh),
            tuple(look for one in gives for look in self._look(one)),
        )
        self._log.append(entry)
        if len(self._log) >= MOST_ENTRIES:
            self.read()

    def _look(self, tensor: torch.Tensor) -> Iterable[_Look]:
        if not can_be_bad(tensor):
            return
        for part in dense_parts(_torch.unwrapped(tensor)):
            if part.numel():
                self._verdicts.append(torch.linalg.vector_norm(part, math.inf))
                storage = part.untyped_storage()
                handle = _torch.handle(storage)
                self._looked_at.add(handle)
                whole = part.numel() * part.element_size() >= storage.nbytes()
                yield _Look(handle, len(self._verdicts) - 1, whole)

    def read(self) -> None:
        """Read all verdicts, and judge what is bad.

        Cost: one synchronisation a device and dtype.
        """
        log, self._log = self._log, []
        values = self._values()
        self._looked_at.clear()
        if log and (self._events or not all(map(math.isfinite, values))):
            for entry in log:
                self._judge(entry, values)

    def _values(self) -> list[float]:
        groups: dict[tuple[torch.device, torch.dtype], list[int]] = defaultdict(list)
        for number, verdict in enumerate(self._verdicts):
            groups[verdict.device, verdict.dtype].append(number)
        values = [0.0] * len(self._verdicts)
        for numbers in groups.values():
            together = torch.stack([self._verdicts[number] for number in numbers]).tolist()
            for number, value in zip(numbers, together, strict=True):
                values[number] = value
        self._verdicts.clear()
        return values

    def _judge(self, entry: _Entry, values: list[float]) -> None:
        for look, name in entry.fresh:
            if not math.isfinite(values[look.verdict]):
                self._leaf(entry, look, name, shows_nan=math.isnan(values[look.verdict]))
        bad = [look for look in entry.gives if not math.isfinite(values[look.verdict])]
        sources = [(e, e.shows_nan) for e in map(self._events.get, entry.reads) if e is not None]
        for look in entry.gives:
            if look.whole:
                self._events.pop(look.handle, None)
        if not bad:
            return
        shows_nan = any(math.isnan(values[look.verdict]) for look in bad)
        event = judged(entry.seen, sources, shows_nan=shows_nan)
        event.shows_nan, event.shows_inf = shows_nan, not shows_nan
        if event.origin is event:
            event.operands = GONE
            event = self._known_or_new(event)
        for look in bad:
            self._events[look.handle] = event

    def _leaf(self, entry: _Entry, look: _Look, name: str, *, shows_nan: bool) -> None:
        if look.handle in self._events:
            return
        event = entry.seen.leaf()
        event.shows_nan, event.shows_inf, event.meant = shows_nan, not shows_nan, not shows_nan
        event.leaf = name
        self._known_or_new(event)
        self._events[look.handle] = event


def _handles(tensor: torch.Tensor) -> list[int]:
    try:
        parts = dense_parts(_torch.unwrapped(tensor))
        return [_torch.handle(part.untyped_storage()) for part in parts]
    except Exception:  # a freed storage, or a type whose own code raises
        return []
