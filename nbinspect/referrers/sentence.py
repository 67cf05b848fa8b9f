"""The answer in one sentence, as a person would say it."""

from __future__ import annotations

from nbinspect.blocks import Code, Span
from nbinspect.heapgraph.letting_go import is_assignable
from nbinspect.referrers.records import Chain, Link, ReferenceReport

HELD = {
    "saved_tensor": " saved it for backward",
    "base": " is a view of it",
    "grad": " keeps it as its gradient",
    "variable": " keeps it as a leaf of its graph",
    "ndarray": " shares its bytes",
}
SAVED = {
    ("saved_tensor", "base"): "saved a view of it for backward",
    ("saved_tensor",): "saved it for backward",
    ("variable",): "keeps it as a leaf",
}
PLACES = ("a key", "an element", "inside")
ROLES = ("variable ", "closure variable ", "default argument ", *PLACES)


def headline(report: ReferenceReport) -> tuple[Span, ...]:
    """Say why an object is alive."""
    subject: tuple[Span, ...] = (Code(report.name), f" ({report.description}) ")
    if not report.chains:
        if report.n_references:
            return (*subject, "has no holder that could be found.")
        no_identity = f"is everybody's: {report.verdict}."
        return (*subject, no_identity if report.verdict else "is held by this expression alone.")
    first = report.chains[0]
    if str(first) == report.name:
        return (*subject, "is held by this name alone.")
    cycle = "of a cycle: " if first.root.startswith("cycle of ") else ""
    return (*subject, f"is alive because {cycle}", *_clause(first))


def _clause(chain: Chain) -> tuple[Span, ...]:
    """Say that the last holder holds it, and by which way it is reached."""
    *holders, last = chain.links
    if graph := _graph_clause(chain):
        return graph
    if holders and last.edge in HELD:
        return (*_way(holders), f"{HELD[last.edge]}.")
    name, _, role = last.label.rpartition(", ")
    if not name and last.label.startswith(ROLES):
        role = last.label
    is_place = role.startswith(PLACES)
    if (is_place and role not in PLACES) or not role.startswith(ROLES) or not (name or holders):
        return (*_way(chain.links), " holds it.")
    is_said = bool(holders) and holders[-1].label == name
    way = _way((*holders, *([Link(name, "other", "")] if name and not is_said else [])))
    what, _, which = role.rpartition(" ")
    if is_place:
        return (*way, f" holds it {'' if role == 'inside' else 'as '}{role}.")
    return (*way, f" holds it as {what} ", Code(which.replace("'", "", 2)), ".")


def _graph_clause(chain: Chain) -> tuple[Span, ...]:
    """Say that a graph saved it, and whose; the nodes between are in the picture."""
    starts = (n for n, link in enumerate(chain.links) if link.label.startswith("grad_fn "))
    at = next(starts, 0)
    edges = tuple(link.edge for link in chain.links[at + 1 :])
    said = SAVED.get(edges[-2:]) or SAVED.get(edges[-1:])
    return ("the graph of ", *_way(chain.links[:at]), f" {said}.") if at and said else ()


def _way(links: tuple[Link, ...] | list[Link]) -> tuple[Span, ...]:
    """Spell out a chain of holders; an error that was kept is called one."""
    calls = len(links) > 1 and links[1].label.startswith("frame ")
    first = links[0]
    is_error = (
        calls and is_assignable(first.label) and first.type_name not in {"traceback", "frame"}
    )
    spans: list[Span] = ["the exception kept in " if is_error else "", Code(first.label)]
    for link in links[1:]:
        spans += [" -> ", Code(link.label)]
    return tuple(span for span in spans if span)
