"""How a history of gradients reads: are they well, since when not, and what do they look like."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nbinspect.blocks import (
    Advice,
    Band,
    Block,
    Cell,
    Code,
    Column,
    Fold,
    HeatMap,
    Histogram,
    Span,
    Table,
    Text,
    Unavailable,
    View,
)
from nbinspect.equal_layers import whole_modules
from nbinspect.gradients import rows as packed
from nbinspect.gradients.layers import layer_map, matrix, spark
from nbinspect.gradients.records import GradientFinding, GradientHistory
from nbinspect.gradients.step_records import Figure, GradientStep, ParameterGradient
from nbinspect.gradients.table_records import FROZEN, NOT_REACHED, GradientTable, TableRow
from nbinspect.render.format import count, figures, percent

MOST_ROWS, MOST_LAYERS, MOST_COLUMNS = 12, 18, 64
MOST_LISTED = 400
MOST_GROUPS = 4  # parameters or whole modules that a sentence names
VERBS = {
    "NAN": "gets a gradient that is NaN or infinite",
    "EXPLODING": "explodes",
    "VANISHING": "vanishes",
    "DEAD": "gets a gradient of nothing but zeros",
    "UNUSED": "is never reached",
    "PILING_UP": "The gradients pile up",
    "SPIKING": "spikes",
    "SKIPPING": "The gradient scaler skips step after step",
}


def three(value: float) -> float:
    """Round to three figures."""
    return float(f"{value:.3g}") if math.isfinite(value) else value


def says(finding: GradientFinding) -> str:
    """Give the sentence's rest after the parameter, or all of it where none is named."""
    if finding.kind == "NAN" and not finding.parameter:
        return "The loss turns NaN or infinite"
    return VERBS[finding.kind]


def since(finding: GradientFinding, words: str = "first in step") -> str:
    """Give the step at which a rule was first broken, for a sentence; "" for what never happened."""
    return "" if finding.kind == "UNUSED" else f", {words} {finding.step}"


def number(value: Figure | None) -> str:
    """Write a figure inside a sentence."""
    if value is None or isinstance(value, Unavailable):
        return "unknown"
    return figures(value, 3)


def history_view(history: GradientHistory) -> View:
    """Describe a run: the verdict, what to do, the picture, the worst and the last step."""
    if not (history.findings or _has(history, packed.HAS_GRADIENT)):
        return (Text((_nothing(history),), "headline"), *_left_alone(history), *_notes(history))
    blocks: list[Block] = [Text(_verdict(history), "headline")]
    blocks += [_advice(one, since(one, "step")) for one in history.findings]
    blocks += [Text((sentence,)) for sentence in (_course(history),) if sentence]
    blocks += _left_alone(history)
    blocks.append(heat_map(history))
    last = history.steps[-1]
    worst = worst_step(history)
    if worst is not None and worst.index != last.index:
        blocks.append(step_table(history, worst, f"Step {worst.index}, {_why_worst(history)}"))
    blocks.append(step_table(history, last, f"Step {last.index}, the last"))
    blocks += exponents(history)
    blocks += _rest(history, last)
    return (*blocks, *_notes(history))


def _has(history: GradientHistory, flag: int) -> bool:
    """Say whether any parameter has a flag in any step."""
    rows = (packed.unpack(step.rows) for step in history.packed)
    return any(packed.has(one, flag).any() for one in rows)


def _nothing(history: GradientHistory) -> str:
    if history.packed:
        n = "one step" if history.n_steps == 1 else f"{count(history.n_steps)} steps"
        if history.without_optimizer:
            return (
                f"The optimizer made {n} and had no gradient: backward reached parameters that it "
                "does not have. Was the model made anew after the optimizer?"
            )
        said = f"The optimizer made {n}, and no parameter that was watched had a gradient"
        return said + (
            ", though backward had reached some. Is zero_grad() called between backward() and step()?"
            if _has(history, packed.REACHED)
            else "."
        )
    if history.n_steps:
        return f"None of {history.n_steps} steps was read."
    return "No backward pass reached a parameter, so there are no gradients to show."


