"""What is wrong with a graph, as far as the graph itself tells; `cuts` asks the watched forward."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from torch.nn import Parameter

from nbinspect.autograd_graph.changed import modified
from nbinspect.autograd_graph.cuts import Cut, made_without_grad
from nbinspect.autograd_graph.facts import storage_keys
from nbinspect.autograd_graph.inference import ONE_TO_ONE
from nbinspect.autograd_graph.joined import joined
from nbinspect.autograd_graph.question import Question, by_module, listed
from nbinspect.autograd_graph.records import AutogradNode, GraphFinding
from nbinspect.autograd_graph.unreached import unreached
from nbinspect.autograd_graph.untrained import free_leaves, untrained
from nbinspect.autograd_graph.walk import is_leaf
from nbinspect.records import SourceLine, as_code
from nbinspect.tensors import describe, storage_key


def find(question: Question) -> list[GraphFinding]:
    """Look for everything that is wrong, faults first.

    Cost: unpacks each saved tensor that no hook packed, 2 µs each.
    """
    over_steps = joined(question)
    copies = list(_copies(question))
    copied = {one.line for one in copies if one.line is not None}
    missed = list(unreached(question))
    cut_at = {one.line for one in missed if one.kind == "CUT"}
    found = [
        *over_steps,
        *modified(question, {key for one in over_steps for key in one.nodes}),
        *(one for one in missed if one.line not in copied),
        *copies,
        *_without_grad(question, cut_at),
        *_no_parameter(question),
        *untrained(question, {key for one in copies for key in one.nodes}),
        *_bad_gradients(question),
        *_reused(question),
    ]
    return sorted(found, key=lambda one: not one.is_fault)


def _no_parameter(question: Question) -> Iterator[GraphFinding]:
    """A graph that begins at tensors which nobody has: numbers that were copied out of others."""
    leaves = [node for node in question.walked.nodes if is_leaf(node)]
    free = list(free_leaves(question))
    trained = set[int]().union(*question.names.trained)
    if not leaves or len(free) < len(leaves) or question.hides_inside:
        return
    if any(question.names.tensor(one) or id(one) in trained for _, one in free):
        return
    if any(issubclass(type(one), Parameter) for _, one in free):  # of a module that is gone
        return
    facts, variable = free[0]
    if made_without_grad(question.seen, variable, storage_key(variable)) is not None:
        return  # that says more
    sentence = (
        f"`{question.name}` reaches no parameter: its graph begins at a tensor without a name "
        f"({describe(variable)}). If that was made by `torch.tensor(...)` of other tensors, their "
        "numbers were copied and their graphs left behind; `torch.stack` keeps them."
    )
    yield GraphFinding("UNREACHED", sentence, "", (), facts.line, (facts.key,))


def _copies(question: Question) -> Iterator[GraphFinding]:
    """Leaves that are a parameter's copy: the gradient goes to the copy."""
    free = list(free_leaves(question))
    found: dict[Cut | None, list[tuple[AutogradNode, str]]] = defaultdict(list)
    held: dict[Any, str] = {}
    for owned in question.names.parameters.values() if free else ():
        held |= {key: name for name, tensor in owned.items() for key, _ in storage_keys(tensor)}
    for facts, variable in free:
        shared = (held[key] for key, _ in storage_keys(variable) if key in held)
        original, cut = next(shared, ""), None
        if not original:
            cut = made_without_grad(question.seen, variable, storage_key(variable))
            is_copy = cut is not None and id(cut.copy_of) in question.names.owners
            original = question.names.tensor(cut.copy_of) if cut is not None and is_copy else ""
        if original:
            found[cut._replace(copy_of=None) if cut is not None else None].append((facts, original))
    for cut, some in found.items():
        yield _copied(some, cut)


