"""``python -m benchmarks [QUESTION ...] [--quick] [--write]``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import (
    accuracy,
    census,
    coverage,
    gradients,
    graphs,
    live,
    loading,
    machine,
    references,
    rendering,
    steps,
)
from benchmarks.numerics import cost, peak, score
from benchmarks.tables import Table

Question = Callable[..., list[Table]]

QUESTIONS: dict[str, tuple[Question, ...]] = {
    "memory": (steps.tables, accuracy.tables),
    "census": (census.tables, coverage.tables),
    "references": (references.tables,),
    "graphs": (graphs.tables,),
    "numerics": (score.tables, cost.tables, peak.tables),
    "gradients": (gradients.tables,),
    "live": (live.tables,),
    "load": (loading.tables,),
    "render": (rendering.tables,),
}
RESULTS = Path(__file__).parent / "RESULTS.md"


def main(arguments: list[str] | None = None) -> int:
    """Print a table for each question, and write them down if asked to."""
    asked = _parser().parse_args(arguments)
    if asked.write and asked.quick:
        _parser().error("--write is for whole figures: leave out --quick")
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # ipykernel's debugger warns otherwise
    about = machine.lines()
    print("\n".join((*about, machine.moment())), flush=True)
    for name in dict.fromkeys(asked.questions or QUESTIONS):
        moment, began = machine.moment(), time.monotonic()
        tables = []
        for table in _answers(name, quick=asked.quick):
            print(f"\n{table.text()}", flush=True)
            tables.append(table)
        if asked.write:
            took = f"`python -m benchmarks {name}`, {time.monotonic() - began:.0f} s"
            for table in tables:
                table.notes.append(f"{moment}. {took}.")
            RESULTS.write_text(_markdown(about, name, tables), encoding="utf-8")
            print(f"\nWritten to {RESULTS}", flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "questions", nargs="*", metavar="QUESTION", type=_question, help=", ".join(QUESTIONS)
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions: does it run at all")
    parser.add_argument(
        "--write", action="store_true", help=f"put the tables into {RESULTS.name} too"
    )
    return parser


def _question(name: str) -> str:
    if name not in QUESTIONS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(QUESTIONS)}")
    return name


def _answers(name: str, *, quick: bool) -> Iterator[Table]:
    for question in QUESTIONS[name]:
        yield from question(quick=quick)


def _markdown(about: list[str], name: str, tables: list[Table]) -> str:
    """Put a question's tables in the place of those that are written down."""
    head = [
        "# What nbinspect costs",
        "",
        (
            "Written by `python -m benchmarks --write`, one question after the other; do not edit. "
            "Every ratio is between two things measured in turn in one run; brackets hold the "
            "quartiles. A goal that is missed says so. Under each table stands when it was measured."
        ),
        "",
        *(f"- {line}" for line in about),
    ]
    known = RESULTS.read_text(encoding="utf-8").split("\n## ")[1:] if RESULTS.exists() else []
    others = [f"## {one.strip()}" for one in known if not one.startswith(f"{name}:")]
    sections = [*others, *(table.markdown() for table in tables)]
    order = list(QUESTIONS)
    sections.sort(key=lambda one: order.index(one.removeprefix("## ").partition(":")[0]))
    return "\n\n".join(("\n".join(head), *sections)) + "\n"


if __name__ == "__main__":
    sys.exit(main())
