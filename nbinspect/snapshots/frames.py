"""From the stack of an allocation to the line that a user would name."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from nbinspect import notebook
from nbinspect.records import SourceLine
from nbinspect.snapshots.reading import text

LIBRARY = re.compile(
    r"(^|[/\\])(site-packages|dist-packages|lib[/\\]python3[^/\\]*)[/\\]|^<frozen|^torch[/\\]"
)
CELL = re.compile(r"<ipython-input-(\d+)-\w+>")
KERNEL_FILE = re.compile(r"[/\\]ipykernel_\d+[/\\](\d+)\.py$")
TAG = re.compile(r"In\[(\d+)\]")
MACHINERY = re.compile(r"unwind|CapturedTraceback|gather_with_cpp|c10::cuda|CachingAllocator")
MOST_FRAMES = 200  # of one stack


class Line(NamedTuple):
    """A line, and the function that it is in."""

    where: SourceLine | None
    function: str


class Lines:
    """Finds the user's line of each stack; equal stacks are one object in a file."""

    def __init__(self) -> None:
        self._known: dict[int, Line] = {}
        self._kept: list[Any] = []  # so that ids stay their own

    def of(self, entry: Any) -> Line:
        """Give the line of a block or of an entry of the log."""
        frames = _frames(entry)
        if not frames:
            return Line(None, "")
        tag = TAG.search(text(entry, "user_metadata"))
        if tag is not None:
            return _line(frames, int(tag[1]))
        if id(frames) not in self._known:
            self._known[id(frames)] = _line(frames, None)
            self._kept.append(frames)
        return self._known[id(frames)]


def _frames(entry: Any) -> list[Any]:
    """Give an entry's frames, the innermost first; old files keep them in a history."""
    frames = entry.get("frames")
    if not frames and isinstance(entry.get("history"), list) and entry["history"]:
        first = entry["history"][0]
        frames = first.get("frames") if isinstance(first, dict) else None
    return frames if isinstance(frames, list) else []


def _line(frames: list[Any], tagged_cell: int | None) -> Line:
    python = [one for one in frames[:MOST_FRAMES] if _is_python(text(one, "filename"))]
    if not python:
        return Line(None, _native_name(frames))
    users = [one for one in python if not LIBRARY.search(text(one, "filename"))]
    chosen = (users or python)[0]
    file, lineno = text(chosen, "filename"), chosen.get("line") if isinstance(chosen, dict) else 0
    cell = _cell(file)
    if cell is None and tagged_cell is not None and KERNEL_FILE.search(file):
        cell = tagged_cell
    shown = "" if cell is not None else _short(file)
    where = SourceLine(cell, shown, lineno if type(lineno) is int else 0, "")
    return Line(where, text(chosen, "name"))


def _native_name(frames: list[Any]) -> str:
    """Name what asked where no line of Python did: mostly the threads that run backward."""
    names = [text(one, "name") for one in frames[:MOST_FRAMES]]
    if any("autograd::Engine" in name for name in names):
        return "backward"
    return next((name for name in names if not MACHINERY.search(name)), names[0])


def _is_python(file: str) -> bool:
    return file.endswith(".py") or CELL.match(file) is not None or file in {"<stdin>", "<string>"}


def _cell(file: str) -> int | None:
    """Give n if a file name means ``In[n]``: by its own words, or in the kernel that ran it."""
    found = CELL.match(file)
    return int(found[1]) if found else notebook.cell_number(file)


def _short(file: str) -> str:
    found = KERNEL_FILE.search(file)
    return f"a cell ({found[1]}.py)" if found else file
