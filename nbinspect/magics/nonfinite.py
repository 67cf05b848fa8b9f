"""The magic that finds the first NaN or Inf that matters."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nbinspect.magics.options import Options, add_output, positive_int

if TYPE_CHECKING:
    from nbinspect.magics.table import Watch


def nanwatch_options() -> Options:
    """Make the parser of `%%nanwatch`."""
    options = Options(
        "%%nanwatch",
        """
        Which operation made the first NaN or Inf that matters, and why?

        Runs the cell as it would run without this line, and stops it with NonFiniteError where a
        NaN or Inf has reached the loss or a gradient, before the optimizer writes it into the
        weights. Says which operation made it, in which line, from which values, and what mends it.
        Infinities that are meant, such as an attention mask's, are no finding.

        Examples:
            %%nanwatch                        # on the first line of a cell
            %%nanwatch --light                # one check a step; finds the operation by a replay
            %%nanwatch --no-stop              # let the cell run on, report at its end
            %%nanwatch --until grads=1e3      # stop as well where the gradient norm is above 1000
            %%nanwatch -o report              # keep the record as report

        In Python: with nbinspect.nanwatch() as w: ..., then w.report.
        """,
    )
    options.add_argument(
        "--light", action="store_true", help="check once a step, then replay the step that failed"
    )
    options.add_argument("--no-stop", action="store_true", help="do not stop the cell at a finding")
    options.add_argument(
        "--until", type=limit, metavar="grads=N", help="a gradient norm above N is a finding too"
    )
    options.add_argument(
        "--every", type=positive_int, default=1, metavar="N", help="look at every Nth step only (1)"
    )
    options.add_argument(
        "--max-findings", type=positive_int, default=5, metavar="N", help="look no further then (5)"
    )
    options.add_argument(
        "--replay", action="store_true", help="with --light: replay even if side effects repeat"
    )
    options.add_argument(
        "--eager", action="store_true", help="run compiled functions eagerly, to see inside"
    )
    options.add_argument(
        "--sync", action="store_true", help="on a GPU: wait for each operation, and keep its values"
    )
    add_output(options)
    return options


def limit(text: str) -> float:
    """Read ``grads=1e3``.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    name, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if name.strip() != "grads" or not number > 0:
        raise argparse.ArgumentTypeError(f"{text!r}: write grads=N with a number above 0")
    return number


def make_nanwatch(options: argparse.Namespace) -> Watch:
    """Make the watch of `%%nanwatch`."""
    import nbinspect

    watch: Watch = nbinspect.nanwatch(
        light=options.light,
        stop=not options.no_stop,
        every=options.every,
        max_findings=options.max_findings,
        grads=options.until,
        replay=options.replay and options.light,
        eager=options.eager,
        sync=options.sync,
    )
    return watch
