"""Plants objects in a fresh process, and gives back what `refchain` says of them and what mends do.

Run as a script it is that process: it reads questions as lines of JSON, answers each in `__main__`,
and forgets all of it before the next.
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
import weakref
from dataclasses import dataclass, field
from typing import Any

from questions import Answerer, forgetting

PATIENCE_S = 60.0  # a busy machine changes no answer


@dataclass(frozen=True)
class Answer:
    """What was found, or why the cell failed.

    Attributes:
        report: the record, as plain values.
        text: the record, as a terminal shows it.
        facts: what the cell has put into `facts`, e.g. how often something was called.
        counts: reference count and use count of the object, before and after.
        ran: the lines of the mends that were run, one after the other.
        at_once: the object died at the last mend; else only a collection frees it.
        alive: it outlived both.
        error: what the cell, the question or a mend raised, "" if nothing.
    """

    report: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    facts: list[Any] = field(default_factory=list)
    counts: tuple[list[int], list[int]] = ([], [])
    ran: list[str] = field(default_factory=list)
    at_once: bool = False
    alive: bool = True
    error: str = ""

    def chains(self) -> list[str]:
        chains = self.report["chains"]
        return [" -> ".join(link["label"] for link in chain["links"]) for chain in chains]

    def edge(self, n: int = 0) -> str:
        """The kind of reference by which the object itself is held."""
        return str(self.report["chains"][n]["links"][-1]["edge"])


class Asker(Answerer):
    """A process that answers questions, one after the other."""

    def __init__(self) -> None:
        super().__init__(__file__)

    def ask(
        self,
        code: str,
        expression: str = "probe()",
        *,
        every: bool = False,
        mends: int = 1,
        then: str = "",
    ) -> Answer:
        """Run a cell, ask who keeps what an expression gives, run up to `mends` mends, and `then`.

        A cell that leaves a weak reference `probe` lets the answer say if the object died.
        """
        question = {
            "code": code,
            "expression": expression,
            "every": every,
            "mends": mends,
            "then": then,
        }
        return Answer(**self.answer(question))


def counts(value: Any) -> list[int]:
    import torch

    use = value._use_count() if issubclass(type(value), torch.Tensor) else 0
    return [sys.getrefcount(value), use]


def answer(question: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """Run a cell in `__main__`, ask, mend, and report as plain values."""
    from nbinspect import refchain

    facts: list[Any] = []
    names["facts"] = facts
    gc.disable()
    exec(compile(question["code"], "cell.py", "exec"), names)
    expression = question["expression"]
    before = counts(eval(expression, names))
    every = question["every"]
    report = refchain(eval(expression, names), all=every, name=expression, budget_s=PATIENCE_S)
    after = counts(eval(expression, names))
    result: dict[str, Any] = {
        "report": report.to_dict(),
        "text": report.text(),
        "facts": list(facts),
        "counts": (before, after),
        "ran": [],
    }
    probe = names.get("probe", lambda: None)
    for _ in range(question["mends"]):
        if probe() is not None and report.code:
            result["ran"].append(report.code)
            exec(report.code, names)
            if probe() is not None:
                report = refchain(probe(), name=expression, budget_s=PATIENCE_S)
    result["at_once"] = probe() is None
    exec(question["then"], names)
    gc.collect()
    result["alive"] = probe() is not None
    return result


def run(question: dict[str, Any]) -> dict[str, Any]:
    """Answer one question, and forget all of it."""
    with forgetting() as names:
        try:
            return answer(question, names)
        except Exception as error:
            return {"error": "".join(traceback.format_exception(error))}


def main() -> None:
    import warnings

    import torch

    torch.set_num_threads(1)
    names = vars(sys.modules["__main__"])
    names.update(torch=torch, nn=torch.nn, weakref=weakref)
    warnings.filterwarnings("ignore", module="torch|cell")
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
