"""What a folded picture must always be: every node in one box, arrows between boxes that are there."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

import nbinspect
from nbinspect.autograd_graph.anew import out_of_place
from nbinspect.autograd_graph.folding import Folding
from nbinspect.autograd_graph.groups import Group
from nbinspect.autograd_graph.inference import Surroundings, infer_modules
from nbinspect.autograd_graph.mends import enclosing_no_grad, sets_to_itself, without
from nbinspect.autograd_graph.records import (
    AutogradEdge,
    AutogradNode,
    GraphModule,
    GraphReport,
    SavedTensor,
)
from nbinspect.autograd_graph.repeats import Run, runs
from nbinspect.render.graph_svg import to_graph_svg
from nbinspect.render.tree import tree

MODULES = ["", "m", "m.a", "m.b", "m.h", "m.h.0", "m.h.0.x", "m.h.1", "m.h.1.x", "m.h.2", "m.h.2.x"]
NAMES = ["AddBackward0", "MulBackward0", "ViewBackward0", "AccumulateGrad"]


@st.composite
def reports(draw):
    number = draw(st.integers(1, 60))
    nodes, edges = [], []
    for key in range(number):
        saved = draw(st.lists(st.integers(0, 5), max_size=2))
        nodes.append(
            AutogradNode(
                key,
                draw(st.sampled_from(NAMES)),
                draw(st.sampled_from(MODULES)),
                shape=(draw(st.integers(1, 2)),),
                dtype="float32",
                saved=tuple(SavedTensor("self", "2", 4 * n, n, "ACTIVATION") for n in saved),
                is_parameter=True,
                problem=draw(st.sampled_from(["", "", "NaN in the gradient"])),
            )
        )
        if key:
            producers = draw(st.sets(st.integers(0, key - 1), min_size=1, max_size=3))
            edges += [AutogradEdge(p, key, n) for n, p in enumerate(sorted(producers))]
    kinds = {"m.h": "ModuleList"}
    modules = tuple(GraphModule(name, kinds.get(name, "Block")) for name in MODULES if name)
    depth = draw(st.none() | st.integers(1, 4))
    params, saved = draw(st.booleans()), draw(st.booleans())
    return GraphReport(
        "loss",
        "scalar",
        tuple(nodes),
        tuple(edges),
        modules,
        depth=depth,
        show_params=params,
        show_saved=saved,
    )


@given(reports(), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_any_choice_of_what_is_unfolded_is_a_sound_picture(report, random):
    folding = Folding(report)
    keys = sorted(folding.groups)
    choices = [folding.first(), set(), set(keys), set(random.sample(keys, len(keys) // 2))]
    for opened in choices:
        for colour in ("saved", "gradient", "none"):
            graph = folding.graph(opened, colour)
            boxes = [node.key for node in graph.nodes]
            assert len(set(boxes)) == len(boxes)
            assert {e.source for e in graph.edges} | {e.target for e in graph.edges} <= set(boxes)
            assert all(edge.source != edge.target for edge in graph.edges)
            frames = {frame.key for frame in graph.frames}
            assert {node.frame for node in graph.nodes} - {""} <= frames
            assert sum(node.role == "target" for node in graph.nodes) == 1
            assert all(node.heat is None or 0 <= node.heat <= 1 for node in graph.nodes)
    everything = folding.graph(set(keys))
    assert not any(node.can_unfold for node in everything.nodes)
    assert report.text()
    assert GraphReport.from_dict(report.to_dict()) == report


@given(st.lists(st.integers(0, 2), max_size=40))
@settings(max_examples=200)
def test_runs_are_equal_stretches_that_do_not_overlap(tokens):
    end = 0
    for run in runs(tokens, [1] * len(tokens)):
        assert run.start >= end
        end = run.end
        assert end <= len(tokens)
        first = tokens[run.start : run.start + run.period]
        assert run.times >= 2
        for n in range(run.times):
            assert tokens[run.start + n * run.period :][: run.period] == first


def test_blocks_steps_and_what_is_left_over():
    assert runs([7, 1, 1, 1, 1, 8], [9] * 6) == [Run(1, 1, 4)]
    assert runs([0, 1, 2, 1, 2, 1, 2], [1] * 7) == [Run(1, 2, 3)]
    assert runs([2, 1, 2, 1, 2, 1, 2], [1] * 7) == [Run(1, 2, 3)], "the first turn is the odd one"
    assert runs([1, 1], [1, 1]) == []
    assert runs([1, 1], [8, 8]) == [Run(0, 1, 2)]
    assert runs([], []) == []


def test_shared_bytes_count_once_in_a_box():
    saved = SavedTensor("self", "2", 100, 1, "ACTIVATION")
    nodes = tuple(AutogradNode(n, "MulBackward0", "m", saved=(saved,)) for n in range(3))
    edges = (AutogradEdge(0, 1, 0), AutogradEdge(1, 2, 0))
    report = GraphReport("loss", "scalar", nodes, edges, (GraphModule("m", "M"),))
    (box,) = Folding(report).graph(set()).nodes
    assert box.size_bytes == 100


def test_a_repeat_of_two_different_shapes_is_none():
    nodes = tuple(
        AutogradNode(n, f"Op{n % 10}Backward0", f"m.{n // 10}", shape=(1 if n < 20 else 2,))
        for n in range(40)
    )
    modules = tuple(GraphModule(f"m.{n}", "Block") for n in range(4))
    edges = tuple(AutogradEdge(n, n + 1, 0) for n in range(39))
    folding = Folding(GraphReport("loss", "", nodes, edges, (GraphModule("m", "M"), *modules)))
    found = [g for g in folding.groups.values() if g.kind == "repeat" and g.type_name == "Block"]
    assert sorted(g.times for g in found) == [2, 2]
    assert all(isinstance(item, Group) for g in found for item in g.items)


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        ("h += 1", "h = h + 1"),
        ("h *= a + b", "h = h * (a + b)"),
        ("h[0] *= 2", "h = h.clone(); h[0] *= 2"),
        ("h[:, 0] = 0.0", "h = h.clone(); h[:, 0] = 0.0"),
        ("h[0].zero_()", "h = h.clone(); h[0].zero_()"),
        ("h.copy_(g)", "h = h.clone(); h.copy_(g)"),
        ("f().h[0] = 1", ""),
        ("h.data += 1", ""),
        ("x = h.relu_()", "x = h = h.relu()"),
        ("h = h.relu_()", "h = h.relu()"),
        ("return h.relu_()", "return h.relu()"),
        ("return h.copy_(g)", ""),
        ("h.view(-1).add_(1)", ""),
        ("self.mean.mul_(0.9).add_(h)", "self.mean = self.mean.mul(0.9).add(h)"),
        ("x = F.dropout(h, 0.5, inplace=True)", "x = h = F.dropout(h, 0.5)"),
        ("torch.relu_(h)", "h = torch.relu(h)"),
        ("torch.add(h, 1, out=h)", "h = torch.add(h, 1)"),
        ("nn.init.normal_(w)", "w = w.clone(); nn.init.normal_(w)"),
        ("h.add_(1, alpha=2)", "h = h.add(1, alpha=2)"),
        ("h.requires_grad_()", ""),
        ("for h in hs:", ""),
        ("f(h)", ""),
    ],
)
def test_out_of_place(text, mended):
    assert out_of_place(text) == mended


def test_out_of_place_in_a_list_of_tensors():
    assert out_of_place("hs[0] += 1", "hs[0]") == "hs[0] = hs[0] + 1"
    assert out_of_place("hs[0] += 1", "hs") == "hs = hs.clone(); hs[0] += 1"


def test_without_and_enclosing():
    assert without("h = f(x).detach()  # why", "f(x).detach()", ".detach()") == "h = f(x)  # why"
    assert without("h = f(x)", "f(x)", ".detach()") == ""
    source = "import torch\nwith torch.no_grad():\n    a = 1\n    b = 2\nc = 3\n"
    assert enclosing_no_grad(source, 4) == 2
    assert enclosing_no_grad(source, 5) is None
    assert enclosing_no_grad("@torch.inference_mode()\ndef f():\n    return 1\n", 3) == 1
    assert enclosing_no_grad("not python at all", 1) is None


@pytest.mark.parametrize(
    ("text", "is_idle"),
    [
        ("h = h", True),
        ("self.h = self.h", True),
        ("h[0] = h[0]", True),
        ("h, c = (h, c)", True),
        ("h: Tensor = h", True),
        ("h = h.requires_grad_()", True),
        ("h = g", False),
        ("a = h = h", False),
        ("h = h * 1", False),
        ("h", False),
        ("h: Tensor", False),
        ("h = (", False),
        ("", False),
    ],
)
def test_a_line_that_gives_a_name_what_it_has(text, is_idle):
    assert sets_to_itself(text) == is_idle


def test_inference_gives_what_is_between_to_who_holds_both():
    names = [
        "AccumulateGrad",
        "AddmmBackward0",
        "ReluBackward0",
        "AccumulateGrad",
        "AddmmBackward0",
    ]
    types = {"m": "Net", "m.a": "Linear", "m.b": "Linear"}
    about = Surroundings(names, [[], [0], [1], [], [2, 3]], {0: ["m.a"], 3: ["m.b"]}, types)
    assert infer_modules(about) == ["m.a", "m.a", "m", "m.b", "m.b"]
    about.containers = {"m"}
    about.types = {"m": "Sequential", "m.a": "Linear", "m.r": "ReLU", "m.b": "Linear"}
    assert infer_modules(about)[2] == "m.r"
    nothing = Surroundings(["AddBackward0"], [[]], {}, {})
    assert infer_modules(nothing) == [""]


def test_what_was_asked_about_has_a_box_with_its_name():
    nodes = tuple(AutogradNode(n, "MulBackward0", shape=(1,)) for n in range(100))
    edges = tuple(AutogradEdge(n, n + 1, 0) for n in range(99))
    folding = Folding(GraphReport("y", "1 float32", nodes, edges))
    boxes = folding.graph(folding.first()).nodes
    assert [(one.label, one.role) for one in boxes] == [("MulBackward0", "holder"), ("y", "target")]
    assert boxes[0].type_name.startswith("x99")


def test_bytes_that_several_boxes_keep_are_told():
    def drawn(model):
        loss = model(torch.randn(32, 8)).sum()
        report = nbinspect.autograd(loss, name="loss")
        return report, Folding(report).graph(set(Folding(report).groups))

    shared = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    report, graph = drawn(shared)  # the second layer's input is what ReLU keeps as its result
    size = 32 * 16 * 4
    assert graph.note == "2.00 KiB are counted in more than one box."
    assert graph.note in "\n".join(tree(graph, 80))
    assert graph.note in to_graph_svg(graph).caption
    assert sum(box.size_bytes or 0 for box in graph.nodes) == report.saved_bytes + size
    told = [box for box in graph.nodes if any("another box too" in line for line in box.detail)]
    assert len(told) == 2
    assert all(line.startswith("all of this") for box in told for line in box.detail[-1:])
    folded = Folding(report).graph(set())
    assert folded.title == "How loss was made", "in one box nothing is counted twice"
    report, graph = drawn(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1)))
    assert graph.title == "How loss was made"
    assert sum(box.size_bytes or 0 for box in graph.nodes) == report.saved_bytes
