"""Which storages hold bad values, and the event that put them there."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from nbinspect import _torch
from nbinspect.numerics.check import dense_parts, flags
from nbinspect.numerics.events import Event


class _Tainted(weakref.ref[Any]):
    """A storage that holds bad values.

    Attributes:
        event: what put them there.
        flags: whether a tensor over it holds NaN and Inf.
        seen: version, place and layout of that tensor.
    """

    __slots__ = ("event", "flags", "seen")

    event: Event
    flags: tuple[bool, bool]
    seen: tuple[Any, ...]


class Taints:
    """Tells of a tensor where its bad values come from; holds no storage.

    Args:
        put_off: gives the event of a storage, by its handle, whose values are looked at later.
    """

    def __init__(self, put_off: Callable[[int], Event | None]) -> None:
        self._put_off = put_off
        self._known: dict[int, _Tainted] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def event_of(self, tensor: torch.Tensor) -> Event | None:
        """Give the event that put bad values into a tensor's storage, None if none was seen."""
        for storage in _storages(tensor):
            entry = self._known.get(_torch.handle(storage))
            if entry is not None and entry() is not None:
                return entry.event
            put_off = self._put_off(_torch.handle(storage))
            if put_off is not None:
                return put_off
        return None

    def note(
        self, tensor: torch.Tensor, event: Event, known: tuple[bool, bool], *, lasts: bool = True
    ) -> None:
        """Note what put bad values into a tensor.

        Args:
            tensor: it.
            event: what did.
            known: whether it holds NaN and Inf.
            lasts: this is so until somebody writes to it.
        """
        for storage in _storages(tensor):
            entry = _Tainted(storage)
            entry.event, entry.flags = event, known
            entry.seen = _state(tensor) if lasts else ()
            self._known[_torch.handle(storage)] = entry

    def flags(self, tensor: torch.Tensor) -> tuple[bool, bool]:
        """Say whether a tensor holds NaN and Inf, from memory if nobody wrote to it since."""
        for storage in _storages(tensor):
            entry = self._known.get(_torch.handle(storage))
            if entry is not None and entry() is not None and entry.seen == _state(tensor):
                return entry.flags
        return flags(tensor)

    def cleaned(self, tensors: Iterable[torch.Tensor]) -> None:
        """Forget the events of storages that were overwritten whole by finite values."""
        for tensor in tensors:
            for storage in _storages(tensor):
                whole = tensor.numel() * tensor.element_size() >= storage.nbytes()
                if whole:
                    self._known.pop(_torch.handle(storage), None)

    def forget_gone(self) -> None:
        """Forget storages that are no more."""
        self._known = {key: one for key, one in self._known.items() if one() is not None}

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()


def _storages(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    try:
        plain = _torch.unwrapped(tensor)
        if plain.layout is torch.strided and not plain.is_nested:
            return [plain.untyped_storage()]  # its values may have to be converted to be read
        return [part.untyped_storage() for part in dense_parts(plain)]
    except Exception:  # a freed storage, or a type whose own code raises
        return []


def _state(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Say which values a tensor shows: another state may show others."""
    try:
        return tensor._version, tensor.shape, tensor.storage_offset(), tensor.stride()  # noqa: SLF001 - documented in torch's notes on in-place operations
    except Exception:  # sparse, nested, made in inference mode
        return (object(),)


def storage_of(tensor: torch.Tensor) -> int:
    """Give what tensors that share their bytes have in common."""
    return next((_torch.handle(storage) for storage in _storages(tensor)), -id(tensor))
