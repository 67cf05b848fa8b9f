"""A table of gradients to step through, alone or beside an earlier run, live while a cell runs."""

from __future__ import annotations

import base64
import math
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from nbinspect.blocks import Unavailable
from nbinspect.gradients.records import GradientHistory
from nbinspect.gradients.step_records import Exponents, PackedStep
from nbinspect.gradients.view import says, since
from nbinspect.render.format import printable
from nbinspect.widgets import page

_HERE = Path(__file__).parent
N_BLOCKS = 16
MOST_HISTOGRAMS = 4000  # of single parameters, some 200 bytes each
UPDATE_S = 0.4
# A saved notebook has no kernel: its report is there, and the widget's empty place is not shown.
_STILL_STYLE = (
    "<style>.jp-OutputArea-child:has(.nbs-still) + .jp-OutputArea-child"
    ":has(> .jp-OutputArea-output.lm-Panel):not(:has(.nbs-root)) { display: none; }</style>"
)


class GradientSteps(anywidget.AnyWidget):
    """Steps of a training to walk through with a slider, arrow keys and clicks.

    The rows travel as bytes, in blocks of consecutive steps: while a cell runs only the last block
    is sent again.

    Args:
        against: an earlier run to show beside it.
    """

    _esm = (_HERE / "steps.js").read_text("utf-8")
    _css = (_HERE / "steps.css").read_text("utf-8")
    about: Any = traitlets.Dict().tag(sync=True)
    steps: Any = traitlets.Dict().tag(sync=True)
    earlier: Any = traitlets.Dict().tag(sync=True)
    earlier_rows: Any = traitlets.Bytes(b"").tag(sync=True)
    exponents: Any = traitlets.List().tag(sync=True)
    still_class: Any = traitlets.Unicode().tag(sync=True)
    for _number in range(N_BLOCKS):
        vars()[f"block_{_number}"] = traitlets.Bytes(b"").tag(sync=True)
    del _number

    def __init__(self, against: GradientHistory | None = None) -> None:
        super().__init__()
        self.still_class = f"nbs-still-{self.model_id}"
        self._sent: list[tuple[int, int, int]] = [(0, 0, 0)] * N_BLOCKS
        if against is not None:
            self.earlier = _about(against) | _scalars(against.packed)
            self.earlier_rows = b"".join(step.rows for step in against.packed)

    def show(self, history: GradientHistory, *, ended: bool = True) -> None:
        """Put a report that stays, and the table over it, under the running cell."""
        if not page.in_notebook():
            sys.stdout.write(f"{history.text()}\n")
            return
        self.update(history, ended=ended)
        page.publish(self._still(history, ended=ended), self.still_class)
        page.publish(self._bundle(), f"{self.model_id}-steps")

    def finish(self, history: GradientHistory) -> None:
        """Show the last state, and write the report that stays."""
        self.update(history, ended=True)
        page.publish(self._still(history, ended=True), self.still_class, update=True)

    def update(self, history: GradientHistory, *, ended: bool) -> None:
        """Send what is new."""
        size = max(64, -(-len(history.packed) // N_BLOCKS))
        for number in range(N_BLOCKS):
            some = history.packed[number * size : (number + 1) * size]
            key = (some[0].figures.index, some[-1].figures.index, len(some)) if some else (0, 0, 0)
            if key != self._sent[number]:
                self._sent[number] = key
                setattr(self, f"block_{number}", b"".join(step.rows for step in some))
        counted = [step.figures.index for step in history.packed if step.exponents]
        if counted != [one["step"] for one in self.exponents]:
            self.exponents = _exponents(history)
        self.about = _about(history) | {"ended": ended, "block": size}
        self.steps = _scalars(history.packed) | {"n": history.n_steps}

    def _still(self, history: GradientHistory, *, ended: bool) -> dict[str, Any]:
        if not ended:
            words = "Watching gradients; the report comes when the cell ends."
            html = f'<div class="nbs-still {self.still_class}">{_STILL_STYLE}</div>'
            return {"text/plain": words, "text/html": html}
        html = f'<div class="nbs-still {self.still_class}">{_STILL_STYLE}{history.html()}</div>'
        found: dict[str, Any] = {"text/plain": history.text(), "text/html": html}
        with suppress(Exception):  # text and HTML are there without it
            found["image/png"] = base64.b64encode(history.png()).decode()
        return found

    def _ipython_display_(self) -> None:
        page.publish(self._bundle(), f"{self.model_id}-steps")

    def _bundle(self) -> dict[str, Any]:
        bundle: Any = self._repr_mimebundle_()
        data: dict[str, Any] = bundle[0] if isinstance(bundle, tuple) else bundle
        return data | {"text/plain": ""}

    def close(self) -> None:
        """Take the table off the page; may be called twice."""
        super().close()
        self.layout.close()  # a widget of its own, with a comm of its own


def _about(history: GradientHistory) -> dict[str, Any]:
    """Give what does not belong to one step."""
    return {
        "names": [printable(one.name) for one in history.parameters],
        "sizes": [one.n_elements for one in history.parameters],
        "groups": [list(members) for members in history.groups],
        "findings": [
            {
                "kind": one.kind.lower(),
                "says": says(one) + since(one),
                "parameter": printable(one.parameter),
                "step": one.step,
                "why": printable(one.why),
                "mend": printable(one.mend),
            }
            for one in history.findings
        ],
    }


def _exponents(history: GradientHistory) -> list[dict[str, Any]]:
    """Give the counts of each power of two, by step: of all parameters, and of each if they are few."""
    steps = [step for step in history.packed if step.exponents]
    by_parameter = sum(len(step.exponents) for step in steps) <= MOST_HISTOGRAMS
    found = []
    for step in steps:
        members = history.groups[step.group]
        own = {members[one.row]: one for one in step.exponents if one.packed}
        found.append(
            {
                "step": step.figures.index,
                "all": _summed(own.values()),
                "own": {str(n): [one.first, list(one.counts)] for n, one in own.items()}
                if by_parameter
                else {},
            }
        )
    return found


def _summed(some: Iterable[Exponents]) -> list[Any]:
    counts: dict[int, int] = {}
    for one in some:
        for at, n in enumerate(one.counts):
            counts[one.first + at] = counts.get(one.first + at, 0) + n
    first, last = min(counts, default=0), max(counts, default=-1)
    return [first, [counts.get(at, 0) for at in range(first, last + 1)]]


def _scalars(steps: tuple[PackedStep, ...]) -> dict[str, Any]:
    """Give the figures of steps column by column; None where one is not known."""
    figures = [step.figures for step in steps]
    return {
        "index": [one.index for one in figures],
        "group": [step.group for step in steps],
        "loss": [_plain(one.loss) for one in figures],
        "norm": [_plain(one.grad_norm) for one in figures],
        "clip": [_plain(one.clip_factor) for one in figures],
        "clipped": [one.clipped for one in figures],
        "scale": [one.scale for one in figures],
        "skipped": [one.skipped for one in figures],
        "rate": [one.learning_rates[0] if one.learning_rates else None for one in figures],
    }


def _plain(value: Any) -> Any:
    """Give a number that JSON takes, or its name."""
    if isinstance(value, Unavailable):
        return None
    return value if math.isfinite(value) else str(value)


def explore_steps(history: GradientHistory, against: GradientHistory | None) -> GradientSteps:
    """Make the table of a finished run; see `nbinspect.widgets.explore`."""
    table = _Finished(against)
    table.history = history
    table.update(history, ended=True)
    return table


class _Finished(GradientSteps):
    """A table that knows what to show when it is displayed."""

    history: GradientHistory

    def _ipython_display_(self) -> None:
        self.show(self.history)


class LiveGradientWatch:
    """A watch whose steps are shown while they happen.

    Args:
        watch: what `nbinspect.gradwatch` gave.
        against: an earlier run to show beside it.
    """

    def __init__(self, watch: Any, against: GradientHistory | None) -> None:
        self._watch = watch
        self._against = against
        self._table: GradientSteps | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def report(self) -> GradientHistory:
        """What was seen."""
        report: GradientHistory = self._watch.report
        return report

    def __enter__(self) -> LiveGradientWatch:
        self._watch.__enter__()
        if page.in_notebook() and not page.in_colab():
            self._table = GradientSteps(self._against)
            self._table.show(self._watch.report, ended=False)
            self._thread = threading.Thread(target=self._follow, daemon=True)
            self._thread.start()
        return self

    def _follow(self) -> None:
        seen = -1
        while not self._stop.wait(UPDATE_S):
            with suppress(Exception):  # a picture that fails must not break the cell
                report = self._watch.report
                if self._table is not None and report.n_steps != seen:
                    seen = report.n_steps
                    self._table.update(report, ended=False)

    def __exit__(self, *error: Any) -> None:
        try:
            self._stop.set()
            if self._thread is not None:
                self._thread.join()
        finally:
            self._watch.__exit__(*error)

    def finish(self, record: GradientHistory) -> bool:
        """Show the end of the run; say whether there was a page to show it on."""
        if self._table is None:
            return False
        self._table.finish(record)
        return True
