"""``%%gradwatch`` and ``%gradtable``: their options, and what they call."""

from __future__ import annotations

import argparse
import math
from typing import Any

from nbinspect import notebook
from nbinspect.magics.expression import evaluate
from nbinspect.magics.options import (
    ExpressionOptions,
    Options,
    add_output,
    identifier,
    positive_int,
)
from nbinspect.records import Record

HIST_EVERY = 20


def gradwatch_options() -> Options:
    """Make the options of ``%%gradwatch``."""
    options = Options(
        "%%gradwatch",
        """
        What do gradients do in this cell, step by step and layer by layer?

        Runs the cell as it would run without this line. Shows norms, clipping and updates of
        every parameter in every step, and says which gradient vanished, explodes, is dead, was
        never reached, spiked or became NaN, and since which step.

        Examples:
            %%gradwatch                   # on the first line of a cell
            %%gradwatch --every 5         # read every fifth step
            %%gradwatch --hist            # and count exponents every 20 read steps
            %%gradwatch --model net       # the parameters of net alone
            %%gradwatch --light           # make no copies: no updates, no cosines
            %%gradwatch --exact           # updates, cosines of large parameters not by a sample
            %%gradwatch --range 1e-6 1e4  # what counts as small and as large
            %%gradwatch --against before  # beside an earlier record
            %%gradwatch -o report         # keep the record as report

        In Python: with nbinspect.gradwatch() as w: ..., then w.report.
        """,
    )
    options.add_argument(
        "--every", type=positive_int, default=1, metavar="N", help="read every N steps (1)"
    )
    options.add_argument(
        "--hist",
        type=positive_int,
        nargs="?",
        const=HIST_EVERY,
        default=0,
        metavar="N",
        help=f"exponent histograms every N read steps ({HIST_EVERY})",
    )
    options.add_argument("--model", metavar="NAME", help="a model's name: watch it alone")
    options.add_argument(
        "--keep", type=positive_int, default=1000, metavar="N", help="steps to keep (1000)"
    )
    options.add_argument("--light", action="store_true", help="no copies, so no updates, cosines")
    options.add_argument(
        "--exact", action="store_true", help="copy large parameters whole, not a sample of them"
    )
    options.add_argument(
        "--range",
        type=threshold,
        nargs=2,
        action=_Rising,
        default=(1e-3, 1e3),
        metavar=("LOW", "HIGH"),
        help="a gradient may vanish below LOW and explode above HIGH (1e-3 1e3)",
    )
    options.add_argument(
        "--against", type=earlier_run, metavar="NAME", help="compare with this earlier record"
    )
    add_output(options)
    return options


class _Rising(argparse.Action):
    """Refuses a range that does not rise."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if values[0] >= values[1]:
            parser.error(f"argument {option_string}: takes a smaller and a larger number")
        setattr(namespace, self.dest, tuple(values))


def open_gradwatch(options: argparse.Namespace) -> Any:
    """Make the watch of ``%%gradwatch``."""
    import nbinspect
    from nbinspect.widgets.steps import LiveGradientWatch

    watch = nbinspect.gradwatch(
        model=options.model,
        every=options.every,
        hist=options.hist,
        keep=options.keep,
        light=options.light,
        exact=options.exact,
        rules=nbinspect.Rules(*options.range),
    )
    if options.quiet:
        return watch
    options.live = LiveGradientWatch(watch, options.against)
    return options.live


def earlier_run(text: str) -> Any:
    """Give the record of an earlier run that a variable holds."""
    import nbinspect

    found = notebook.user_namespace().get(identifier(text))
    if not isinstance(found, nbinspect.GradientHistory):
        raise argparse.ArgumentTypeError(f"takes the name of a record of %%gradwatch, not {text}")
    return found


def show_steps(options: argparse.Namespace, record: Record) -> bool:
    """Finish the table that was shown while the cell ran."""
    live = options.live
    return bool(live.finish(record))


def threshold(text: str) -> float:
    """Read a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"takes numbers above 0, not {text}")
    return number


def gradtable_options() -> Options:
    """Make the options of ``%gradtable``."""
    options = ExpressionOptions(
        "%gradtable",
        """
        What are the gradients at this moment?

        Lists the .grad of every parameter of a model, or of all models that have a variable.

        Examples:
            %gradtable           # all models
            %gradtable net       # one of them

        In Python: nbinspect.gradtable(net).
        """,
    )
    options.usage = "%(prog)s [MODEL] [-o NAME]"
    add_output(options)
    return options


def gradtable(options: argparse.Namespace) -> Record | None:
    """Run ``%gradtable``."""
    import nbinspect

    box = evaluate(options.expression) if options.expression else [None]
    try:
        table: Record = nbinspect.gradtable(box.pop())
    except TypeError as error:
        raise ValueError(f"{options.expression} {error}") from None
    return table
