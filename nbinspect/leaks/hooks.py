"""The functions that live modules call as hooks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch

from nbinspect.heapgraph.graph import collector_paused
from nbinspect.heapgraph.objects import instance_dict, isinstance_of


def hook_codes() -> set[CodeType]:
    """Give the code of every hook of every live module.

    Cost: a pass over the heap.
    """
    with collector_paused():
        modules = [one for one in gc.get_objects() if isinstance_of(one, torch.nn.Module)]
        return {code for module in modules for code in _codes(instance_dict(module) or {})}


def _codes(own: dict[str, Any]) -> Iterator[CodeType]:
    for name, hooks in own.items():
        if type(name) is str and name.endswith("_hooks") and isinstance_of(hooks, dict):
            for hook in dict.values(hooks):
                function = getattr(hook, "__func__", hook)
                code: Any = getattr(function, "__code__", None)
                if isinstance_of(code, CodeType):
                    yield code
