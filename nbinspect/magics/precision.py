"""The magics about floating-point precision."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nbinspect.magics.expression import UsersError, runner, taken_apart
from nbinspect.magics.options import (
    ExpressionOptions,
    Options,
    add_output,
    positive_float,
    positive_int,
)
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


def gradcheck_options() -> Options:
    """Make the parser of `%gradcheck`."""
    options = ExpressionOptions(
        "%gradcheck",
        """
        Are the gradients of this function right, and finite at its own dtype?

        Takes a call, whose function and arguments are evaluated once and copied, or any other
        expression as a function of the variables in it. torch's gradcheck then holds backward
        against small steps in float64, also for the parameters of modules that take part. In the
        same run the function is tried at its own dtype, since float64 hides overflow.

        Examples:
            %gradcheck f(x, w)                   # any call
            %gradcheck (x @ w).tanh().sum()      # any expression
            %gradcheck MyFunction.apply(x)       # a custom autograd function
            %gradcheck loss_fn(x)                # also for the model that it uses
            %gradcheck loss_fn(x, y) --top 20    # longer tables
            %gradcheck f(x) --atol 1e-4 --eps 1e-5

        In Python: nbinspect.gradcheck(f, (x, w)).
        """,
    )
    options.usage = "%(prog)s F(ARGS) [--eps E] [--atol A] [--rtol R] [--top N] [-o NAME]"
    options.add_argument(
        "--eps", type=positive_float, default=1e-6, metavar="E", help="step (1e-6)"
    )
    options.add_argument(
        "--atol", type=positive_float, default=1e-5, metavar="A", help="absolute tolerance (1e-5)"
    )
    options.add_argument(
        "--rtol", type=positive_float, default=1e-3, metavar="R", help="relative tolerance (1e-3)"
    )
    options.add_argument(
        "--nondet", type=positive_float, default=0.0, metavar="T", help="between two backwards (0)"
    )
    options.add_argument(
        "--top", type=positive_int, default=10, metavar="N", help="rows of each table (10)"
    )
    add_output(options)
    return options


def run_gradcheck(options: argparse.Namespace) -> Record:
    """Answer `%gradcheck`."""
    __tracebackhide__ = True
    import nbinspect
    from nbinspect.numerics.copied_call import NothingToCheckError, is_users

    call = taken_apart(options.expression)
    try:
        report: Record = nbinspect.gradcheck(
            call.function,
            tuple(call.args),
            call.kwargs,
            name=call.name,
            names=call.names,
            eps=options.eps,
            atol=options.atol,
            rtol=options.rtol,
            nondet_tol=options.nondet,
            top=options.top,
        )
    except NothingToCheckError as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        if not is_users(error):
            raise
        raise UsersError(error) from None
    return report
