"""What else answers "which tensors are alive", each as its users write it."""

from __future__ import annotations

import contextlib
import gc
import io
import warnings
from collections.abc import Callable
from typing import Any

import torch


def gc_loop() -> list[tuple[type, torch.Size]]:
    """The loop of a hundred answers on the web; it prints its list, so it makes one."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in gc.get_objects():
            try:
                if torch.is_tensor(one) or (hasattr(one, "data") and torch.is_tensor(one.data)):
                    found.append((type(one), one.size()))
            except Exception:  # as it is always written
                pass
    return found


def has_memlab() -> bool:
    """Say whether pytorch_memlab can be imported; it prints a line where there is no GPU."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            import pytorch_memlab  # noqa: F401
        except ImportError:
            return False
    return True


def memlab(model: Any = None) -> str:
    """Give the report of pytorch_memlab's MemReporter."""
    from pytorch_memlab import MemReporter

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        MemReporter(model).report()
    return printed.getvalue()


def gpumem() -> Any:
    """Give nbinspect's snapshot."""
    import nbinspect

    return nbinspect.gpumem()


TOOLS: dict[str, Callable[[], Any]] = {
    "gpumem()": gpumem,
    "gc loop": gc_loop,
    "MemReporter": memlab,
}
