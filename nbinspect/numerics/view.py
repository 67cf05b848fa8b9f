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
from nbinspect.numerics.phrasing import function_name, index_text, is_code, number, spans_of
from nbinspect.numerics.records import Link, NanFinding, NanReport, Operand, Reached
from nbinspect.records import SourceLine
from nbinspect.render.format import count, many

N_NAMES = 3
MOST_BOXES = 5
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
        start = "No NaN or Inf reached a parameter or buffer; no backward pass ran"
    else:
        start = "No NaN or Inf reached the loss, a gradient, a parameter or a buffer"
    hidden = sum(one.alarming for one in report.absorbed)
    but = (
        f", but {many(hidden, 'overflow')} turned into a number that looks right" if hidden else ""
    )
    return Text((f"{start}{but}.",), "headline")


def _extent(report: NanReport) -> str:
    steps = many(report.n_steps, "whole step")
    parts = [many(report.n_ops, "operation")] if report.n_ops else []
    parts += [many(report.n_backwards, "backward pass", "backward passes"), steps]
    return f"Looked at {', '.join(parts[:-1])} and {parts[-1]}."


# One finding.


def sentence(finding: NanFinding) -> str:
    """Say a finding in words, as the message of the error."""
    from nbinspect.render.words import spans_text

    mend = f" Mend: {finding.mend}" if finding.mend else ""
    return f"{spans_text(_headline_spans(finding))} {finding.why}{mend}"


def _headline_spans(finding: NanFinding) -> list[Span]:
    spans: list[Span] = [f"Step {finding.step}: ", *_what(finding)]
    if finding.where is not None:
        spans += [f" in {finding.where.label} (", Code(finding.where.text), ")"]
    if finding.phase in _IN and finding.op not in {"unknown", "limit"}:
        spans += [f", {_IN[finding.phase]}"]
    return [*spans, "."]


def _what(finding: NanFinding) -> list[Span]:
    """Say what happened, by the name that the user's line has for it."""
    name = Code(op_name(finding.op))
    if finding.kind == "leaf":
        source: list[Span] = (
            [Code(finding.source)] if finding.source else ["a tensor without a name"]
        )
        if finding.reaches == ("buffer",) and finding.source in finding.reached[0].names:
            written = ", which is written" if finding.where else ""
            return [f"{finding.shows} got into ", *source, written]
        return [f"{finding.shows} came in with ", *source, ", first read"]
    if finding.op == "limit":
        return [f"the gradient norm is too large ({finding.source})"]
    if finding.op == "unknown":
        return [f"{finding.shows} turned up {_TURNED_UP[finding.phase]}"]
    if finding.node is not None and function_name(finding.node):
        return ["the gradient of ", Code(function_name(finding.node)), f" became {finding.shows}"]
    return [name, f" {_VERBS[finding.kind]} {finding.shows}"]


def op_name(op: str) -> str:
    """Give an operation's name as the user knows it: ``log_softmax`` for ``aten._log_softmax``."""
    return op.removeprefix("aten.").lstrip("_")