def _verdict(history: GradientHistory) -> tuple[Span, ...]:
    n = f"{count(history.n_steps)} {'step' if history.n_steps == 1 else 'steps'}"
    if not history.findings:
        which = {1: "the one step", 2: "both steps"}.get(history.n_steps, f"all {n}")
        alone = len(history.without_optimizer)
        some = "One parameter has" if alone == 1 else f"{count(alone)} parameters have"
        but = f" {some} no optimizer." if alone else ""
        return (f"Gradients look healthy in {which}.{but}",)
    first = history.findings[0]
    name: tuple[Span, ...] = (Code(first.parameter), " ") if first.parameter else ()
    more = len(history.findings) - 1
    rest = f" {more} more {'problem' if more == 1 else 'problems'} below." if more else ""
    when = f"{first_seen} of {n}" if (first_seen := since(first)) else f" in {n}"
    return (*name, f"{says(first)}{when}.{rest}")


def _advice(finding: GradientFinding, when: str = "") -> Advice:
    name: tuple[Span, ...] = (Code(finding.parameter), " ") if finding.parameter else ()
    lead = f"{says(finding)}{when}: "
    return Advice((*name, lead, finding.why), finding.mend)


def _course(history: GradientHistory) -> str:
    """Tell how loss and norm went, and what clipping and the scaler did."""
    first, last = history.packed[0].figures, history.packed[-1].figures
    parts = []
    if isinstance(first.loss, float) and isinstance(last.loss, float):
        parts.append(f"Loss {number(first.loss)} → {number(last.loss)}")
    parts.append(f"gradient norm {number(first.grad_norm)} → {number(last.grad_norm)}")
    text = ", ".join(parts)
    text = text[:1].upper() + text[1:] + "."
    return " ".join((text, *_clips(history), *_scales(history)))


def _clips(history: GradientHistory) -> list[str]:
    clipped = [one.figures for one in history.packed if one.figures.clipped]
    if not clipped:
        return []
    factors = [one.clip_factor for one in clipped if isinstance(one.clip_factor, float)]
    ways = {one.clipped for one in clipped}
    verb = "Clipped" if ways <= {"norm", "value"} else "Changed between backward and write"
    by = " by value" if ways == {"value"} else ""
    by += f" in {count(len(clipped))} of {count(len(history.packed))} steps"
    return [f"{verb}{by}, to {number(float(np.median(factors)))} of the norm (median)."]


def _scales(history: GradientHistory) -> list[str]:
    scales = [one.figures.scale for one in history.packed if one.figures.scale is not None]
    if not scales:
        return []
    n_skipped = sum(one.figures.skipped for one in history.packed)
    skips = f"{count(n_skipped)} {'step' if n_skipped == 1 else 'steps'} skipped"
    return [f"Loss scale {scales[0]:g} → {scales[-1]:g}, {skips}; all figures are unscaled."]


