"""Graphs that get longer and keep no tensor: what ``total += loss`` leaves once backward has run."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from nbinspect import _torch
from nbinspect.heapgraph.graph import collector_paused
from nbinspect.heapgraph.native import node_cap
from nbinspect.leaks.growth import GRAPH_ALONE, Survivor, growth_of, in_most
from nbinspect.leaks.owners import Held
from nbinspect.leaks.records import Growth
from nbinspect.leaks.rounds import Rounds
from nbinspect.tensors import looking, tensors_of_python

NODE_BYTES = 600  # an addition takes 580 in torch 2.13, a node of a small network 700
PART_OF_CAP = 4  # of the nodes that may be looked at; the census has looked at as many as it may
SHARED = 0.5  # a graph that has as much in common with one that is told is that one's


class _Graph(NamedTuple):
    """A tensor whose graph reaches back over most repetitions: its handle, its nodes by id."""

    handle: int
    rounds: dict[int, int]

    def n_per_run(self, last: int) -> float:
        """Count the nodes of a repetition; the first and the last are not whole."""
        counts = Counter(self.rounds.values())
        whole = [number for one, number in counts.items() if one < last] or [len(self.rounds)]
        return sum(whole) / len(whole)


def longer_graphs(rounds: Rounds, everything: list[Survivor], first: int) -> Iterator[Growth]:
    """Tell which tensors have a graph that gets longer, where no saved tensor tells it.

    Args:
        rounds: what was watched.
        everything: survivors of all repetitions.
        first: the first repetition that counts.

    Cost: some 10 µs for each node of the graphs that the last repetitions made.
    Blind to: graphs that other threads made; nodes beyond some thousands.
    Source: ``Node._sequence_nr``, which counts up within a thread.
    """
    numbers = [one.next_node for one in rounds.boundaries]
    starts = [one for one in numbers if one is not None]
    last = len(numbers) - 2
    if len(starts) < len(numbers) or not starts:
        return
    survivors = {one.ref.key: one for one in everything}
    with collector_paused(), looking():
        graphs = _reaching_back(starts, first, survivors.keys())
    told = set[int]()
    for graph in graphs:
        one = survivors.get(graph.handle)
        if one is None or len(told & graph.rounds.keys()) > SHARED * len(graph.rounds):
            continue
        told |= graph.rounds.keys()
        yield _growth(one, graph.n_per_run(last))


def _growth(one: Survivor, n_nodes: float) -> Growth:
    claim = one.claim._replace(kind="SAVED_FOR_BACKWARD", why=GRAPH_ALONE)
    held = one.held._replace(claims=(claim,)) if one.held is not None else None
    group = Held(one.claim.owner, [replace(one, held=held)], is_container=False)
    return replace(
        growth_of(group, 0, 0), bytes_per_run=round(n_nodes * NODE_BYTES), tensors_per_run=0
    )


def _reaching_back(starts: list[int], first: int, made: Any) -> list[_Graph]:
    """Find the tensors of the last repetitions whose graphs have nodes of most others.

    Args:
        starts: the number of the first node of each repetition, and of the one after the last.
        first: the first repetition that counts.
        made: handles of storages that the repetitions made and that are alive: a graph that has
            saved one of an earlier repetition is told by that.
    """
    last, budget, found = len(starts) - 2, node_cap() // PART_OF_CAP, list[_Graph]()
    for tensor in tensors_of_python():
        node = _node(tensor)
        number = _torch.sequence_number(node) if node is not None else None
        if number is None or not starts[max(first, last - 1)] <= number < starts[-1]:
            continue
        nodes = _nodes(node, starts, budget)
        budget -= len(nodes)
        rounds = {key: at for key, (at, _) in nodes.items() if at >= first}
        if in_most(set(rounds.values()), first, last) and not any(
            at < last and _has_saved(one, made) for at, one in nodes.values()
        ):
            found.append(_Graph(_torch.handle(tensor.untyped_storage()), rounds))
        nodes.clear()
    return found


def _node(tensor: Any) -> Any:
    try:
        return tensor.grad_fn
    except RuntimeError:  # a view in inference mode
        return None


def _nodes(node: Any, starts: list[int], most: int) -> dict[int, tuple[int, Any]]:
    """Give the nodes of a graph with their repetitions, the nearest first, as many as may be."""
    found, todo = dict[int, tuple[int, Any]](), deque([node])
    while todo and len(found) < most:
        one = todo.popleft()
        number = _torch.sequence_number(one)
        if id(one) in found or number is None or number < starts[0]:
            continue
        found[id(one)] = bisect_right(starts, number) - 1, one
        todo.extend(child for child, _ in one.next_functions if child is not None)
    return found


def _has_saved(node: Any, made: Any) -> bool:
    for _, tensor, _ in _torch.raw_saved(node):
        try:
            if _torch.handle(tensor.untyped_storage()) in made:
                return True
        except (AttributeError, RuntimeError, NotImplementedError):  # packed by a hook, or sparse
            continue
    return False