_VERBS = {"born": "made", "inf_to_nan": "turned Inf into", "literal": "wrote"}
_IN = {
    "backward": "in the backward pass",
    "optimizer": "in the optimizer",
    "data": "in the data, before the model",
}
_TURNED_UP = {
    "forward": "in the loss",
    "backward": "in the gradients",
    "optimizer": "in what the optimizer wrote",
    "leaf": "in what the step began with",
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
    spans: list[Span] = [f"{count(n)} of {count(one.n_of)} {what} ("]
    for i, name in enumerate(one.names[:N_NAMES]):
        spans += [", " if i else "", Code(name)]
    spans.append(f" and {count(n - N_NAMES)} more)" if n > N_NAMES else ")")
    return spans


def _finding(finding: NanFinding, report: NanReport, *, first: bool) -> Iterator[Block]:
    yield Text(tuple(_headline_spans(finding)), "headline" if first else "action")
    yield Text((*spans_of(finding.why), *_reached_spans(finding)))
    if finding.mend:
        yield _mend(finding.mend)
    yield from _consequence(finding, report)
    if finding.operands:
        yield _values(finding)
    if len(finding.chain) > 1:
        yield _picture(finding.chain)
        yield Fold("The way it went, line by line", (_way(finding.chain),))
    yield from _excerpts(finding)


def _mend(mend: str) -> Advice:
    if is_code(mend):
        return Advice(("To mend it:",), mend)
    return Advice((f"To mend it: {mend}.",))


def _consequence(finding: NanFinding, report: NanReport) -> Iterator[Text]:
    if finding.written:
        names = finding.written
        them = "it" if len(names) == 1 else "them"
        spans: list[Span] = [f"The optimizer has written {finding.shows} into "]
        for i, name in enumerate(names[:N_NAMES]):
            spans += [", " if i else "", Code(name)]
        spans.append(f" and {count(len(names) - N_NAMES)} more" if len(names) > N_NAMES else "")
        spans += [f": load {them} and the optimizer's state from a checkpoint, or make both anew."]
        yield Text(tuple(spans), "action")
    elif report.stopped and not {"parameter", "buffer"} & set(finding.reaches):
        yield Text(("The cell was stopped before the optimizer wrote: the weights are intact.",))
    if finding.n_seen > 1:
        yield Text((f"The same line did it {count(finding.n_seen)} times in this cell.",), "note")
    if finding.node is not None and finding.op != "unknown":
        called = f", called in {finding.ran.label}" if finding.ran is not None else ""
        op, node = Code(op_name(finding.op)), Code(finding.node)
        yield Text(("Made by ", op, " of ", node, f"{called}."), "note")


def _picture(chain: Sequence[Link]) -> Graph:
    """Draw the way in a row: the birth, what came next, the place that was reached."""
    links = _collapsed(chain)
    if len(links) > MOST_BOXES:
        links = [*links[:2], len(links) - MOST_BOXES + 1, *links[-(MOST_BOXES - 3) :]]
    nodes = tuple(_box(i, link, len(links)) for i, link in enumerate(links))
    edges = tuple(GraphEdge(str(i), str(i + 1)) for i in range(len(links) - 1))
    return Graph("From where it was born to where it was found", nodes, edges, across=True)


def _collapsed(chain: Sequence[Link]) -> list[Link | int]:
    """Leave out a step that repeats the one before it, as a stack of equal layers does."""
    kept: list[Link] = []
    for link in chain:
        same = kept and (kept[-1].op, kept[-1].where) == (link.op, link.where)
        if not same or kept[-1].role != link.role:
            kept.append(link)
    return list(kept)


def _box(i: int, link: Link | int, n: int) -> GraphNode:
    if isinstance(link, int):
        return GraphNode(str(i), f"{link} more", role="stub")
    below = f"{link.shows}, {link.where.label}" if link.where else link.shows
    if i == 0:
        return GraphNode(str(i), op_name(link.op), below, "root", "TRACEBACK", alert="born")
    return GraphNode(str(i), op_name(link.op), below, "target" if i == n - 1 else "holder")


def _way(chain: Sequence[Link]) -> Table:
    columns = (
        Column("what"),
        Column("operation", "name"),
        Column("holds"),
        Column("node or module", "name"),
        Column("line"),
        Column("source", "code"),
    )
    rows, last = [], None
    for link in chain:
        label, text = (link.where.label, link.where.text) if link.where else ("", "")
        shown = ("″", "″") if label and label == last else (label, text)
        rows.append((link.role, op_name(link.op), link.shows, link.node or link.module, *shown))
        last = label
    return Table(columns, tuple(rows))


def _values(finding: NanFinding) -> Table:
    at = f" at {index_text(finding.index)}" if finding.index else ""
    title = f"What {op_name(finding.op)} was given"
    if finding.kind == "leaf":
        title = "The values"
    columns = list(OPERANDS)
    columns[2] = Column(f"value{at}" if at else "there", "count")
    return Table(tuple(columns), tuple(_row(one) for one in finding.operands), title)


def _row(one: Operand) -> tuple[str | int | None, ...]:
    if one.missing is not None:
        what = ", ".join(filter(None, (one.what, one.missing.reason)))
        return (one.words, what, None, None, None, None, None, None)
    if not one.n_values:
        return (one.words, one.what, None, None, None, None, None, None)
    return (
        one.words,
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
        (one.words, "  ".join(_marked(one, i) for i in range(len(one.excerpt))))
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
            yield _hidden(one)
    if report.absorbed:
        rows = tuple(_absorbed_row(one) for one in report.absorbed)
        yield Fold(_absorbed_title(report), (Table(ABSORBED, rows),))


def _hidden(one: NanFinding) -> Advice:
    """Warn of an overflow that something turned into a number."""
    spans: list[Span] = [Code(op_name(one.op)), f" made {one.shows}"]
    spans += [f" in {one.where.label}"] if one.where else []
    spans += [
        ", and ",
        Code(op_name(one.absorbed_by)),
        " turned that into a number that looks right. ",
    ]
    mend = f" To mend it: {one.mend}." if one.mend and not is_code(one.mend) else ""
    return Advice((*spans, *spans_of(one.why), mend), one.mend if is_code(one.mend) else "")


def _absorbed_title(report: NanReport) -> str:
    n = len(report.absorbed)
    places = f"{n}{' more' if report.findings else ''} place{'s' * (n != 1)}"
    if all(one.kind == "literal" for one in report.absorbed):
        return f"{places} wrote Inf on purpose, as a mask does; it reached nothing"
    return f"{places} made NaN or Inf that reached nothing"


def _absorbed_row(one: NanFinding) -> tuple[str, str, str, str, int]:
    what = f"{one.shows}, {_MEANT.get(one.kind, 'made')}"
    if one.absorbed_by:
        what += f", taken in by {op_name(one.absorbed_by)}"
    elif one.node:
        what += f", inside {one.node}"
    where: SourceLine | None = one.where
    name = op_name(one.op) if one.kind != "leaf" else one.source or "a tensor"
    return (name, where.label if where else "", where.text if where else "", what, one.n_seen)


_MEANT = {
    "literal": "written on purpose",
    "leaf": "came with the data",
    "inf_to_nan": "from an Inf",
}


def _notes(report: NanReport) -> Iterator[str]:
    if report.replay:
        yield report.replay
    yield _extent(report)
    if report.mode == "light" and not report.findings:
        yield "Light: loss, gradients and parameters were looked at once a step, no operation was."
    if report.skipped_steps:
        yield (
            f"GradScaler skipped {many(report.skipped_steps, 'step')} whose scaled gradients "
            "overflowed; it lowers its scale by itself."
        )
    yield from report.notes
