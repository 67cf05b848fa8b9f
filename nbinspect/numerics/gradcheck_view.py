"""How `gradcheck`'s record describes itself: agree or not, why, and the worst entries."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nbinspect.blocks import (
    Advice,
    Block,
    Cell,
    Code,
    Column,
    Fold,
    Span,
    Table,
    Text,
    Unavailable,
    View,
)
from nbinspect.numerics.gradcheck_records import (
    BornAt,
    CustomFunction,
    GradcheckReport,
    GradientEntry,
)
from nbinspect.numerics.phrasing import is_code, spans_of
from nbinspect.render.format import count, percent, plain_number

BAD_OWN_DTYPE = 1e-2  # of the largest gradient; what rounding should not make


def gradcheck_view(report: GradcheckReport) -> View:
    """Show the verdict, what is wrong, and the entries."""
    blocks: list[Block] = [_headline(report)]
    own, wrong = list(_own_dtype(report)), [*_causes(report), *_functions(report)]
    blocks += own + wrong if report.nonfinite else wrong + own
    blocks += _tables(report)
    if report.message:
        blocks.append(Fold("What torch says", (Text((report.message,)),)))
    blocks += [Text((note,), "note") for note in _notes(report)]
    return tuple(blocks)


def _headline(report: GradcheckReport) -> Text:
    name = Code(report.name)
    if isinstance(report.passed, Unavailable):
        return Text(
            ("The gradients of ", name, f" are not checked: {report.passed.reason}."), "headline"
        )
    if report.passed:
        n_inputs = len(report.inputs)
        words = f"{count(n_inputs)} tensor" + ("" if n_inputs == 1 else "s")
        return Text(
            ("The gradients of ", name, f" are right, for {words}{_worst_error(report)}."),
            "headline",
        )
    wrong = [one for one in report.entries if not one.agrees]
    if not wrong:
        return Text(("torch's check of ", name, " fails."), "headline")
    if not any(math.isfinite(one.numeric) for one in wrong):
        at = Code(f"{wrong[0].input}{wrong[0].index}")
        gives = f" gives {plain_number(wrong[0].numeric)}."
        words = " is not finite here, so its gradient cannot be compared: a small step from "
        return Text((name, words, at, gives), "headline")
    spans: list[Span] = [
        "The gradient of ",
        name,
        " with respect to ",
        Code(wrong[0].input),
        " is wrong",
    ]
    if all(one.doubt for one in wrong):
        spans[-1] = " cannot be checked here"
    spans += [": at ", Code(f"{wrong[0].input}{wrong[0].index}")]
    spans += [f" backward gives {plain_number(wrong[0].analytic)}, "]
    spans += [f"a small step gives {plain_number(wrong[0].numeric)}."]
    return Text(tuple(spans), "headline")


def _worst_error(report: GradcheckReport) -> str:
    shares = [one.error / one.tolerance for one in report.entries if one.tolerance > 0]
    return f"; the largest error is {percent(max(shares))} of what is allowed" if shares else ""


def _own_dtype(report: GradcheckReport) -> Iterator[Block]:
    """Say what float64 hides."""
    if report.nonfinite:
        first = report.nonfinite[0]
        spans: list[Span] = [f"At {report.dtype} it is not finite: "]
        if first.n_values == 1:
            spans += [Code(first.what), f" is {first.value}."]
        else:
            spans += [f"{count(first.n_bad)} of {count(first.n_values)} values of "]
            spans += [Code(first.what), f" are {first.value}, first at ", Code(first.index), "."]
        if report.passed is True:
            spans.append(" float64 hides it.")
        yield Text(tuple(spans), "action")
        if report.born_at is not None:
            yield _born(report.born_at)
    elif not isinstance(report.passed, Unavailable):
        yield Text((f"At {report.dtype}, its own dtype, outputs and gradients are finite.",))
    for one in report.inputs:
        if isinstance(one.own_dtype_error, float) and one.own_dtype_error > BAD_OWN_DTYPE:
            off = f"{100 * one.own_dtype_error:.2g} %"
            yield Advice(
                (
                    f"At {report.dtype} the gradient of ",
                    Code(one.name),
                    f" is {off} off the one in float64: the function loses digits.",
                )
            )


def _born(born: BornAt) -> Advice:
    where = f" in {born.where.label}" if born.where else ""
    phase = ", in backward" if born.phase == "backward" else ""
    line: tuple[Span, ...] = (" (", Code(born.where.text), ")") if born.where else ()
    spans = ("It begins at ", Code(born.op), where, *line, f"{phase}. ", *spans_of(born.why))
    if not born.mend or is_code(born.mend):
        return Advice(spans, born.mend)
    return Advice((*spans, " Mend: ", *spans_of(born.mend), "."))


def _causes(report: GradcheckReport) -> Iterator[Block]:
    said: dict[str, list[str]] = {}
    for one in report.inputs:
        if one.cause:
            said.setdefault(one.cause, []).append(one.name)
    for cause, names in said.items():
        spans: list[Span] = []
        for n, name in enumerate(names[:4]):
            spans += [", " if n else "", Code(name)]
        if len(names) > 4:
            spans.append(f" and {len(names) - 4} more")
        yield Advice((*spans, f": {cause}."))


def _functions(report: GradcheckReport) -> Iterator[Block]:
    wrong = [one for one in report.functions if one.agrees is False]
    for one in wrong:
        where = f" ({one.where.label})" if one.where else ""
        yield Advice(("Checked by itself, ", Code(one.name), f"{where} has a wrong backward."))
    if report.functions and not wrong and report.passed is False:
        right = [one for one in report.functions if one.agrees is True]
        if right:
            yield Text(("Right by themselves: ", *_listed(right), "."))


def _listed(functions: list[CustomFunction]) -> Iterator[Span]:
    for n, one in enumerate(functions):
        yield from ((", " if n else ""), Code(one.name))


def _tables(report: GradcheckReport) -> Iterator[Block]:
    if report.entries:
        yield _entries(report)
    if report.inputs:
        yield _inputs(report)
    if report.functions:
        yield Fold(f"Custom functions that ran: {count(len(report.functions))}", (_custom(report),))
    if len(report.nonfinite) > 1:
        columns = (
            Column("what", "name"),
            Column("bad", "count"),
            Column("of", "count"),
            Column("first at", "name"),
        )
        rows = tuple((one.what, one.n_bad, one.n_values, one.index) for one in report.nonfinite)
        yield Table(columns, rows, f"Not finite at {report.dtype}")


def _entries(report: GradcheckReport) -> Table:
    several = len({one.output for one in report.entries}) > 1
    columns = [Column("value", "name")]
    if several:
        columns.append(Column("output", "name"))
    columns += [
        Column("analytic", "count"),
        Column("numeric", "count"),
        Column("error", "count"),
        Column("allowed", "count"),
        Column("verdict"),
    ]
    rows = tuple(_entry(one, several=several) for one in report.entries[: report.n_top])
    n_wrong = sum(not one.agrees for one in report.entries)
    title = "The worst entries" if n_wrong else "The largest errors, all allowed"
    return Table(tuple(columns), rows, title, len(report.entries) - len(rows))


def _entry(one: GradientEntry, *, several: bool) -> tuple[Cell, ...]:
    verdict = "ok" if one.agrees else one.doubt or "wrong"
    head: tuple[Cell, ...] = (f"{one.input}{one.index}",)
    if several:
        head += (one.output,)
    return (*head, one.analytic, one.numeric, _short(one.error), _short(one.tolerance), verdict)


def _short(number: float) -> float:
    return float(f"{number:.2g}") if math.isfinite(number) else number


def _inputs(report: GradcheckReport) -> Table:
    rows = tuple(
        (
            one.name,
            one.description,
            one.n_values,
            one.n_checked,
            one.n_wrong,
            one.analytic,
            one.numeric,
            one.own_dtype_error,
        )
        for one in report.inputs[: report.n_top]
    )
    columns = (
        Column("tensor", "name"),
        Column("is"),
        Column("values", "count"),
        Column("tried", "count"),
        Column("wrong", "count"),
        Column("analytic", "count"),
        Column("numeric", "count"),
        Column(f"off at {report.dtype}", "percent"),
    )
    title = "By tensor; the slopes are along one direction through all of its values"
    return Table(columns, rows, title, len(report.inputs) - len(rows))


def _custom(report: GradcheckReport) -> Table:
    rows = tuple(
        (
            one.name,
            one.where.label if one.where else None,
            one.agrees if isinstance(one.agrees, Unavailable) else "ok" if one.agrees else "wrong",
        )
        for one in report.functions
    )
    return Table((Column("function", "name"), Column("backward"), Column("by itself")), rows)


def _notes(report: GradcheckReport) -> Iterator[str]:
    yield from report.notes
    n_values = sum(one.n_values for one in report.inputs)
    n_tried = sum(one.n_checked for one in report.inputs)
    if n_tried < n_values:
        yield f"{count(n_tried)} of {count(n_values)} values were tried one by one, drawn at random."
    how = "random directions (its fast mode)" if report.fast_mode else "every entry"
    if isinstance(report.passed, bool):
        yield (
            f"The verdict is torch.autograd.gradcheck's in float64, on {how}: eps {report.eps:g}, "
            f"atol {report.atol:g}, rtol {report.rtol:g}."
        )
