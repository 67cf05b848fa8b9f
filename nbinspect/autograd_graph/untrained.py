"""Parameters that get gradients and that nothing changes: no optimizer has them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from torch.nn import Parameter

from nbinspect.autograd_graph.question import MOST_NAMES, Question, by_module, listed
from nbinspect.autograd_graph.records import AutogradNode, GraphFinding
from nbinspect.autograd_graph.walk import is_leaf
from nbinspect.tensors import describe


def untrained(question: Question, told: Collection[int]) -> Iterator[GraphFinding]:
    """Find parameters that get gradients from this tensor, and that no optimizer has.

    Args:
        question: what is asked.
        told: keys of leaves of which more is known.
    """
    trained = set[int]().union(*question.names.trained)
    if not trained:
        return
    nodes = question.walked.nodes
    owned = [node for node in question.facts.nodes if node.is_parameter]
    found = [node for node in owned if id(nodes[node.key].variable) not in trained]
    if found:
        yield _untrained(question, found, some_trained=len(found) < len(owned))
    if len(found) < len(owned):
        yield from _of_nobody(question, trained, told)


def _untrained(
    question: Question, found: list[AutogradNode], *, some_trained: bool
) -> GraphFinding:
    names = [node.leaf for node in found]
    nameless = tuple(f"{prefix}." for prefix in question.names.nameless)
    is_lost = some_trained and all(name.startswith(nameless) for name in names)
    gone = _gone(question) if some_trained and not is_lost else []
    verb = ("gets", "it") if len(names) == 1 else ("get", "them")
    sentence = (
        f"No optimizer has {listed(by_module(names, question))}, which {verb[0]} a gradient from "
        f"`{question.name}`: nothing changes {verb[1]}."
    )
    if is_lost:
        where = "No module that you have a name for holds them"
        if all("[" in name for name in names):
            where = "They are in a plain list or dictionary, which a module does not look into"
        sentence += (
            f" {where}: keep them in a `torch.nn.ModuleList`, `ModuleDict` or `ParameterList`, so that "
            "`parameters()` finds them."
        )
    if gone:
        sentence += (
            f" The optimizer has {_counted(gone)} that no module has any more: it was made before a "
            "layer was replaced. Make it again after that."
        )
    keys = tuple(node.key for node in found)
    is_fault = is_lost or bool(gone)
    return GraphFinding("UNTRAINED", sentence, "", tuple(names), None, keys, is_fault=is_fault)


def _gone(question: Question) -> list[Any]:
    """Give what an optimizer trains that neither a module nor the user has, nor this graph."""
    reached = {id(node.variable) for node in question.walked.nodes if is_leaf(node)}
    return [one for name, one in question.names.loose if not name and id(one) not in reached]


def _counted(tensors: list[Any]) -> str:
    """Say how many there are, and what the first ones look like."""
    number = "a parameter" if len(tensors) == 1 else f"{len(tensors)} parameters"
    shown = ", ".join(map(describe, tensors[:MOST_NAMES]))
    rest = len(tensors) - MOST_NAMES
    return f"{number} ({shown}{f' and {rest} more' if rest > 0 else ''})"


def free_leaves(question: Question) -> Iterator[tuple[AutogradNode, Any]]:
    """Yield the leaves that are no module's parameters."""
    for node, facts in zip(question.walked.nodes, question.facts.nodes, strict=True):
        if is_leaf(node) and not facts.is_parameter:
            yield facts, node.variable


def _of_nobody(
    question: Question, trained: set[int], told: Collection[int]
) -> Iterator[GraphFinding]:
    """Parameters that are made anew in each forward, or computed with before they were kept."""
    found = [
        (facts, variable)
        for facts, variable in free_leaves(question)
        if issubclass(type(variable), Parameter)
        if id(variable) not in trained and facts.key not in told
        if not question.names.tensor(variable)
    ]
    if not found:
        return
    tensors = [variable for _, variable in found]
    they, them = ("It gets", "it") if len(found) == 1 else ("They get", "them")
    users = (question.consumers[facts.key] for facts, _ in found)
    lines = (question.facts.nodes[key].line for keys in users for key in keys)
    line = next((one for one in lines if one is not None), None)
    where = f", used in {line.label}," if line is not None else ""
    sentence = (
        f"`{question.name}` reaches {_counted(tensors)}{where} that neither a module nor an optimizer "
        f"has. {they} a gradient, but nothing changes {them}: "
        "make layers and parameters in `__init__` and keep them as they are. What is made in "
        "`forward` is new each time, and what is computed of a parameter is none."
    )
    keys = tuple(facts.key for facts, _ in found)
    yield GraphFinding("UNTRAINED", sentence, "", (), line, keys)
