"""Where the steps of a running program began, so that the one that failed can be run again.

Backward passes and optimizers' writes are the marks. What is run again is a turn of a loop or a
function, and it may hold several of them (two optimizers, micro-batches): it began at the last
mark that lies outside of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from types import CodeType, FrameType
from typing import NamedTuple

from nbinspect import notebook
from nbinspect.numerics.pinned import Buffer, Pinned
from nbinspect.numerics.steps import CLOSURE
from nbinspect.numerics.turn import Turn, is_base

Path = tuple[tuple[CodeType, int], ...]
"""The user's running functions and their lines, the outermost first."""

_MOST = 16  # marks of different places; each holds a copy of the buffers


class Start(NamedTuple):
    """What was so at a mark.

    Attributes:
        pinned: random generators and buffers.
        n_backwards: backward passes that had run.
        n_writes: optimizer steps that had been taken.
    """

    pinned: Pinned
    n_backwards: int
    n_writes: int


class Starts:
    """The marks of the last turn or two.

    Args:
        code: the cell, or the function that holds the `with` block; None if it is not known.
        line: that of the `with` statement, 0 for a cell.
    """

    def __init__(self, code: CodeType | None, line: int) -> None:
        self.code = code
        self.line = line
        self.since = 0  # the line that ran at the last mark
        self._kept: dict[Path, Start] = {}
        self._of_closure: Start | None = None

    def clear(self) -> None:
        """Let go of everything."""
        self._kept.clear()
        self._of_closure = None

    def mark(
        self, buffers: Iterable[Buffer], n_backwards: int, n_writes: int, *, closure: bool
    ) -> None:
        """Keep what is so now; of marks at the same place the last is enough."""
        start = Start(Pinned(buffers), n_backwards, n_writes)
        self._of_closure = start if closure else None
        if closure:
            return
        frames = running(self.code)
        path = path_of(frames)
        self.since = path[0][1] if path and path[0][1] > self.line else 0
        self._kept.pop(path, None)
        self._kept[path] = start
        while len(self._kept) > _MOST:
            del self._kept[next(iter(self._kept))]

    def of(self, turn: Turn, frames: Sequence[FrameType]) -> Start | None:
        """Give where a turn began, None if that was not kept.

        Args:
            turn: what is to be run again.
            frames: the running functions, the innermost first.
        """
        if self._of_closure is not None:
            return self._of_closure
        now = path_of(frames)
        for path, start in reversed(self._kept.items()):
            if turn.depth is None or not _is_within(path, now, turn.depth, turn.first_line):
                return start
        return None


def running(code: CodeType | None) -> list[FrameType]:
    """List the running functions of the user's, the innermost first, down to the base.

    Of an optimizer's closure, only what runs in it.
    """
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is CLOSURE:
            break
        if notebook.is_users_file(frame.f_code.co_filename):
            found.append(frame)
            if is_base(frame, code):
                break
        frame = frame.f_back
    return found


def path_of(frames: Sequence[FrameType]) -> Path:
    """Say where the running functions stand."""
    return tuple((frame.f_code, frame.f_lineno) for frame in reversed(frames))


def _is_within(path: Path, now: Path, depth: int, first_line: int) -> bool:
    """Say whether a mark lies in the turn that runs now, between its first line and here."""
    if path[:depth] != now[:depth] or len(path) <= depth:
        return False
    (code, line), (code_now, _) = path[depth], now[depth]
    return code is code_now and line >= first_line and _is_before(path[depth:], now[depth:])


def _is_before(path: Path, now: Path) -> bool:
    for (code, line), (code_now, line_now) in zip(path, now, strict=False):
        if code is not code_now or line != line_now:
            return code is code_now and line < line_now
    return False
