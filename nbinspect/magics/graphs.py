"""The two magics about autograd graphs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nbinspect.magics.expression import evaluate
from nbinspect.magics.options import ExpressionOptions, Options, add_output, positive_int
from nbinspect.records import Record

if TYPE_CHECKING:
    from nbinspect.magics.table import Watch


def _graph_arguments(options: Options) -> None:
    """Add what both magics about autograd graphs take."""
    options.add_argument(
        "--depth", type=positive_int, metavar="N", help="unfold modules N deep (as is readable)"
    )
    options.add_argument("--saved", action="store_true", help="draw saved tensors as boxes")
    options.add_argument("--params", action="store_true", help="draw views and leaves too")
    add_output(options)


def autograd_options() -> Options:
    """Make the parser of `%autograd`."""
    options = ExpressionOptions(
        "%autograd",
        """
        What does the graph behind this tensor look like, and where is it broken?

        Takes any expression that gives a tensor, usually a loss. Shows modules and repeated blocks
        folded into boxes that a click unfolds, what each keeps for backward, and what is wrong:
        parameters that are not reached, tensors changed in place, graphs joined across steps.
        Nothing is computed again; no hook runs.

        Examples:
            %autograd loss                     # modules folded
            %autograd loss --depth 2 --saved   # two modules deep, with saved tensors
            %autograd loss --params            # with views, parameters and other leaves
            g = %autograd outputs[0]           # shown, and kept as g

        In Python: nbinspect.autograd(loss). %%graphwatch on the cell that makes the tensor adds
        lines, exact modules, and the operation where a path was cut.
        """,
    )
    options.usage = "%(prog)s EXPR [--depth N] [--saved] [--params] [-o NAME]"
    _graph_arguments(options)
    return options


def run_autograd(options: argparse.Namespace) -> Record:
    """Answer `%autograd`."""
    import nbinspect

    if not options.expression:
        raise ValueError("name a tensor, e.g. %autograd loss")
    box = evaluate(options.expression)
    asked = {"depth": options.depth, "saved": options.saved, "params": options.params}
    try:
        report: Record = nbinspect.autograd(box.pop(), name=options.expression, **asked)
    except TypeError as error:
        raise ValueError(str(error)) from None
    return report


def explore_graph(_options: argparse.Namespace, record: Record) -> bool:
    """Show a graph together with the picture to walk in."""
    import nbinspect

    if not isinstance(record, nbinspect.GraphReport) or not record.nodes:
        return False
    nbinspect.explore(record).show()
    return True


def graphwatch_options() -> Options:
    """Make the parser of `%%graphwatch`."""
    options = Options(
        "%%graphwatch",
        """
        What graph does this cell make, line by line, and where are its paths cut?

        Runs the cell as it would run without this line, then shows the graph of the tensor whose
        backward ran last, else of the last tensor that the cell made. Later, %autograd knows lines
        and modules of every tensor of this cell.

        Examples:
            %%graphwatch                 # on the first line of a cell
            %%graphwatch --depth 3       # unfold three modules deep
            %%graphwatch -o g            # keep the record as g
            %%graphwatch --eager         # look into compiled functions, by running them eagerly

        In Python: with nbinspect.graphwatch() as w: ..., then w.report.
        """,
    )
    _graph_arguments(options)
    options.add_argument(
        "--eager", action="store_true", help="run compiled functions eagerly, to see inside"
    )
    return options


def make_graphwatch(options: argparse.Namespace) -> Watch:
    """Make the watch of `%%graphwatch`."""
    import nbinspect

    watch: Watch = nbinspect.graphwatch(
        depth=options.depth, saved=options.saved, params=options.params, eager=options.eager
    )
    return watch
