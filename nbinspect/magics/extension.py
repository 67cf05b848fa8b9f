"""Puts every magic into a shell, and takes everything out again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand

from nbinspect.magics.cells import CellRunner, discard
from nbinspect.magics.completion import make_matcher
from nbinspect.magics.expression import UsersError
from nbinspect.magics.hint import Hint
from nbinspect.magics.looking_on import LookingOn
from nbinspect.magics.references import forget_count
from nbinspect.magics.semicolon import LoneSemicolon
from nbinspect.magics.showing import Shell, Showing, note_own_error, own_errors
from nbinspect.magics.table import LINE_MAGICS, LIVE_CLOSERS, WATCHES, LineMagic, WatchMagic
from nbinspect.notebook import UNDO
from nbinspect.records import Record


def load_ipython_extension(shell: Shell) -> None:
    """Put every magic into `shell`, in place of those of an earlier load."""
    unload_ipython_extension(shell)
    with ExitStack() as undo:  # takes back what was done if a step fails
        undo.callback(_close_live_views)
        undo.callback(forget_count)
        showing = Showing(shell)
        cells = CellRunner(shell, showing)
        cells.install(undo)
        _install_magics(shell, cells, showing, undo)
        _install_helpers(shell, showing, undo)
        shell.__dict__[UNDO] = undo.pop_all()


def unload_ipython_extension(shell: Shell) -> None:
    """Take everything out of `shell` that was put there; nothing if nothing was."""
    undo: ExitStack | None = shell.__dict__.pop(UNDO, None)
    if undo is not None:
        undo.close()


def _close_live_views() -> None:
    while LIVE_CLOSERS:
        with own_errors("%unload_ext"):
            LIVE_CLOSERS.pop()()


def _install_helpers(shell: Shell, showing: Showing, undo: ExitStack) -> None:
    """Add completion, ``%gpumem;`` and the rule that a record is shown once."""
    matcher = make_matcher(shell.Completer)
    _append(shell.Completer.custom_matchers, matcher, undo)
    _append(shell.input_transformer_manager.token_transformers, LoneSemicolon, undo)
    LookingOn(shell).install(undo)
    hint = Hint(shell)
    shell.events.register("post_run_cell", hint.after)
    undo.callback(discard, shell.events.callbacks["post_run_cell"], hint.after)
    printers = shell.display_formatter.ipython_display_formatter.type_printers
    _put(printers, Record, showing.already_shown, undo)


def _install_magics(shell: Shell, cells: CellRunner, showing: Showing, undo: ExitStack) -> None:
    table = shell.magics_manager.magics
    for name, line_magic in LINE_MAGICS.items():
        _put(table["line"], name, _line_function(line_magic, showing), undo)
    for name, watch_magic in WATCHES.items():
        _put(table["cell"], name, _cell_function(watch_magic, cells), undo)
        if name not in LINE_MAGICS:  # IPython shows the help of a cell magic only if there is one
            _put(table["line"], name, _hint_function(name, watch_magic), undo)


def _line_function(magic: LineMagic, showing: Showing) -> Callable[[str], Record | None]:
    def line_magic(line: str) -> Record | None:
        __tracebackhide__ = True  # an error of the user's code is not ours to appear in
        call = magic.options.parse(line)
        try:
            record = magic.run(call.options)
        except UsersError as raised:
            raise raised.error from raised.error.__cause__
        except ValueError as error:
            magic.options.error(str(error))
        except Exception as error:
            note_own_error(call.magic, error)
            return None
        if record is not None:
            showing.deliver(call, record, magic.show)
        return record

    # An expression may hold {} and $; a line is never a template for us.
    return no_var_expand(_documented(line_magic, magic.options.format_help()))


def _cell_function(magic: WatchMagic, cells: CellRunner) -> Callable[[str, str], Any]:
    def cell_magic(line: str, cell: str) -> Any:
        __tracebackhide__ = True
        return cells.run_body(magic, line, cell)

    return _documented(cell_magic, magic.options.format_help())


def _hint_function(name: str, magic: WatchMagic) -> Callable[[str], None]:
    def line_magic(_line: str) -> None:
        raise UsageError(f"%{name}: write %%{name} on the first line of the cell to be watched")

    return _documented(line_magic, magic.options.format_help())


def _documented(function: Callable[..., Any], text: str) -> Callable[..., Any]:
    function.__doc__ = text  # what `%name?` shows
    return function


def _append(items: list[Any], item: Any, undo: ExitStack) -> None:
    items.append(item)
    undo.callback(discard, items, item)


def _put(table: dict[Any, Any], key: Any, value: Any, undo: ExitStack) -> None:
    """Set an entry; `undo` brings back what was there."""
    if key in table:
        undo.callback(table.__setitem__, key, table[key])
    else:
        undo.callback(table.pop, key, None)
    table[key] = value
