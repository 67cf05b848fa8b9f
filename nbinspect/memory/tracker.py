"""Follows every storage from the operation that made it to its death, on any device."""

from __future__ import annotations

import sys
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from nbinspect import _torch
from nbinspect.ops import ModuleNames, Site, user_site
from nbinspect.tensors import is_tensor, is_wrapper

_DEPTH = 3  # from `Tracker._origin` up to the dispatch mode
MOST_STEPS = 4096  # of a device's curve; twice that is thinned


@dataclass(frozen=True, eq=False, slots=True)
class Origin:
    """Where a storage was made: the user's line, and the module whose forward was running.

    A `Tracker` makes one object for each place, so that it is hashed by identity: to hash a code
    object takes 1 µs, as long as all the rest for a storage.
    """

    site: Site
    module: str


class LiveStorage(weakref.ref[torch.UntypedStorage]):
    """A storage that is still alive; knows what to subtract when it no longer is.

    Attributes:
        serial: how many were met up to it.
    """

    __slots__ = ("device", "key", "origin", "serial", "size_bytes")

    key: int
    serial: int
    device: str
    size_bytes: int
    origin: Origin | None


class Curve:
    """Bytes on one device over time, thinned so that no peak is lost.

    Attributes:
        times_ns: when the curve changed.
        sizes_bytes: how much was held from then on, above the start.
    """

    def __init__(self, start_ns: int) -> None:
        self.times_ns = [start_ns]
        self.sizes_bytes = [0]

    def add(self, time_ns: int, size_bytes: int) -> None:
        """Note that the curve is at `size_bytes` from `time_ns` on."""
        self.times_ns.append(time_ns)
        self.sizes_bytes.append(size_bytes)
        if len(self.times_ns) > 2 * MOST_STEPS:
            self.thin()

    def thin(self) -> None:
        """Keep the lower and the higher of every four steps, and the first and the last."""
        sizes = np.asarray(self.sizes_bytes)
        last = len(sizes) - 1
        starts = np.arange(0, last + 1, 4)
        groups = np.minimum(starts[:, None] + np.arange(4), last)
        of_four = sizes[groups]
        lows = starts + of_four.argmin(axis=1)
        highs = starts + of_four.argmax(axis=1)
        order = np.unique(np.concatenate(([0, last], lows, highs))).tolist()
        self.times_ns = [self.times_ns[i] for i in order]
        self.sizes_bytes = [self.sizes_bytes[i] for i in order]


class DeviceTally:
    """What one device holds above the start, now and at its peak, and by origin.

    Attributes:
        now_bytes: held now, above what was held at the start; below zero if more was freed.
        peak_bytes: the most that was, at least 0.
        peak_ns: when.
        peak_site: the line that reached it.
        at_peak: bytes of each origin that were alive at the peak.
    """

    def __init__(self, start_ns: int) -> None:
        self.now_bytes = 0
        self.peak_bytes = 0
        self.peak_ns = start_ns
        self.peak_site: Site = None
        self.at_peak: dict[Origin, int] = defaultdict(int)
        self._since_peak: dict[Origin, int] = defaultdict(int)
        self.curve = Curve(start_ns)

    def change(self, size_bytes: int, origin: Origin | None) -> None:
        """Note bytes that came (or, below zero, went)."""
        now_ns = time.time_ns()
        self.now_bytes += size_bytes
        if origin is not None:
            self._since_peak[origin] += size_bytes
        if self.now_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_ns = self.now_bytes, now_ns
            self.peak_site = origin.site if origin else None
            for one, change in self._since_peak.items():
                self.at_peak[one] += change
            self._since_peak.clear()
        self.curve.add(now_ns, self.now_bytes)


