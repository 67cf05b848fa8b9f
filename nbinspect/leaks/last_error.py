"""Where the last error is kept, what hangs on it, and letting go of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from nbinspect import notebook
from nbinspect.heapgraph.objects import instance_dict

_SLOTS = vars(BaseException)  # a class of the user's may have properties of these names
RESULT_ERRORS = ("error_before_exec", "error_in_exec")
SHOWN = ("tb", "etype", "evalue")


class ErrorStores:
    """The places that keep the last error: in `sys`, and IPython's own.

    Attributes:
        errors: the errors that are kept, and those that they are chained to, the last one first.
        tracebacks: their tracebacks, and those that are kept by themselves.
        labels: where they are kept.
    """

    def __init__(self) -> None:
        shell = notebook.shell()
        self._shown: Any = getattr(shell, "InteractiveTB", None)
        self._result: Any = getattr(shell, "last_execution_result", None)
        kept = list(self._kept())
        self.labels = tuple(dict.fromkeys(label for label, _ in kept))
        values = [value for _, value in kept]
        self.errors = list(chained(one for one in values if isinstance(one, BaseException)))
        alone = [one for one in values if isinstance(one, TracebackType)]
        found = [traceback_of(error) for error in self.errors] + alone
        distinct = {id(one): one for one in found if one is not None}
        self.tracebacks: list[TracebackType] = list(distinct.values())

    def _kept(self) -> Iterator[tuple[str, Any]]:
        for name in notebook.LAST_ERROR:
            value = getattr(sys, name, None)
            if value is not None and not isinstance(value, type):
                yield f"sys.{name}", value
        for name in SHOWN:
            value = getattr(self._shown, name, None)
            if value is not None and not isinstance(value, type):
                yield "IPython's last traceback", value
        for name in RESULT_ERRORS:
            value = getattr(self._result, name, None)
            if value is not None:
                yield "IPython's last_execution_result", value

    def cut(self) -> tuple[set[int], set[int]]:
        """Say where a search that must not come through the stores has to stop.

        Returns:
            Ids of objects that are nothing but stores, and ids of those of which only the
            errors and tracebacks are to be passed over.
        """
        whole = {id(self._shown), id(getattr(self._shown, "__dict__", None))}
        partly = {id(vars(sys)), id(self._result), id(getattr(self._result, "__dict__", None))}
        none = {id(None)}
        return whole - none, partly - none

    def let_go(self, whole: set[int]) -> None:
        """Empty the stores, and cut the tracebacks off the errors.

        Args:
            whole: ids of errors whose tracebacks stay.
        """
        for error in self.errors:
            if id(error) not in whole:
                _SLOTS["__traceback__"].__set__(error, None)
        for name in notebook.LAST_ERROR:
            if hasattr(sys, name):
                delattr(sys, name)  # %debug says so in one line; None would be an error there
        for name in SHOWN:
            if getattr(self._shown, name, None) is not None:
                setattr(self._shown, name, None)
        if getattr(self._shown, "pdb", None) is not None and not self._shown.call_pdb:
            self._shown.pdb = None  # what %debug looked at last; it makes itself a new one
        self.close()

    def close(self) -> None:
        """Hold nothing any longer."""
        self.errors.clear()
        self.tracebacks.clear()


def traceback_of(error: BaseException) -> TracebackType | None:
    """Give an error's traceback, running no code of its class."""
    found: TracebackType | None = _SLOTS["__traceback__"].__get__(error)
    return found


def held_by_error(error: BaseException) -> dict[str, Any]:
    """Give what an error holds itself: its attributes, and what it was called with."""
    return {**(instance_dict(error) or {}), "args": _SLOTS["args"].__get__(error)}


def chained(errors: Iterable[BaseException]) -> Iterator[BaseException]:
    """Yield errors and all that they are chained to or groups of, each once."""
    todo, seen = list(errors), set[int]()
    while todo:
        error = todo.pop(0)
        if id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        for name in ("__cause__", "__context__"):
            before = _SLOTS[name].__get__(error)
            if before is not None:
                todo.append(before)
        if issubclass(type(error), BaseExceptionGroup):
            todo += vars(BaseExceptionGroup)["exceptions"].__get__(error)


def steps(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """Yield a traceback's entries, the outermost first."""
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def error_text(error: BaseException) -> str:
    """Give an error's type and the first line of what it says."""
    try:
        said = str(error).strip().splitlines()
    except Exception:  # a message that cannot be printed
        said = []
    name = type(error).__name__
    return f"{name}: {said[0][:300]}" if said else name
