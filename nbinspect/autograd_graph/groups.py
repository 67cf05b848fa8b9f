"""A graph's nodes as a tree of groups: modules in modules, and what repeats in a row as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from nbinspect.autograd_graph.records import AutogradNode, GraphModule, GraphReport
from nbinspect.autograd_graph.repeats import runs

SMALL = 24  # nodes; what is smaller is shown as it is
TRANSPARENT = {"ModuleList", "ModuleDict"}  # hold modules, and never run
VIEWS = {
    "AliasBackward0",
    "AsStridedBackward0",
    "DetachBackward0",
    "ExpandBackward0",
    "PermuteBackward0",
    "ReshapeAliasBackward0",
    "SelectBackward0",
    "SliceBackward0",
    "SplitBackward0",
    "SplitWithSizesBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "SqueezeBackward2",
    "TBackward0",
    "TransposeBackward0",
    "TransposeBackward1",
    "UnbindBackward0",
    "UnfoldBackward0",
    "UnsafeSplitBackward0",
    "UnsafeViewBackward0",
    "UnsqueezeBackward0",
    "ViewAsBackward0",
    "ViewBackward0",
}
LEAF = "AccumulateGrad"


@dataclass(slots=True)
class Group:
    """Boxes that fold into one.

    Attributes:
        key: its name within the picture.
        kind: module, repeat (several equal stretches) or stretch (one of them).
        name: the module's fqn, "" for what is no module.
        label: what it is called within the group that it is in.
        type_name: the module's class, or what it consists of.
        items: what is in it, in the order of the forward.
        times: how many equal stretches it has, if it has nothing else.
        level: how many modules it is in.
    """

    key: str
    kind: Literal["module", "repeat", "stretch"]
    name: str
    label: str
    type_name: str
    items: list[Item] = field(default_factory=list)
    times: int = 1
    level: int = 0

    def nodes(self) -> Iterator[AutogradNode]:
        """Yield all nodes in it, at any depth."""
        todo: list[Item] = [*reversed(self.items)]
        while todo:
            item = todo.pop()
            if isinstance(item, Group):
                todo += reversed(item.items)
            else:
                yield item


Item = Group | AutogradNode


def is_hidden(node: AutogradNode, *, show_params: bool) -> bool:
    """Say whether a node is left out of the picture: views and parameters' leaves."""
    if show_params or node.variables:
        return False
    return node.name in VIEWS or (node.name == LEAF and node.is_parameter)


def grouped(report: GraphReport, shown: Sequence[AutogradNode]) -> list[Item]:
    """Put nodes into groups by module, and then what repeats into one group.

    Args:
        report: says what modules there are.
        shown: the nodes that the picture is about, in the order of the forward.

    Cost: linear; see `repeats.runs`.
    """
    modules = {one.name: one for one in report.modules}
    chains = [_chain(node.module, modules) for node in shown]
    builder = _Builder(modules, list(shown), chains)
    return builder.build(range(len(shown)), "", [])


def _chain(module: str, modules: Mapping[str, GraphModule]) -> list[str]:
    """Give the modules that a node is in, the outermost first, without those that never run."""
    parts = module.split(".")
    paths = (".".join(parts[: n + 1]) for n in range(len(parts)))
    return [p for p in paths if p in modules and modules[p].type_name not in TRANSPARENT]


class _Builder:
    def __init__(
        self,
        modules: Mapping[str, GraphModule],
        nodes: Sequence[AutogradNode],
        chains: Sequence[Sequence[str]],
    ) -> None:
        self._modules, self._nodes, self._chains = modules, nodes, chains
        self._tokens: dict[object, int] = {}

    def build(self, places: range, key: str, around: Sequence[str]) -> list[Item]:
        """Group a stretch of nodes by the next module of their chains.

        Args:
            places: which nodes.
            key: of the group that they are in, "" for the whole graph.
            around: the modules that they are all in, the outermost first.
        """
        items: list[Item] = []
        level, at = len(around), places.start
        while at < places.stop:
            chain = self._chains[at]
            if len(chain) <= level:
                items.append(self._nodes[at])
                at += 1
                continue
            name, last = chain[level], at
            while last < places.stop and self._chains[last][level : level + 1] == [name]:
                last += 1
            own = f"{key}/{len(items)}"
            label = name.removeprefix(f"{around[-1]}.") if around else name
            kind = self._modules[name].type_name
            group = Group(own, "module", name, label, kind, level=level)
            group.items = self.build(range(at, last), own, [*around, name])
            only = group.items[0] if len(group.items) == 1 else None
            if isinstance(only, Group) and only.kind == "repeat":  # a loop in one module
                group.items, group.times = only.items, only.times
            items.append(group)
            at = last
        return self._folded(items, key) if len(self._nodes) > SMALL else items

    def _folded(self, items: list[Item], key: str) -> list[Item]:
        """Put each stretch that repeats into a group."""
        root = self._nodes[-1]  # what was asked about has a box of its own
        tokens = [-1 if item is root else self._token(item) for item in items]
        weights = [sum(1 for _ in i.nodes()) if isinstance(i, Group) else 1 for i in items]
        found: list[Item] = []
        at = 0
        for run in runs(tokens, weights):
            if (
                run.period * run.times == len(items)
                and run.period > 1
                and not found
                and run.times < 2
            ):
                continue
            found += items[at : run.start]
            found.append(_repeat(items[run.start : run.end], run.period, f"{key}/r{run.start}"))
            at = run.end
        return [*found, *items[at:]]

    def _token(self, item: Item) -> int:
        """Number what an item is: equal numbers for equal structure and shapes."""
        what: object
        if isinstance(item, Group):
            what = (item.type_name, item.kind, item.times, *map(self._token, item.items))
        else:
            what = (item.name, item.shape)
        return self._tokens.setdefault(what, len(self._tokens))


def _repeat(items: list[Item], period: int, key: str) -> Group:
    """Make one group of equal stretches."""
    times = len(items) // period
    if period == 1:
        first, last = items[0], items[-1]
        if isinstance(first, Group) and isinstance(last, Group):
            label = first.label if first.label == last.label else f"{first.label} … {last.label}"
            return Group(key, "repeat", "", label, first.type_name, items, times, first.level)
        name = first.type_name if isinstance(first, Group) else first.name
        return Group(key, "repeat", "", name, "", items, times)
    label, kind = _stretch_words(items[:period])
    parts: list[Item] = [
        Group(
            f"{key}/{n}", "stretch", "", f"{n + 1} of {times}", kind, items[n * period :][:period]
        )
        for n in range(times)
    ]
    return Group(key, "repeat", "", label, kind, parts, times)


def _stretch_words(items: Sequence[Item]) -> tuple[str, str]:
    """Say what a stretch of several items is: its modules by name, else its operations."""
    modules = [item.label for item in items if isinstance(item, Group)]
    n_operations = sum(1 for item in items if not isinstance(item, Group))
    operations = f"{n_operations} operation{'s' if n_operations > 1 else ''}"
    if not modules:
        names = [item.name for item in items if not isinstance(item, Group)]
        return f"{names[0]} … {names[-1]}", operations
    label = " · ".join(dict.fromkeys(modules))
    return label, f"and {operations}" if n_operations else f"{len(modules)} modules"
