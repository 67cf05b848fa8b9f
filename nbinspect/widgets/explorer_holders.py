"""Boxes of a reference picture, and how each is reached again without being kept."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import weakref
from typing import Any

from nbinspect.blocks import GraphEdge, GraphNode
from nbinspect.referrers.records import Chain, Link, ReferenceReport
from nbinspect.referrers.unfold import GoneError, unfold
from nbinspect.referrers.view import graph
from nbinspect.tensors import class_name, is_node
from nbinspect.widgets.explorer_graph import Found

MOST_HIDDEN = 4  # steps between two boxes of a chain that have no box: a cell, a traceback
MOST_LOOKED_AT = 5_000
Step = tuple[int, str]
Path = tuple[Step, ...]
"""Id and type name of each holder, from the target up."""


class Holders:
    """Who holds the boxes of a reference picture, found again from the target at each question.

    Args:
        report: what the first picture shows.
        target: what it is about; only a weak reference to it is kept.

    Attributes:
        first: the first picture, with those boxes marked that can be asked about.

    Raises:
        TypeError: nothing can refer weakly to `target`.
    """

    def __init__(self, report: ReferenceReport, target: object) -> None:
        self._target = weakref.ref(target)
        self._name = report.name
        self._paths: dict[str, Path] = {"target": ()}
        self._boxes = {id(target): "target"}
        self._below: dict[Step, int] = {}
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
            RuntimeError: it is there, but cannot be reached again.
        """
        if why := self.ended():
            raise GoneError(why)
        nodes, edges, ids = self._ask(key)
        keys = {}
        for node, one in zip(nodes, ids, strict=True):
            keys[node.key] = own = self._box(node, one[0])
            if node.can_unfold and own != "target":
                self._paths[own] = (*self._paths[key], one)
        return Found(
            tuple(dataclasses.replace(node, key=keys[node.key]) for node in nodes),
            tuple(dataclasses.replace(edge, source=keys[edge.source]) for edge in edges),
        )

    def _ask(
        self, key: str
    ) -> tuple[tuple[GraphNode, ...], tuple[GraphEdge, ...], tuple[Step, ...]]:
        """Walk up from the target; chains leave steps out, so begin above those if need be."""
        path = self._paths[key]
        # No name for the objects here: a name would be one more holder for the search to find.
        try:
            return unfold(self._target(), path, key)
        except GoneError as error:
            gone = str(error)
        for n, step in enumerate(path):
            if step in self._below:
                with contextlib.suppress(GoneError):
                    return unfold(_holder(step, self._below[step]), path[n + 1 :], key)
        if path and path[-1] in self._below and any(map(is_node, _found(path[-1]))):
            raise RuntimeError("it is there, but not every step down from it is visible to Python")
        raise GoneError(gone)

    def ended(self) -> str:
        """Say that the target is gone, "" while it lives."""
        return "" if self._target() is not None else f"{self._name} is gone: nothing holds it"

    def _know(self, chain: Chain) -> None:
        """Note how each box of a chain is reached, as far as its links are known."""
        path: Path = ()
        below = chain.links[-1].key
        for link in reversed(chain.links[:-1]):
            if not link.key:
                return
            path = (*path, (link.key, _class_of(link)))
            box = f"{link.key}:{link.label}"
            self._boxes.setdefault(link.key, box)
            self._paths.setdefault(box, path)
            self._below.setdefault(path[-1], below)
            below = link.key

    def _box(self, node: GraphNode, key: int) -> str:
        """Give the box of an object: the one it has, if it was met before."""
        if node.role == "root":  # all variables are in one dictionary, so ids do not tell
            return self._roots.setdefault(node.label, f"root:{node.label}")
        return self._boxes.setdefault(key, node.key) if key else node.key


def _class_of(link: Link) -> str:
    """Give the name of a link's class; a tensor's is followed by its shape, a node's has a scope."""
    return link.type_name.partition(" ")[0].rpartition("::")[2]


def _holder(step: Step, below: int) -> Any:
    """Give the object with an id, if it still leads down to the one below it in its chain.

    Raises:
        GoneError: there is none, or it does not.
    """
    found = _found(step)
    if not found or not _leads_to(found[0], below):
        raise GoneError(f"the {step[1]} does not hold it any more")
    return found.pop()


def _found(step: Step) -> list[Any]:
    return [
        one for one in gc.get_objects() if id(one) == step[0] and class_name(type(one)) == step[1]
    ]


def _leads_to(holder: Any, below: int) -> bool:
    level, seen = [holder], {id(holder)}
    for _ in range(1 + MOST_HIDDEN):
        level = [one for one in gc.get_referents(*level) if id(one) not in seen]
        seen.update(map(id, level))
        if below in seen:
            return True
        if len(seen) > MOST_LOOKED_AT:
            return False
    return False
