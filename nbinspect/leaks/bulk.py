"""How much arrays, texts and buffers take, which Python's collector does not follow."""

from __future__ import annotations

import array
import io
import mmap
from typing import Any

import numpy as np

from nbinspect.heapgraph.objects import isinstance_of, own_size
from nbinspect.tensors import is_tensor

BULK = (np.ndarray, str, bytes, bytearray, array.array, io.BytesIO, io.StringIO)
SMALL_PART = 0.5  # a view that uses less of its array keeps the rest for nothing
_BASE: Any = vars(np.ndarray)["base"]
_BYTES: Any = vars(np.ndarray)["nbytes"]


def bulk_bytes(value: Any) -> tuple[int, int]:
    """Give the id of what owns the bytes of an array, text or buffer, and how many it has.

    A view's are those of the whole array. What lies over a tensor or a mapped file has none here:
    that memory is the tensor's, or the file's.
    """
    if not isinstance_of(value, np.ndarray):
        return id(value), own_size(value)
    owner = value
    while isinstance_of(base := _BASE.__get__(owner), np.ndarray):
        owner = base
    if type(base) is memoryview:
        base = base.obj
    if base is None:
        return id(owner), int(_BYTES.__get__(owner))
    if is_tensor(base) or isinstance_of(base, mmap.mmap):
        return id(base), 0
    if isinstance_of(base, *BULK):
        return bulk_bytes(base)
    return id(base), int(_BYTES.__get__(value))


def is_small_view(value: Any) -> bool:
    """Say whether a value is an array that keeps a much larger one whole."""
    if not isinstance_of(value, np.ndarray):
        return False
    own = int(_BYTES.__get__(value))
    return own < SMALL_PART * bulk_bytes(value)[1]
