"""Losses that train different parts, each with a backward of its own, and what is cut on purpose."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import nbinspect


def one_by_one(*, step):
    body, one, other = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    parts = nn.ModuleList([body, one, other])
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.1)
    hidden = body(torch.randn(3, 4))
    first, second = one(hidden).mean(), other(hidden.detach()).mean()
    if step:
        first.backward()
    second.backward()
    return second, parts, optimizer


@pytest.mark.parametrize("is_watched", [False, True])
def test_what_another_backward_has_reached_is_no_fault(is_watched):
    watch = nbinspect.graphwatch()
    if is_watched:
        with watch:
            kept = one_by_one(step=True)
        assert not any(one.is_fault for one in watch.report.findings)
    else:
        kept = one_by_one(step=True)
    report = nbinspect.autograd(kept[0])
    assert not any(one.is_fault for one in report.findings)
    assert any("have a gradient from another backward" in one.sentence for one in report.findings)


def test_what_no_backward_has_reached_is_a_fault():
    with nbinspect.graphwatch() as w:
        kept = one_by_one(step=False)
    assert {one.kind for one in w.report.findings if one.is_fault} == {"CUT", "UNREACHED"}
    del kept


def test_a_gradient_penalty_on_what_another_model_made_is_no_fault():
    generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    with nbinspect.graphwatch() as w:
        fake = generator(torch.randn(3, 2)).detach()
        mixed = (fake + torch.randn(3, 4)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = critic(fake).mean() + (slope.norm(dim=1) - 1).square().mean()
    assert not any(one.is_fault for one in w.report.findings)
    del loss, optimizer


def test_a_leaf_behind_a_cut_is_told_once():
    encoder, decoder = nn.Linear(4, 4), nn.Linear(4, 1)
    with nbinspect.graphwatch() as w:
        code = encoder(torch.randn(3, 4)).detach().requires_grad_()
        loss = decoder(code).mean()
    (fault,) = [one for one in w.report.findings if one.is_fault]
    assert (fault.kind, len(fault.names)) == ("CUT", 2)
    del loss


def test_a_cut_is_named_before_what_only_looks_something_up():
    encoder, book, decoder = nn.Linear(4, 4), nn.Embedding(8, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(nn.ModuleList([encoder, book, decoder]).parameters(), lr=0.1)
    with nbinspect.graphwatch() as w:
        x = torch.randn(3, 4)
        code = encoder(x)
        chosen = book(torch.cdist(code, book.weight).argmin(1))
        loss = functional.mse_loss(decoder(code + (chosen - code).detach()), x)
    (fault,) = [one for one in w.report.findings if one.is_fault]
    assert fault.names == ("book.weight",)
    assert "`(chosen - code).detach()`" in fault.sentence
    del loss, optimizer
