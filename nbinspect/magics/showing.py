"""Showing a record once, and saying so when nbinspect itself fails."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from IPython.core import displayhook

from nbinspect.magics.options import Call
from nbinspect.records import Record

Shell = Any
"""An `IPython.core.interactiveshell.InteractiveShell`, which is typed by halves only."""


class Showing:
    """Shows the records of magics in one shell.

    A magic shows its record where it stands, so that it is seen in a loop or in a function too,
    and returns it. If its line is the last of the cell, IPython would show the same record once
    more; `already_shown` keeps it from that.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        # The record itself and not its id, which another record could get in the same cell.
        self._last: Record | None = None

    def deliver(
        self,
        call: Call,
        record: Record,
        show: Callable[[argparse.Namespace, Record], bool] | None = None,
    ) -> None:
        """Keep `record` under the name given with ``-o``, and show it unless asked not to.

        Args:
            call: the magic's line.
            record: what it found.
            show: shows it in a notebook in a way of its own, and says whether it did.
        """
        if call.options.output:
            self._shell.push({call.options.output: record})
        self._last = record
        if not call.quiet:
            with own_errors(call.magic):
                if show is None or self._in_terminal() or not show(call.options, record):
                    self._publish(record)

    def _publish(self, record: Record) -> None:
        # `display(record)` would print the whole traceback of a record that fails to render.
        include = {"text/plain"} if self._in_terminal() else None
        self._shell.display_pub.publish(record._repr_mimebundle_(include=include), {})

    def _in_terminal(self) -> bool:
        return bool(self._shell.display_formatter.active_types == ["text/plain"])

    def already_shown(self, record: Record) -> None:
        """Let IPython's display hook skip a record that a magic has just shown.

        Registered with IPython's first formatter, for which to return means "it has been
        displayed" and NotImplementedError means "go on as usual".
        """
        if record is not self._last or not _asked_by_display_hook():
            raise NotImplementedError
        if self._in_terminal():
            sys.stdout.write(f"{type(record).__name__}\n")  # it has begun with "Out[n]: "

    def forget(self) -> None:
        """Hold no record any longer; called when a cell has ended."""
        self._last = None


def _asked_by_display_hook() -> bool:
    """Say whether a cell's last value is being shown, rather than something given to `display`."""
    frame = sys._getframe(1)
    for _ in range(8):  # formatter and its decorators: 4 frames in IPython 9
        if frame.f_code.co_filename == displayhook.__file__:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


@contextmanager
def own_errors(magic: str, users: BaseException | None = None) -> Iterator[None]:
    """Turn an error of nbinspect's own into a short note, so that the user's cell goes on.

    Args:
        magic: what failed.
        users: the user's error, which a watch may only have passed on.
    """
    before = None if users is None else users.__traceback__
    try:
        yield
    except Exception as error:
        if error is users:
            users.__traceback__ = before  # without the frames that it was passed through
        elif getattr(type(error), "ends_the_cell", False):
            raise
        else:
            note_own_error(magic, error)


def note_own_error(magic: str, error: Exception) -> None:
    """Say in one line that nbinspect failed, and where."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    what = " ".join("".join(traceback.format_exception_only(error)).split())
    where = f"{Path(at.filename).name}:{at.lineno}"
    sys.stderr.write(f"nbinspect: {magic} itself failed, not your code: {what} (at {where})\n")
    error.__traceback__ = None  # else Python 3.13 has a cycle there that holds what its frames held
