"""`%%leakwatch` and `%traceback_memory`: their options, and what they call."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from nbinspect import notebook
from nbinspect.magics.expression import evaluate
from nbinspect.magics.hint import HINT
from nbinspect.magics.options import Options, add_output, repetitions, size_or_switch, whole
from nbinspect.records import Record

if TYPE_CHECKING:
    from nbinspect.leaks.parts import Parts
    from nbinspect.leaks.watching import LeakWatch


def leakwatch_options() -> Options:
    """Say what `%%leakwatch` takes."""
    options = Options(
        "%%leakwatch",
        """
        What grows each time that this cell runs, and who holds it?

        Runs the cell N times (5), after a warm-up, and shows per repetition the bytes that stayed,
        who keeps them, the line that made them, one chain of references and how to mend it. The
        last repetition's value is shown as the cell's own. Nothing is collected.

        Examples:
            %%leakwatch               # on the first line of a cell
            %%leakwatch 20            # more repetitions
            %%leakwatch --isolate     # and which part grows: loader, forward, backward
            %%leakwatch --collect     # and what gc.collect() frees at the end
            %%leakwatch -o report     # keep the record as report

        In Python: nbinspect.leakwatch(fn, n=5); in a test: with nbinspect.assert_no_growth(): ...
        """,
    )
    options.add_argument(
        "n", nargs="?", type=repetitions, default=5, metavar="N", help="repetitions to compare (5)"
    )
    options.add_argument(
        "--warmup", type=whole, default=1, metavar="N", help="repetitions before them (1)"
    )
    options.add_argument("--collect", action="store_true", help="collect garbage at the end")
    options.add_argument(
        "--isolate", action="store_true", help="repeat loader, forward and backward alone, too"
    )
    for part in ("model", "loader", "optimizer"):
        options.add_argument(
            f"--{part}", metavar="NAME", help=f"the {part}, if the cell does not tell"
        )
    add_output(options)
    return options


def make_leakwatch(options: argparse.Namespace) -> LeakWatch:
    """Make the watch of a cell."""
    from nbinspect.leaks.watching import LeakWatch

    names = {part: getattr(options, part) for part in ("model", "loader", "optimizer")}
    wants = options.isolate or any(names.values())
    return LeakWatch(
        options.n,
        warmup=options.warmup,
        collect=options.collect,
        isolate=(lambda: _parts(names)) if wants else None,
    )


def _parts(names: dict[str, str | None]) -> Parts:
    """Find model, loader and optimizer among the names of the cell that has just run."""
    from nbinspect.leaks.parts import Parts

    given = [evaluate(name)[0] if name else None for name in names.values()]
    return Parts.of_cell(notebook.current_cell(), *given)


def traceback_memory_options() -> Options:
    """Say what `%traceback_memory` takes."""
    options = Options(
        "%traceback_memory",
        """
        What does the last error still keep in memory?

        IPython keeps the last error, the error keeps the calls that it left, and those keep their
        variables. Shows bytes by call, and what of it nothing else holds.

        Examples:
            %traceback_memory               # look
            %traceback_memory --drop        # let go; what was printed stays, %debug is over
            %traceback_memory --hint off    # no hints after failed cells
            %traceback_memory --hint 256MB  # hints from 256 MiB on
            %traceback_memory --hint on     # from 64 MiB, or 5 % of a small device, on

        In Python: nbinspect.traceback_memory(drop=True).
        """,
    )
    options.add_argument(
        "--drop", action="store_true", help="let go, and see by weak references what died"
    )
    options.add_argument(
        "--hint",
        type=size_or_switch,
        metavar="SIZE",
        help="hint after a failed cell from this many bytes on; on or off",
    )
    options.complete("--hint", lambda: ["on", "off", "64MB", "256MB", "1GB"])
    add_output(options)
    return options


def run_traceback_memory(options: argparse.Namespace) -> Record | None:
    """Look at the last error, or set when to hint."""
    if options.hint is not None:
        sys.stdout.write(HINT.set(options.hint))
        return None
    import nbinspect

    record: Record = nbinspect.traceback_memory(drop=options.drop)
    return record
