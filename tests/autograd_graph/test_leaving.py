"""Values that leave torch through Python or NumPy and come back without their graph."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import nbinspect
from nbinspect.autograd_graph.code_flow import flows
from nbinspect.autograd_graph.mends import kept_in_torch


class Model(nn.Module):
    """A body and a head; what is between them leaves torch."""

    def __init__(self, between=lambda hidden: hidden):
        super().__init__()
        self.body, self.head, self.spare = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
        self.between = between

    def forward(self, x):
        hidden = self.between(self.body(x))
        return self.head(hidden) + self.spare(hidden)


def x():
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def cut_of(model):
    with nbinspect.graphwatch() as w:
        loss = model(x()).mean()
    (fault,) = [one for one in w.report.findings if one.is_fault and one.kind == "CUT"]
    assert set(fault.names) >= {"model.body.weight", "model.body.bias"}
    assert loss.requires_grad
    return fault


ONES = torch.ones(8, 4)
LEAVES = {
    "tolist": (lambda h: torch.tensor(h.tolist()), "h.tolist()"),
    "tolist, computed": (
        lambda h: torch.tensor([[2 * v for v in row] for row in h.tolist()]),
        "h.tolist()",
    ),
    "tolist of detached": (lambda h: torch.tensor(h.detach().tolist()), "h.detach().tolist()"),
    "tolist in double": (lambda h: torch.tensor(h.double().tolist()), "h.double().tolist()"),
    "item": (lambda h: torch.tensor(h.mean().item()) * ONES, "h.mean().item()"),
    "item, computed": (lambda h: torch.tensor(h.mean().item() * 2 + 1) * ONES, "h.mean().item()"),
    "items": (lambda h: torch.tensor([[v.item() for v in row] for row in h]), "v.item()"),
    "item of detached": (lambda h: ONES * h.detach().mean().item(), "h.detach().mean().item()"),
    "float": (lambda h: torch.tensor(float(h.detach().mean())) * ONES, "float(h.detach().mean())"),
    "float into an operation": (lambda h: ONES * float(h.mean().detach()), "float("),
    "int": (lambda h: ONES * int(h.abs().sum().detach()), "int("),
    "a full tensor": (lambda h: torch.full((8, 4), h.mean().item()), "h.mean().item()"),
    "as_tensor": (lambda h: torch.as_tensor(h.detach().numpy()), "h.detach().numpy()"),
    "from_numpy": (
        lambda h: torch.from_numpy(h.detach().cpu().numpy() * 2),
        "h.detach().cpu().numpy()",
    ),
    "numpy, copied": (lambda h: torch.tensor(h.detach().numpy()), "h.detach().numpy()"),
    "numpy, by force": (lambda h: torch.tensor(h.numpy(force=True) + 1), "h.numpy(force=True)"),
    "np.asarray": (lambda h: torch.from_numpy(np.asarray(h.detach()) * 2), "np.asarray("),
    "FloatTensor": (lambda h: torch.FloatTensor(h.tolist()), "h.tolist()"),
    "new_tensor": (lambda h: h.new_tensor(h.tolist()), "h.tolist()"),
    "a parameter": (lambda h: torch.tensor(h.tolist(), requires_grad=True), "h.tolist()"),
}


@pytest.mark.parametrize("name", LEAVES)
def test_the_line_where_values_leave_torch_is_named(name):
    between, piece = LEAVES[name]
    fault = cut_of(Model(between))
    assert f"`{piece}" in fault.sentence
    assert "test_leaving.py" in fault.line.label


def over_lines(h):
    array = h.detach().numpy()
    array = array - array.mean()
    return torch.from_numpy(array * 2)


def appended(h):
    rows = []
    for row in h:
        numbers = row.tolist()
        rows.append(list(map(math.exp, numbers)))
    return torch.tensor(rows)


def scaled(h):
    size = h.abs().mean().item()
    factor = 1 / (1 + size)
    return ONES * factor


@pytest.mark.parametrize(
    ("between", "leaves", "returns"),
    [
        (over_lines, "`h.detach().numpy()`", "`torch.from_numpy(array * 2)`"),
        (appended, "`row.tolist()`", "`torch.tensor(rows)`"),
        (scaled, "`h.abs().mean().item()`", "`ONES * factor`"),
    ],
)
def test_numbers_that_were_computed_with_are_followed_by_their_names(between, leaves, returns):
    sentence = cut_of(Model(between)).sentence
    assert leaves in sentence
    assert f"{returns} in " in sentence
    assert "takes it up again" in sentence


def doubled(h):
    return h.detach().numpy() * 2


def test_what_only_may_be_the_same_is_told_as_a_guess():
    model = Model(lambda h: torch.from_numpy(doubled(h)))
    with nbinspect.graphwatch() as w:
        loss = model(x()).mean()
    (found,) = [one for one in w.report.findings if one.is_fault]
    assert found.kind == "UNREACHED"
    assert "`h.detach().numpy()`" in found.sentence
    assert "`torch.from_numpy(doubled(h))`" in found.sentence
    assert "if they are the same" in found.sentence
    del loss


def test_losses_made_a_tensor_of_again():
    model = Model()
    with nbinspect.graphwatch() as w:
        losses = [model(x()).mean() for _ in range(3)]
        total = torch.tensor([one.item() for one in losses], requires_grad=True).mean()
        total.backward()
    kinds = [one.kind for one in w.report.findings]
    assert sorted(kinds) == ["CUT", "LEAF_MADE_WITHOUT_GRAD"]
    assert {one.code for one in w.report.findings} == {"total = torch.stack(losses).mean()"}


def test_a_leaf_that_copies_a_parameter_by_way_of_python():
    layer = nn.Linear(4, 4)
    with nbinspect.graphwatch() as w:
        weight = torch.tensor(layer.weight.tolist(), requires_grad=True)
        loss = (x() @ weight).mean()
    (found,) = [one for one in w.report.findings if one.is_fault]
    assert (found.kind, found.code) == ("LEAF_IS_COPY", "weight = layer.weight")
    del loss


def test_what_is_only_logged_is_no_fault():
    model, log, factor = Model(), [], 0.37
    with nbinspect.graphwatch() as w:
        hidden = model.body(x())
        log += [hidden.mean().item(), hidden.tolist(), hidden.detach().numpy().mean()]
        print(f"{hidden.sum():.3f}", hidden)
        weights = torch.tensor([1.5, 2.5])
        loss = (model.head(hidden) + model.spare(hidden)).mean() * weights.sum() * factor
        loss = loss + torch.tensor(log[0])  # a number beside the whole path
    assert [one for one in w.report.findings if one.is_fault] == []
    del loss


def test_a_logged_number_is_not_the_reason_that_nothing_else_uses_a_head():
    model, log = Model(), []
    with nbinspect.graphwatch() as w:
        hidden = model.body(x())
        log.append(model.spare(hidden).mean().item())
        scale = torch.tensor([1.5, 2.5]).sum()
        loss = (model.head(hidden) * 0.5).mean() * scale + 1e-3
    (found,) = [one for one in w.report.findings if one.is_fault]
    assert found.kind == "UNREACHED"
    assert "nothing that came of it goes in" in found.sentence
    assert "item" not in found.sentence
    del loss


def test_nothing_is_left_on_tensors():
    before = dict(vars(torch.Tensor))
    with nbinspect.graphwatch():
        torch.ones(3).tolist()
    assert dict(vars(torch.Tensor)) == before


COMPILED = """
import contextlib, json, warnings, torch, nbinspect
import torch._dynamo
from torch._dynamo.utils import counters

