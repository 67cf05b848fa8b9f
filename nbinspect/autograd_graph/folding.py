"""The picture of a graph: modules and repetitions as one box each, until they are unfolded."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from typing import Literal

from nbinspect.autograd_graph.groups import LEAF, Group, Item, grouped, is_hidden
from nbinspect.autograd_graph.records import AutogradNode, GraphReport, SavedTensor
from nbinspect.blocks import Graph, GraphEdge, GraphFrame, GraphNode, HeatScale
from nbinspect.render.format import bytes_text, count, many

READABLE = 22  # boxes of a first picture
Colour = Literal["saved", "gradient", "none"]


class Folding:
    """A graph that can be drawn with any of its groups unfolded.

    Args:
        report: what to draw.
        show_params: draw views and leaves; None for as the report says.

    Attributes:
        groups: every group by its key.
    """

    def __init__(self, report: GraphReport, *, show_params: bool | None = None) -> None:
        self._report = report
        params = report.show_params if show_params is None else show_params
        nodes = report.nodes
        self._root = nodes[-1].key if nodes else -1
        shown = [n for n in nodes if n.key == self._root or not is_hidden(n, show_params=params)]
        self._items = grouped(report, shown)
        visible = {node.key for node in shown}
        self._links = _contracted(report, visible)
        self._problems = _problems(report, visible)
        self.groups: dict[str, Group] = {}
        todo = list(self._items)
        while todo:
            item = todo.pop()
            if isinstance(item, Group):
                self.groups[item.key] = item
                todo += item.items

    def first(self) -> set[str]:
        """Give what is unfolded at first: as deep as was asked for, else as is readable."""
        depth = self._report.depth
        if depth is not None:
            modules = (one for one in self.groups.values() if one.kind == "module")
            return {one.key for one in modules if one.level < depth and len(one.items) > 1}
        opened: set[str] = set()
        n_boxes = len(self._items)
        level: list[Item] = list(self._items)
        while level:
            groups = [one for one in level if isinstance(one, Group) and _is_composed(one)]
            n_more = sum(len(one.items) - 1 for one in groups)
            if not groups or (opened and n_boxes + n_more > READABLE):
                break
            opened |= {one.key for one in groups}
            n_boxes += n_more
            level = [item for one in groups for item in one.items]
        return opened

    def graph(self, opened: Set[str], colour: Colour = "saved") -> Graph:
        """Draw it with these groups unfolded.

        Args:
            opened: keys of groups; those in groups that are folded count not.
            colour: what the boxes are coloured by.

        Cost: linear in the number of nodes.
        """
        drawing = _Drawing(self._report, self._root, colour, self._problems)
        home: dict[int, str] = {}
        todo: list[tuple[Item, str, str]] = [(one, "", "") for one in reversed(self._items)]
        while todo:
            item, frame, within = todo.pop()
            if isinstance(item, Group) and item.key in opened and _unfolds(item):
                drawing.frame(item, frame)
                inner = item.name or within
                todo += [(one, item.key, inner) for one in reversed(item.items)]
                continue
            key = drawing.box(item, frame, within)
            for node in _nodes(item):
                home[node.key] = key
        return drawing.finish(home, self._links)


def _is_composed(group: Group) -> bool:
    """Say whether a module has more in it than its own operations."""
    parts = group.items
    composed = group.kind == "module" and group.times == 1 and len(parts) > 1
    return composed and any(isinstance(p, Group) for p in parts)


def _is_named(group: Group) -> bool:
    """Say whether a group is a module, or consists of modules in a row."""
    first = group.items[0] if group.items else None
    return bool(group.name) or (isinstance(first, Group) and bool(first.name))


def _unfolds(group: Group) -> bool:
    return sum(1 for _ in group.nodes()) > 1


def _nodes(item: Item) -> Iterable[AutogradNode]:
    return item.nodes() if isinstance(item, Group) else (item,)


def _contracted(report: GraphReport, shown: Set[int]) -> list[tuple[int, int]]:
    """Connect the nodes that are shown, through those that are not."""
    producers: dict[int, list[int]] = defaultdict(list)
    for edge in report.edges:
        producers[edge.target].append(edge.source)
    behind: dict[int, list[int]] = {}
    links = []
    for node in report.nodes:  # producers come first
        found: dict[int, None] = {}
        for source in producers[node.key]:
            found.update(dict.fromkeys([source] if source in shown else behind[source]))
        if node.key in shown:
            links += [(source, node.key) for source in found]
        else:
            behind[node.key] = list(found)
    return links


def _problems(report: GraphReport, shown: Set[int]) -> dict[int, str]:
    """Give each node's problem; that of a node that is not shown goes to who takes its output."""
    consumers: dict[int, list[int]] = defaultdict(list)
    for edge in report.edges:
        consumers[edge.source].append(edge.target)
    found: dict[int, str] = {}
    for node in report.nodes:
        todo = [node.key] if node.problem else []
        while todo:
            key = todo.pop()
            if key in shown:
                whose = node.leaf or node.name
                words = node.problem if key == node.key else f"{node.problem} of {whose}"
                found.setdefault(key, words)
            else:
                todo += consumers[key]
    return found


