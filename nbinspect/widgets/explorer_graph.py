"""A graph that grows and shrinks: what the first picture shows, and what was unfolded since."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol

from nbinspect.blocks import Graph, GraphEdge, GraphNode


class Found(NamedTuple):
    """What stands beside a box: boxes, and arrows between them and it."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]


class Neighbours(Protocol):
    """Where more boxes come from."""

    def of(self, key: str) -> Found:
        """Find what stands beside a box.

        Raises:
            LookupError: what it stood for is gone; the message says what.
        """

    def ended(self) -> str:
        """Say why there is nothing left to ask about, "" while there is."""


class GrowingGraph:
    """A first picture, and what was found beside its boxes.

    Args:
        first: the picture to begin with; none of it is ever folded away.

    Attributes:
        found: what was found, by the key of the box that was unfolded.
        gone: why boxes stand for nothing any more, by their key.
    """

    def __init__(self, first: Graph) -> None:
        self.found: dict[str, Found] = {}
        self.gone: dict[str, str] = {}
        self._first = first
        self._has_ended = False

    def end(self, why: str) -> None:
        """Mark what the picture is about as gone; nothing unfolds or folds any more."""
        self._has_ended = True
        self.gone |= {node.key: why for node in self._first.nodes if node.role == "target"}

    def unfold(self, key: str, found: Found) -> int:
        """Add what was found beside a box; give how many boxes are new in the picture."""
        before = len(self.graph().nodes)
        self.found[key] = found
        return len(self.graph().nodes) - before

    def fold(self, key: str) -> None:
        """Take away what came with a box, and what came with that."""
        del self.found[key]
        shown = {node.key for node in self.graph().nodes}
        self.found = {one: found for one, found in self.found.items() if one in shown}
        self.gone = {one: why for one, why in self.gone.items() if one in shown}

    def graph(self) -> Graph:
        """Give the picture as it is now."""
        nodes = {node.key: node for node in self._first.nodes}
        edges = {(edge.source, edge.target): edge for edge in self._first.edges}
        todo = dict(self.found)
        # What stands beside a box is drawn if the box is, whichever way the box came in.
        while ready := [key for key in todo if key in nodes]:
            for key in ready:
                found = todo.pop(key)
                for node in found.nodes:
                    nodes.setdefault(node.key, node)
                for edge in found.edges:
                    edges.setdefault((edge.source, edge.target), edge)
        shown = tuple(self._as_it_is(node) for node in nodes.values())
        return dataclasses.replace(self._first, nodes=shown, edges=tuple(edges.values()))

    def _as_it_is(self, node: GraphNode) -> GraphNode:
        if self._has_ended:
            node = dataclasses.replace(node, can_unfold=False)
        if (why := self.gone.get(node.key)) is None:
            return node
        kind = node.type_name or node.label
        detail = (*node.detail, why)
        return dataclasses.replace(node, type_name=f"gone: {kind}", detail=detail, can_unfold=False)
