"""Runs the user's cell inside its watches: the one way for all cell magics.

There is one context, `Watching`, and there are two entries into it:

1. The cell starts with our lines. An input transformation turns them into comments, so that
   IPython runs the rest as the plain cell it is: `await`, line numbers, the last value, errors.
   Events before and after the cell open and close the watches.
2. Another magic has a part in it: `%%time` over ours or ours over `%%time`. Then IPython calls
   our magic with the rest of the cell, which `body.compile_body` makes behave as a cell does,
   except that `await` is out of reach there, as it is in other cell magics.

Which one it is gets decided by `CellRunner.take_over` alone, before the cell and never within.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult

from nbinspect.magics.body import compile_body
from nbinspect.magics.options import Call
from nbinspect.magics.repeating import RepeatCell, Rounds, forget
from nbinspect.magics.showing import Shell, Showing, own_errors
from nbinspect.magics.table import WATCHES, Watch, WatchMagic


@dataclass(frozen=True, slots=True)
class Header:
    """One of our lines at the top of a cell."""

    magic: WatchMagic
    call: Call


def read_headers(lines: Sequence[str]) -> tuple[list[Header], int]:
    """Read the leading lines that are ours, and say how many lines they take.

    Blank lines between them count, as IPython too skips those before a cell magic.

    Raises:
        UsageError: one of them has a bad option.
    """
    headers: list[Header] = []
    n_lines = 0
    for number, line in enumerate(lines, 1):
        name, _, rest = line[2:].rstrip().partition(" ")
        if line.startswith("%%") and name in WATCHES:
            headers.append(Header(WATCHES[name], WATCHES[name].options.parse(rest)))
            n_lines = number
        elif line.strip():
            break
    return headers, n_lines


class Watching:
    """The context in which a user's cell runs: opens its watches, closes them, shows the reports.

    The outcome of the cell is the user's alone: an error of a watch becomes a note, and what the
    cell raised goes on as the same object.

    Args:
        headers: the watches, the outermost first.
        showing: where the reports go.
        info: the cell, if it is one of its own and not the body of a magic.

    Attributes:
        repeats: the cell was told to run again and again.
    """

    def __init__(
        self, headers: Sequence[Header], showing: Showing, info: ExecutionInfo | None = None
    ) -> None:
        self.info = info
        self.repeats = False
        self._headers = headers
        self._showing = showing
        self._open: list[tuple[Header, Watch]] = []
        self._closed: list[tuple[Header, Watch]] = []

    @property
    def watches_anything(self) -> bool:
        """Whether a watch is open."""
        return bool(self._open)

    def __enter__(self) -> Watching:
        for header in self._headers:
            with own_errors(header.call.magic):
                watch = header.magic.watch(header.call.options)
                watch.__enter__()
                self._open.append((header, watch))
        return self

    def take_rounds(self) -> Rounds | None:
        """Give, once, the repetitions that the innermost watch with such wants the cell to make."""
        if self.repeats:
            return None
        for _, watch in reversed(self._open):
            repetitions: Callable[[], Rounds] | None = getattr(watch, "repetitions", None)
            if repetitions is not None:
                self.repeats = True
                return repetitions()
        return None

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        __tracebackhide__ = True
        try:
            self.close(error)
        finally:
            self.report()

    def close(self, error: BaseException | None) -> None:
        """Close every watch, the innermost first, telling it what ended the cell."""
        kind = None if error is None else type(error)  # never its truth: it may have a __len__
        try:
            while self._open:
                header, watch = self._open.pop()
                self._closed.insert(0, (header, watch))
                with own_errors(header.call.magic, error):
                    watch.__exit__(kind, error, getattr(error, "__traceback__", None))
        finally:
            if self._open:  # an interrupt: close the others all the same
                self.close(error)

    def report(self) -> None:
        """Show what the watches found, the outermost first, and let go of them."""
        while self._closed:
            header, watch = self._closed.pop(0)
            with own_errors(header.call.magic):
                self._showing.deliver(header.call, watch.report, header.magic.show)


class CellRunner:
    """Both entries into `Watching`, for one shell."""

    def __init__(self, shell: Shell, showing: Showing) -> None:
        self._shell = shell
        self._showing = showing
        # For each thread the cells that run in it, the innermost last: cells run others, and
        # a kernel's subshells run theirs in threads of their own. Read it through `_cells`.
        self._running: dict[int, list[Watching]] = {}
        self._leave: Callable[[], None] | None = None

    def install(self, undo: ExitStack) -> None:
        """Put both entries into the shell; `undo` takes them out."""
        transform = CommentOut(self)
        transforms = self._shell.input_transformers_cleanup
        transforms.insert(0, transform)
        undo.callback(discard, transforms, transform)
        repeat = RepeatCell(self._shell, self._take_rounds)
        self._shell.ast_transformers.append(repeat)
        undo.callback(discard, self._shell.ast_transformers, repeat)
        self._shell.events.register("pre_run_cell", self._before)
        undo.callback(discard, self._shell.events.callbacks["pre_run_cell"], self._before)
        self._shell.events.register("post_run_cell", self._after)
        undo.callback(self._uninstall_after)

    def _uninstall_after(self) -> None:
        """Stop hearing of the end of cells, but not before the end of one that is watched."""
        if not any(cell.watches_anything for cells in self._running.values() for cell in cells):
            discard(self._shell.events.callbacks["post_run_cell"], self._after)
            self._leave = None
        else:
            self._leave = self._uninstall_after

    def take_over(self, lines: Sequence[str]) -> tuple[list[Header], int]:
        """Read our lines if the cell is to be run by entry 1, else give none.

        Not within a running cell: what is transformed there is the rest of another magic's cell,
        of whose end no event tells. Not if a magic follows that must stay on the first line. And
        not if a line is bad or holds a variable: IPython then calls the magic, which expands
        the variable or raises the error inside the cell, so that the body does not run.
        """
        if self._cells():
            return [], 0
        try:
            headers, n_lines = read_headers(lines)
        except UsageError:
            return [], 0
        variable = any(mark in line for line in lines[:n_lines] for mark in "{$")
        if variable or _first(lines[n_lines:]).startswith("%%"):
            return [], 0
        return headers, n_lines

    def _before(self, info: ExecutionInfo) -> None:
        """Open the watches of a cell that is about to run."""
        headers, _ = self.take_over((info.raw_cell or "").splitlines())
        watching = Watching(headers, self._showing, info)
        self._cells().append(watching)
        watching.__enter__()

    def _take_rounds(self) -> Rounds | None:
        cells = self._running.get(threading.get_ident())
        return cells[-1].take_rounds() if cells else None

    def _cells(self) -> list[Watching]:
        """Give the cells that run in this thread, the innermost last.

        One that has ended can still be there, if a second interrupt hit `_after`.
        """
        cells = self._running.setdefault(threading.get_ident(), [])
        ended = getattr(self._shell.last_execution_result, "info", None)
        while cells and cells[-1].info is ended:
            cells.pop().close(None)
        return cells

    def _after(self, result: ExecutionResult | None) -> None:
        """Close the watches of the cell that has ended.

        Events pair up like brackets, with two exceptions: a blank cell has no first one, nor
        has the cell that loads the extension. The result is None if the kernel was cancelled.
        """
        cells = self._running.get(threading.get_ident())
        if not cells or (result is not None and _is_blank(result)):
            return
        watching = cells.pop()
        if watching.repeats:
            forget(self._shell)
        try:
            self._finish(watching, result)
        except KeyboardInterrupt:  # the cell's outcome is settled; the user tires of waiting
            sys.stderr.write("nbinspect: interrupted, no report\n")
        finally:
            if not cells:
                self._showing.forget()
            if self._leave:
                self._leave()

    def _finish(self, watching: Watching, result: ExecutionResult | None) -> None:
        early = None if result is None else result.error_before_exec
        late = None if result is None else result.error_in_exec
        try:
            watching.close(late if early is None else early)
        except Exception as verdict:  # a watch ends the cell
            if result is not None and early is None and late is None:
                result.error_in_exec = verdict
                self._shell.showtraceback((type(verdict), verdict, verdict.__traceback__))
        # A syntax error: nothing ran, there is nothing to tell. But an interrupt between two
        # statements of the cell counts as "before execution" too.
        if not isinstance(early, Exception):
            watching.report()

    def run_body(self, magic: WatchMagic, line: str, cell: str) -> Any:
        """Run `cell` watched, as entry 2, and return its last value."""
        __tracebackhide__ = True  # IPython leaves such frames out of the user's traceback
        own = Header(magic, magic.options.parse(line))
        lines = cell.splitlines(keepends=True)
        further, n_lines = read_headers(lines)
        cells = self._cells()
        raw_cell = cells[-1].info.raw_cell if cells and cells[-1].info else ""
        body = compile_body(self._shell, lines[n_lines:], raw_cell or "", n_above=1 + n_lines)
        with Watching([own, *further], self._showing) as watching:
            value = None
            for _ in watching.take_rounds() or (0,):
                value = body.run()
            return value


def discard(items: list[Any], item: Any) -> None:
    """Take `item` out of a list of IPython's, unless somebody has emptied that list."""
    if item in items:
        items.remove(item)


class CommentOut:
    """The input transformation of entry 1: our leading lines become comments.

    Pure, since IPython transforms a cell several times before it runs it.
    """

    # Asks IPython not to apply this when it decides whether what was typed so far is complete:
    # a terminal must wait for the body as it does for any cell magic.
    has_side_effects = True

    def __init__(self, cells: CellRunner) -> None:
        self._cells = cells

    def __call__(self, lines: list[str]) -> list[str]:
        """Transform the lines of a cell."""
        _, n_lines = self._cells.take_over(lines)
        return comment_out(lines, n_lines)


def _is_blank(result: ExecutionResult) -> bool:
    return not ((result.info and result.info.raw_cell) or "").strip()


def comment_out(lines: Sequence[str], n_lines: int) -> list[str]:
    """Turn the first lines into comments that are indented like the rest, and so dedented like it."""
    first = _first(lines[n_lines:])
    indent = first[: len(first) - len(first.lstrip())]
    ours = [f"{indent}# {line}" if line.strip() else line for line in lines[:n_lines]]
    return [*ours, *lines[n_lines:]]


def _first(lines: Sequence[str]) -> str:
    """Give the first line that is not blank."""
    return next((line for line in lines if line.strip()), "")
