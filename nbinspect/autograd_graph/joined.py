"""Graphs that are joined across steps: through what is carried over, or through a sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nbinspect import _torch
from nbinspect.autograd_graph.facts import storage_keys
from nbinspect.autograd_graph.inference import ONE_TO_ONE
from nbinspect.autograd_graph.question import Question, listed
from nbinspect.autograd_graph.records import AutogradNode, GraphFinding
from nbinspect.autograd_graph.walk import is_leaf
from nbinspect.records import as_code

MOST_DETACHED = 4  # that one line detaches
SPLITTING = ("Clone", "Reshape", "Split", "Stack", "Unbind")


def joined(question: Question) -> list[GraphFinding]:
    """Say whether a graph goes on into an earlier step, or adds up the graphs of several."""
    return list(_joined(question)) or list(_summed(question))


def _joined(question: Question) -> Iterator[GraphFinding]:
    """A graph that reaches back into an earlier step."""
    old, why = _old_part(question)
    if not old:
        return
    edges = [e for e in question.walked.edges if e[0] in old and e[1] not in old]
    ends = list(dict.fromkeys(source for source, _, _ in edges if not _is_leaf(question, source)))
    if not ends:
        return
    nodes = [question.facts.nodes[key] for key in ends]
    fresh = _made_of_nothing_old(question, old)
    called = [_carried(question, node, fresh) for node in nodes]
    names = tuple(dict.fromkeys(name for some in called for name in some))
    carried = listed(list(names)) if names else "a tensor made there"
    first = nodes[0]
    carried += f" (made by `{first.name}`" + (f" in {first.line.label})" if first.line else ")")
    keys = tuple(sorted(old))
    if question.freed and not _uses_a_leaf_in_both(question, old):
        yield GraphFinding("TWICE", _gone_through(question, carried), "", names, first.line, keys)
        return
    sentence = (
        f"The graph of `{question.name}` goes on into an earlier step through {carried}: {why} "
        "Detach what is carried from step to step."
    )
    mend = detaching([some[0] for some in called if some])
    yield GraphFinding("JOINED", sentence, mend, names, first.line, keys)


def _uses_a_leaf_in_both(question: Question, old: set[int]) -> bool:
    """Say whether the same parameters made an old part of a graph and what came after it."""
    for key, consumers in enumerate(question.consumers):
        if consumers and _is_leaf(question, key) and len({one in old for one in consumers}) == 2:
            return True
    return False


def _gone_through(question: Question, carried: str) -> str:
    """Say that two losses have a part in common, through which a backward has gone."""
    return (
        f"A backward has gone through a part of the graph of `{question.name}`, up to {carried}, and "
        "released what it had saved: another one will raise an error when it comes there. Go "
        "backward once, from the sum if there are several losses, give the first one "
        "`retain_graph=True`, or run that part of the forward again."
    )


def detaching(names: list[str]) -> str:
    """Write the line that detaches what is carried over, all of it or nothing."""
    names = list(dict.fromkeys(names))
    wholes = {name.rpartition("[")[0] for name in names}
    if len(names) > 1 and len(wholes) == 1 and all(wholes):
        (whole,) = map(as_code, wholes)
        return f"{whole} = tuple(one.detach() for one in {whole})"
    codes = [as_code(name) for name in names]
    if not codes or len(codes) > MOST_DETACHED:
        return ""
    return f"{', '.join(codes)} = {', '.join(f'{code}.detach()' for code in codes)}"


def _summed(question: Question) -> Iterator[GraphFinding]:
    """A sum of graphs that share nothing but parameters, after backward has run on all of them."""
    if not question.all_freed or not question.walked.complete:
        return
    parts = _summands(question)
    insides = [_inside(question, part) for part in parts]
    some = [nodes for nodes in insides if not nodes.isdisjoint(question.freed)]
    if len(some) < 2 or len(set[int]().union(*some)) < sum(map(len, some)):
        return
    sentence = (
        f"`{question.name}` adds up {len(some)} graphs that have nothing but parameters in common, and "
        "backward has run on each. If these are steps of a loop, the graphs are joined across "
        "steps: every step makes the sum's graph longer and keeps its nodes alive. Add "
        "`loss.detach()` or `loss.item()` to the sum instead."
    )
    yield GraphFinding("JOINED", sentence, "", (question.name,), is_fault=False)


def _summands(question: Question) -> list[int]:
    """Give the scalars that a sum was made of, going down through additions."""
    nodes, found = question.facts.nodes, []
    todo = [len(nodes) - 1] if nodes else []
    while todo:
        key = todo.pop()
        if nodes[key].name == "AddBackward0" and nodes[key].shape == ():
            todo += question.producers[key]
        elif not _is_leaf(question, key):
            found.append(key)
    return found


def _inside(question: Question, key: int) -> set[int]:
    """Give all nodes that one was made from, but for leaves."""
    found, todo = {key}, [key]
    while todo:
        for other in question.producers[todo.pop()]:
            if other not in found and not _is_leaf(question, other):
                found.add(other)
                todo.append(other)
    return found


def _is_leaf(question: Question, key: int) -> bool:
    return is_leaf(question.walked.nodes[key])


def _old_part(question: Question) -> tuple[set[int], str]:
    """Give the nodes of an earlier step, and what shows that they are."""
    numbers = [_torch.sequence_number(node) for node in question.walked.nodes]
    last = max(((numbers[key] or 0) for key in question.freed), default=0)
    # Where a backward raised half-way, it is the newest part that is released.
    if question.freed and any((numbers[key] or 0) > last for key in question.saves):
        newest = max((numbers[key] or 0) for key in question.saves)
        known = min((n for n in question.seen.backwards if last < n <= newest), default=0)
        why = "backward has already run on that part and will raise an error when it comes there again."
        return _up_to(numbers, known) if known else _grown(question, _up_to(numbers, last + 1)), why
    border = max((_stepped(question, numbers)), default=0)
    if border:
        why = "an optimizer has changed parameters since, so it makes every step longer, keeps its "
        why += "activations and may raise an error in backward."
        return _up_to(numbers, border), why
    return set(), ""


def _grown(question: Question, old: set[int]) -> set[int]:
    """Add nodes that save nothing and take nothing but what is old: they end the earlier step."""
    for facts, node in zip(question.facts.nodes[:-1], question.walked.nodes, strict=False):
        producers = question.producers[facts.key]
        takes_all = len(producers) == len(node.next_functions)
        if not facts.saved and producers and takes_all and old.issuperset(producers):
            old.add(facts.key)
    return old


def _up_to(numbers: list[int | None], border: int) -> set[int]:
    return {key for key, number in enumerate(numbers) if number is not None and number < border}


def _stepped(question: Question, numbers: list[int | None]) -> Iterator[int]:
    """Yield moments at which a parameter was changed that is used both before and after."""
    for key, node in enumerate(question.walked.nodes):
        if not is_leaf(node):
            continue
        uses = [n for n in (numbers[c] for c in question.consumers[key]) if n is not None]
        if len(uses) < 2:
            continue
        external = question.seen.external(node.variable) if question.seen.steps else None
        steps = question.seen.steps.get(external, ()) if external is not None else ()
        yield from (step for step in steps if min(uses) < step <= max(uses))
        saves = list(_uses_that_save(question, key, node.variable, numbers))
        stale = [number for number, changed in saves if changed]
        fresh = [number for number, changed in saves if not changed]
        if stale and fresh and max(stale) < min(fresh):
            yield max(stale) + 1


def _uses_that_save(
    question: Question, leaf: int, variable: Any, numbers: list[int | None]
) -> Iterator[tuple[int, bool]]:
    """Yield for each use that saved a parameter its number, and whether it was changed since."""
    keys = {key for key, _ in storage_keys(variable)}
    todo, seen = list(question.consumers[leaf]), set[int]()
    while todo:
        key = todo.pop()
        if key in seen:
            continue
        seen.add(key)
        node, number = question.walked.nodes[key], numbers[key]
        if question.facts.nodes[key].name in ONE_TO_ONE:
            todo += question.consumers[key]
        saved = [t for _, t, hook in _torch.raw_saved(node) if hook is None]
        if number is not None and any(keys & {k for k, _ in storage_keys(t)} for t in saved):
            changed = [t for _, t, _ in _torch.saved_changed(node) if t is not None]
            yield number, any(keys & {k for k, _ in storage_keys(t)} for t in changed)


def _made_of_nothing_old(question: Question, old: set[int]) -> set[str]:
    """Name what the later part of a graph made from new inputs alone: that is carried nowhere."""
    led, found = set[int](), set[str]()
    for facts in question.facts.nodes:
        producers = question.producers[facts.key]
        if any(one in led or (one in old and not _is_leaf(question, one)) for one in producers):
            led.add(facts.key)
        elif facts.key not in old:
            found.update(facts.variables)
    return found


def _carried(question: Question, node: AutogradNode, fresh: set[str]) -> list[str]:
    """Name what is carried over: by its variable, or by one that is like it."""
    nodes, at = question.facts.nodes, node
    for _ in range(3):  # what splits or reshapes it is at the border, and made of one thing
        if at.variables:
            return list(at.variables)
        alike = [
            name
            for n_other in (0, 1)
            for name in _alike(question, at, n_other)
            if name not in fresh
        ]
        producers = question.producers[at.key]
        is_same = at.name in ONE_TO_ONE or at.name.startswith(SPLITTING)
        if alike or len(producers) != 1 or not is_same:
            return alike
        at = nodes[producers[0]]
    return []


def _alike(question: Question, node: AutogradNode, n_other: int) -> list[str]:
    """Name what the same operation made and so many of whose sizes are others: what grows."""
    shape = node.shape
    return [
        name
        for name, (made, own) in question.names.kinds.items()
        if made == node.name and name != question.name
        if shape is not None and len(shape) == len(own)
        if sum(a != b for a, b in zip(shape, own, strict=True)) == n_other
    ]
