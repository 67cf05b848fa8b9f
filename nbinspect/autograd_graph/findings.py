"""What is wrong with a graph, as far as the graph itself tells; `cuts` asks the watched forward."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.nn import Parameter

from nbinspect import _torch
from nbinspect.autograd_graph.cuts import Cut, Cuts, made_without_grad
from nbinspect.autograd_graph.facts import Facts, storage_keys
from nbinspect.autograd_graph.inference import ONE_TO_ONE
from nbinspect.autograd_graph.mends import out_of_place
from nbinspect.autograd_graph.naming import Names
from nbinspect.autograd_graph.records import AutogradNode, GraphFinding
from nbinspect.autograd_graph.walk import Walked, is_leaf, released
from nbinspect.autograd_graph.watched import Watched
from nbinspect.records import as_code
from nbinspect.tensors import describe, storage_key

MOST_NAMES = 3
REENTRANT = "CheckpointFunctionBackward"
WATCH_IT = "%%graphwatch"


@dataclass(slots=True)
class Question:
    """A graph that is asked about, and all that is known of it.

    Attributes:
        tensor: whose graph it is.
        name: what it is called.
        walked: its nodes.
        facts: what they are.
        names: what the user calls things.
        seen: what a watch saw; empty if the tensor was not made under it.
        freed: places of nodes whose saved tensors a backward has released.
        saves: places of nodes that still have some.
        producers: for each node those that made its inputs.
        consumers: for each node those that took its output.
    """

    tensor: Any
    name: str
    walked: Walked
    facts: Facts
    names: Names
    seen: Watched
    freed: set[int] = field(default_factory=set)
    saves: set[int] = field(default_factory=set)
    producers: list[list[int]] = field(default_factory=list)
    consumers: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.producers, self.consumers = self.walked.producers(), self.walked.consumers()
        self.freed = set(released(self.walked))
        self.saves = {node.key for node in self.facts.nodes if node.saved} - self.freed

    @property
    def all_freed(self) -> bool:
        """Whether nothing that was saved is left."""
        return bool(self.freed) and not self.saves

    @property
    def hides_inside(self) -> bool:
        """Whether a reentrant checkpoint keeps from sight which parameters it uses."""
        return any(node.name == REENTRANT for node in self.facts.nodes)

    @property
    def is_watched(self) -> bool:
        """Whether a watch saw how the tensor was made."""
        return self.seen.knows(self.tensor)


def find(question: Question) -> list[GraphFinding]:
    """Look for everything that is wrong, faults first.

    Cost: unpacks each saved tensor that no hook packed, 2 µs each.
    """
    joined = list(_joined(question)) or list(_summed(question))
    copies = list(_copies(question))
    copied = {one.line for one in copies if one.line is not None}
    found = [
        *joined,
        *_modified(question, {key for one in joined for key in one.nodes}),
        *(one for one in _unreached(question) if one.line not in copied),
        *copies,
        *_without_grad(question),
        *_no_parameter(question),
        *_untrained(question),
        *_bad_gradients(question),
        *_reused(question),
    ]
    return sorted(found, key=lambda one: not one.is_fault)


def listed(names: list[str]) -> str:
    """Write a few names between backticks, and how many more there are."""
    shown = ", ".join(f"`{name}`" for name in names[:MOST_NAMES])
    rest = len(names) - MOST_NAMES
    return f"{shown} and {rest} more" if rest > 0 else shown


def _unreached(question: Question) -> Iterator[GraphFinding]:
    """Parameters that require grad and get none from this tensor."""
    if not question.walked.complete or question.hides_inside:
        return
    reached = {id(node.variable) for node in question.walked.nodes if is_leaf(node)}
    is_watched = question.is_watched
    missing = {
        name: tensor
        for owned in question.names.parameters.values()
        for name, tensor in owned.items()
        if tensor.requires_grad and id(tensor) not in reached
    }
    if not missing and not question.walked.nodes and not is_watched:
        yield _no_graph(question)
    by_cut: dict[Cut | None, list[str]] = defaultdict(list)
    cuts = Cuts(question.seen, question.tensor) if missing and is_watched else None
    for name, tensor in missing.items():
        by_cut[cuts.find(tensor) if cuts is not None else None].append(name)
    for cut, names in by_cut.items():
        if cut is not None and cut.is_cut:
            finding = _unreached_because(question, names, cut, is_watched=True)
            meant = all(_is_left_alone(question, name, missing[name], reached) for name in names)
            yield _meant(finding, question.name) if meant else finding
            continue
        parts = [name for name in names if _is_part(question, name, reached)]
        if parts:
            yield _unreached_because(question, parts, cut, is_watched=is_watched)
        together = [
            name
            for name in names
            if name not in parts and _is_trained_with(question, missing[name], reached)
        ]
        if together:
            finding = _unreached_because(question, together, cut, is_watched=is_watched)
            yield _trained_together(finding, many=len(together) > 1)


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


def _is_left_alone(question: Question, name: str, parameter: Any, reached: set[int]) -> bool:
    """Say whether a parameter is of another model than those that are trained with this tensor.

    A teacher, a target network, the generator in the critic's step: cut off on purpose.
    """
    training = [ids for ids in question.names.trained if not ids.isdisjoint(reached)]
    is_trained_too = any(id(parameter) in ids for ids in training)
    return bool(training) and not is_trained_too and not _is_part(question, name, reached)


def _meant(finding: GraphFinding, name: str) -> GraphFinding:
    """Take the edge off a cut that is most likely meant."""
    sentence = (
        f"{finding.sentence} No optimizer that trains what `{name}` reaches trains them, so this may be "
        "meant."
    )
    return dataclasses.replace(finding, sentence=sentence, is_fault=False)


def _no_graph(question: Question) -> GraphFinding:
    if question.tensor.requires_grad:
        sentence = f"`{question.name}` is a leaf: nothing was computed to make it."
        return GraphFinding("UNREACHED", sentence, names=(question.name,), is_fault=False)
    sentence = (
        f"`{question.name}` has no graph: what it was made from required no gradient, or the path was "
        "cut by `detach`, `no_grad`, `.item()`, `.data` or a cast to integers. Run the cell that makes "
        f"it under `{WATCH_IT}` to see where."
    )
    return GraphFinding("UNREACHED", sentence, WATCH_IT, (question.name,))


def _unreached_because(
    question: Question, names: list[str], cut: Cut | None, *, is_watched: bool
) -> GraphFinding:
    groups = _by_module(names, question)
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
    sentence += (
        f" They get no gradient from it. Run the forward under `{WATCH_IT}` to see whether they were "
        "not used or where the path was cut."
    )
    return GraphFinding("UNREACHED", sentence, WATCH_IT, tuple(names))


def _by_module(names: list[str], question: Question) -> list[str]:
    """Say `model.encoder.*` where all of its parameters are meant."""
    inside: Counter[str] = Counter()
    for owned in question.names.parameters.values():
        for name in owned:
            inside.update(_prefixes(name))
    meant: Counter[str] = Counter()
    for name in set(names):
        meant.update(_prefixes(name))
    groups = []
    for name in names:
        whole = (p for p in _prefixes(name) if meant[p] == inside[p] and inside[p] > 1)
        prefix = next(whole, None)
        groups.append(f"{prefix}.*" if prefix else name)
    return list(dict.fromkeys(groups))


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def _modified(question: Question, joined: set[int]) -> Iterator[GraphFinding]:
    """Saved tensors that were changed in place: backward will raise."""
    groups: dict[Any, list[tuple[AutogradNode, str, Any, str]]] = defaultdict(list)
    for node, facts in zip(question.walked.nodes, question.facts.nodes, strict=True):
        if is_leaf(node) or facts.key in joined:
            continue
        for slot, tensor, said in _torch.saved_changed(node):
            groups[storage_key(tensor)].append((facts, slot, tensor, said))
    for some in groups.values():
        yield _modified_one(question, some)


def _modified_one(
    question: Question, some: list[tuple[AutogradNode, str, Any, str]]
) -> GraphFinding:
    facts, slot, tensor, said = some[0]
    saved = next((one for one in facts.saved if one.slot == slot), None)
    name = (saved.name if saved else "") or question.names.tensor(tensor)
    name = name or next(iter(_same_bytes(question, tensor)), "")
    what = f"`{name}` ({describe(tensor)})" if name else f"A tensor ({describe(tensor)})"
    where = f" in `{facts.module}`" if facts.module else ""
    more = f" and {len(some) - 1} more" if len(some) > 1 else ""
    line, mend, by = None, "", ""
    expected = _expected_version(said)
    for write in question.seen.writes:
        if write.storage == storage_key(tensor) and write.version > expected:
            event = question.seen.events.get(write.event)
            if event is not None:
                line = question.seen.line(event)
                by = f" by `{question.seen.expression(event) or event.op}`"
                by += f" in {line.label}" if line else ""
                mend = out_of_place(line.text) if line else ""
            break
    sentence = (
        f"{what}, which `{facts.name}`{where}{more} saved as `{slot}`, was changed in place "
        f"afterwards{by}: backward will raise an error."
    )
    if not mend:
        sentence += " Change a copy of it instead, or write the operation out of place."
    keys = tuple(dict.fromkeys(one.key for one, *_ in some))
    return GraphFinding("MODIFIED", sentence, mend, (name,) if name else (), line, keys)


def _same_bytes(question: Question, tensor: Any) -> list[str]:
    """Name variables that look into the same storage."""
    key = storage_key(tensor)
    return question.names.by_storage.get(key, []) if key is not None else []


def _expected_version(said: str) -> int:
    """Read the version that backward expects out of torch's sentence."""
    digits = said.rpartition("expected version ")[2].split(" ")[0]
    return int(digits) if digits.isdigit() else -1


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
    names = list(dict.fromkeys(n for node in nodes for n in _carried(question, node)))
    carried = listed(names) if names else "a tensor made there"
    first = nodes[0]
    made = f" (made by `{first.name}`" + (f" in {first.line.label})" if first.line else ")")
    sentence = (
        f"The graph of `{question.name}` goes on into an earlier step through {carried}{made}: {why} "
        "Detach what is carried from step to step."
    )
    mend = f"{names[0]} = {names[0]}.detach()" if names else ""
    yield GraphFinding("JOINED", sentence, mend, tuple(names), first.line, tuple(sorted(old)))


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
    if question.freed and question.saves:
        last = max((numbers[key] or 0) for key in question.freed)
        known = min((one for one in question.seen.backwards if one > last), default=0)
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


