"""From a tensor back through the autograd graph: iterative, capped, and no hook runs."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nbinspect import _torch
from nbinspect.heapgraph.native import node_cap


@dataclass(slots=True)
class Walked:
    """Nodes of a graph, in the order of the forward; close it before returning.

    Attributes:
        nodes: the nodes themselves; producers come before consumers.
        edges: (producer, consumer, slot), by place in `nodes`.
        complete: False if there are more than were looked at.
    """

    nodes: list[Any] = field(default_factory=list)
    edges: list[tuple[int, int, int]] = field(default_factory=list)
    complete: bool = True

    def close(self) -> None:
        """Let go of the nodes, even if an error's traceback still holds this."""
        self.nodes.clear()

    def index(self) -> dict[int, int]:
        """Give each node's place by its id."""
        return {id(node): n for n, node in enumerate(self.nodes)}

    def producers(self) -> list[list[int]]:
        """Give for each node those that made its inputs."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for source, target, _ in self.edges:
            found[target].append(source)
        return found

    def consumers(self) -> list[list[int]]:
        """Give for each node those that took its output."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for source, target, _ in self.edges:
            found[source].append(target)
        return found


def is_leaf(node: Any) -> bool:
    """Say whether a node is where a gradient ends: it has the tensor that gets it."""
    return type(node).__name__ == "AccumulateGrad"


def walk(root: Any, cap: int | None = None) -> Walked:
    """Collect the nodes behind `root`, nearest first, and put them in the order of the forward.

    Args:
        root: an autograd node, None for no graph.
        cap: how many nodes to look at; None for as many as are safe (`heapgraph.native.node_cap`).

    Cost: about 10 µs a node; reading a node's inputs gives them a Python wrapper for life.
    Blind to: what lies beyond the cap. One node with more inputs than the cap is wrapped whole.
    Source: ``Node.next_functions``, ``Node._sequence_nr``.
    """
    cap = node_cap() if cap is None else cap
    found: dict[int, Any] = {} if root is None else {id(root): root}
    todo, links, complete = deque(found.values()), list[tuple[int, int, int]](), True
    while todo:
        node = todo.popleft()
        for slot, (producer, _) in enumerate(node.next_functions):
            if producer is None:
                continue
            if id(producer) not in found:
                if len(found) >= cap:
                    complete = False
                    continue
                found[id(producer)] = producer
                todo.append(producer)
            links.append((id(producer), id(node), slot))
        if not complete and len(found) >= cap:
            break  # what is queued is in the graph, but its inputs would be wrapped
    order = _forward_order(found, links)
    place = {key: n for n, key in enumerate(order)}
    edges = [(place[source], place[target], slot) for source, target, slot in links]
    return Walked([found[key] for key in order], sorted(edges, key=lambda e: e[1:]), complete)


def _forward_order(found: dict[int, Any], links: list[tuple[int, int, int]]) -> list[int]:
    """Sort nodes so that producers come first, otherwise as their operations ran.

    A leaf has no number of its own: it comes right before who uses it first.
    """
    consumers: dict[int, list[int]] = defaultdict(list)
    waits: dict[int, int] = dict.fromkeys(found, 0)
    for source, target, _ in links:
        consumers[source].append(target)
        waits[target] += 1
    number = {key: _torch.sequence_number(node) for key, node in found.items()}
    own = {key: n for key, n in number.items() if n is not None}
    rank: dict[int, tuple[int, int]] = {key: (n, 1) for key, n in own.items()}
    for key in found:
        if key not in own:
            rank[key] = (min((own[c] for c in consumers[key] if c in own), default=0), 0)
    ready = [(rank[key], n, key) for n, key in enumerate(found) if not waits[key]]
    heapq.heapify(ready)
    order, tie = [], len(found)
    while ready:
        *_, key = heapq.heappop(ready)
        order.append(key)
        for consumer in consumers[key]:
            waits[consumer] -= 1
            if not waits[consumer]:
                tie += 1
                heapq.heappush(ready, (rank[consumer], tie, consumer))
    return order


def released(walked: Walked) -> Iterator[int]:
    """Yield the places of nodes whose saved tensors a backward has already released."""
    for n, node in enumerate(walked.nodes):
        if not is_leaf(node) and _torch.saved_are_freed(node):
            yield n
