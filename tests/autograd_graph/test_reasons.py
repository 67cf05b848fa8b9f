"""The reason for a cut in the words for what happened, and whose graph a cell is about."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional

import nbinspect


class Round(torch.autograd.Function):
    """Says of its output that it has no gradient."""

    @staticmethod
    def forward(ctx, x):
        rounded = x.round()
        ctx.mark_non_differentiable(rounded)
        return rounded

    @staticmethod
    def backward(ctx, grad):
        return grad


def compared(h):
    return (h > 0).float()


def of_indices(h):
    return torch.ones(3, 4).gather(1, h.topk(4, dim=1).indices)


def of_named_indices(h):
    values, order = h.sort(dim=1)
    return torch.ones(3, 4).gather(1, order) + values.detach()


def by_a_function(h):
    return Round.apply(h)


def by_a_new_tensor(h):
    return torch.tensor(h, requires_grad=True)


def over_lines(h):
    return (
        h.relu()
        .detach()
        .exp()
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize(
    ("between", "said", "mend"),
    [
        (compared, "`h > 0` in .* makes booleans of it", ""),
        (of_indices, r"only the indices of `h.topk\(4, dim=1\)` in .* go on", ""),
        (of_named_indices, r"`values.detach\(\)`|only the indices of `h.sort\(dim=1\)`", None),
        (by_a_function, r"`Round.apply\(h\)` in .* gives no gradient: the forward of a", ""),
        (by_a_new_tensor, "cuts it off", "return h"),
        (over_lines, "cuts it off", None),
    ],
)
def test_the_reason_for_a_cut(between, said, mend):
    encoder, decoder = nn.Linear(4, 4), nn.Linear(4, 1)
    with nbinspect.graphwatch() as w:
        loss = decoder(between(encoder(torch.randn(3, 4)))).mean()
    (fault,) = [one for one in w.report.findings if one.is_fault]
    assert (fault.kind, len(fault.names)) == ("CUT", 2)
    assert re.search(said, fault.sentence)
    if mend is not None:
        assert fault.code == mend
    if between is over_lines:
        assert fault.code.startswith("# delete") == fault.line.text.startswith(".detach()")
        assert fault.code
    del loss


def test_a_cell_whose_parameters_are_all_frozen():
    model = nn.Linear(4, 1).requires_grad_(False)
    with nbinspect.graphwatch() as w:
        loss = model(torch.randn(3, 4)).mean()
    (fault,) = w.report.findings
    assert "parameters that the cell used are frozen" in fault.sentence
    with nbinspect.graphwatch() as w:
        data = torch.randn(3, 4) * 2
    assert w.report.findings == ()
    del loss, data


def of_a_number(out):
    return torch.tensor(out.item(), requires_grad=True)


def of_a_tensor(out):
    return torch.tensor(out, requires_grad=True)


def of_what_was_counted(out):
    return (out > 0).float().requires_grad_()


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize("made", [of_a_number, of_a_tensor, of_what_was_counted])
def test_a_loss_that_is_a_leaf_is_followed_to_where_it_was_cut(made):
    model = nn.Linear(4, 1)
    with nbinspect.graphwatch() as w:
        loss = made(model(torch.randn(3, 4)).mean())
    for report in (w.report, nbinspect.autograd(loss)):
        (fault,) = [one for one in report.findings if one.is_fault]
        assert (fault.kind, fault.names) == ("CUT", ("model.weight", "model.bias"))


def test_a_leaf_that_may_be_a_loss():
    loss = torch.tensor(1.5, requires_grad=True)
    (found,) = nbinspect.autograd(loss).findings
    assert (found.is_fault, found.code) == (False, "%%graphwatch")
    optimizer = torch.optim.SGD([loss], lr=0.1)
    (found,) = nbinspect.autograd(loss).findings
    assert found.code == "", "a number that is trained"
    del optimizer


def test_a_cell_is_about_its_backward_and_not_about_its_gradients_on_the_way():
    model = nn.Linear(4, 1)
    with nbinspect.graphwatch() as w:
        for _ in range(4):
            inner = model(torch.randn(3, 4)).square().mean()
            slopes = torch.autograd.grad(inner, list(model.parameters()), create_graph=True)
        weight, bias = (p - s for p, s in zip(model.parameters(), slopes, strict=True))
        outer = functional.linear(torch.randn(3, 4), weight, bias).mean()
        outer.backward()
    assert w.report.name == "outer"
    assert not any("backwards ran" in note for note in w.report.notes)
    with nbinspect.graphwatch() as w:
        inner = model(torch.randn(3, 4)).square().mean()
        slopes = torch.autograd.grad(inner, list(model.parameters()))
    assert w.report.name == "inner"
    del slopes
