"""A graph that is asked what is wrong with it, and all that is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nbinspect.autograd_graph.facts import Facts
from nbinspect.autograd_graph.naming import Names
from nbinspect.autograd_graph.walk import Walked, released
from nbinspect.autograd_graph.watched import Watched
from nbinspect.equal_layers import whole_modules

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


def listed(names: list[str]) -> str:
    """Write a few names between backticks, and how many more there are."""
    shown = ", ".join(f"`{name}`" for name in names[:MOST_NAMES])
    rest = len(names) - MOST_NAMES
    return f"{shown} and {rest} more" if rest > 0 else shown


def by_module(names: list[str], question: Question) -> list[str]:
    """Say `model.encoder.*` where all of its parameters are meant."""
    among = (name for owned in question.names.parameters.values() for name in owned)
    return whole_modules(names, among)
