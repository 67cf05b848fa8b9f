"""What is written on a box of a graph, and how much room it takes.

Every program that draws boxes is told their size from here, so that the labels fit in the reader's
font as well as in the font of whoever did the layout.
"""

from __future__ import annotations

from nbinspect.blocks import Graph, GraphEdge, GraphFrame, GraphNode
from nbinspect.render.format import bytes_text, cut_middle, exact_bytes, printable, text_width

WIDE, NARROW, SLIM = 44, 29, 22
EDGE_COLUMNS = 26
# Edge labels make up most of the time that a layout takes.
MOST_EDGE_LABELS = 150
LABEL_SIZE, SMALL_SIZE = 12, 11
PAD_X, PAD_Y, LINE = 11, 6, 16
# Widest common monospace (0.602 em), and prose in DejaVu Sans or Verdana, the widest sans-serifs.
LABEL_ADVANCE, SMALL_ADVANCE = 7.3, 6.6
NO_NAME = "(no name)"
ROLE_WORDS = {"root": "root", "target": "what was asked about", "holder": "", "stub": "not drawn"}


def label_line(node: GraphNode, columns: int = NARROW) -> str:
    """Give the first line of a box; never empty, because some layout programs die of that."""
    return cut_middle(node.label, columns).strip() or NO_NAME


def full_name(node: GraphNode) -> str:
    """Give the whole name of a node, printable; never empty."""
    return printable(node.path or node.label).strip() or NO_NAME


def small_line(node: GraphNode, columns: int = NARROW) -> str:
    """Give the second line of a box: type and size, "" if neither is known."""
    size = "" if node.size_bytes is None else bytes_text(node.size_bytes)
    room = round(columns * LABEL_ADVANCE / SMALL_ADVANCE) - (len(size) + 3 if size else 0)
    kind = f"{node.alert} · {node.type_name}" if node.alert else node.type_name
    return " · ".join(part for part in (cut_middle(kind, room).strip(), size) if part)


def frame_line(frame: GraphFrame) -> str:
    """Give what is written at the top of a frame, shortened; never empty."""
    size = "" if frame.size_bytes is None else bytes_text(frame.size_bytes)
    label = cut_middle(frame.label, NARROW).strip() or NO_NAME
    small = " · ".join(part for part in (cut_middle(frame.type_name, NARROW).strip(), size) if part)
    return f"{label}  {small}" if small else label


def frame_hover(frame: GraphFrame) -> list[str]:
    """Give all that is known of a frame, one fact a line."""
    facts = [printable(frame.label), printable(frame.type_name)]
    if frame.size_bytes is not None:
        facts.append(exact_bytes(frame.size_bytes))
    return [fact for fact in facts if fact.strip()]


def edge_line(edge: GraphEdge) -> str:
    """Give the label of an arrow, shortened."""
    return cut_middle(edge.label, EDGE_COLUMNS).strip()


def labels_edges(graph: Graph) -> bool:
    """Say whether the arrows of a graph are few enough to bear labels."""
    return len(graph.edges) <= MOST_EDGE_LABELS


def box_size(node: GraphNode, columns: int = NARROW) -> tuple[float, float]:
    """Give width and height of a box in pixels."""
    label = text_width(label_line(node, columns)) * LABEL_ADVANCE
    small = small_line(node, columns)
    width = max(label, text_width(small) * SMALL_ADVANCE) + 2 * PAD_X
    return round(max(width, 44.0), 1), 2.0 * PAD_Y + LINE * (2 if small else 1)


def edge_width(edge: GraphEdge) -> float:
    """Give the width of an arrow's label in pixels."""
    return text_width(edge_line(edge)) * SMALL_ADVANCE


def hover_lines(node: GraphNode) -> list[str]:
    """Give everything that is known of a node, one fact a line, uncut."""
    facts = [full_name(node), printable(node.type_name), printable(node.alert)]
    if node.size_bytes is not None:
        facts.append(exact_bytes(node.size_bytes))
    return [fact for fact in (*facts, *map(printable, node.detail)) if fact.strip()]


def node_words(node: GraphNode) -> str:
    """Say a box in words, for who cannot see it."""
    size = "" if node.size_bytes is None else bytes_text(node.size_bytes)
    facts = (full_name(node), printable(node.type_name), node.alert, size, ROLE_WORDS[node.role])
    return ", ".join(fact for fact in facts if fact.strip())


def graph_words(graph: Graph) -> str:
    """Say what a graph is about in a sentence, for who cannot see it."""
    roots = [node.label for node in graph.nodes if node.role == "root"]
    targets = [node.label for node in graph.nodes if node.role == "target"]
    what = f"{len(graph.nodes)} boxes, {len(graph.edges)} arrows"
    if roots and targets:
        more = f" and {len(roots) - 3} more" if len(roots) > 3 else ""
        what += f"; {', '.join(roots[:3])}{more} down to {targets[0]}"
    return printable(f"{graph.title or 'Graph'}: {what}")
