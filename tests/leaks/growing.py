"""Plants growth in a fresh process, and gives back what `leakwatch` says and what its mends do.

Run as a script it is that process: it reads questions as lines of JSON, answers each in `__main__`,
and forgets all of it before the next.
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
import warnings
from dataclasses import dataclass, field
from typing import Any

from questions import Answerer, forgetting


@dataclass(frozen=True)
class Answer:
    """What was found, or why it failed.

    Attributes:
        report: the record, as plain values.
        text: the record, as a terminal shows it.
        freed_bytes: what the mends of all growths gave back, a collection included.
        error: what the cell, the question or a mend raised, "" if nothing.
    """

    report: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    freed_bytes: int = 0
    error: str = ""


class Grower(Answerer):
    """A process that answers questions, one after the other."""

    def __init__(self) -> None:
        super().__init__(__file__)

    def ask(self, code: str, *, n: int = 5, mend: bool = True, **options: Any) -> Answer:
        """Run `code`, which defines ``run``, and ask what grows when that is repeated."""
        question = {"code": code, "n": n, "mend": mend, "options": options}
        return Answer(**self.answer(question))


def held_bytes() -> int:
    from nbinspect.holders import census

    return sum(one.size_bytes for one in census().storages)


def answer(question: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """Run a cell in `__main__`, ask, mend, and report as plain values."""
    import nbinspect

    gc.disable()
    exec(compile(question["code"], "cell.py", "exec"), names)
    report = nbinspect.leakwatch(names["run"], question["n"], **question["options"])
    result: dict[str, Any] = {"report": report.to_dict(), "text": report.text()}
    if question["mend"]:
        before = held_bytes()
        for one in report.growths:
            if one.code:
                exec(one.code, names)
        gc.collect()
        result["freed_bytes"] = before - held_bytes()
    return result


def main() -> None:
    import linecache

    warnings.simplefilter("ignore")
    output, sys.stdout = sys.stdout, sys.stderr  # a cell may print
    for line in sys.stdin:
        question = json.loads(line)
        lines = question["code"].splitlines(keepends=True)
        linecache.cache["cell.py"] = (len(question["code"]), None, lines, "cell.py")
        with forgetting() as names:
            try:
                found = answer(question, names)
            except BaseException:
                found = {"error": traceback.format_exc()[-2000:]}
        output.write(json.dumps(found) + "\n")
        output.flush()


if __name__ == "__main__":
    main()
