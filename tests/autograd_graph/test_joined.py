"""Graphs that meet where a backward has been: steps that are joined, losses with a common part."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import nbinspect
from nbinspect.autograd_graph.joined import detaching


def faults(loss):
    return [one for one in nbinspect.autograd(loss).findings if one.is_fault]


@pytest.mark.parametrize("is_watched", [False, True])
def test_two_losses_with_a_common_part_are_no_two_steps(is_watched):
    body, one, other = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    with nbinspect.graphwatch() if is_watched else contextlib.nullcontext():
        hidden = body(torch.randn(3, 4)).relu()
        first, second = one(hidden).mean(), other(hidden).square().mean()
        first.backward()
    (fault,) = [each for each in faults(second) if each.kind != "UNREACHED"]
    assert fault.kind == "TWICE"
    assert "up to `hidden` (made by `ReluBackward0`" in fault.sentence
    assert "Detach" not in fault.sentence
    assert fault.code == "", "to detach `hidden` would end the training of `body`"
    with pytest.raises(RuntimeError, match="second time"):
        second.backward()


def one_after_the_other():
    body, one, other = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    hidden = body(torch.randn(3, 4)).relu()
    first, second = one(hidden).mean(), other(hidden).square().mean()
    first.backward()
    second.backward()


def test_the_line_of_the_first_backward_is_told_once():
    watch = nbinspect.graphwatch()
    with pytest.raises(RuntimeError, match="second time"), watch:
        one_after_the_other()
    (fault,) = [each for each in watch.report.findings if each.kind == "TWICE"]
    assert fault.code == "first.backward(retain_graph=True)"


def test_a_backward_that_raised_half_way_joins_nothing():
    layer = nn.Linear(4, 4)
    hidden = layer(torch.randn(3, 4)).sigmoid()
    made = hidden * 2
    hidden += 1
    loss = made.square().mean()
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        loss.backward()
    (fault,) = faults(loss)
    assert fault.kind == "MODIFIED"


def test_all_that_is_carried_is_detached():
    cell, x = nn.LSTMCell(4, 4), torch.randn(2, 4)
    h, c = cell(x)
    h.mean().backward()
    h, c = cell(x, (h, c))
    loss = h.mean()
    (fault,) = faults(loss)
    assert fault.code == "h, c = h.detach(), c.detach()"
    spaces = {"h": h, "c": c}
    exec(fault.code, spaces)
    cell(x, (spaces["h"], spaces["c"]))[0].mean().backward()


class Recurrent(nn.Module):
    """Keeps its state to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
        self.state = torch.zeros(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state = self.cell(x, self.state)
        return self.state.square()


def test_a_state_that_a_module_keeps_is_named():
    model, x = Recurrent(), torch.randn(2, 4)
    model(x).mean().backward()
    loss = model(x).mean()
    (fault,) = faults(loss)
    assert fault.code == "model.state = model.state.detach()"
    exec(fault.code, {"model": model})
    model(x).mean().backward()


@pytest.mark.parametrize("is_watched", [False, True])
def test_what_grows_is_named_and_not_what_goes_into_it(is_watched):
    encoder, queue = nn.Linear(4, 4), torch.zeros(0, 4)
    with nbinspect.graphwatch() if is_watched else contextlib.nullcontext():
        for _ in range(2):
            new = encoder(torch.randn(3, 4)).relu()
            queue = torch.cat([queue, new])[-8:]
            loss = (new @ queue.T).mean()
            if len(queue) == 3:
                loss.backward()
    (fault,) = faults(loss)
    assert fault.code == ("queue = queue.detach()" if is_watched else "")
    assert "`new`" not in fault.sentence


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["h"], "h = h.detach()"),
        (["rnn.0.h"], "rnn[0].h = rnn[0].h.detach()"),
        (["state[0]", "state[1]"], "state = tuple(one.detach() for one in state)"),
        (["state[0]", "h"], "state[0], h = state[0].detach(), h.detach()"),
        (["a", "a", "b"], "a, b = a.detach(), b.detach()"),
        (["a", "b", "c", "d", "e"], ""),
        ([], ""),
    ],
)
def test_the_line_that_detaches(names, line):
    assert detaching(names) == line