class Tracker:
    """Subscribes to an `OpStream` and keeps a tally for each device.

    Holds weak references only. Storages are met as results and as arguments of operations, so
    one that came from NumPy or from a data loader's worker counts from its first use on.

    Attributes:
        modules: names of the modules that allocated.
        allocated: bytes and number of storages made, by device and origin.
        old_frees: (time in ns, bytes) of storages from before that ended, by device.
        n_met: how many storages were met so far.
    """

    def __init__(self) -> None:
        self.start_ns = time.time_ns()
        self.modules = ModuleNames()
        self.tallies: dict[str, DeviceTally] = {}
        self.allocated: dict[tuple[str, Origin], list[int]] = {}
        self.old_frees: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.n_met = 0
        self._live: dict[int, LiveStorage] = {}
        self._origins: dict[tuple[int, int, str], Origin] = {}
        # Filled by weak references' callbacks. Python swallows what a callback raises, so one in
        # Python could swallow the user's interrupt; `append` runs no bytecode and cannot.
        self._ended: deque[LiveStorage] = deque()

    def know(self, tensors: Iterable[Any]) -> None:
        """Take storages that were there before, so that their end counts."""
        for tensor in tensors:
            storage = _storage(tensor)
            if storage is None or not _has_bytes(tensor, storage):
                continue
            if _torch.handle(storage) not in self._live:
                self._follow(storage, None)

    def __call__(self, _func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Look at an operation's results, then at its arguments."""
        if self._ended:
            self._note_ends()
        self._see(result)
        self._see(args)
        if kwargs:
            self._see(tuple(kwargs.values()))

    def _see(self, value: Any) -> None:
        kind = type(value)
        if kind is tuple or kind is list:
            for one in value:
                self._see(one)
        elif kind is torch.Tensor or kind is torch.nn.Parameter or is_tensor(value):
            storage = _storage(value)
            if storage is None:
                return
            known = self._live.get(_torch.handle(storage))
            if known is None:
                if _has_bytes(value, storage):
                    self._follow(storage, self._origin())
            elif known.size_bytes != storage.nbytes():
                self._resize(known, storage.nbytes())

    def _origin(self) -> Origin:
        """Say where in the user's code and in which forward this operation is."""
        frame = sys._getframe(_DEPTH)
        in_backward = _torch.current_autograd_node() is not None
        module = "" if in_backward else self.modules.running(frame)
        site = user_site(frame)
        key = (id(site[0]), site[1], module) if site is not None else (0, 0, module)
        known = self._origins.get(key)
        if known is None:
            known = self._origins[key] = Origin(site, module)
        return known

    def _follow(self, storage: torch.UntypedStorage, origin: Origin | None) -> None:
        one = LiveStorage(storage, self._ended.append)
        one.key, one.device = _torch.handle(storage), _device_name(storage.device)
        one.size_bytes, one.origin = storage.nbytes(), origin
        self.n_met += 1
        one.serial = self.n_met
        self._live[one.key] = one
        if origin is not None:
            sums = self.allocated.setdefault((one.device, origin), [0, 0])
            sums[0] += one.size_bytes
            sums[1] += 1
            self.tally(one.device).change(one.size_bytes, origin)

    def _resize(self, one: LiveStorage, size_bytes: int) -> None:
        self.tally(one.device).change(size_bytes - one.size_bytes, one.origin)
        one.size_bytes = size_bytes

    def tally(self, device: str) -> DeviceTally:
        """Give the tally of a device, a new one at its first use."""
        if device not in self.tallies:
            self.tallies[device] = DeviceTally(self.start_ns)
        return self.tallies[device]

    def kept(self) -> dict[tuple[str, Origin], int]:
        """Sum what is alive now of what was made, by device and origin."""
        self._note_ends()
        sums: dict[tuple[str, Origin], int] = defaultdict(int)
        for one in list(self._live.values()):
            if one.origin is not None:
                sums[one.device, one.origin] += one.size_bytes
        return dict(sums)

    def old(self) -> dict[int, int]:
        """Give the sizes of what is alive now and was there before, by handle."""
        self._note_ends()
        return {one.key: one.size_bytes for one in self._live.values() if one.origin is None}

    def living(self) -> list[LiveStorage]:
        """List the storages that were met and are alive."""
        self._note_ends()
        return list(self._live.values())

    def close(self) -> None:
        """Stop listening: storages that die later tell nobody."""
        self._live.clear()

    def _note_ends(self) -> None:
        """Subtract what has ended since the operation before."""
        while self._ended:
            one = self._ended.popleft()
            if self._live.get(one.key) is one:
                del self._live[one.key]
                self.tally(one.device).change(-one.size_bytes, one.origin)
                if one.origin is None:
                    self.old_frees[one.device].append((time.time_ns(), one.size_bytes))


_device_name = lru_cache(str)


def _storage(tensor: Any) -> torch.UntypedStorage | None:
    try:
        storage: torch.UntypedStorage = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # sparse, or half made
        return None
    return storage


def _has_bytes(tensor: Any, storage: torch.UntypedStorage) -> bool:
    """Say whether a storage is memory, not a description (meta, fake) or a wrapper's stand-in."""
    if _device_name(storage.device) == "meta":
        return False
    try:
        return not is_wrapper(tensor) or storage.data_ptr() != 0
    except RuntimeError:
        return False
