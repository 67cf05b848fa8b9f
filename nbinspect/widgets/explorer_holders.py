"""Boxes of a reference picture, and how each is reached again without being kept."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import Any

from nbinspect.blocks import GraphEdge, GraphNode
from nbinspect.heapgraph.roots import roots
from nbinspect.referrers.records import Chain, ReferenceReport
from nbinspect.referrers.unfold import GoneError, follow, unfold
from nbinspect.referrers.view import graph
from nbinspect.tensors import class_name
from nbinspect.widgets.explorer_graph import Found

Step = tuple[int, str]
Path = tuple[Step, ...]
"""Id and type name of each holder, from the target up."""


class Holders:
    """Who holds the boxes of a reference picture, found again from the target at each question.

    Args:
        report: what the first picture shows.
        target: what it is about; only a weak reference to it is kept. Of an object that allows
            none, and without it, the way down from one of the roots is kept.

    Attributes:
        first: the first picture, with those boxes marked that can be asked about.
        note: what the reader should know of how the target is found again, "" for nothing.

    Raises:
        ValueError: it cannot be found again; the message says why.
    """

    def __init__(self, report: ReferenceReport, target: object = None) -> None:
        self.note, self._find = _finder(report, target)
        self._name = report.name
        self._paths: dict[str, Path] = {"target": ()}
        self._boxes = {chain.steps[-1][0]: "target" for chain in report.chains if chain.steps}
        for chain in report.chains:
            self._know(chain)
        first = graph(report)
        self._roots = {node.label: node.key for node in first.nodes if node.role == "root"}
        nodes = (
            dataclasses.replace(node, can_unfold=node.key in self._paths) for node in first.nodes
        )
        self.first = dataclasses.replace(first, nodes=tuple(nodes))

    def of(self, key: str) -> Found:
        """Find who holds a box.

        Raises:
            LookupError: what it stood for is gone, or something on the way to it.
        """
        if why := self.ended():
            raise GoneError(why)
        # No name for the objects here: a name would be one more holder for the search to find.
        nodes, edges, ids = unfold(self._find(), self._paths[key], key)
        keys = {}
        for node, one in zip(nodes, ids, strict=True):
            keys[node.key] = own = self._box(node, one[0])
            if node.can_unfold and own != "target":
                self._paths[own] = (*self._paths[key], one)
        return Found(
            tuple(dataclasses.replace(node, key=keys[node.key]) for node in nodes),
            tuple(_arrow(edge, keys) for edge in edges),
        )

    def ended(self) -> str:
        """Say that the target is gone, "" while it lives."""
        try:
            return "" if self._find() is not None else f"{self._name} is gone: nothing holds it"
        except GoneError as error:
            return f"{self._name} is gone: {error}"

    def _know(self, chain: Chain) -> None:
        """Note how each box of a chain is reached from the target."""
        places = {key: place for place, (key, _) in enumerate(chain.steps)}
        for link in chain.links[:-1]:
            if link.key in places:
                path = tuple(reversed(chain.steps[places[link.key] : -1]))
                box = f"{link.key}:{link.label}"
                self._boxes.setdefault(link.key, box)
                self._paths.setdefault(box, path)

    def _box(self, node: GraphNode, key: int) -> str:
        """Give the box of an object: the one it has, if it was met before."""
        if node.role == "root":  # all variables are in one dictionary, so ids do not tell
            return self._roots.setdefault(node.label, f"root:{node.label}")
        return self._boxes.setdefault(key, node.key) if key else node.key


def _arrow(edge: GraphEdge, keys: dict[str, str]) -> GraphEdge:
    return dataclasses.replace(edge, source=keys[edge.source])


def _finder(report: ReferenceReport, target: object) -> tuple[str, Callable[[], Any]]:
    """Give a note for the reader, and what finds the target again."""
    if target is not None:
        try:
            return "", weakref.ref(target)
        except TypeError:
            pass
    starts = roots()
    chain = next((one for one in report.chains if one.steps and one.steps[0][0] in starts), None)
    kind = "" if target is None else class_name(type(target))
    if chain is None:
        raise ValueError(
            "Unfolding needs an object that can be weakly referenced, or that a name leads to; "
            f"this {kind or 'one'} is neither."
        )
    way = f"each click finds it again on its way down from {chain.root}."
    note = f"No weak reference can point to a {kind}: {way}" if kind else ""
    return note, functools.partial(follow, chain.steps)
