"""The magics about floating-point precision."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nbinspect.magics.expression import runner
from nbinspect.magics.options import ExpressionOptions, Options, add_output, positive_int
from nbinspect.records import Record

if TYPE_CHECKING:
    from nbinspect.magics.table import Watch


_HEADROOM = """
    How near do values come to overflow, and to 0, in float16 and bfloat16?

    Runs {what} once as it is, and looks at what every operation gives, forward and backward. Says
    what would overflow first under autocast to float16, how much room the others have, what share
    would become 0, and which loss scale the gradients need. Results are not changed.

    Examples:
        {example}
    """


def headroom_line_options() -> Options:
    """Make the parser of `%headroom`."""
    example = """%headroom train_step(x, y)        # any expression
        %headroom model(x) --top 20       # longer tables
        %headroom model(x) -o report      # keep the record as report

    On the first line of a cell, %%headroom watches the cell.
    In Python: nbinspect.headroom(train_step, x, y)."""
    options = ExpressionOptions(
        "%headroom", _HEADROOM.format(what="an expression", example=example)
    )
    options.usage = "%(prog)s EXPR [--top N] [-o NAME]"
    return _headroom_options(options)


def headroom_cell_options() -> Options:
    """Make the parser of `%%headroom`."""
    example = """%%headroom                # on the first line of a cell
        %%headroom --top 20       # longer tables
        %%headroom -o report      # keep the record as report

    In Python: nbinspect.headroom(train_step, x, y)."""
    options = Options("%%headroom", _HEADROOM.format(what="the cell", example=example))
    return _headroom_options(options)


def _headroom_options(options: Options) -> Options:
    options.add_argument(
        "--top", type=positive_int, default=10, metavar="N", help="rows of each table (10)"
    )
    add_output(options)
    return options


def run_headroom(options: argparse.Namespace) -> Record:
    """Answer `%headroom`."""
    __tracebackhide__ = True
    from nbinspect.numerics.margins import HeadroomWatch

    if not options.expression:
        raise ValueError("name what to run, e.g. %headroom train_step(x, y)")
    run = runner(options.expression)
    with HeadroomWatch(top=options.top) as watch:
        run()
    return watch.report


def make_headroom(options: argparse.Namespace) -> Watch:
    """Make the watch of `%%headroom`."""
    from nbinspect.numerics.margins import HeadroomWatch

    return HeadroomWatch(top=options.top)
