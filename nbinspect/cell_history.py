"""Which cell bound a name: by what each run changed, and where nobody looked on, by its source.

And which cell an object came into sight in, and autograd made a node in.
"""

from __future__ import annotations

import ast
import bisect
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from nbinspect import notebook
from nbinspect.sightings import Sightings

SOON_S = 0.05  # nothing changes in so short a time between two cells
MOST_CELLS = 200  # read back at most, 0.1 ms each


class Binding(NamedTuple):
    """What a name stood for when it was last looked at: ids alone, which keep nothing alive.

    Attributes:
        value: id of the object.
        kind: id of its type.
        cell: number of the cell that bound it; None if it was bound between cells; 0 if it was
            there when the looking began.
    """

    value: int
    kind: int
    cell: int | None


class CellHistory:
    """Which cell bound each of the notebook's names; told before and after each cell.

    A name is bound when it stands for another object than before, however that came about: ``with``,
    ``import``, ``exec``, ``%run``, a function's ``global``. Only a name that is bound twice in one
    cell can come back to the address that it had, so for such cells the source is asked too.

    Args:
        names: the notebook's names.
        cell: number of the cell that runs, or of the last one.

    Cost: 0.2 ms a cell for a hundred names, up to 2 ms where much hangs on them; asking parses the later cells that spell the name.
    """

    def __init__(self, names: Mapping[str, Any], cell: int) -> None:
        self._first = cell
        self._is_running = True
        self._bindings: dict[str, Binding] = {}
        self._failed = set[int]()
        self._sightings = Sightings()
        self._nodes = NodeNumbers()
        self._ended_s = 0.0
        self._note(names, 0)
        self._look(names, None)

    def begin(self, names: Mapping[str, Any], *, is_numbered: bool) -> None:
        """Look at the names before a cell runs; what is new, no cell bound."""
        self._note(names, None)
        self._nodes.mark(None)
        if time.monotonic() - self._ended_s > SOON_S:
            self._look(names, None)
        self._is_running = is_numbered

    def end(self, names: Mapping[str, Any], cell: int | None, *, failed: bool) -> None:
        """Look at the names after a cell; `cell` is None for one that has no number."""
        self._note(names, cell)
        self._nodes.mark(cell)
        self._look(names, cell)
        self._is_running = False
        self._ended_s = time.monotonic()
        if failed and cell is not None:
            self._failed.add(cell)

    def _look(self, names: Mapping[str, Any], cell: int | None) -> None:
        with suppress(Exception):  # another thread changes a container meanwhile
            self._sightings.look(names, cell)

    def look_now(self, names: Mapping[str, Any], running: int) -> None:
        """Look at what the cell that runs has brought so far."""
        if self._is_running:
            self._look(names, running)

    def seen_in(self, value: object) -> int | None:
        """Give the number of the cell in which an object came into sight, None if not known."""
        return self._sightings.cell_of(value)

    def numbered_in(self, number: int, running: int) -> int | None:
        """Give the cell in which autograd gave a node of this thread's a number."""
        return self._nodes.cell_of(number, running if self._is_running else None)

    def _note(self, names: Mapping[str, Any], cell: int | None) -> None:
        known, self._bindings = self._bindings, {}
        for name, value in list(names.items()):
            old = known.get(name)
            if old is None or not _is_at(old, value):
                old = Binding(id(value), id(type(value)), cell)
            self._bindings[name] = old

    def bound_in(self, name: str, value: object, sources: list[Any]) -> int | None:
        """Give the number of the cell that bound `name` to `value`, None if that is not known.

        Args:
            name: one of the notebook's names.
            value: what it stands for now.
            sources: the cells by their number.
        """
        old = self._bindings.get(name)
        if old is None or not _is_at(old, value):
            return len(sources) - 1 if self._is_running else None
        first = self._first if old.cell == 0 else old.cell or 0
        for cell in _spelling(sources, name, after=first):
            if cell not in self._failed and _times_bound(sources[cell], name) > 1:
                return cell
        if old.cell == 0:
            return assigned_in(name, sources[: self._first + 1])
        return old.cell


