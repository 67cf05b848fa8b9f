"""Graphs as pictures and as trees, whoever lays them out."""

from __future__ import annotations

import base64
import io
import os
import re
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_graphs import autograd, chain, crowd, cycle, every, forty_holders, node, three_roots
from PIL import Image
from test_escaping import HOSTILE, LABELS, Skeleton, harmless, svg_skeleton
from test_html import Tree

from nbinspect.blocks import Fold, Graph, GraphEdge, GraphNode, Text
from nbinspect.render.format import printable, text_width
from nbinspect.render.graph_svg import to_graph_svg
from nbinspect.render.html import to_html
from nbinspect.render.layers import place, ranks
from nbinspect.render.limit import limited
from nbinspect.render.nodes import label_line
from nbinspect.render.picture import COLUMN_WIDTH, PAGE_WIDTH, caption, placed, placed_narrow
from nbinspect.render.png import to_png
from nbinspect.render.svg import to_svg
from nbinspect.render.text import to_text

G = "{http://www.w3.org/2000/svg}g"
ONE = Graph("one", (node("t", "h", "Tensor", "target", "VARIABLE", 4),), ())
NO_EDGES = Graph("none", tuple(node(str(n), f"node {n}") for n in range(5)), ())
LONG = Graph(
    "long",
    tuple(node(str(n), "model." + "layer." * 60 + f"weight{n}", "T" * 300) for n in range(4)),
    tuple(GraphEdge(str(n), str(n + 1), "by " * 100) for n in range(3)),
)
PARTS = Graph(
    "parts",
    (*chain().nodes, node("x", "x", "list", "root"), node("y", "y"), node("z", "z")),
    (*chain().edges, GraphEdge("x", "y", "[0]")),
)
DUPLICATES = Graph(
    "same names",
    (*(node(str(n), "x", "list") for n in range(3)), node("t", "x", "list", "target")),
    (*(GraphEdge(str(n), "t", "[0]") for n in range(3)), GraphEdge("0", "t", "[0]")),
)
DANGLING = Graph("d", (*chain().nodes, chain().nodes[0]), (*chain().edges, GraphEdge("r", "?")))
GRAPHS = {
    "chain": chain(),
    "three_roots": three_roots(),
    "forty_holders": forty_holders(),
    "cycle": cycle(),
    "autograd": autograd(),
    "one": ONE,
    "no_edges": NO_EDGES,
    "long": LONG,
    "parts": PARTS,
    "duplicates": DUPLICATES,
    "crowd": crowd(),
}


@pytest.fixture(autouse=True)
def no_dot_program(monkeypatch):
    """Draw with the Graphviz that comes with nbinspect, on every machine."""
    monkeypatch.setenv("PATH", "")


@pytest.fixture(autouse=True, scope="module")
def nothing_remembered():
    placed.cache_clear()
    placed_narrow.cache_clear()


@pytest.fixture(params=GRAPHS)
def graph(request):
    return GRAPHS[request.param]


@st.composite
def graphs(draw):
    n_nodes = draw(st.integers(1, 40))
    roles = st.sampled_from(("holder", "holder", "holder", "root", "target"))
    nodes = [node(str(n), f"v{n}", role=draw(roles)) for n in range(n_nodes)]
    ends = st.integers(0, n_nodes - 1).map(str)
    pairs = draw(st.lists(st.tuples(ends, ends), max_size=80))
    return Graph("g", tuple(nodes), tuple(GraphEdge(*pair) for pair in pairs))


def shortest(graph: Graph, root: str) -> int | None:
    """Give how many boxes the shortest way from a root to a target has."""
    targets = {n.key for n in graph.nodes if n.role == "target"}
    reached, layer = {root}, {root}
    for n_boxes in range(1, len(graph.nodes) + 1):
        if layer & targets:
            return n_boxes
        layer = {e.target for e in graph.edges if e.source in layer} - reached
        reached |= layer
    return None


# What is left of a large graph


@given(graphs(), st.integers(1, 40))
@settings(max_examples=300)
def test_a_limited_graph_is_a_part_of_the_graph_and_counts_the_rest(graph, most):
    small = limited(graph, most)
    kept = [n for n in small.nodes if n.role != "stub"]
    assert [n for n in graph.nodes if n in kept] == kept
    gone = sum(int(n.label.removesuffix(" more")) for n in small.nodes if n.role == "stub")
    assert len(kept) + gone == len(graph.nodes)
    keys = [n.key for n in small.nodes]
    assert len(set(keys)) == len(keys)
    assert all(e.source in keys and e.target in keys for e in small.edges)
    if len(graph.nodes) <= most:
        assert small == graph


