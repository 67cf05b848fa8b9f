"""What was changed in place after it was saved: by what, and a mend that mends."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import nbinspect


def watched(make):
    with nbinspect.graphwatch() as w:
        kept = make()
    del kept
    return [one for one in w.report.findings if one.kind == "MODIFIED"]


def by_a_part():
    h = torch.ones(3, 4, requires_grad=True).exp()
    h[:, 0] = 0.0
    return h.sum()


def by_a_copy():
    h = torch.ones(3, requires_grad=True).exp()
    h.copy_(torch.zeros(3))
    return h.sum()


def by_a_chain():
    h = torch.ones(3, requires_grad=True).exp()
    y = h.mul_(2).add_(1)
    return y.sum() + h.sum()


def by_a_function():
    h = torch.ones(3, requires_grad=True).exp()
    y = functional.dropout(h, 0.5, inplace=True)
    return y.sum()


@pytest.mark.parametrize(
    ("make", "mend"),
    [
        (by_a_part, "h = h.clone(); h[:, 0] = 0.0"),
        (by_a_copy, "h = h.clone(); h.copy_(torch.zeros(3))"),
        (by_a_chain, "y = h = h.mul(2).add(1)"),
        (by_a_function, "y = h = functional.dropout(h, 0.5)"),
    ],
)
def test_the_mend_makes_backward_run(make, mend):
    (fault,) = watched(make)
    assert fault.code == mend
    size = "3, 4" if make is by_a_part else "3"
    first = f"h = torch.ones({size}, requires_grad=True).exp()"
    exec(f"{first}\n{mend}\nh.sum().backward()", {"torch": torch, "functional": functional})


def test_what_is_set_is_said_as_a_line():
    (fault,) = watched(by_a_part)
    assert "changed in place afterwards by `h[:, 0] = 0.0` in" in fault.sentence


def test_a_module_that_works_in_place_is_named_and_switched():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.ReLU(inplace=True), nn.Linear(4, 1))
    x = torch.randn(3, 4)
    (fault,) = watched(lambda: model(x).mean())
    assert "by `model.2`, whose `inplace` is True," in fault.sentence
    exec(fault.code, {"model": model})
    assert watched(lambda: model(x).mean()) == []
    model(x).mean().backward()


def test_parameters_that_one_line_changed_are_told_together():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))

    def clamped():
        loss = model(torch.randn(3, 4)).mean()
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.1, 0.1)
        return loss

    (fault,) = watched(clamped)
    assert len(fault.names) == 4
    assert "`model.1.weight`, `model.2.weight`, `model.3.weight` and 1 more" in fault.sentence
    assert "by `p.clamp_(-0.1, 0.1)` in" in fault.sentence
    assert "Change them after backward" in fault.sentence
    assert fault.code == "", "to set the loop's variable changes no parameter"


def test_an_optimizers_step_is_one_thing_that_is_wrong():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    old = model(torch.randn(3, 4)).mean()
    model(torch.randn(3, 4)).mean().backward()
    optimizer.step()
    (fault,) = [one for one in nbinspect.autograd(old).findings if one.is_fault]
    assert "were changed in place afterwards" in fault.sentence
    assert "An optimizer's step does that" in fault.sentence


class Centred(nn.Module):
    """Updates a running mean in its forward, after having used it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("mean", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(x) * self.mean
        self.mean.mul_(0.9)
        return hidden


@pytest.mark.parametrize("is_watched", [False, True])
def test_a_buffer_is_no_optimizers(is_watched):
    model = Centred()
    with nbinspect.graphwatch() as w:
        loss = model(torch.randn(3, 4)).mean()
    if not is_watched:
        loss = model(torch.randn(3, 4)).mean()
    report = w.report if is_watched else nbinspect.autograd(loss)
    (fault,) = [one for one in report.findings if one.is_fault]
    assert fault.names == ("model.mean",)
    assert "optimizer" not in fault.sentence
    assert "give the forward a copy: `.clone()`" in fault.sentence
    del loss


def test_buffers_are_not_taken_for_a_whole_module():
    layer, norm = nn.Linear(4, 4), nn.BatchNorm1d(4).eval()
    loss = norm(layer(torch.randn(3, 4))).sum()
    norm.reset_running_stats()
    (fault,) = [one for one in nbinspect.autograd(loss).findings if one.is_fault]
    assert fault.sentence.startswith("`norm.running_mean`, `norm.running_var`, which")
