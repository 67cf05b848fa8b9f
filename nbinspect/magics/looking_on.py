"""Tells the history of cells when a cell begins and ends."""

from __future__ import annotations

from contextlib import ExitStack

from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult

from nbinspect import cell_history
from nbinspect.magics.cells import discard
from nbinspect.magics.showing import Shell


class LookingOn:
    """Hears of every cell of a shell; an error of ours never reaches it.

    Args:
        shell: whose cells.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._outer: ExecutionInfo | None = None
        self._history = cell_history.start(shell.user_ns, len(shell.user_ns["In"]) - 1)

    def install(self, undo: ExitStack) -> None:
        """Register for both events; `undo` takes that back."""
        undo.callback(cell_history.stop)
        for event, call in (("pre_run_cell", self._before), ("post_run_cell", self._after)):
            self._shell.events.register(event, call)
            undo.callback(discard, self._shell.events.callbacks[event], call)

    def _before(self, info: ExecutionInfo) -> None:
        ended = getattr(self._shell.last_execution_result, "info", None)
        if self._outer is None or self._outer is ended:  # else one cell runs another
            self._outer = info
            self._history.begin(self._shell.user_ns, is_numbered=info.store_history)

    def _after(self, result: ExecutionResult | None) -> None:
        info = None if result is None else result.info
        if self._outer is not None and info is not None and info is not self._outer:
            return
        self._outer = None
        number = result.execution_count if result and info and info.store_history else None
        self._history.end(self._shell.user_ns, number, failed=result is None or not result.success)