class NodeNumbers:
    """In which cell autograd numbered its nodes: they count up, so the cells' ends tell them apart.

    Cost: 1 µs a cell.
    Blind to: nodes of other threads, which count for themselves.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._ends: list[int] = []
        self._cells: list[int | None] = []
        self.mark(None)

    def mark(self, cell: int | None) -> None:
        """Note that all nodes since the last mark are of this cell, of none if it is None."""
        number = self._next()
        if number is not None and number > (self._ends[-1] if self._ends else -1):
            self._ends.append(number)
            self._cells.append(cell)

    def _next(self) -> int | None:
        is_known = "torch" in sys.modules and threading.get_ident() == self._thread
        if not is_known:
            return None
        from nbinspect import _torch

        return _torch.next_sequence_number()

    def cell_of(self, number: int, running: int | None) -> int | None:
        """Give the cell of a node's number; `running` is the cell whose end is not marked yet."""
        place = bisect.bisect_right(self._ends, number)
        if place < len(self._ends):
            return self._cells[place]
        upto = self._next()
        return running if upto is not None and number < upto else None


def _is_at(binding: Binding, value: object) -> bool:
    return binding.value == id(value) and binding.kind == id(type(value))


_HISTORY: list[CellHistory] = []


def start(names: Mapping[str, Any], cell: int) -> CellHistory:
    """Begin to look on, from the cell that runs now; see `CellHistory`."""
    _HISTORY[:] = [CellHistory(names, cell)]
    return _HISTORY[0]


def stop() -> None:
    """Forget what was seen."""
    _HISTORY.clear()


def bound_in(name: str) -> int | None:
    """Give n if ``In[n]`` bound a global name last, None if no cell did or that is not known.

    Blind to: where nobody looked on, names made by ``exec``, by a function's ``global`` or by a
    magic, and whether the cell came as far as that line.
    """
    names = notebook.user_namespace()
    sources = names.get("In") if notebook.shell() is not None else None
    if type(sources) is not list or name not in names:
        return None
    if _HISTORY:
        return _HISTORY[0].bound_in(name, names[name], sources)
    return assigned_in(name, sources)


def look_now() -> None:
    """Look at what the cell that runs has brought so far, if anybody looks on."""
    names = notebook.user_namespace()
    if _HISTORY:
        _HISTORY[0].look_now(names, _running(names))


def seen_in(value: object) -> int | None:
    """Give n if an object came into sight in ``In[n]``, None if that is not known."""
    return _HISTORY[0].seen_in(value) if _HISTORY else None


def numbered_in(number: int) -> int | None:
    """Give n if ``In[n]`` made the autograd node with a number, None if that is not known.

    Args:
        number: as `_torch.sequence_number` gives it.

    Blind to: nodes that another thread made, whose numbers are its own.
    """
    if not _HISTORY:
        return None
    return _HISTORY[0].numbered_in(number, _running(notebook.user_namespace()))


def _running(names: Mapping[str, Any]) -> int:
    return len(names.get("In", ())) - 1


def assigned_in(name: str, sources: list[Any]) -> int | None:
    """Give the number of the last cell whose source assigns a name, None if none does."""
    return next(
        (cell for cell in _spelling(sources, name) if _times_bound(sources[cell], name)), None
    )


def _spelling(sources: list[Any], name: str, after: int = 0) -> Iterator[int]:
    """Yield the numbers of the cells that have a name in them, the last one first."""
    for cell in range(len(sources) - 1, max(after, len(sources) - MOST_CELLS), -1):
        if type(sources[cell]) is str and name in sources[cell]:
            yield cell


def _times_bound(source: str, name: str) -> int:
    """Count how often a cell binds or deletes a global name; what a loop does counts twice."""
    try:
        todo: list[tuple[ast.AST, int]] = [(node, 1) for node in ast.parse(source).body]
    except (SyntaxError, ValueError):
        return 0
    found = 0
    while todo:
        node, times = todo.pop()
        times = 2 if isinstance(node, _LOOPS) else times
        if name in _names_of(node):
            found += times
        if not isinstance(node, _OWN_NAMES):
            todo += [(inner, times) for inner in ast.iter_child_nodes(node)]
    return found


def _names_of(node: ast.AST) -> tuple[str | None, ...]:
    """Give what one node of the syntax tree binds, itself."""
    if isinstance(node, ast.Name):
        return () if isinstance(node.ctx, ast.Load) else (node.id,)
    if isinstance(node, ast.alias):
        return (node.asname or node.name.partition(".")[0],)
    return (getattr(node, "name", None),)  # functions, classes, `except ... as`, `case ... as`


_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_OWN_NAMES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.comprehension)
