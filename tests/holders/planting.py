"""Plants tensors in a fresh process, cell by cell, and gives back what `gpumem` says of them.

Run as a script it is that process: it reads cells as lines of JSON, runs each in `__main__`, and
forgets all of it before the next.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from typing import Any

from questions import Answerer, forgetting

HOOK_NUMBER = re.compile(r"OrderedDict\[\d+\]")  # counted through all of a process
TORCH_LINE = re.compile(r"(torch/[\w/]+\.py:)\d+")


@dataclass(frozen=True)
class Planted:
    """A cell, and all that is then held: {(kind, owner): bytes}.

    Attributes:
        also: for some owners, a part of what the answer says of other holders and of reasons.
        facts: what the cell has put into `facts`, e.g. how often something was called.
        complete: what the answer says of itself.
    """

    name: str
    code: str
    held: dict[tuple[str, str], int]
    also: dict[str, str] = field(default_factory=dict)
    facts: list[Any] = field(default_factory=list)
    complete: bool = True


@dataclass(frozen=True)
class Found:
    """What was found, or why the cell failed."""

    held: dict[tuple[str, str], int]
    texts: dict[str, str]
    notes: list[str]
    facts: list[Any]
    complete: bool
    error: str


class Planter(Answerer):
    """A process that runs cells, one after the other."""

    def __init__(self) -> None:
        super().__init__(__file__)

    def found(self, code: str) -> Found:
        """Run a cell, and say what is then held."""
        return _found(self.answer(code))


def _found(one: dict[str, Any]) -> Found:
    holdings = one.pop("holdings", [])
    held: dict[tuple[str, str], int] = {}
    for row in holdings:
        row[1] = TORCH_LINE.sub(r"\1#", HOOK_NUMBER.sub("OrderedDict[#]", row[1]))
        kind, owner, size, _, _ = row
        held[kind, owner] = held.get((kind, owner), 0) + size
    texts: dict[str, str] = {}
    for _, owner, _, also, note in holdings:
        texts[owner] = ", ".join([texts.get(owner, ""), note, *also])
    return Found(held, texts, one["notes"], one["facts"], one["complete"], one["error"])


def check(case: Planted, found: Found) -> None:
    """Say where an answer is not as planted."""
    assert found.error == ""
    assert found.held == case.held
    for owner, text in case.also.items():
        assert text in found.texts[owner]
    assert found.facts == case.facts
    assert found.complete == case.complete


def run_cell(code: str) -> dict[str, Any]:
    """Run one cell in `__main__`, and report as plain values."""
    from nbinspect.memory.snapshot import gpumem

    facts: list[Any] = []
    with forgetting() as names:
        names["facts"] = facts
        try:
            exec(compile(code, "cell.py", "exec"), names)
            snapshot = names.pop("answer", None) or gpumem()
        except Exception as error:
            return {"error": repr(error), "notes": [], "facts": [], "complete": False}
        devices = snapshot.devices
        return {
            "error": "",
            "holdings": [
                (one.kind, one.owner, one.size_bytes, one.also, one.note)
                for device in devices
                for one in device.holdings
            ],
            "notes": [note for device in devices for note in device.notes],
            "facts": list(facts),
            "complete": snapshot.complete,
        }


def main() -> None:
    import warnings

    import torch

    import nbinspect

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="torch|cell")
    vars(sys.modules["__main__"])["nbinspect"] = nbinspect
    run_cell("")  # some first call imports what later ones need
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run_cell(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