def _carried(question: Question, node: AutogradNode) -> list[str]:
    """Name what is carried over: by its variable, or by one that is like it."""
    nodes, at = question.facts.nodes, node
    for _ in range(3):  # what splits or reshapes it is at the border, and made of one thing
        if at.variables:
            return list(at.variables)
        alike = [
            name
            for name, kind in question.names.kinds.items()
            if kind == (at.name, at.shape) and name != question.name
        ]
        producers = question.producers[at.key]
        if alike or len(producers) != 1:
            return list(dict.fromkeys(alike))
        at = nodes[producers[0]]
    return []


def _free_leaves(question: Question) -> Iterator[tuple[AutogradNode, Any]]:
    """Yield the leaves that are no module's parameters."""
    for node, facts in zip(question.walked.nodes, question.facts.nodes, strict=True):
        if is_leaf(node) and not facts.is_parameter:
            yield facts, node.variable


def _no_parameter(question: Question) -> Iterator[GraphFinding]:
    """A graph that begins at tensors which nobody has: numbers that were copied out of others."""
    leaves = [node for node in question.walked.nodes if is_leaf(node)]
    free = list(_free_leaves(question))
    trained = set[int]().union(*question.names.trained)
    if not leaves or len(free) < len(leaves) or question.hides_inside:
        return
    if any(question.names.tensor(one) or id(one) in trained for _, one in free):
        return
    if any(issubclass(type(one), Parameter) for _, one in free):  # of a module that is gone
        return
    facts, variable = free[0]
    sentence = (
        f"`{question.name}` reaches no parameter: its graph begins at a tensor without a name "
        f"({describe(variable)}). If that was made by `torch.tensor(...)` of other tensors, their "
        "numbers were copied and their graphs left behind; `torch.stack` keeps them."
    )
    yield GraphFinding("UNREACHED", sentence, "", (), facts.line, (facts.key,))