@given(graphs(), st.integers(10, 40))
@settings(max_examples=200)
def test_the_way_from_the_nearest_root_to_the_target_stays(graph, most):
    ways = {n.key: shortest(graph, n.key) for n in graph.nodes if n.role == "root"}
    near = min((way for way in ways.values() if way), default=None)
    if near is not None:
        small = limited(graph, most)
        assert near in [shortest(small, key) for key in ways if key in {n.key for n in small.nodes}]
        if near + 3 <= most:
            assert len(small.nodes) <= most


def test_every_way_stays_where_there_is_room():
    roots = [node(f"r{n}", f"r{n}", "dict", "root") for n in range(5)]
    others = [node(f"o{n}", f"o{n}") for n in range(500)]
    target = node("t", "t", role="target")
    edges = [GraphEdge(f"o{n}", "t") for n in range(500)]
    edges += [GraphEdge(f"r{n}", f"o{100 * n + 7}") for n in range(5)]
    small = limited(Graph("g", (*others, *roots, target), tuple(edges)), 20)
    assert len(small.nodes) <= 20
    assert [shortest(small, f"r{n}") for n in range(5)] == [3] * 5


def test_stubs_that_came_with_the_graph_are_counted_as_what_they_say():
    nodes = [node("t", "t", role="target"), *(node(f"h{n}", f"h{n}") for n in range(30))]
    nodes.append(GraphNode("s", "1\u202f200 more", role="stub"))
    edges = [GraphEdge(n.key, "t") for n in nodes[1:]]
    small = limited(Graph("g", tuple(nodes), tuple(edges)), 10)
    stubs = [n.label for n in small.nodes if n.role == "stub"]
    kept = len(small.nodes) - len(stubs)
    assert len(stubs) == 1
    assert sum(int(s.removesuffix(" more").replace("\u202f", "")) for s in stubs) == 1231 - kept


def test_what_all_lies_in_one_list_folds_into_one_stub_between_list_and_target():
    small = limited(forty_holders(), 8)
    (stub,) = [n for n in small.nodes if n.role == "stub"]
    assert {(e.source, e.target) for e in small.edges if stub.key in (e.source, e.target)} == {
        ("r", stub.key),
        (stub.key, "t"),
    }


def spent_s() -> float:
    """Give the CPU time of this process and of the children it waited for."""
    return sum(os.times()[:4])


def test_two_thousand_boxes_are_shown_in_two_seconds():
    began = spent_s()
    page = to_html((crowd(2000),))
    text = to_text((crowd(2000),))
    assert spent_s() - began < 2
    assert " of 2\u202f000 shown" in page
    assert len(page) < 120_000
    assert len(text.splitlines()) < 60
    assert len(placed(crowd(2000)).boxes) <= 150


def test_a_chain_of_a_hundred_thousand_needs_no_recursion():
    nodes = tuple(node(str(n), str(n)) for n in range(100_000))
    edges = tuple(GraphEdge(str(n), str(n + 1)) for n in range(99_999))
    began = spent_s()
    assert len(limited(Graph("g", nodes, edges)).nodes) <= 150
    assert spent_s() - began < 10


# Where boxes stand


def check_places(drawn) -> None:
    for one, other in combinations(drawn.boxes, 2):
        assert (
            one.x + one.width <= other.x + 0.2
            or other.x + other.width <= one.x + 0.2
            or one.y + one.height <= other.y + 0.2
            or other.y + other.height <= one.y + 0.2
        ), (one, other)
    # Of a curve only where it passes: its control points may lie outside.
    lines = [arrow.line[:: 3 if arrow.curved else 1] for arrow in drawn.arrows]
    places = [point for points in (*lines, *(a.head for a in drawn.arrows)) for point in points]
    places += [(b.x, b.y) for b in drawn.boxes]
    places += [(b.x + b.width, b.y + b.height) for b in drawn.boxes]
    assert all(-1 <= x <= drawn.width + 1 and -1 <= y <= drawn.height + 1 for x, y in places)
    boxes = {box.node.key: box for box in drawn.boxes}
    for arrow in drawn.arrows:
        assert distance(arrow.line[0], boxes[arrow.edge.source]) < 3, arrow
        assert min(distance(p, boxes[arrow.edge.target]) for p in arrow.head) < 3, arrow


def distance(point, box) -> float:
    """Give how far a point is from the outline of a box, or from the box if it is outside."""
    dx = max(box.x - point[0], point[0] - box.x - box.width)
    dy = max(box.y - point[1], point[1] - box.y - box.height)
    return abs(max(dx, dy))


@pytest.mark.parametrize("how", [placed, placed_narrow, lambda g: place(limited(g))])
def test_boxes_stand_apart_and_arrows_join_them(graph, how):
    check_places(how(graph))


