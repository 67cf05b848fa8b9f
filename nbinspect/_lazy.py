"""Public names that are imported when they are first asked for: torch takes a second."""

import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazily(
    package: str, homes: dict[str, str], names: list[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Give a package's ``__getattr__`` and ``__dir__``.

    Args:
        package: its ``__name__``.
        homes: the module that each of these names is imported from.
        names: all of its public names, imported or not.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: names
