"""Which function a line is calling when an operation runs: what autocast sees, and a mode does not.

A function such as ``cosine_similarity`` is broken up into operations before a dispatch mode sees
them. The Python code that calls it still stands at that call, and tells its name.
"""

from __future__ import annotations

import ast
from types import CodeType, FrameType

from nbinspect import notebook


class CallSites:
    """Reads, and remembers, the name of the function that a frame is calling."""

    def __init__(self) -> None:
        self._names: dict[tuple[CodeType, int], str] = {}

    def called_by(self, frame: FrameType | None) -> str:
        """Name the function that runs an operation directly.

        Returns:
            The function of `torch.nn.functional` whose code this is, else what the line calls,
            e.g. ``norm`` for ``x.norm()``; "" for an operator, or where there is no source.

        Cost: below 1 µs, once a place is known.
        """
        if frame is None:
            return ""
        if frame.f_globals.get("__name__") == "torch.nn.functional":
            return frame.f_code.co_name
        place = (frame.f_code, frame.f_lasti)
        if place not in self._names:
            self._names[place] = _called(*place)
        return self._names[place]


def _called(code: CodeType, at: int) -> str:
    """Name the function that the instruction that runs calls."""
    try:
        tree = ast.parse(notebook.source_segment(code, at), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    function = tree.func if isinstance(tree, ast.Call) else None
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
