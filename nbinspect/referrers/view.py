"""How a reference report describes itself: the sentence, the picture, the chains, the mend."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Literal

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
from nbinspect.render.format import bytes_text, count, exact_bytes, many

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
        # The line stands below, so the sentence that begins with it need not repeat it.
        said = rf"(?<! or)(?<! all)(?: with|:) `{re.escape(report.code)}`(?=[.,])"
        words = re.sub(said, "", report.mend) if report.code else report.mend
        parts = re.split("`([^`]+)`", words)  # in turn a sentence's words and code
        spans = (Code(part) if n % 2 else part for n, part in enumerate(parts))
        blocks.append(Advice(tuple(span for span in spans if span), report.code))
    blocks += _chains(report)
    blocks += [Text((note,), "note") for note in report.notes]
    return tuple(blocks)


def _proof(report: ReferenceReport) -> tuple[Span, ...]:
    explained = f"{report.n_explained} of {many(report.n_references, 'reference')} explained."
    return (" ".join(part for part in (explained, report.verdict) if part),)


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
    size, detail = report.size_bytes, tuple[str, ...]()
    if report.n_references:
        last = report.chains[0].links[-1] if report.chains else Link("", "other", "unknown")
        known = dataclasses.replace(
            last, size_bytes=size, device=report.device, origin=report.origin or last.origin
        )
        detail = _details(known)
    return GraphNode("target", report.name, kind, "target", "VARIABLE", size, detail)


def box(
    link: Link, key: str, role: Literal["root", "holder"], *, can_unfold: bool = False
) -> GraphNode:
    """Draw one holder, with all that is known of it for those who point at it."""
    label, kind = link.label.lower(), link.type_name.lower()
    is_said = label.endswith(kind) or label.startswith(f"{kind} ")  # function train, frame f()
    hue = HUES.get(link.edge, "OTHER")
    return GraphNode(
        key,
        link.label,
        "" if is_said else link.type_name,
        role,
        hue,
        link.size_bytes,
        _details(link),
        can_unfold,
    )


def _details(link: Link) -> tuple[str, ...]:
    """Say what a box's own bytes do not: its device, what would go with it, where it is from."""
    if not link.type_name:  # it stands for several
        return ()
    own = "" if link.size_bytes is not None else "its own bytes are not known"
    if link.own_bytes is not None:
        own = f"{exact_bytes(link.own_bytes)} by itself"
    freed = "what would be freed with it is not known"
    if link.retained_bytes is not None:
        n_bytes = link.retained_bytes
        freed = f"{bytes_text(n_bytes) if n_bytes else 'no tensor'} would be freed with it"
    origin = link.origin or "which cell made it is not known"
    return tuple(
        line for line in (own, f"on {link.device}" * bool(link.device), freed, origin) if line
    )


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
        nodes.setdefault(key, box(link, key, "holder" if number else "root"))
        keys.append(key)
    names = [
        *(link.edge if link.edge not in NAMED_EDGES else "" for link in holders[1:]),
        last.label,
    ]
    for source, target, name in zip(keys, [*keys[1:], "target"], names, strict=True):
        edges.setdefault((source, target), GraphEdge(source, target, name))


def survey_view(survey: ReferenceSurvey) -> View:
    """Show the largest objects of a type."""
    found = f"{len(survey.reports)} largest of {count(survey.n_objects)} live objects of type "
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
    headline = Text((f"The {found}", Code(survey.type_name), "."), "headline")
    return (headline, Table(columns, rows), *details)