def _outputs(report: GraphReport) -> dict[int, AutogradNode]:
    """Give to each matrix product the view that a Linear makes of it for inputs of three dimensions."""
    consumers: dict[int, list[int]] = defaultdict(list)
    for edge in report.edges:
        consumers[edge.source].append(edge.target)
    found = {}
    for node in report.nodes:
        after = consumers[node.key]
        if node.name in {"AddmmBackward0", "MmBackward0"} and len(after) == 1:
            view = report.nodes[after[0]]
            if view.name in {"ViewBackward0", "UnsafeViewBackward0"}:
                found[node.key] = view
    return found


class _Drawing:
    """Collects boxes, arrows and frames of one picture."""

    def __init__(
        self, report: GraphReport, root: int, colour: Colour, problems: Mapping[int, str]
    ) -> None:
        self._report, self._root, self._colour, self._problems = report, root, colour, problems
        self._boxes: list[GraphNode] = []
        self._edges: list[GraphEdge] = []
        self._frames: list[GraphFrame] = []
        self._heat: dict[str, float] = {}
        self._kept: dict[str, dict[int, int]] = {}
        self._totals = {one.name: one for one in report.modules}
        self._outputs = _outputs(report)

    def frame(self, group: Group, parent: str) -> None:
        """Put a frame around what an unfolded group holds."""
        nodes = list(group.nodes())
        kind = f"{group.type_name} x{group.times}" if group.times > 1 else group.type_name
        size = saved_bytes(nodes) or None
        self._frames.append(
            GraphFrame(group.key, group.label, kind.strip(), parent, size, can_fold=True)
        )

    def box(self, item: Item, frame: str, within: str) -> str:
        """Draw one box; give its key."""
        if isinstance(item, Group):
            box = self._group_box(item, frame, within)
        else:
            box = self._node_box(item, frame, within)
        self._boxes.append(box)
        if self._report.show_saved and not isinstance(item, Group):
            self._add_saved(item, box)
        return box.key

    def _group_box(self, group: Group, frame: str, within: str) -> GraphNode:
        nodes = list(group.nodes())
        kind = group.type_name
        if group.times > 1:
            kind = f"{kind} x{group.times}".strip()
        gives = self._outputs.get(nodes[-1].key, nodes[-1])
        shape = "x".join(map(str, gives.shape or ()))
        size = self._keep(group.key, nodes)
        self._note_heat(group.key, nodes)
        bad = next((self._problems[n.key] for n in nodes if n.key in self._problems), "")
        has_root = any(node.key == self._root for node in nodes)
        return GraphNode(
            key=group.key,
            label=group.label,
            type_name=" · ".join(
                part
                for part in (f"gives {self._report.name}" if has_root else "", kind, shape)
                if part
            ),
            role="target" if has_root else "holder",
            size_bytes=size,
            detail=tuple(self._group_facts(group, nodes, gives)),
            can_unfold=_unfolds(group),
            frame=frame,
            alert=bad.partition(" ")[0],
            path=f"{within}.{group.label}" if within and _is_named(group) else "",
        )

    def _group_facts(
        self, group: Group, nodes: list[AutogradNode], gives: AutogradNode
    ) -> Iterable[str]:
        one = self._totals.get(group.name)
        norm = one.grad_norm if one is not None else _norm(nodes)
        number = len(nodes)
        yield f"{count(number)} operation{'s' if number != 1 else ''}"
        if one is not None and one.n_parameters:
            yield many(one.n_parameters, "parameter")
        yield f"gives {gives.description}"
        if norm is not None:
            yield f"gradient norm {norm:.3g}"
        lines = list(dict.fromkeys(node.line.label for node in nodes if node.line))
        if lines:
            yield ", ".join(lines[:3])
        yield from (self._problems[node.key] for node in nodes if node.key in self._problems)

    def _node_box(self, node: AutogradNode, frame: str, within: str) -> GraphNode:
        is_root = node.key == self._root
        is_leaf = node.name == LEAF
        kind = node.description if is_leaf else f"{node.name} · {node.description}"
        if is_root:
            label = self._report.name
        elif is_leaf:
            label = node.leaf.removeprefix(f"{within}.")
        elif node.variables:
            label = ", ".join(node.variables)
        else:
            label, kind = node.name, node.description
        key = f"n{node.key}"
        size = self._keep(key, [node])
        self._note_heat(key, [node])
        return GraphNode(
            key=key,
            label=label,
            type_name=kind,
            role="target" if is_root else "root" if is_leaf and not node.is_parameter else "holder",
            hue="PARAMETER" if is_leaf and node.is_parameter else "OTHER",
            size_bytes=size,
            detail=tuple(_node_facts(node)),
            frame=frame,
            alert=self._problems.get(node.key, "").partition(" ")[0],
            path=node.leaf if is_leaf else "",
        )

    def _add_saved(self, node: AutogradNode, box: GraphNode) -> None:
        """Draw a box for each saved tensor that is not a parameter."""
        for n, saved in enumerate(one for one in node.saved if one.kind != "PARAMETER"):
            key = f"{box.key}:s{n}"
            self._boxes.append(
                GraphNode(
                    key,
                    saved.name or f"saved {saved.slot}",
                    saved.description,
                    hue="SAVED_FOR_BACKWARD",
                    size_bytes=saved.size_bytes,
                    frame=box.frame,
                )
            )
            self._edges.append(GraphEdge(box.key, key, "saves"))

    def _keep(self, key: str, nodes: list[AutogradNode]) -> int | None:
        """Note what a box keeps for backward; give its bytes, each once."""
        kept = self._kept[key] = saved_storages(nodes)
        return sum(kept.values()) or None

    def _note_heat(self, key: str, nodes: list[AutogradNode]) -> None:
        value: float | None
        if self._colour == "saved":
            value = float(saved_bytes(nodes))
        elif self._colour == "gradient":
            value = self._gradient(nodes)
        else:
            value = None
        if value is not None and value > 0:
            self._heat[key] = value

    def _gradient(self, nodes: list[AutogradNode]) -> float | None:
        """Give the norm over the parameters of the modules that these nodes are."""
        modules = {node.module for node in nodes if node.module}
        own = [
            node.grad_norm
            for node in self._report.nodes
            if node.is_parameter and node.grad_norm is not None and node.module in modules
        ]
        total = math.hypot(*own) if own else None
        return total if total is not None and math.isfinite(total) else None

    def finish(self, home: dict[int, str], links: list[tuple[int, int]]) -> Graph:
        """Draw the arrows, and colour the boxes by the largest of them."""
        arrows = dict.fromkeys((home[a], home[b]) for a, b in links if home[a] != home[b])
        self._edges += [GraphEdge(a, b) for a, b in arrows]
        scale, shared = self._scale(), self._shared()
        most = max(self._heat.values(), default=0.0)
        least = min(self._heat.values(), default=0.0)
        nodes = tuple(
            self._coloured(self._sharing(box, shared), least, most) for box in self._boxes
        )
        title, size = f"How {self._report.name} was made", bytes_text(sum(shared.values()))
        note = f"{size} are counted in more than one box." if shared else ""
        used = {node.frame for node in nodes} | {frame.parent for frame in self._frames}
        frames = tuple(frame for frame in self._frames if frame.key in used)
        return Graph(title, nodes, tuple(self._edges), frames, scale, note=note)

    def _shared(self) -> dict[int, int]:
        """Give the storages that several boxes keep, as an activation and the layer that takes it."""
        uses = Counter(storage for kept in self._kept.values() for storage in kept)
        sizes = {storage: size for kept in self._kept.values() for storage, size in kept.items()}
        return {one: sizes[one] for one, number in uses.items() if number > 1 and sizes[one]}

    def _sharing(self, box: GraphNode, shared: Mapping[int, int]) -> GraphNode:
        """Say how much of what a box keeps another one keeps too."""
        kept = self._kept.get(box.key, {})
        size = sum(kept[one] for one in kept if one in shared)
        if not size:
            return box
        whole = size == box.size_bytes
        words = "all of this" if whole else f"{bytes_text(size)} of this"
        words += " is kept by another box too, and is in memory once"
        return dataclasses.replace(box, detail=(*box.detail, words))

    def _scale(self) -> HeatScale | None:
        if not self._heat:
            return None
        most, least = max(self._heat.values()), min(self._heat.values())
        if self._colour == "saved":
            return HeatScale(
                "saved for backward", "0 B", bytes_text(int(most)), "SAVED_FOR_BACKWARD"
            )
        return HeatScale("gradient norm", f"{least:.2g}", f"{most:.2g}", "GRADIENT")

    def _coloured(self, box: GraphNode, least: float, most: float) -> GraphNode:
        value = self._heat.get(box.key)
        if value is None or most <= 0:
            return box
        if self._colour == "gradient" and most > least:  # norms differ by powers of ten
            heat = math.log(value / least) / math.log(most / least)
        else:
            heat = value / most
        hue = "SAVED_FOR_BACKWARD" if self._colour == "saved" else "GRADIENT"
        return dataclasses.replace(box, heat=round(0.08 + 0.92 * heat, 3), heat_hue=hue)


