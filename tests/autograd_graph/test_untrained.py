"""Parameters that get a gradient and are changed by nobody, and those that nobody else has."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nbinspect


class Net(nn.Module):
    """A body and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def faults(loss):
    return [one for one in nbinspect.autograd(loss).findings if one.is_fault]


def test_a_head_that_was_replaced_after_the_optimizer_was_made():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.head = nn.Linear(4, 2)
    (fault,) = faults(model(torch.randn(3, 4)).mean())
    assert fault.names == ("model.head.weight", "model.head.bias")
    assert (
        "The optimizer has 2 parameters (3x4 float32, 3 float32) that no module" in fault.sentence
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert faults(model(torch.randn(3, 4)).mean()) == []
    del optimizer


def test_a_head_alone_is_trained_on_purpose():
    model = Net()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    assert faults(model(torch.randn(3, 4)).mean()) == []
    del optimizer


class Heads(nn.Module):
    """Keeps its heads in a plain dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.heads = {"a": nn.Linear(4, 1), "b": nn.Linear(4, 1)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads["a"](self.body(x)) + self.heads["b"](self.body(x)).square()


@pytest.mark.parametrize("is_watched", [False, True])
def test_modules_in_a_plain_dictionary_go_by_its_name(is_watched):
    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nbinspect.graphwatch() as w:
        loss = model(torch.randn(3, 4)).mean()
    report = w.report if is_watched else nbinspect.autograd(loss)
    (fault,) = [one for one in report.findings if one.is_fault]
    assert (
        "No optimizer has `model.heads['a'].*`, `model.heads['b'].*`, which get" in fault.sentence
    )
    assert "They are in a plain list or dictionary" in fault.sentence
    assert {"model.heads['a']", "model.heads['b']"} <= {one.name for one in report.modules}
    report.text()
    report.svg()
    del optimizer, loss


class Careless(nn.Module):
    """Makes a layer in its forward, and keeps what it computed of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4)) * 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.Linear(4, 1)(self.body(x) * self.scale)


@pytest.mark.parametrize("is_watched", [False, True])
def test_parameters_that_nobody_has(is_watched):
    model = Careless()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nbinspect.graphwatch() as w:
        loss = model(torch.randn(3, 4)).mean()
    if not is_watched:
        loss = model(torch.randn(3, 4)).mean()
    report = w.report if is_watched else nbinspect.autograd(loss)
    (fault,) = [one for one in report.findings if one.is_fault]
    assert fault.kind == "UNTRAINED"
    assert "`loss` reaches 3 parameters (" in fault.sentence
    assert (fault.line is not None) == is_watched
    del optimizer, loss


def test_a_parameter_of_no_module_that_is_cut_off():
    scale, head = nn.Parameter(torch.ones(4)), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([scale, *head.parameters()], lr=0.1)
    with nbinspect.graphwatch() as w:
        loss = head((torch.randn(3, 4) * scale).detach()).mean()
    (fault,) = [one for one in w.report.findings if one.is_fault]
    assert (fault.kind, fault.names) == ("CUT", ("scale",))
    assert "`(torch.randn(3, 4) * scale).detach()`" in fault.sentence
    (fault,) = faults(head(torch.randn(3, 4)).mean())
    assert (fault.kind, fault.names) == ("UNREACHED", ("scale",))
    loss = head(torch.randn(3, 4) * scale).mean()
    assert faults(loss) == []
    del optimizer