@given(graphs())
@settings(max_examples=150)
def test_our_own_layout_places_any_graph(graph):
    drawn = place(graph)
    check_places(drawn)
    assert len(drawn.boxes) == len(graph.nodes)
    assert len(drawn.arrows) == len(graph.edges)


@pytest.mark.parametrize("how", [placed, place])
def test_arrows_point_downwards_from_the_root(how):
    drawn = how(three_roots())
    y = {box.node.key: box.y for box in drawn.boxes}
    assert all(y[arrow.edge.source] < y[arrow.edge.target] for arrow in drawn.arrows)
    assert max(y.values()) == y["t"]


def test_side_branches_stay_near_what_holds_them():
    rank = ranks(autograd(6))
    assert {rank[f"a{n}"] - rank[f"w{n}"] for n in range(6)} == {1}


def test_nothing_is_wider_than_its_place(graph):
    assert placed(graph).width <= PAGE_WIDTH + 1
    assert placed_narrow(graph).width <= COLUMN_WIDTH + 1


def test_labels_fit_in_their_boxes(graph):
    for drawn in (placed(graph), placed_narrow(graph), place(limited(graph))):
        for box in drawn.boxes:
            assert text_width(label_line(box.node, drawn.columns)) * 7.23 <= box.width - 12


def test_labels_of_our_own_layout_are_not_on_top_of_each_other():
    drawn = place(three_roots())
    spots = [arrow.label_at for arrow in drawn.arrows]
    assert all(abs(a[0] - b[0]) > 20 or abs(a[1] - b[1]) >= 10 for a, b in combinations(spots, 2))


# SVG for widgets


def test_each_box_can_be_found_focused_and_read_aloud():
    picture = to_graph_svg(three_roots())
    root = ET.fromstring(picture.svg)
    groups = [g for g in root.iter(G) if "nbi-node" in g.get("class")]
    assert [g.get("data-key") for g in groups] == [n.key for n in three_roots().nodes]
    assert {(g.get("tabindex"), g.get("role")) for g in groups} == {("0", "treeitem")}
    assert groups[0].get("class") == "nbi-node nbi-root"
    assert groups[0].get("aria-label") == "cache, dict, 232 B, root"
    assert groups[-1].get("class") == "nbi-node nbi-target"
    assert groups[3][0].text == (
        "optimizer.state[model.layers.2.weight]['exp_avg']\nTensor 64x256 float32\n"
        "65\u202f536 bytes"
    )
    assert root.get("role") == "tree"
    assert picture.caption == "Drawn by Graphviz dot (pygraphviz)."
    assert not [e for e in root.iter() if "id" in e.attrib]


def test_the_svg_is_the_same_every_time():
    first = to_graph_svg(three_roots())
    placed.cache_clear()
    assert to_graph_svg(three_roots()) == first


def test_boxes_that_unfold_are_marked():
    graph = Graph("g", (GraphNode("a", "a", can_unfold=True),), ())
    assert 'class="nbi-node nbi-holder nbi-unfold"' in to_graph_svg(graph).svg


@pytest.mark.parametrize("label", HOSTILE, ids=range(len(HOSTILE)))
def test_known_attacks_on_pictures(label):
    check_hostile(label)
    assert to_png((every(label),)).startswith(b"\x89PNG")


@given(LABELS)
@settings(max_examples=15)
def test_any_label_in_pictures(label):
    check_hostile(label)


def check_hostile(label: str) -> None:
    graph, plain = every(label), every(harmless(label))
    allowed = svg_skeleton(to_graph_svg(plain).svg)
    assert svg_skeleton(to_graph_svg(graph).svg) <= allowed
    root = ET.fromstring(to_graph_svg(graph).svg)
    words = [g[0].text for g in root.iter(G) if "nbi-node" in g.get("class")]
    assert all(text.startswith(printable(label).strip()) for text in words)
    elements = set(Skeleton(to_html((graph,))).elements)
    assert elements <= set(Skeleton(to_html((plain,))).elements) | {("br", ())}
    lines = to_text((graph,), 88).splitlines()
    assert all(text_width(line) <= 88 for line in lines)
    assert all(c == "\u202f" or c.isprintable() for line in lines for c in line)
    ET.fromstring(to_svg((graph,)))


# In HTML, SVG and PNG


def test_pages_hold_picture_caption_and_tree():
    page = to_html((Text(("h",), "headline"), three_roots()))
    tree = Tree(page)
    classes = [attrs.get("class") for _, attrs in tree.tags]
    assert classes.count("nbi-graph") == 2  # the second for narrow columns
    assert "Drawn by Graphviz dot (pygraphviz)." in tree.words
    assert "As text" in tree.words
    assert any("└─ hook save_output on model.fc" in word for word in tree.words)
    assert not [attrs for _, attrs in tree.tags if "id" in attrs or "tabindex" in attrs]


