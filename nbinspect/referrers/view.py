"""How a reference report describes itself: the sentence, the picture, the chains, the mend."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
from nbinspect.referrers.records import Chain, Link, ReferenceReport, ReferenceSurvey
from nbinspect.referrers.sentence import headline
from nbinspect.render.format import bytes_text

NAMED_EDGES = {"attribute", "item", "other"}  # the next box says how it is held
HUES = {
    "saved_tensor": "SAVED_FOR_BACKWARD",
    "variable": "SAVED_FOR_BACKWARD",
    "grad": "GRADIENT",
    "hook": "HOOK",
    "frame": "FRAME",
    "generator": "FRAME",
    "exception": "TRACEBACK",
}


def report_view(report: ReferenceReport) -> View:
    """Show why an object is alive."""
    blocks: list[Block] = [Text(headline(report), "headline")]
    if report.n_references:
        blocks.append(Text(_proof(report)))
    if report.chains:
        blocks.append(graph(report))
    if report.mend:
        parts = re.split("`([^`]+)`", report.mend)  # in turn a sentence's words and code
        spans = (Code(part) if n % 2 else part for n, part in enumerate(parts))
        blocks.append(Advice(tuple(span for span in spans if span), report.code))
    blocks += _chains(report)
    blocks += [Text((note,), "note") for note in report.notes]
    return tuple(blocks)


def _proof(report: ReferenceReport) -> tuple[Span, ...]:
    count = f"{report.n_explained} of {report.n_references} references explained."
    return (" ".join(part for part in (count, report.verdict) if part),)


def _chains(report: ReferenceReport) -> Iterator[Block]:
    if len(report.chains) > 1:
        rows = tuple((chain.root, str(chain)) for chain in report.chains)
        columns = (Column("root", "name"), Column("chain", "code"))
        title = f"{len(report.chains)} chains, the shortest first"
        yield Fold(title, (Table(columns, rows),))


def graph(report: ReferenceReport) -> Graph:
    """Draw the chains: roots on top, the object below, what they share drawn once."""
    nodes: dict[str, GraphNode] = {"target": _target(report)}
    edges: dict[tuple[str, str], GraphEdge] = {}
    for chain in report.chains:
        _draw(chain, nodes, edges)
    return Graph(f"Who holds {report.name}", tuple(nodes.values()), tuple(edges.values()))


def _target(report: ReferenceReport) -> GraphNode:
    kind = (
        report.description if report.size_bytes is None else report.description.partition(", ")[0]
    )
    last = report.chains[0].links[-1] if report.chains else Link("", "other", "")
    origin = report.origin or last.origin
    if report.chains and not origin:
        origin = "which cell made it is not known"
    detail = details(report.device, last.retained_bytes, origin)
    return GraphNode("target", report.name, kind, "target", "VARIABLE", report.size_bytes, detail)


def details(device: str, retained_bytes: int | None, origin: str) -> tuple[str, ...]:
    """Say where a box's object lies, what would go with it, and where it is from."""
    freed = f"{bytes_text(retained_bytes)} would be freed with it" if retained_bytes else ""
    return tuple(line for line in (f"on {device}" if device else "", freed, origin) if line)


def _draw(
    chain: Chain, nodes: dict[str, GraphNode], edges: dict[tuple[str, str], GraphEdge]
) -> None:
    """Add a chain; its last link is the object itself and becomes the arrow to it."""
    *holders, last = chain.links
    if not holders:
        holders, last = [last], Link("", "other", "")
    keys = []
    for number, link in enumerate(holders):
        key = f"{link.key}:{link.label}" if link.key else f"{chain.root}:{number}:{link.label}"
        role = "root" if number == 0 else "holder"
        hue = HUES.get(link.edge, "OTHER")
        kind = "" if link.label.endswith(link.type_name) else link.type_name
        size, detail = link.size_bytes, details(link.device, link.retained_bytes, link.origin)
        node = GraphNode(key, link.label, kind, role, hue, size, detail)  # type: ignore[arg-type]  # mypy widens the literal
        nodes.setdefault(key, node)
        keys.append(key)
    names = [
        *(link.edge if link.edge not in NAMED_EDGES else "" for link in holders[1:]),
        last.label,
    ]
    for source, target, name in zip(keys, [*keys[1:], "target"], names, strict=True):
        edges.setdefault((source, target), GraphEdge(source, target, name))


def survey_view(survey: ReferenceSurvey) -> View:
    """Show the largest objects of a type."""
    count = f"{len(survey.reports)} largest of {survey.n_objects:,} live objects of type "
    rows = tuple(
        (
            one.description,
            one.size_bytes,
            str(one.chains[0]) if one.chains else one.verdict,
            one.code,
        )
        for one in survey.reports
    )
    columns = (
        Column("object"),
        Column("size", "bytes"),
        Column("kept by", "code"),
        Column("to let go", "code"),
    )
    details = tuple(
        Fold(f"{one.description}: {one.chains[0].root if one.chains else 'no holder'}", one.view())
        for one in survey.reports
    )
    headline = Text((f"The {count}", Code(survey.type_name), "."), "headline")
    return (headline, Table(columns, rows), *details)
