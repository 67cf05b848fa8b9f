"""DOT text: every label comes out of Graphviz as it went in."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pygraphviz
from hypothesis import given, settings
from made_up_graphs import chain, crowd, every, three_roots
from test_escaping import HOSTILE, LABELS

from nbinspect.blocks import Graph, GraphEdge, GraphNode
from nbinspect.render.dot import to_dot
from nbinspect.render.nodes import edge_line, label_line, small_line

TEXT = "{http://www.w3.org/2000/svg}text"


def drawn_words(dot: str) -> list[str]:
    """Have Graphviz draw it; a no-break space is how it writes a space."""
    svg = pygraphviz.AGraph(string=dot).draw(format="svg", prog="dot")
    return [spaced(text.text or "") for text in ET.fromstring(svg).iter(TEXT)]


def spaced(text: str) -> str:
    return " ".join(text.replace("\u00a0", " ").split())


def check(graph: Graph) -> None:
    expected = [
        spaced(line) for n in graph.nodes for line in (label_line(n), small_line(n)) if line
    ]
    expected += [spaced(edge_line(edge)) for edge in graph.edges if edge_line(edge)]
    assert sorted(drawn_words(to_dot(graph))) == sorted(expected)


def test_the_same_graph_gives_the_same_text_with_names_in_order():
    dot = to_dot(three_roots())
    assert dot == to_dot(three_roots())
    assert [
        line.split()[0] for line in dot.splitlines() if " [label=" in line and "->" not in line
    ] == [f"n{n}" for n in range(8)]
    assert [f"id=e{n} " in dot or f"id=e{n}]" in dot for n in range(8)] == [True] * 8


def test_known_attacks():
    nodes = [GraphNode(f"k{n}", label, label, size_bytes=n) for n, label in enumerate(HOSTILE)]
    edges = [GraphEdge(f"k{n}", "k0", label) for n, label in enumerate(HOSTILE)]
    check(Graph("t", tuple(nodes), tuple(edges)))


@given(LABELS)
@settings(max_examples=60)
def test_any_label(label):
    check(every(label))


def test_keys_and_title_never_reach_it():
    graph = Graph("evil title", (GraphNode("evil:key", "a"),), (GraphEdge("evil:key", "evil:key"),))
    assert "evil" not in to_dot(graph)


def test_no_label_has_an_empty_line():
    nodes = tuple(GraphNode(str(n), text, text) for n, text in enumerate(("", " ", "  ", "a")))
    dot = to_dot(Graph("", nodes, (GraphEdge("0", "1", ""), GraphEdge("1", "2", "  "))))
    labels = [line for line in dot.splitlines() if "label" in line]
    assert len(labels) == 4
    assert not [line for line in labels if '="\\n' in line or '\\n"' in line or '=""' in line]


def test_many_arrows_have_no_labels():
    assert "saved self" in to_dot(chain())
    assert "[3]" not in to_dot(crowd(300))
    assert "weight" not in to_dot(Graph("", chain().nodes, ()))
