"""The user's names for tensors: parameters, buffers, gradients and variables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from nbinspect import _torch, notebook
from nbinspect.ops import running_user_frame
from nbinspect.tensors import describe, is_tensor

_MOST_ITEMS = 1000  # of a list, dict or object that is looked into
_NO_HOLDERS = (ModuleType, type, FunctionType)


class Names:
    """Names tensors as the running functions and the notebook know them.

    Made when something was found, since that is when the frames are still there. Keeps no tensor.

    Attributes:
        modules: the modules that have names, until `close`.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, str] = {}
        self._by_storage: dict[int, str] = {}
        self.modules: list[nn.Module] = []
        seen: set[int] = set()
        for name, value in _variables():
            self._take(name, value, seen)

    def close(self) -> None:
        """Let go of the modules."""
        self.modules.clear()

    def __call__(self, tensor: torch.Tensor) -> str:
        """Name a tensor, "" if nobody has a name for it."""
        name = self._by_id.get(id(tensor))
        return name or self._by_storage.get(_key(tensor), "")

    def gradient(self, tensor: torch.Tensor) -> str:
        """Name the gradient of a leaf."""
        return f"{self(tensor) or describe(tensor)}.grad"

    def _take(self, name: str, value: Any, seen: set[int]) -> None:
        if isinstance(value, nn.Module):
            self._take_module(name, value, seen)
        elif is_tensor(value):
            self._note(name, value)
        elif type(value) in {list, tuple} and len(value) <= _MOST_ITEMS:
            for i, one in enumerate(value):
                if is_tensor(one) or (isinstance(one, nn.Module) and id(one) not in seen):
                    self._take(f"{name}[{i}]", one, seen)
        elif type(value) is dict and len(value) <= _MOST_ITEMS:
            for key, one in value.items():
                if is_tensor(one) and type(key) in {str, int}:
                    self._note(f"{name}[{key!r}]", one)
        elif id(value) not in seen:  # a trainer of the user's, say, whose model this is
            seen.add(id(value))
            for key, one in _attributes(value):
                if is_tensor(one) or isinstance(one, nn.Module):
                    self._take(f"{name}.{key}", one, seen)

    def _take_module(self, name: str, module: nn.Module, seen: set[int]) -> None:
        if id(module) in seen:
            return
        seen.update(map(id, module.modules()))
        self.modules.append(module)
        for path, one in module.named_parameters():
            self._note(f"{name}.{path}", one)
            if type(one) is nn.Parameter and one.grad is not None:
                self._note(f"{name}.{path}.grad", one.grad)
        for path, buffer in module.named_buffers():
            self._note(f"{name}.{path}", buffer)

    def _note(self, name: str, tensor: torch.Tensor) -> None:
        self._by_id.setdefault(id(tensor), name)
        self._by_storage.setdefault(_key(tensor), name)


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Give an object's own attributes; none of a module, a class or a function."""
    if isinstance(value, _NO_HOLDERS):
        return []
    try:
        return list(object.__getattribute__(value, "__dict__").items())[:_MOST_ITEMS]
    except Exception:  # it has none, or its own code makes them
        return []


def _key(tensor: torch.Tensor) -> int:
    try:
        return _torch.handle(_torch.unwrapped(tensor).untyped_storage())
    except Exception:  # sparse, freed, or a type whose own code raises
        return -id(tensor)


def _variables() -> Iterator[tuple[str, Any]]:
    """Yield the names of the notebook, then of running functions, the outermost first.

    Attributes of `self` come through whoever has a name for that object; it comes last.
    """
    late = []
    yield from (pair for pair in list(notebook.user_namespace().items()) if _is_own(pair[0]))
    for frame in reversed(list(_user_frames())):
        for name, value in notebook.frame_locals(frame).items():
            if name == "self":
                late.append((name, value))
            elif _is_own(name):
                yield name, value
    yield from late


def _user_frames() -> Iterator[Any]:
    frame = running_user_frame(sys._getframe(1))
    while frame is not None:
        yield frame
        frame = notebook.user_frame(frame.f_back)


def _is_own(name: str) -> bool:
    return not name.startswith("_") and not notebook.is_out_name(name)