def _copied(some: list[tuple[AutogradNode, str]], cut: Cut | None) -> GraphFinding:
    how = f" ({cut.why})" if cut is not None else ""
    leaf, original = some[0][0].leaf, some[0][1]
    if len(some) == 1:
        sentence = (
            f"`{leaf}` is a leaf of its own, a copy of the parameter `{original}`{how}: the gradient "
            "goes to the copy, and the parameter gets none from it."
        )
    else:
        sentence = (
            f"{len(some)} leaves are copies of parameters, such as `{leaf}` of `{original}`{how}: the "
            "gradients go to the copies, and the parameters get none from them."
        )
    names = tuple(name for facts, own in some for name in (facts.leaf, own))
    mend = f"{leaf} = {as_code(original)}" if len(some) == 1 else ""
    line = cut.line if cut is not None else None
    keys = tuple(facts.key for facts, _ in some)
    return GraphFinding("LEAF_IS_COPY", sentence, mend, names, line, keys)


def _without_grad(question: Question, told: set[SourceLine | None]) -> Iterator[GraphFinding]:
    """Leaves that were computed from what requires grad: the path ends at them.

    Where a line is `told` to cut parameters off, that says it, and whether it is meant.
    """
    for facts, variable in free_leaves(question):
        cut = made_without_grad(question.seen, variable, storage_key(variable))
        if cut is None or cut.copy_of is not None:
            continue
        is_named = bool(question.names.tensor(variable))
        what = f"`{facts.leaf}`" if is_named else f"A tensor without a name ({facts.leaf})"
        sentence = (
            f"{what} requires grad, but is a leaf: {cut.why}. The gradient stops at it "
            "and goes no further into what it was computed from."
        )
        is_fault = cut.line is None or cut.line not in told
        finding = GraphFinding(
            "LEAF_MADE_WITHOUT_GRAD", sentence, cut.mend, (facts.leaf,), cut.line, (facts.key,)
        )
        yield dataclasses.replace(finding, is_fault=is_fault)


def _bad_gradients(question: Question) -> Iterator[GraphFinding]:
    bad = [node for node in question.facts.nodes if node.problem and node.grad_norm is not None]
    if bad:
        names = [node.leaf for node in bad]
        sentence = (
            f"{bad[0].problem} of {listed(names)}: no optimizer step can be made with it. Run the cell "
            "under `%%nanwatch` to see the operation that made the first one."
        )
        yield GraphFinding(
            "BAD_GRADIENT", sentence, "%%nanwatch", tuple(names), None, tuple(n.key for n in bad)
        )


def _reused(question: Question) -> Iterator[GraphFinding]:
    """Parameters that are used several times: their gradient is a sum."""
    uses = {
        node.key: _n_uses(question, node.key) for node in question.facts.nodes if node.is_parameter
    }
    by_count: dict[int, list[AutogradNode]] = defaultdict(list)
    for key, number in uses.items():
        if number > 1:
            by_count[number].append(question.facts.nodes[key])
    for number, nodes in sorted(by_count.items(), key=lambda pair: -len(pair[1])):
        names = [node.leaf for node in nodes]
        groups = by_module(names, question)
        tied = [n for node in nodes for n in _owners(question, node) if n != node.leaf]
        also = f" (also called {listed(tied)})" if tied else ""
        verb = "is" if len(names) == 1 else "are"
        sentence = (
            f"{listed(groups)}{also} {verb} used {number} times in this graph: the gradient is the sum "
            "over all uses."
        )
        keys = tuple(node.key for node in nodes)
        yield GraphFinding("REUSED", sentence, "", tuple(names), None, keys, is_fault=False)


def _owners(question: Question, node: AutogradNode) -> list[str]:
    return question.names.owners.get(id(question.walked.nodes[node.key].variable), [])


def _n_uses(question: Question, leaf: int) -> int:
    """Count what takes a parameter, looking through views and casts of it alone."""
    consumers, producers = question.consumers, question.producers
    todo, number = [leaf], 0
    while todo:
        for consumer in consumers[todo.pop()]:
            if len(producers[consumer]) == 1 and question.facts.nodes[consumer].name in ONE_TO_ONE:
                todo.append(consumer)
            else:
                number += 1
    return number