def heat_map(history: GradientHistory) -> HeatMap:
    """Draw the norm of each layer in each step."""
    found = layer_map(history, MOST_LAYERS, MOST_COLUMNS)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log10(found.norms)
    known = logs[np.isfinite(logs)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    values = tuple(
        tuple(_shade(norm, log) for norm, log in zip(norms, some, strict=True))
        for norms, some in zip(found.norms.tolist(), logs.tolist(), strict=True)
    )
    return HeatMap(
        "Gradient norm by layer and step",
        found.layers,
        values,
        low,
        max(high, low + 1e-9),
        f"{number(10**low)}",
        f"{number(10**high)}",
        f"step {found.first_steps[0]}",
        f"step {found.last_step}",
    )


FORMATS = (
    Band("float16", -24, -14, faint=True),
    Band("float16", -14, 16),
    Band("bfloat16", -133, -126, faint=True),
    Band("bfloat16", -126, 128),
)
"""What each format holds: from its smallest number on with fewer digits, then with all."""


def exponents(history: GradientHistory) -> list[Block]:
    """Draw how often each power of two occurs in the gradients, in the last step that counted any."""
    counted = (step for step in reversed(history.packed) if any(e.packed for e in step.exponents))
    step = next(counted, None)
    if step is None:
        return []
    counts: dict[int, int] = {}
    for one in step.exponents:
        for at, n in enumerate(one.counts):
            counts[one.first + at] = counts.get(one.first + at, 0) + n
    first, last = min(counts), max(counts)
    n_all = sum(counts.values())
    lost = sum(n for power, n in counts.items() if power < -24) / n_all
    every = max(4, (last - first) // 8)
    ticks = tuple((float(at), f"2^{at}") for at in range(first, last + 2) if at % every == 0)
    title = f"Gradients in step {step.figures.index} as the optimizer got them, by power of two"
    columns = tuple(counts.get(at, 0) for at in range(first, last + 1))
    words = (
        f"{percent(lost)} of the values that are not 0 would be 0 in float16 without a loss scale."
    )
    return [Histogram(title, first, columns, ticks, FORMATS), Text((words,), "note")]


def _shade(norm: float, log: float) -> float | None:
    if norm < 0:
        return None
    return math.nan if math.isnan(norm) else log


def worst_step(history: GradientHistory) -> GradientStep | None:
    """Give the step to look at: where the first rule broke, else that with the largest norm."""
    kept = {one.figures.index: at for at, one in enumerate(history.packed)}
    for finding in history.findings:
        if finding.step in kept:
            return history.steps[kept[finding.step]]
    norms = [one.figures.grad_norm for one in history.packed]
    largest = int(np.nanargmax(np.nan_to_num(norms, nan=-1.0)))
    return history.steps[largest] if norms else None


def _why_worst(history: GradientHistory) -> str:
    return "the first with a problem" if history.findings else "with the largest norm"


STEP_COLUMNS = (
    Column("parameter", "name"),
    Column("norm", "count"),
    Column("max |g|", "count"),
    Column("zeros", "percent"),
    Column("update / weight", "count"),
    Column("cosine", "count"),
)


def step_table(
    history: GradientHistory, step: GradientStep, title: str, most: int = MOST_ROWS
) -> Table:
    """List the parameters of a step: those with a finding and the largest, in module order."""
    loss = step.loss
    said = [f"loss {number(loss)}"] if isinstance(loss, float) else []
    said.append(f"norm {number(step.grad_norm)}")
    if step.skipped:
        said.append("skipped by the scaler")
    chosen = _chosen(history, step, most)
    series = {one.name: n for n, one in enumerate(history.parameters)}
    norms = matrix(history, "norm", packed.HAS_GRADIENT)
    rows = tuple(
        (*_cells(one), spark(norms[:, series[one.name]].tolist()))
        for one in (step.parameters[at] for at in chosen)
    )
    columns = (*STEP_COLUMNS, Column("norm over steps"))
    return Table(columns, rows, f"{title}: {', '.join(said)}", len(step.parameters) - len(rows))


def _chosen(history: GradientHistory, step: GradientStep, most: int) -> list[int]:
    named = {name for one in history.findings for name in (one.parameter, *one.others[:3])}

    def weight(at: int) -> tuple[bool, float]:
        one = step.parameters[at]
        norm = one.grad_norm if one.grad_norm is not None else -1.0
        return one.name in named, math.inf if math.isnan(norm) else norm

    order = sorted(range(len(step.parameters)), key=weight, reverse=True)
    return sorted(order[:most])


def _cells(one: ParameterGradient) -> tuple[Cell, ...]:
    state = {"NONE": "no gradient", "STALE": "not reached"}.get(one.state)
    return (
        one.name,
        state if state and one.grad_norm is None else _figure(one.grad_norm),
        _figure(one.max_abs),
        one.zero_share,
        _figure(one.update_ratio),
        None if one.cosine is None else round(one.cosine, 2) + 0.0,  # no -0
    )


def _figure(value: float | None) -> float | None:
    return None if value is None else three(value)


def _rest(history: GradientHistory, last: GradientStep) -> list[Block]:
    """Fold away what is long: all parameters, and the frozen ones and those left out if many."""
    blocks: list[Block] = []
    if len(last.parameters) > MOST_ROWS:
        title = f"All {count(len(last.parameters))} parameters in step {last.index}"
        blocks.append(Fold(title, (step_table(history, last, "", MOST_LISTED),)))
    for names, what in (
        (history.without_optimizer, "parameters that no optimizer has"),
        (history.frozen, "frozen parameters"),
    ):
        if len(_groups(history, names)) > MOST_GROUPS:
            listed = Table((Column("parameter", "name"),), tuple((one,) for one in names[:50]))
            inside = (listed if len(names) <= 50 else _cut(listed, len(names)),)
            blocks.append(Fold(f"All {count(len(names))} {what}", inside))
    return blocks


def _left_alone(history: GradientHistory) -> list[Block]:
    """Name what is not trained beside what is: its rows are missing below, which nobody sees."""
    said: list[Block] = []
    for names, one, many in (
        (
            history.without_optimizer,
            "gets gradients, but no optimizer has it: ",
            "get gradients, but no optimizer has them: ",
        ),
        (
            history.frozen,
            "is frozen (its requires_grad is False) and is not trained: ",
            "are frozen (their requires_grad is False) and are not trained: ",
        ),
    ):
        if names:
            n = count(len(names))
            words = f"1 parameter {one}" if len(names) == 1 else f"{n} parameters {many}"
            said.append(Text((words, *_codes(_groups(history, names)), ".")))
    return said


def _groups(history: GradientHistory, names: Sequence[str]) -> list[str]:
    """Write modules for their parameters where all of them are meant."""
    trained = (one.name for one in history.parameters)
    return whole_modules(names, {*trained, *history.frozen, *history.without_optimizer})


def _codes(names: Sequence[str]) -> list[Span]:
    spans: list[Span] = []
    for name in names[:MOST_GROUPS]:
        spans += [", ", Code(name)]
    rest = len(names) - MOST_GROUPS
    return spans[1:] + ([f" and {count(rest)} more"] if rest > 0 else [])


def _cut(table: Table, n_all: int) -> Table:
    return Table(table.columns, table.rows, n_more=n_all - len(table.rows))


def _notes(history: GradientHistory) -> list[Block]:
    notes = list(history.notes)
    if history.every > 1:
        notes.append(f"One step in {history.every} was read.")
    n_read = -(-history.n_steps // history.every)
    if len(history.packed) < n_read:
        notes.append(
            f"{count(len(history.packed))} of {count(n_read)} read steps are kept, the older ones "
            "thinned out; the rules saw all."
        )
    if history.error:
        notes.append(f"The cell ended with {history.error}.")
    return [Text((note,), "note") for note in notes]


def table_view(table: GradientTable) -> View:
    """Describe the gradients of this moment."""
    rows = table.parameters
    blocks: list[Block] = [Text(_table_verdict(table), "headline")]
    blocks += [_advice(one) for one in table.findings]
    if rows:
        blocks.append(_now_table(rows[:MOST_LISTED], len(rows)))
    also = [(one.name, one.also) for one in rows if one.also]
    blocks += [
        Text((Code(name), " is tied: it is also ", Code(", ".join(others)), "."), "note")
        for name, others in also
    ]
    return tuple(blocks)


def _table_verdict(table: GradientTable) -> tuple[Span, ...]:
    rows = table.parameters
    if not rows:
        return ("There is no module with parameters to show.",)
    n_with = sum(one.grad_norm is not None for one in rows)
    if not n_with:
        return (f"None of {count(len(rows))} parameters has a gradient.",)
    of = f"{count(n_with)} of {count(len(rows))} parameters have a gradient"
    of = of if len(rows) > 1 else "The one parameter has a gradient"
    bad = sum(bool(one.n_nan or one.n_inf) for one in rows)
    words = f"; {count(bad)} with NaN or Inf" if bad else ""
    return (f"{of}; their norm is {number(table.grad_norm)}{words}.",)


def _norm_now(one: TableRow) -> Cell:
    """Say in a word that there is no gradient; that there is one that was not read is unknown."""
    if one.grad_norm is not None or not one.why_not:
        return _figure(one.grad_norm)
    words = {FROZEN: "frozen", NOT_REACHED: "no gradient"}.get(one.why_not)
    return words or Unavailable(one.why_not)


def _now_table(rows: Sequence[TableRow], n_all: int) -> Table:
    columns = (
        Column("parameter", "name"),
        Column("shape"),
        Column("norm", "count"),
        Column("max |g|", "count"),
        Column("mean", "count"),
        Column("std", "count"),
        Column("zeros", "percent"),
        Column("NaN, Inf", "count"),
        Column("weight norm", "count"),
    )
    cells = tuple(
        (
            one.name,
            "x".join(map(str, one.shape)) or "scalar",
            _norm_now(one),
            _figure(one.max_abs),
            _figure(one.mean),
            _figure(one.std),
            one.zero_share,
            None if one.n_nan is None or one.n_inf is None else one.n_nan + one.n_inf,
            _figure(one.weight_norm),
        )
        for one in rows
    )
    return Table(columns, cells, n_more=n_all - len(cells))