def doubled(values):
    return torch.tensor(values.tolist()).sum() + torch.from_numpy(values.numpy() * 2).sum()

def compiled(watch):
    torch._dynamo.reset()
    counters.clear()
    with watch:
        torch.compile(doubled, backend="eager")(torch.arange(3.0))
    return [dict(counters["frames"]), sum(counters["graph_break"].values())]

warnings.simplefilter("error")
print(json.dumps([compiled(w) for w in (contextlib.nullcontext(), nbinspect.graphwatch())]))
"""


def test_compiled_functions_are_compiled_as_ever():
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, check=True
    )
    plain, watched = json.loads(done.stdout)
    assert plain[0]["ok"] > 0
    assert watched == plain


MENDS = {
    "torch.tensor([v.item() for v in some])": "torch.stack(some)",
    "torch.tensor([v.sum().item() for v in some])": "torch.stack([v.sum() for v in some])",
    "torch.tensor([a.item(), float(b)])": "torch.stack([a, b])",
    "torch.tensor(h.tolist())": "h",
    "torch.as_tensor(h.detach().numpy())": "h",
    "torch.from_numpy(h.detach().cpu().numpy() * 2)": "h * 2",
    "torch.tensor(h.mean().item() * 2 + 1) * 3": "(h.mean() * 2 + 1) * 3",
    "h.new_tensor(h.tolist())": "h",
    "torch.tensor(h.tolist(), dtype=torch.float64)": "h.to(dtype=torch.float64)",
    "torch.tensor(h.tolist(), requires_grad=True)": "h",
    "torch.tensor(h.tolist() * 2)": "",
    "torch.tensor([a.item(), 3.5])": "",
    "torch.from_numpy(h.detach().numpy() * mask)": "",
    "torch.tensor([v * 2 for v in h.tolist()])": "",
    "torch.from_numpy(np.sort(h.detach().numpy()))": "",
}


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("line", MENDS)
def test_the_mend_gives_the_same_values_with_their_graph(line):
    h = x()[0].requires_grad_()
    some = [h[0] * 2, h[1]]
    names = {"torch": torch, "np": np, "h": h, "some": some, "a": some[0], "b": some[1]}
    pieces = ["v.item()", "v.sum().item()", "a.item()", "h.mean().item()", "h.tolist()"]
    pieces += ["h.detach().numpy()", "h.detach().cpu().numpy()"]
    piece = next(one for one in pieces if one in line)
    mended = kept_in_torch(f"y = {line}", piece).removeprefix("y = ")
    assert mended == MENDS[line]
    if mended:
        new = eval(mended, names)
        assert torch.allclose(new, eval(line, names).to(new.dtype))
        assert new.requires_grad


@pytest.mark.parametrize(
    ("source", "first", "second", "is_one"),
    [
        ("a = f()\nb = a * 2\ng(b)", 1, 3, True),
        ("a = f()\nb = c * 2\ng(b)", 1, 3, False),
        ("log.append(f())\nt = make(log)", 1, 2, True),
        ("self.a = f()\nt = make(self.a)", 1, 2, True),
        ("print(f())\nt = make(a)", 1, 2, False),
        ("for v in f():\n    use(v)\nt = make(w)", 1, 2, True),
        ("for v in f():\n    use(v)\nt = make(w)", 1, 3, False),
        ("a = f()\ndef g(a):\n    return make(a)", 1, 3, False),
        ("t = make(\n    f()\n)", 2, 1, True),
    ],
)
def test_names_lead_from_one_line_to_another(source, first, second, is_one):
    assert flows(source, first, second) == is_one
