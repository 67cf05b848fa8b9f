"""The record against what autograd itself says: nodes, edges, saved bytes, modules, names."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import nbinspect


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)
        self.attend = nn.MultiheadAttention(n, 2, batch_first=True)
        self.up, self.down = nn.Linear(n, 2 * n), nn.Linear(2 * n, n)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self, depth=4, n=8):
        super().__init__()
        self.words = nn.Embedding(10, n)
        self.blocks = nn.ModuleList(Block(n) for _ in range(depth))
        self.head = nn.Linear(n, 10)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def mlp():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    return model, lambda: model(torch.randn(4, 8)).square().mean()


def conv():
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    model = nn.Sequential(*layers, nn.Linear(4 * 9, 2))
    return model, lambda: model(torch.randn(2, 3, 8, 8)).mean()


def transformer():
    model = Transformer()
    return model, lambda: model(torch.randint(0, 10, (2, 5))).logsumexp(-1).mean()


def recurrent():
    model = nn.LSTM(4, 6, num_layers=2)
    return model, lambda: model(torch.randn(20, 2, 4))[0].mean()


MODELS = [mlp, conv, transformer, recurrent]


def true_graph(tensor):
    """Walk plainly: every node once, every edge."""
    nodes, edges, todo = {}, Counter(), [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node in nodes:
            continue
        nodes[node] = node.name().rpartition("::")[2]
        for producer, _ in node.next_functions:
            if producer is not None:
                edges[producer.name().rpartition("::")[2], nodes[node]] += 1
                todo.append(producer)
    return Counter(nodes.values()), edges


@pytest.mark.parametrize("make", MODELS)
def test_nodes_edges_and_leaves_are_those_of_the_graph(make):
    model, forward = make()
    loss = forward()
    report = nbinspect.autograd(loss)
    nodes, edges = true_graph(loss)
    assert Counter(node.name for node in report.nodes) == nodes
    names = [node.name for node in report.nodes]
    assert Counter((names[e.source], names[e.target]) for e in report.edges) == edges
    assert all(e.source < e.target for e in report.edges), "producers come first"
    assert {node.leaf for node in report.nodes if node.is_parameter} == {
        f"model.{name}" for name, _ in model.named_parameters()
    }
    assert report.n_parameters == len(list(model.parameters()))
    assert report.complete
    assert report.name == "loss"
    assert report.nodes[-1].shape == ()


def unpacked(tensor):
    """Give every saved tensor by torch's own attributes, which unpack."""
    todo, seen = [tensor.grad_fn], set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        todo += [producer for producer, _ in node.next_functions if producer is not None]
        for name in dir(node):
            if name.startswith("_saved_"):
                value = getattr(node, name)
                yield from (t for t in (value if isinstance(value, tuple) else (value,)))


@pytest.mark.parametrize("make", MODELS)
def test_saved_bytes_are_those_of_the_saved_tensors(make):
    model, forward = make()
    loss = forward()
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in unpacked(loss)
        if torch.is_tensor(t)
    }
    report = nbinspect.autograd(loss)
    assert report.saved_bytes == sum(n for at, n in storages.items() if at not in own)
    assert report.saved_parameter_bytes == sum(n for at, n in storages.items() if at in own)
    assert report.modules[0].saved_bytes <= report.saved_bytes
    loss.backward()
    after = nbinspect.autograd(loss)
    assert after.saved_bytes == 0
    assert after.freed
    norms = {node.leaf: node.grad_norm for node in after.nodes if node.is_parameter}
    for name, parameter in model.named_parameters():
        assert norms[f"model.{name}"] == pytest.approx(parameter.grad.norm().item(), rel=1e-5)
    total = torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()
    assert after.modules[0].grad_norm == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("make", [mlp, conv, transformer])
def test_inferred_modules_agree_with_watched_ones(make):
    _model, forward = make()
    with nbinspect.graphwatch() as w:
        loss = forward()
    seen = w.report
    nbinspect.autograd_graph.watched.remember(nbinspect.autograd_graph.watched.Watched())
    guessed = nbinspect.autograd(loss)
    assert seen.watched
    assert not guessed.watched
    assert [n.name for n in seen.nodes] == [n.name for n in guessed.nodes]
    close = [
        true.module.startswith(guess.module) or guess.module.startswith(true.module)
        for true, guess in zip(seen.nodes, guessed.nodes, strict=True)
    ]
    equal = [t.module == g.module for t, g in zip(seen.nodes, guessed.nodes, strict=True)]
    assert all(close)
    assert sum(equal) >= 0.7 * len(equal)
    assert all(node.line is not None for node in seen.nodes if node.name != "AccumulateGrad")
    assert all(node.op.startswith("aten::") for node in seen.nodes if node.name == "ReluBackward0")


def test_it_goes_through_json_and_renders_everywhere():
    model = Transformer()
    loss = model(torch.randint(0, 10, (2, 5))).logsumexp(-1).mean()
    report = nbinspect.autograd(loss, saved=True, params=True, depth=2)
    again = nbinspect.GraphReport.from_dict(json.loads(json.dumps(report.to_dict())))
    assert again == report
    text = report.text()
    assert "`loss` (scalar float32) was made by" in text
    assert "model.blocks.0 … blocks.3" in text
    assert "<svg" in report.html()
    assert report.svg().startswith("<svg")
    assert report.png().startswith(b"\x89PNG")
    assert max(map(len, text.splitlines())) <= 88