def _untrained(question: Question) -> Iterator[GraphFinding]:
    """Parameters that get gradients from this tensor, and that no optimizer has."""
    trained = set[int]().union(*question.names.trained)
    found = [
        (node.key, node.leaf)
        for node in question.facts.nodes
        if node.is_parameter and id(question.walked.nodes[node.key].variable) not in trained
    ]
    if not trained or not found:
        return
    names = [name for _, name in found]
    is_lost = all(name.partition(".")[0] in question.names.nameless for name in names)
    some_trained = len(found) < sum(node.is_parameter for node in question.facts.nodes)
    verb = ("gets", "it") if len(names) == 1 else ("get", "them")
    sentence = (
        f"No optimizer has {listed(_by_module(names, question))}, which {verb[0]} a gradient from "
        f"`{question.name}`: nothing changes {verb[1]}."
    )
    if is_lost and some_trained:
        sentence += (
            " No module that you have a name for holds them: keep them in a "
            "`torch.nn.ModuleList` or `ParameterList`, so that `parameters()` finds them."
        )
    keys = tuple(key for key, _ in found)
    yield GraphFinding(
        "UNTRAINED", sentence, "", tuple(names), None, keys, is_fault=is_lost and some_trained
    )


def _copies(question: Question) -> Iterator[GraphFinding]:
    """Leaves that are a parameter's copy: the gradient goes to the copy."""
    free = list(_free_leaves(question))
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


def _without_grad(question: Question) -> Iterator[GraphFinding]:
    """Leaves that were computed from what requires grad: the path ends at them."""
    for facts, variable in _free_leaves(question):
        cut = made_without_grad(question.seen, variable, storage_key(variable))
        if cut is None or cut.copy_of is not None:
            continue
        sentence = (
            f"`{facts.leaf}` requires grad, but is a leaf: {cut.why}. The gradient stops at it "
            "and goes no further into what it was computed from."
        )
        yield GraphFinding(
            "LEAF_MADE_WITHOUT_GRAD", sentence, cut.mend, (facts.leaf,), cut.line, (facts.key,)
        )


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
        groups = _by_module(names, question)
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
