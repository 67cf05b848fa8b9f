"""How a graph report describes itself: the sentence, the findings, the picture, the modules."""

from __future__ import annotations

from nbinspect.autograd_graph.folding import Colour, Folding
from nbinspect.autograd_graph.records import GraphFinding, GraphReport
from nbinspect.blocks import (
    Advice,
    Block,
    Cell,
    Code,
    Column,
    Fold,
    Size,
    Span,
    Table,
    Text,
    View,
)
from nbinspect.equal_layers import any_module, times
from nbinspect.render.format import count

MOST_ROWS = 10
OUTSIDE = "outside of modules"
COLUMNS = (
    Column("module", "name"),
    Column("class"),
    Column("nodes", "count"),
    Column("kept for backward", "bytes"),
)


def report_view(report: GraphReport) -> View:
    """Show a graph: what it is, what is wrong with it, how it looks."""
    blocks: list[Block] = [Text(headline(report), "headline")]
    faults = [one for one in report.findings if one.is_fault]
    others = [one for one in report.findings if not one.is_fault]
    blocks += [_advice(one) for one in faults]
    if report.nodes:
        folding = Folding(report)
        blocks.append(folding.graph(folding.first(), colour_of(report)))
    blocks += _modules(report)
    if others:
        number = f"{len(others)} thing{'s' if len(others) > 1 else ''}"
        blocks.append(Fold(f"{number} worth knowing", tuple(map(_advice, others))))
    blocks += [Text((note,), "note") for note in report.notes]
    return tuple(blocks)


def colour_of(report: GraphReport) -> Colour:
    """Choose what the picture is coloured by: saved bytes, and gradients once those are gone."""
    if report.saved_bytes:
        return "saved"
    return "gradient" if any(node.grad_norm is not None for node in report.nodes) else "none"


def headline(report: GraphReport) -> tuple[Span, ...]:
    """Say in a sentence what the graph is."""
    name: tuple[Span, ...] = (Code(report.name), f" ({report.description})")
    if not report.nodes:
        return (*name, " has no graph: no gradient flows back from it.")
    number = f"{'' if report.complete else 'more than '}{count(len(report.nodes))} nodes"
    spans: list[Span] = [*name, f" was made by {number}"]
    if report.n_parameters:
        s = "s" if report.n_parameters > 1 else ""
        spans.append(f" and reaches {count(report.n_parameters)} parameter{s}")
    if report.saved_bytes:
        spans += ["; ", Size(report.saved_bytes), " are kept for backward"]
    spans.append(".")
    faults = sum(one.is_fault for one in report.findings)
    if faults:
        spans.append(f" {faults} thing{'s are' if faults > 1 else ' is'} wrong with it.")
    return tuple(spans)


def _advice(finding: GraphFinding) -> Advice:
    return Advice(_spans(finding.sentence), finding.code)


def _spans(sentence: str) -> tuple[Span, ...]:
    """Set what stands between backticks as code."""
    parts = sentence.split("`")
    spans = [Code(part) if n % 2 else part for n, part in enumerate(parts) if part]
    return tuple(spans)


def _modules(report: GraphReport) -> list[Block]:
    """List what the modules themselves keep for backward, equal modules of a row as one."""
    rows: dict[tuple[str, str], list[int]] = {}
    modules: dict[tuple[str, str], set[str]] = {}
    types = {one.name: one.type_name for one in report.modules}
    charged: set[int] = set()
    for node in report.nodes:
        fresh = {
            one.storage: one.size_bytes or 0
            for one in node.saved
            if one.kind != "PARAMETER" and one.storage is not None and one.storage not in charged
        }
        charged.update(fresh)
        key = _row_key(node.module, types)
        row = rows.setdefault(key, [0, 0])
        row[0] += 1
        row[1] += sum(fresh.values())
        modules.setdefault(key, set()).add(node.module)
    kept = sorted((one for one in rows if rows[one][1]), key=lambda one: -rows[one][1])
    if not kept:
        return []
    cells: tuple[tuple[Cell, ...], ...] = tuple(
        (_row_name(key[0], modules[key]), times(key[1], len(modules[key])), *rows[key])
        for key in kept[:MOST_ROWS]
    )
    title = "Kept for backward, by module, each byte once"
    rest = sum(rows[key][1] for key in kept[MOST_ROWS:])
    return [Table(COLUMNS, cells, title, max(0, len(kept) - MOST_ROWS), rest)]


def _row_key(module: str, types: dict[str, str]) -> tuple[str, str]:
    """Put equal parts of blocks in a row together, but not the parts of one flat container."""
    return any_module(module, types) or OUTSIDE, types.get(module, "")


def _row_name(name: str, modules: set[str]) -> str:
    return next(iter(modules)) if len(modules) == 1 and name != OUTSIDE else name