def test_no_hook_runs_and_nothing_is_computed_again():
    calls = []
    layer = nn.Linear(4, 4)

    def forward(x):
        calls.append(1)
        return layer(x).relu()

    loss = checkpoint(forward, torch.randn(2, 4, requires_grad=True), use_reentrant=False).mean()
    report = nbinspect.autograd(loss)
    assert len(calls) == 1
    assert report.n_packed > 0
    loss.backward()
    assert len(calls) == 2, "its own backward does"


def test_names_of_variables_and_what_is_no_module():
    x = torch.randn(3, requires_grad=True)
    weights = {"w": torch.randn(3, requires_grad=True)}
    hidden = x * weights["w"]
    loss = hidden.sum()
    report = nbinspect.autograd(loss)
    assert {node.leaf for node in report.nodes if node.leaf} == {"x", "weights['w']"}
    assert [node.variables for node in report.nodes if node.name == "MulBackward0"] == [("hidden",)]
    assert "hidden" in report.text()


def test_only_tensors_and_sensible_depths():
    with pytest.raises(TypeError, match="looks at tensors, not at list"):
        nbinspect.autograd([torch.ones(1)])
    with pytest.raises(ValueError, match="depth must be at least 1"):
        nbinspect.autograd(torch.ones(1), depth=0)
    with pytest.raises(ValueError, match="depth must be at least 1"):
        nbinspect.graphwatch(depth=0)
    with pytest.raises(RuntimeError, match="has not ended"):
        nbinspect.graphwatch().report


def test_a_module_whose_own_code_raises_and_names_with_markup():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def named_modules(self, *args, **kwargs):
            raise RuntimeError("not today")

    broken = Broken()
    report = nbinspect.autograd(
        broken.layer(torch.ones(1, 2)).sum(), name="<script>alert(1)</script>"
    )
    assert len(report.nodes) == 5
    assert "<script>" not in report.html()
    assert "<script>" not in nbinspect.explore(report).picture["svg"]


def odd_tensors():
    leaf = torch.randn(3, requires_grad=True)
    sparse = (torch.eye(3).to_sparse() * 2.0).requires_grad_()
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], requires_grad=True)
    return {
        "leaf": leaf,
        "integer": torch.arange(3),
        "complex": (leaf.to(torch.complex64) * 2j).abs().sum(),
        "sparse": torch.sparse.mm(sparse, torch.ones(3, 1)).sum(),
        "nested": (nested * 2).to_padded_tensor(0.0).sum(),
        "meta": (torch.ones(3, device="meta", requires_grad=True) * 2).sum(),
        "view": (leaf * 2)[1:],
        "float8": leaf.to(torch.float8_e4m3fn).to(torch.float32).sum(),
        "empty": torch.ones(0, requires_grad=True).sum(),
        "double backward": torch.autograd.grad((leaf**3).sum(), leaf, create_graph=True)[0].sum(),
        "functional": torch.func.vmap(lambda t: t.sin())(leaf).sum(),
    }


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "name",
    [
        "leaf",
        "integer",
        "complex",
        "sparse",
        "nested",
        "meta",
        "view",
        "float8",
        "empty",
        "double backward",
        "functional",
    ],
)
@pytest.mark.keeps_tensors(reason="create_graph makes a cycle that only C++ sees")
def test_odd_tensors_have_an_answer(name):
    report = nbinspect.autograd(odd_tensors()[name])
    assert report.text()
    assert nbinspect.GraphReport.from_dict(report.to_dict()) == report


def test_depth_saved_and_params_change_the_picture():
    model = Transformer()
    loss = model(torch.randint(0, 10, (2, 5))).logsumexp(-1).mean()
    plain = nbinspect.autograd(loss).text()
    assert "TBackward0" not in plain
    assert "model.head" in plain
    small = nn.Linear(4, 4)
    tiny = small(torch.randn(2, 4, requires_grad=True)).exp().mean()
    assert "small.weight" in nbinspect.autograd(tiny, params=True, depth=3).text()
    assert "saved result" in nbinspect.autograd(tiny, saved=True).text()


def frozen(size=64):
    return nn.Sequential(nn.Linear(8, size), nn.ReLU(), nn.Linear(size, size)).requires_grad_(False)


def test_what_is_frozen_is_a_parameter_too():
    maker, judge = nn.Linear(4, 8), frozen()
    loss = judge(maker(torch.randn(3, 4))).mean()
    report = nbinspect.autograd(loss)
    assert report.saved_parameter_bytes == judge[0].weight.nbytes + judge[2].weight.nbytes
    named = {one.name for node in report.nodes for one in node.saved if one.kind == "PARAMETER"}
    assert named == {"judge.0.weight", "judge.2.weight"}
    activations = 3 * 4 * 4 + 3 * 64 * 4  # what goes into `maker`, what comes of ReLU
    assert report.saved_bytes == activations
    assert not any(one.is_fault for one in report.findings)


def test_a_frozen_parameter_that_was_changed_is_named():
    maker, judge = nn.Linear(4, 8), frozen()
    loss = judge(maker(torch.randn(3, 4))).mean()
    judge[0].weight.mul_(2)
    (fault,) = [one for one in nbinspect.autograd(loss).findings if one.is_fault]
    assert fault.names == ("judge.0.weight",)


def test_a_throwaway_name_is_no_modules_name():
    _ = model = nn.Linear(4, 1)
    with nbinspect.graphwatch() as w:
        loss = _(torch.randn(3, 4)).mean()
    assert {one.name for one in w.report.modules} == {"model"}
    del loss, model
