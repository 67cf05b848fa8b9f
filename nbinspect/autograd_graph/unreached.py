"""Parameters that a graph does not reach, and whether that is meant."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from nbinspect.autograd_graph.cuts import Cut, Cuts
from nbinspect.autograd_graph.question import WATCH_IT, Question, by_module, listed
from nbinspect.autograd_graph.records import GraphFinding
from nbinspect.autograd_graph.walk import is_leaf


def unreached(question: Question) -> Iterator[GraphFinding]:
    """Find parameters that require grad and get none from this tensor."""
    if not question.walked.complete or question.hides_inside:
        return
    reached = {id(node.variable) for node in question.walked.nodes if is_leaf(node)}
    is_watched, is_given = question.is_watched, _is_given(question)
    owned = [pair for some in question.names.parameters.values() for pair in some.items()]
    missing = {
        name: tensor
        for name, tensor in [*owned, *question.names.loose]
        if name
        and tensor.requires_grad
        and id(tensor) not in reached
        and tensor is not question.tensor
    }
    if (is_given or not missing) and not question.walked.nodes and not is_watched:
        yield _no_graph(question)
        return
    if not (missing or is_given or question.walked.nodes) and question.seen.used_frozen():
        yield _all_frozen(question)
    by_cut: dict[Cut | None, list[str]] = defaultdict(list)
    cuts = Cuts(question.seen, question.tensor) if missing and is_watched else None
    for name, tensor in missing.items():
        by_cut[cuts.find(tensor) if cuts is not None else None].append(name)
    for cut, names in by_cut.items():
        if cut is not None and cut.is_cut:
            finding = _unreached_because(question, names, cut, is_watched=True)
            meant = all(_is_left_alone(question, name, missing[name], reached) for name in names)
            finding = _meant(finding, question.name) if meant else finding
            yield finding if meant else _elsewhere(finding, [missing[name] for name in names])
            continue
        if is_given:
            continue
        parts = [name for name in names if _is_part(question, name, reached)]
        if parts:
            finding = _unreached_because(question, parts, cut, is_watched=is_watched)
            yield _elsewhere(finding, [missing[name] for name in parts])
        together = [
            name
            for name in names
            if name not in parts and _is_trained_with(question, missing[name], reached)
        ]
        if together:
            finding = _unreached_because(question, together, cut, is_watched=is_watched)
            elsewhere = _elsewhere(finding, [missing[name] for name in together])
            is_known = elsewhere is not finding
            yield elsewhere if is_known else _trained_together(finding, many=len(together) > 1)


def _is_given(question: Question) -> bool:
    """Say whether a tensor is a leaf, trained or frozen: no operation has to lead to it."""
    is_owned = id(question.tensor) in question.names.owners
    return not question.walked.nodes and (question.tensor.requires_grad or is_owned)


def _is_part(question: Question, name: str, reached: set[int]) -> bool:
    """Say whether a parameter belongs to a model that is reached by others of its parameters."""
    own = next((o for o in question.names.parameters.values() if name in o), {})
    return any(id(tensor) in reached for tensor in own.values()) or not question.walked.nodes


def _is_trained_with(question: Question, parameter: Any, reached: set[int]) -> bool:
    """Say whether an optimizer trains a parameter together with some that are reached."""
    return any(
        id(parameter) in ids and not ids.isdisjoint(reached) for ids in question.names.trained
    )


def _trained_together(finding: GraphFinding, *, many: bool) -> GraphFinding:
    them = "them" if many else "it"
    sentence = (
        f"{finding.sentence} The optimizer that has {them} also trains what is reached; all is well "
        f"if another loss of the same step reaches {them}."
    )
    return dataclasses.replace(finding, sentence=sentence)


def _elsewhere(finding: GraphFinding, parameters: list[Any]) -> GraphFinding:
    """Take the edge off where each parameter has a gradient, which another backward has given it."""
    if any(parameter.grad is None for parameter in parameters):
        return finding
    have, them = ("They have", "them") if len(parameters) > 1 else ("It has", "it")
    sentence = (
        f"{finding.sentence} {have} a gradient from another backward, so all is well if that is of the "
        f"same step and was meant for {them}."
    )
    return dataclasses.replace(finding, sentence=sentence, is_fault=False)


def _is_left_alone(question: Question, name: str, parameter: Any, reached: set[int]) -> bool:
    """Say whether a parameter is of another model than those that are trained with this tensor.

    A teacher, a target network, the generator in the critic's step: cut off on purpose.
    """
    training = [ids for ids in question.names.trained if not ids.isdisjoint(reached)]
    is_trained_too = any(id(parameter) in ids for ids in training)
    return bool(training) and not is_trained_too and not _is_part(question, name, reached)


def _meant(finding: GraphFinding, name: str) -> GraphFinding:
    """Take the edge off a cut that is most likely meant."""
    them = "them" if len(finding.names) > 1 else "it"
    sentence = (
        f"{finding.sentence} No optimizer that trains what `{name}` reaches trains {them}, so this may "
        "be meant."
    )
    return dataclasses.replace(finding, sentence=sentence, is_fault=False)


def _no_graph(question: Question) -> GraphFinding:
    if _is_given(question):
        sentence = f"`{question.name}` is a leaf: nothing was computed to make it."
        mend = WATCH_IT if _may_be_a_loss(question) else ""
        if mend:
            sentence += (
                " If its number was computed, as in `torch.tensor(...)` of a loss, the graph was left "
                f"behind there. Run the cell that makes it under `{WATCH_IT}` to see where."
            )
        return GraphFinding("UNREACHED", sentence, mend, (question.name,), is_fault=False)
    sentence = (
        f"`{question.name}` has no graph: what it was made from required no gradient, or the path was "
        "cut by `detach`, `no_grad`, `.item()`, `.data`, a cast to integers or `torch.autograd.grad` "
        f"without `create_graph=True`. Run the cell that makes it under `{WATCH_IT}` to see where."
    )
    return GraphFinding("UNREACHED", sentence, WATCH_IT, (question.name,))


def _may_be_a_loss(question: Question) -> bool:
    """Say whether a leaf is a single number that no module, optimizer or input would be."""
    tensor, names = question.tensor, question.names
    is_trained = any(id(tensor) in ids for ids in names.trained)
    return tensor.numel() == 1 and id(tensor) not in names.owners and not is_trained


def _all_frozen(question: Question) -> GraphFinding:
    sentence = (
        f"`{question.name}` has no graph: nothing that it was made from requires a gradient, as the "
        "parameters that the cell used are frozen. Unfreeze those that are to be trained: "
        "`model.requires_grad_()`."
    )
    return GraphFinding("UNREACHED", sentence, "", (question.name,))


def _unreached_because(
    question: Question, names: list[str], cut: Cut | None, *, is_watched: bool
) -> GraphFinding:
    groups = by_module(names, question)
    number = f"{len(names)} parameters" if len(names) > 1 else "a parameter"
    sentence = f"`{question.name}` does not reach {number}, {listed(groups)}."
    if cut is not None:
        why = sentence[:-1] + f": {cut.why}."
        kind = "CUT" if cut.is_cut else "UNREACHED"
        return GraphFinding(kind, why, cut.mend, tuple(names), cut.line)
    if is_watched:
        sentence += " No operation of the watched cell used "
        sentence += "them." if len(names) > 1 else "it."
        return GraphFinding("UNREACHED", sentence, "", tuple(names))
    they, were = ("They get", "they were") if len(names) > 1 else ("It gets", "it was")
    sentence += (
        f" {they} no gradient from it. Run the forward under `{WATCH_IT}` to see whether {were} "
        "not used or where the path was cut."
    )
    return GraphFinding("UNREACHED", sentence, WATCH_IT, tuple(names))
