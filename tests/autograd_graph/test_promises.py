"""What a watch must never do: change a result, keep memory, leave something behind."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch
from torch import nn

import nbinspect
from nbinspect.autograd_graph import watched


@pytest.fixture(autouse=True)
def forget():
    yield
    watched.remember(watched.Watched())


def train(watch) -> list:
    torch.manual_seed(3)
    layers = (nn.Linear(8, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    found = []
    with watch:
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.randn(6, 8)).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            found += [loss.detach().clone(), *(p.grad.clone() for p in model.parameters())]
    return [*found, *(p.detach().clone() for p in model.parameters()), torch.get_rng_state()]


def test_results_are_bit_identical():
    plain, seen = train(contextlib.nullcontext()), train(nbinspect.graphwatch())
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))


def test_looking_changes_no_tensor():
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    loss = layer(x).exp().mean()
    state, counts = torch.get_rng_state(), loss._use_count()
    nbinspect.autograd(loss).html()
    assert torch.equal(torch.get_rng_state(), state)
    assert loss._use_count() == counts
    loss.backward()
    again = nn.Linear(4, 4)
    again.load_state_dict(layer.state_dict())
    again(x).exp().mean().backward()
    assert torch.equal(layer.weight.grad, again.weight.grad)


def test_nothing_is_kept_alive():
    gc.collect()
    gc.disable()
    try:
        layer, x = nn.Linear(4, 4), torch.randn(2, 4)
        with nbinspect.graphwatch() as w:
            hidden = layer(x)
            loss = hidden.exp().mean()
            loss.backward()
        report = nbinspect.autograd(loss)
        died = [weakref.ref(one) for one in (layer, layer.weight, x, hidden, loss)]
        del layer, x, hidden, loss
        assert [ref() for ref in died] == [None] * 5
        assert report.nodes
        assert w.report.nodes
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_is_the_users_own_and_there_is_a_report(error):
    raised = error("mine")
    layer = nn.Linear(4, 4)
    watch, caught = nbinspect.graphwatch(), None
    try:
        with watch as w:
            hidden = layer(torch.randn(2, 4))
            raise raised
    except error as one:
        caught = one
    assert caught is raised
    assert any(node.line is not None for node in w.report.nodes)
    del hidden


def test_the_saved_bytes_are_those_before_backward():
    layer = nn.Linear(4, 4)
    with nbinspect.graphwatch() as w:
        loss = layer(torch.randn(2, 4)).exp().mean()
        loss.backward()
    assert w.report.saved_bytes > 0
    assert w.report.modules[0].grad_norm == pytest.approx(
        torch.stack([p.grad.norm() for p in layer.parameters()]).norm().item(), rel=1e-5
    )


def test_the_report_is_about_the_loss_also_without_backward():
    layer = nn.Linear(4, 4)
    with nbinspect.graphwatch() as w:
        hidden = layer(torch.randn(2, 4))
        loss = hidden.exp().mean()
        accuracy = (hidden.argmax(1) == 0).float().mean()
    assert w.report.name == "loss"
    del accuracy
    with nbinspect.graphwatch() as w:
        pass
    assert w.report.nodes == ()
    assert "no tensor that is still alive" in w.report.text()
    del loss


def test_watches_nest_and_many_operations_make_room(monkeypatch):
    from nbinspect.autograd_graph import recorder

    monkeypatch.setattr(recorder, "MOST_EVENTS", 200)
    x = torch.ones(3, requires_grad=True)
    with nbinspect.graphwatch() as outer, nbinspect.graphwatch() as inner:
        y = x
        for _ in range(500):
            y = y * 1.0
        loss = y.sum()
    assert inner.report.name == outer.report.name == "loss"
    assert len(outer.report.nodes) == 502
    assert any("made room" in note for note in outer.report.notes)
    assert outer.report.nodes[-2].line is not None
    del loss
