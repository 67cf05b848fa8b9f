"""The user's side: names, displayed values, errors, running frames and source lines.

IPython is looked up in `sys.modules` and never imported; in a plain script ``__main__`` stands in
for the notebook.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import os
import re
import site
import sys
import sysconfig
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from nbinspect.records import SourceLine

UNDO = "_nbinspect_undo"
"""Where the shell keeps what undoes the loading of the extension: it outlives a re-import of that."""
OUT_NAME = re.compile(r"_{1,3}|_\d+|_oh|Out")
LAST_ERROR = ("last_value", "last_traceback", "last_type", "last_exc")  # in `sys`
_PACKAGES = frozenset({"site-packages", "dist-packages"})
PLUMBING = (
    "nbinspect",
    "IPython",
    "ipykernel",
    "tornado",
    "asyncio",
    "traitlets",
    "zmq",
    "runpy",
    "threading",
    "concurrent",
    "nest_asyncio",
    "jupyter_client",
)


def shell() -> Any:
    """Give the running IPython shell, None in a plain script."""
    module = sys.modules.get("IPython")
    get = getattr(module, "get_ipython", None)
    return get() if get is not None else None


def user_namespace() -> dict[str, Any]:
    """Give the dictionary of the notebook's, or the script's, global names."""
    running = shell()
    names: dict[str, Any] = (
        running.user_ns if running is not None else vars(sys.modules["__main__"])
    )
    return names


def current_cell() -> str:
    """Give the source of the cell that is running or has just run, "" in a plain script."""
    inputs = getattr(shell(), "user_ns", {}).get("In") or [""]
    return str(inputs[-1])


def is_out_name(name: object) -> bool:
    """Say whether IPython made this name for a displayed value: ``_``, ``_4``, ``Out``."""
    return isinstance(name, str) and OUT_NAME.fullmatch(name) is not None


def cell_number(filename: str) -> int | None:
    """Give n if code with this file name was typed into ``In[n]``, None for a file's code.

    Blind to: the same source run twice; the later number is given.
    """
    compiler = getattr(shell(), "compile", None)
    number = getattr(compiler, "_filename_map", {}).get(filename)
    return number if isinstance(number, int) else None


def source_lines(filename: str, names: dict[str, Any] | None = None) -> list[str]:
    """Give the lines of a file or cell, [] if they are not to be had.

    Args:
        filename: as code has it.
        names: the globals of that code; a loader among them may know the source.
    """
    try:
        return linecache.getlines(filename, names) or []
    except Exception:  # a loader of the user's fails
        return []


def source_line(code: CodeType, lineno: int | None) -> SourceLine:
    """Name a line of code as the user knows it; None is what a frame gives that is just starting."""
    lineno = lineno if lineno is not None else code.co_firstlineno
    cell = cell_number(code.co_filename)
    lines = source_lines(code.co_filename)
    text = _as_typed(lines[lineno - 1].strip()) if 0 < lineno <= len(lines) else ""
    return SourceLine(cell, "" if cell is not None else short_path(code.co_filename), lineno, text)


_MAGIC_CALL = re.compile(r"(.*?)get_ipython\(\)\.run_line_magic\((.+)\)")


def _as_typed(text: str) -> str:
    """Give a line with a magic as it was before IPython made a call of it."""
    found = _MAGIC_CALL.fullmatch(text)
    if found is None:
        return text
    try:
        name, line = ast.literal_eval(f"({found[2]})")
    except (SyntaxError, ValueError):
        return text
    return f"{found[1]}%{name} {line}".strip()


def source_segment(code: CodeType, instruction: int) -> str:
    """Give the expression that an instruction belongs to, e.g. ``d.sqrt()``, as the user wrote it.

    Args:
        code: the code of a frame.
        instruction: the frame's ``f_lasti``.

    Returns:
        "" if the source or the position is not to be had (``python -X no_debug_ranges``).
    """
    positions = next(itertools.islice(code.co_positions(), instruction // 2, None), None)
    if positions is None or None in positions:
        return ""
    first, last, start, end = positions
    known = source_lines(code.co_filename)
    lines = [line.encode() for line in known[(first or 1) - 1 : last]]  # columns count bytes
    if not lines:
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace")


def short_path(filename: str) -> str:
    """Give a path from the folder that Python imports it from, the nearest one; else as it is."""
    tops = (os.path.join(top or os.getcwd(), "") for top in sys.path)  # noqa: PTH118, PTH109 - text
    return filename[max((len(top) for top in tops if filename.startswith(top)), default=0) :]


@lru_cache(maxsize=4096)
def is_users_file(filename: str) -> bool:
    """Say whether a file is the user's own: no library's, not Python's and not nbinspect's."""
    if cell_number(filename) is not None or filename.startswith("<timed"):
        return True
    if filename.startswith("<") or not filename:
        return filename in {"<stdin>", "<string>"}
    if not _PACKAGES.isdisjoint(Path(filename).parts):  # of another environment that this one sees
        return False
    return not os.path.realpath(filename).startswith(_library_folders())


@lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    """List where libraries lie; an editable install outside of them counts as the user's."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(name) for name in names}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    folders.add(str(Path(__file__).parent))
    return tuple(os.path.realpath(folder) + os.sep for folder in folders if folder)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Give the nearest frame of the user's own code, from `frame` outwards."""
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@dataclass(frozen=True, slots=True)
class RunningFrame:
    """A function call that has not returned; `values` are its local variables."""

    label: str
    values: dict[str, Any]
    code: CodeType


def running_frames() -> Iterator[RunningFrame]:
    """Give every thread's calls, but for the interpreter's, IPython's and nbinspect's own.

    Blind to: values that a running expression has not bound to a name; a call of another thread
        that has not reached its first line, whose variables are not all made yet.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    here = threading.get_ident()
    for thread, top in list(sys._current_frames().items()):
        where = "" if thread == here else f" of thread {names.get(thread, thread)}"
        frame: FrameType | None = top
        while frame is not None:
            has_begun = frame.f_lineno is not None
            if has_begun and _has_own_locals(frame) and not _is_plumbing(frame):
                yield RunningFrame(frame_label(frame) + where, frame_locals(frame), frame.f_code)
            frame = frame.f_back


def _is_plumbing(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] in PLUMBING


def _has_own_locals(frame: FrameType) -> bool:
    """Say whether the frame's names are not simply a module's or a class body's dictionary."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def frame_label(frame: FrameType) -> str:
    """Name a call as ``frame train() In[7] line 12``."""
    where = source_line(frame.f_code, frame.f_lineno).label
    return f"frame {frame.f_code.co_name}() {where}"


def frame_locals(frame: FrameType) -> dict[str, Any]:
    """Copy a frame's local variables and leave no trace of having looked.

    Before Python 3.13 reading ``f_locals`` leaves a dictionary on the frame, which would keep the
    values after the user has deleted the names. It is emptied again, unless the user has it too.
    """
    names: Any = frame.f_locals  # a dictionary or, from Python 3.13, a view of the frame
    found = dict(names)
    if isinstance(names, dict) and _has_own_locals(frame) and sys.getrefcount(names) <= 3:
        names.clear()
    return found
