"""Who names the operation and the line that went wrong, and who raises false alarms?"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Sequence

from benchmarks.fresh import in_process
from benchmarks.numerics import controls, forward_faults, later_faults
from benchmarks.numerics.planted import CONTROLS, FAULTS, Planted
from benchmarks.numerics.tools import NEEDS, TOOLS, Answer
from benchmarks.tables import Table

MODULES = (forward_faults, later_faults, controls)  # importing them fills the two lists

# Python's and autograd's names of what ATen calls otherwise.
_ALIASES = {
    "truediv": "div",
    "rtruediv": "div",
    "square": "pow",
    "crossentropy": "nllloss",
    "nlllossforward": "nllloss",
    "linear": "mm",
    "addmm": "mm",
    "multiheadattentionforward": "softmax",
    "logsoftmax": "softmax",
    "stdmean": "std",
    "reciprocal": "div",
}


def answer(tool: str, name: str) -> dict[str, object]:
    """Ask one tool about one training."""
    planted = next(one for one in (*FAULTS, *CONTROLS) if one.name == name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            said = TOOLS[tool](planted.make())
        except Exception as error:
            return {"alarm": False, "op": False, "line": False, "says": f"{type(error).__name__}"}
    return {
        "alarm": said.alarm,
        "op": names_op(planted, said),
        "line": _names_line(planted, said),
        "says": said.says,
    }


def answers(tool: str) -> dict[str, dict[str, object]]:
    """Ask one tool about all."""
    return {one.name: answer(tool, one.name) for one in (*FAULTS, *CONTROLS)}


def names_op(planted: Planted, said: Answer) -> bool:
    """Say whether an operation that may be named was named.

    What vanishes again is to be listed without an alarm.
    """
    named = said.listed if planted.absorbed and not said.alarm else said.ops
    wanted = {family(op) for op in planted.ops}
    return any(family(one) in wanted for one in named)


def _names_line(planted: Planted, said: Answer) -> bool:
    return any(one in said.line for one in planted.lines) or (
        planted.absorbed and names_op(planted, said)
    )


def family(name: str) -> str:
    """Give what an operation is called without its place: `DivBackward0`, `__truediv__`, `aten.div_`."""
    plain = name.removeprefix("aten.").removeprefix("_foreach_").lower()
    plain = re.sub(r"backward\d*$", "", plain).replace("_", "")
    return _ALIASES.get(plain, plain)


def tables(*, quick: bool) -> list[Table]:
    """Ask every tool about every training, each tool in a process of its own."""
    tools = [one for one in TOOLS if one not in NEEDS or importlib.util.find_spec(NEEDS[one])]
    tools = tools[:3] if quick else tools
    found = {tool: in_process(answers, tool=tool) for tool in tools}
    score = Table(
        f"numerics: {len(FAULTS)} planted faults and {len(CONTROLS)} healthy controls",
        ("tool", "noticed", "right operation", "right line", "false alarms"),
    )
    for tool in tools:
        faults, healthy = ([found[tool][one.name] for one in group] for group in (FAULTS, CONTROLS))
        score.add(
            tool,
            _share(faults, "alarm", len(FAULTS)),
            _share(faults, "op", len(FAULTS)),
            _share(faults, "line", len(FAULTS)),
            _share(healthy, "alarm", len(CONTROLS)),
        )
    score.notes += _notes(tools)
    return [score, _case_table(tools, found)]


def _share(rows: Sequence[dict[str, object]], key: str, n: int) -> str:
    return f"{sum(bool(one[key]) for one in rows)} of {n}"


def _case_table(tools: list[str], found: dict[str, dict[str, dict[str, object]]]) -> Table:
    table = Table("numerics: what each tool says", ("case", "made by", *tools))
    for planted in FAULTS:
        rows = (found[tool][planted.name] for tool in tools)
        wanted = planted.ops[0].removeprefix("aten.")
        table.add(
            planted.name, f"{wanted}, absorbed" if planted.absorbed else wanted, *map(_mark, rows)
        )
    for planted in CONTROLS:
        rows = (found[tool][planted.name] for tool in tools)
        table.add(
            planted.name, "healthy", *(f"ALARM: {r['says']}" if r["alarm"] else "-" for r in rows)
        )
    table.notes.append("op+line: both named as they should be; op, line: one of them; no: neither.")
    return table


def _mark(row: dict[str, object]) -> str:
    right = "+".join(name for name in ("op", "line") if row[name])
    if right == "op+line":
        return right
    return f"{right or 'no'}: {str(row['says']).removeprefix('aten.')}"


def _notes(tools: list[str]) -> list[str]:
    missing = [one for one in NEEDS if one not in tools]
    notes = [
        (
            "Each fault is written for this benchmark, with the operations and the line that may be "
            "named. A name counts in any spelling: `DivBackward0` and `__truediv__` are div. Of a "
            "fault whose values vanish again (1 case), it counts that it is listed without an alarm."
        ),
        (
            "detect_anomaly names a node of the backward pass and the forward line that made it; "
            "DebugUnderflowOverflow names modules, never an operation or a line; TorchLens is asked "
            "with find_nan and, where that finds nothing, bisect_nan_backward, before every step."
        ),
    ]
    return notes + [f"{', '.join(missing)}: not asked."] * bool(missing)