def test_a_narrow_picture_comes_once():
    classes = [attrs.get("class") for _, attrs in Tree(to_html((chain(),))).tags]
    assert classes.count("nbi-graph") == 1
    assert "nbi-picture" in classes


def test_without_styles_there_is_no_stray_word_and_the_image_is_there():
    page = re.sub(r"<style>.*?</style>", "", to_html((three_roots(),)), flags=re.DOTALL)
    (image,) = re.findall(r"<img[^>]*>", page)
    assert "Who keeps `h`: 8 boxes, 8 arrows; cache, optimizer" in image
    data = base64.b64decode(re.search(r"base64,([^\"]*)", image)[1])
    assert Image.open(io.BytesIO(data)).size[0] == 2 * 720
    assert len(data) < 60_000
    for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        assert 'width="0" height="0"' in svg
        assert "".join(Tree(svg).words) == ""


def test_a_wide_picture_is_not_shrunk_in_the_image():
    page = to_html((forty_holders(),))
    width = int(re.search(r'nbi-fallback" width="(\d+)"', page)[1])
    assert 800 < width <= 900
    assert placed(forty_holders()).width <= width - 40


def test_graphs_inside_folds_are_drawn_too():
    assert "nbi-graph" in to_html((Fold("more", (chain(),)),))


@pytest.mark.parametrize("render", [to_html, to_text, to_svg, to_png])
def test_every_kind_of_graph_is_rendered(graph, render):
    assert render((graph,))


@pytest.mark.parametrize("empty", [Graph("nobody", (), ()), Graph("", (), ())])
def test_a_graph_without_boxes_says_so(empty):
    assert "nothing" in to_text((empty,))
    assert "nothing" in to_html((empty,))
    assert "nothing" in to_svg((empty,))
    assert to_png((empty,))
    assert to_graph_svg(empty).svg.startswith("<svg")


def test_arrows_to_nowhere_and_boxes_that_come_twice_are_left_out():
    drawn = placed(DANGLING)
    assert (len(drawn.boxes), len(drawn.arrows)) == (4, 3)
    assert caption(DANGLING, drawn) == "Drawn by Graphviz dot (pygraphviz)."
    assert len(place(limited(DANGLING)).boxes) == 4


def test_the_svg_of_a_record_has_its_words():
    words = "".join(ET.fromstring(to_svg((three_roots(),))).itertext())
    assert "hook save_output on model.fc" in words
    assert "closure variable 'buf'" in words
    assert "Drawn by Graphviz dot" in words


# As a tree of lines


@pytest.mark.parametrize("width", [40, 60, 88, 140])
def test_lines_keep_the_width(graph, width):
    lines = to_text((graph,), width).splitlines()
    assert all(text_width(line) <= width for line in lines)
    assert len(lines) <= 60


def test_the_tree_begins_with_the_target_and_ends_in_roots():
    title, *lines = to_text((chain(),)).splitlines()
    assert title == "Who keeps `h`"
    assert [line.split()[0] for line in lines] == ["h", "└─", "└─", "└─"]
    assert lines[0].endswith("Tensor 64x256 float32        64.0 KiB")
    assert "losses[0]   grad_fn" in lines[-1]
    assert ", root " in lines[-1]


def test_a_cycle_ends_where_it_closes():
    text = to_text((cycle(),))
    assert text.count("model.fc.weight.grad") == 1
    assert re.search(r"└─ model\.fc\.weight +\.grad +\(shown above\)", text)
    assert re.search(r"└─ x +__dict__\['me'\] +\(shown above\)", text)


def test_who_holds_twice_comes_once_with_both_reasons():
    graph = Graph(
        "g",
        (node("a", "a", role="root"), node("t", "t", role="target")),
        (GraphEdge("a", "t", "[0]"), GraphEdge("a", "t", ".x")),
    )
    assert to_text((graph,)).splitlines()[1:] == ["t", "└─ a  [0], .x  root"]


def test_a_long_chain_keeps_its_names():
    nodes = [node("0", "h", role="target"), *(node(str(n), f"link{n}") for n in range(1, 25))]
    edges = tuple(GraphEdge(str(n + 1), str(n), "next") for n in range(24))
    lines = to_text((Graph("g", tuple(nodes), edges),), 60).splitlines()
    assert [f"link{n}" in line for n, line in enumerate(lines[2:], 1)] == [True] * 24
    assert all("└─ " in line for line in lines[2:])


def test_names_are_cut_in_the_middle():
    lines = to_text((LONG,), 60).splitlines()
    assert any("weight3" in line and "…" in line for line in lines)
