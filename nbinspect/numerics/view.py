"""How a report of `nanwatch` reads: the sentence, the mend, the way it went, the values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nbinspect.blocks import (
    Advice,
    Block,
    Code,
    Column,
    Fold,
    Graph,
    GraphEdge,
    GraphNode,
    Span,
    Table,
    Text,
    View,
)
from nbinspect.numerics.phrasing import index_text, number
from nbinspect.numerics.records import Link, NanFinding, NanReport, Operand, Reached
from nbinspect.records import SourceLine

N_NAMES = 3
OPERANDS = (
    Column("value", "name"),
    Column("type"),
    Column("there", "count"),
    Column("smallest", "count"),
    Column("largest", "count"),
    Column("zeros", "count"),
    Column("NaN", "count"),
    Column("Inf", "count"),
)
ABSORBED = (
    Column("operation", "name"),
    Column("line"),
    Column("source", "code"),
    Column("what", "text"),
    Column("times", "count"),
)
_PLACES = {
    "loss": "the loss",
    "grad": "gradients",
    "parameter": "parameters",
    "buffer": "buffers",
}


def report_view(report: NanReport) -> View:
    """Show the findings, or say that all is well."""
    blocks: list[Block] = []
    if not report.findings:
        blocks.append(_healthy(report))
    for i, finding in enumerate(report.findings):
        blocks += _finding(finding, report, first=i == 0)
    blocks += _absorbed(report)
    blocks += [Text((note,), "note") for note in _notes(report)]
    return tuple(blocks)


def _healthy(report: NanReport) -> Text:
    if not report.n_backwards and not report.n_steps:
        start = "No NaN or Inf reached a parameter or buffer; no backward pass ran."
    else:
        start = "No NaN or Inf reached the loss, a gradient, a parameter or a buffer."
    return Text((start, " ", _extent(report)), "headline")


def _extent(report: NanReport) -> str:
    parts = [_many(report.n_steps, "step"), _many(report.n_backwards, "backward pass", "es")]
    if report.n_ops:
        parts.append(_many(report.n_ops, "operation"))
    return f"Looked at {', '.join(parts[:-1])} and {parts[-1]}."


def _many(n: int, what: str, plural: str = "s") -> str:
    return f"{n:,} {what}{plural if n != 1 else ''}"


# One finding.


def sentence(finding: NanFinding) -> str:
    """Say a finding in words, as the message of the error."""
    from nbinspect.render.words import spans_text

    mend = f" Mend: {finding.mend}." if finding.mend else ""
    return (
        spans_text((*_headline_spans(finding), " ", finding.why, *_reached_spans(finding))) + mend
    )


def _headline_spans(finding: NanFinding) -> list[Span]:
    spans: list[Span] = [f"Step {finding.step}: "]
    if finding.kind == "leaf":
        spans += [
            finding.shows,
            " came in with ",
            Code(finding.source or "a tensor"),
            ", first read",
        ]
    elif finding.op == "limit":
        spans += [f"the gradient norm is too large ({finding.source})"]
    elif finding.op == "unknown":
        spans += [f"{finding.shows} turned up in the {_PHASES[finding.phase]}"]
    else:
        spans += [
            Code(finding.op.removeprefix("aten.")),
            f" {_VERBS[finding.kind]} {finding.shows}",
        ]
    if finding.where is not None:
        spans += [f" in {finding.where.label} (", Code(finding.where.text), ")"]
    if finding.phase in {"backward", "optimizer", "data"} and finding.op not in {
        "unknown",
        "limit",
    }:
        spans += [f", {_PHASES[finding.phase]}"]
    spans += ["."]
    return spans


_VERBS = {
    "born": "made",
    "inf_to_nan": "turned Inf into",
    "literal": "wrote",
    "passed": "passed on",
}
_PHASES = {
    "forward": "forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer",
    "data": "in the data, before the model",
    "leaf": "",
}


def _reached_spans(finding: NanFinding) -> list[Span]:
    if not finding.reached:
        return []
    spans: list[Span] = [" It reached "]
    for i, one in enumerate(finding.reached):
        if i:
            spans.append(" and " if i == len(finding.reached) - 1 else ", ")
        spans += _reached_one(one)
    spans.append(".")
    return spans


def _reached_one(one: Reached) -> list[Span]:
    if one.place == "loss":
        return ["the loss"]
    n = len(one.names)
    what = _PLACES[one.place] if one.n_of != 1 else _PLACES[one.place].removesuffix("s")
    spans: list[Span] = [f"{n:,} of {one.n_of:,} {what} ("]
    for i, name in enumerate(one.names[:N_NAMES]):
        spans += [", " if i else "", Code(name)]
    spans.append(f" and {n - N_NAMES:,} more)" if n > N_NAMES else ")")
    return spans


def _finding(finding: NanFinding, report: NanReport, *, first: bool) -> Iterator[Block]:
    yield Text(tuple(_headline_spans(finding)), "headline" if first else "action")
    yield Text((finding.why, *_reached_spans(finding)))
    if finding.mend:
        yield Advice(("To mend it:",), finding.mend)
    yield from _consequence(finding, report)
    if finding.chain and first:
        yield _picture(finding.chain)
    if finding.chain:
        yield _way(finding.chain)
    if finding.operands:
        yield _values(finding)
    yield from _excerpts(finding)


def _consequence(finding: NanFinding, report: NanReport) -> Iterator[Text]:
    if finding.written:
        names = finding.written
        spans: list[Span] = [
            f"The optimizer has already written {_many(len(names), 'parameter')}: "
        ]
        for i, name in enumerate(names[:N_NAMES]):
            spans += [", " if i else "", Code(name)]
        spans.append(f" and {len(names) - N_NAMES:,} more. " if len(names) > N_NAMES else ". ")
        spans += [
            "Load them, and the optimizer's state, from the last checkpoint, or make both anew."
        ]
        yield Text(tuple(spans), "action")
    elif report.stopped and not {"parameter", "buffer"} & set(finding.reaches):
        yield Text(("The cell was stopped before the optimizer wrote: the weights are intact.",))
    if finding.n_seen > 1:
        yield Text((f"The same line did it {finding.n_seen:,} times in this cell.",), "note")
    if finding.ran is not None and finding.phase == "backward":
        yield Text(("Backward was called in ", finding.ran.label, "."), "note")


def _picture(chain: Sequence[Link]) -> Graph:
    nodes = tuple(_box(i, link, len(chain)) for i, link in enumerate(chain))
    edges = tuple(GraphEdge(str(i), str(i + 1)) for i in range(len(chain) - 1))
    return Graph("From where it was born to where it was found", nodes, edges)


def _box(i: int, link: Link, n: int) -> GraphNode:
    role = "root" if i == 0 else "target" if i == n - 1 else "holder"
    hue = "TRACEBACK" if i == 0 else "GRADIENT" if i == n - 1 else "OTHER"
    label = link.op.removeprefix("aten.")
    below = "" if link.role == "reached" else f"{link.node or link.module or link.phase}"
    where = (link.where.label,) if link.where else ()
    return GraphNode(str(i), label, below, role, hue, detail=where, alert=link.shows)  # type: ignore[arg-type]


def _way(chain: Sequence[Link]) -> Table:
    columns = (
        Column(""),
        Column("operation", "name"),
        Column("shows"),
        Column("node or module", "name"),
        Column("line"),
        Column("source", "code"),
    )
    rows = tuple(
        (
            link.role,
            link.op.removeprefix("aten."),
            link.shows,
            link.node or link.module,
            link.where.label if link.where else "",
            link.where.text if link.where else "",
        )
        for link in chain
    )
    return Table(columns, rows, "The way it went")


def _values(finding: NanFinding) -> Table:
    at = f" at {index_text(finding.index)}" if finding.index else ""
    title = f"What {finding.op.removeprefix('aten.')} was given"
    if finding.kind == "leaf":
        title = "The values"
    columns = list(OPERANDS)
    columns[2] = Column(f"value{at}" if at else "value", "count")
    return Table(tuple(columns), tuple(_row(one) for one in finding.operands), title)


def _row(one: Operand) -> tuple[str | int | None, ...]:
    if one.missing is not None:
        return (one.name, f"{one.what}, {one.missing.reason}", None, None, None, None, None, None)
    if not one.n_values:
        return (one.name, one.what, None, None, None, None, None, None)
    return (
        one.name,
        one.what,
        _number(one.at),
        _number(one.low),
        _number(one.high),
        one.n_zero,
        one.n_nan,
        one.n_inf,
    )


def _number(value: float | None) -> str | None:
    return None if value is None else number(value)


def _excerpts(finding: NanFinding) -> Iterator[Block]:
    """Show the neighbourhood of the first bad value, the value itself in brackets."""
    rows = [
        (one.name, "  ".join(_marked(one, i) for i in range(len(one.excerpt))))
        for one in finding.operands
        if len(one.excerpt) > 1
    ]
    if rows:
        at = index_text(finding.index)
        columns = (Column("value", "name"), Column("along the last dimension", "code"))
        title = f"Around the first bad value, {at}"
        yield Fold(title, (Table(columns, tuple(rows)),))


def _marked(one: Operand, i: int) -> str:
    text = number(one.excerpt[i])
    return f"[{text}]" if i == one.at_excerpt else text


# The rest.


def _absorbed(report: NanReport) -> Iterator[Block]:
    for one in report.absorbed:
        if one.alarming:
            spans: list[Span] = [Code(one.op.removeprefix("aten.")), f" made {one.shows}"]
            spans += [f" in {one.where.label}"] if one.where else []
            spans += [
                ", and ", Code(one.absorbed_by.removeprefix("aten.")),
                " turned that into a number that looks right. ", one.why,
            ]  # fmt: skip
            yield Advice(tuple(spans), one.mend)
    if report.absorbed:
        n = len(report.absorbed)
        title = f"{n} more place{'s' * (n != 1)} made NaN or Inf that reached nothing"
        rows = tuple(_absorbed_row(one) for one in report.absorbed)
        yield Fold(title, (Table(ABSORBED, rows),))


def _absorbed_row(one: NanFinding) -> tuple[str, str, str, str, int]:
    what = f"{one.shows}, {_MEANT.get(one.kind, 'made')}"
    if one.absorbed_by:
        what += f", taken in by {one.absorbed_by.removeprefix('aten.')}"
    elif one.node:
        what += f", inside {one.node}"
    where: SourceLine | None = one.where
    name = one.op.removeprefix("aten.") if one.kind != "leaf" else one.source or "a tensor"
    return (name, where.label if where else "", where.text if where else "", what, one.n_seen)


_MEANT = {
    "literal": "written on purpose",
    "leaf": "came with the data",
    "inf_to_nan": "from an Inf",
}


def _notes(report: NanReport) -> Iterator[str]:
    if report.replay:
        yield report.replay
    if report.findings:
        yield _extent(report)
    if report.mode == "light" and not report.findings:
        yield "Light: loss, gradients and parameters were looked at once a step, no operation was."
    if report.skipped_steps:
        yield (
            f"GradScaler skipped {_many(report.skipped_steps, 'step')} whose scaled gradients "
            "overflowed; it lowers its scale by itself."
        )
    yield from report.notes
