"""`%refchain`: its options, and what it calls."""

from __future__ import annotations

import argparse
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from nbinspect.magics.expression import evaluate
from nbinspect.magics.options import ExpressionOptions, Options, add_output, positive_int
from nbinspect.records import Record

if TYPE_CHECKING:
    from nbinspect.type_counts import TypeCounts

_LAST_COUNT: list[TypeCounts] = []
"""What `--growth` compares with: names and numbers alone, so it keeps nothing alive."""
FEW_TYPES = 10


def refchain_options() -> Options:
    """Say what `%refchain` takes."""
    options = ExpressionOptions(
        "%refchain",
        """
        Who keeps this alive, and how do I let go?

        Takes any expression, evaluated once: a variable, model.fc.weight.grad, Out[3]. Shows the
        chains of references from your names down to it, across Python and autograd, whether that
        is all, and the line that lets go. Nothing is collected, and none of your code is run.

        Examples:
            %refchain h                          # the nearest holder
            %refchain h --all                    # every root that leads to it
            %refchain cache['k'] -o report       # keep the record as report
            %refchain --type Tensor --largest 5  # the five largest live tensors
            %refchain --types                    # how many objects of each type, by objgraph
            %refchain --growth                   # of which there are more than ever before

        In Python: nbinspect.refchain(h, name="h").
        """,
    )
    options.usage = (
        "%(prog)s EXPR [--all] [-o NAME]\n"
        "       %(prog)s --type T [--largest N] [-o NAME]\n"
        "       %(prog)s --types [N] [-o NAME]\n"
        "       %(prog)s --growth [N] [-o NAME]"
    )
    options.add_argument("--all", action="store_true", help="find every root, not only the nearest")
    options.add_argument("--type", metavar="T", help="look at the largest objects of this type")
    options.add_argument(
        "--largest", type=positive_int, default=5, metavar="N", help="how many of them (5)"
    )
    for flag, what in (
        ("--types", "count the objects of each type, and show the N most common (10)"),
        ("--growth", "show the N types that grew most since the last count (10)"),
    ):
        options.add_argument(
            flag, nargs="?", type=positive_int, const=FEW_TYPES, metavar="N", help=what
        )
    add_output(options)
    return options


def run_refchain(options: argparse.Namespace) -> Record:
    """Search for who holds what, or count objects."""
    import nbinspect

    asked = [flag for flag in ("type", "types", "growth") if getattr(options, flag)]
    if len(asked) + bool(options.expression) > 1:
        others = ["an expression"] * bool(options.expression) + [f"--{flag}" for flag in asked]
        raise ValueError(f"takes {' or '.join(others)}, not both")
    if options.type:
        return nbinspect.refchain_largest(options.type, options.largest)
    if asked:
        return _count(options)
    if not options.expression:
        raise ValueError("name what to look at, e.g. %refchain h")
    box = evaluate(options.expression)
    with suppress(TypeError):  # an int or a list cannot be referred to weakly
        options.target = weakref.ref(box[0])
    return nbinspect.refchain(box.pop(), all=options.all, name=options.expression)


def _count(options: argparse.Namespace) -> Record:
    """Count objects by type; every count goes on where the last one ended."""
    import nbinspect

    last = _LAST_COUNT[-1] if _LAST_COUNT else None
    if last is None:  # what the first drawing imports would be the growth
        nbinspect.count_types()._repr_mimebundle_()
    now = nbinspect.count_types(last, n_rows=options.types or options.growth)
    _LAST_COUNT[:] = [now]
    return now if options.growth else now.as_common()


def forget_count() -> None:
    """Let the next count be the first one again."""
    _LAST_COUNT.clear()


def explore_holders(options: argparse.Namespace, record: Record) -> bool:
    """Show the answer about one object together with the picture to walk in."""
    import nbinspect

    if not isinstance(record, nbinspect.ReferenceReport):
        return False
    target = getattr(options, "target", None)
    nbinspect.explore(record, target() if target is not None else None).show()
    return True