def saved_bytes(nodes: Iterable[AutogradNode]) -> int:
    """Sum what nodes keep for backward alone, each storage once."""
    return sum(saved_storages(nodes).values())


def saved_storages(nodes: Iterable[AutogradNode]) -> dict[int, int]:
    """Give the bytes of each storage that nodes keep for backward alone."""
    return {
        saved.storage: saved.size_bytes or 0
        for node in nodes
        for saved in node.saved
        if saved.kind != "PARAMETER" and saved.storage is not None
    }


def _norm(nodes: Iterable[AutogradNode]) -> float | None:
    norms = [node.grad_norm for node in nodes if node.grad_norm is not None]
    return math.hypot(*norms) if norms else None


def _node_facts(node: AutogradNode) -> Iterable[str]:
    """Say all that is known of a node, one fact a line."""
    if node.module:
        yield f"in {node.module}"
    if node.op:
        yield node.op
    if node.line is not None:
        yield f"{node.line.label}: {node.line.text}"
    if node.leaf:
        yield f"leaf {node.leaf}"
    for saved in node.saved:
        yield _saved_words(saved)
    if node.grad_norm is not None:
        yield f"gradient norm {node.grad_norm:.3g}"
    if node.problem:
        yield node.problem


def _saved_words(saved: SavedTensor) -> str:
    size = f", {bytes_text(saved.size_bytes)}" if saved.size_bytes is not None else ""
    notes = {"PARAMETER": " (alive anyway)", "PACKED": " (packed by a hook)"}
    name = f" = {saved.name}" if saved.name else ""
    return f"saves {saved.slot}{name}: {saved.description}{size}{notes.get(saved.kind, '')}"
