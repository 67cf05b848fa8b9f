"""Gradients, graphs and precision on a second device, and how often each asks it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import nbinspect
from nbinspect.numerics.autocast_lists import policy


def trainer(n_layers: int = 2, clip: float | None = None):
    torch.manual_seed(0)
    layers = [layer for _ in range(n_layers) for layer in (nn.Linear(8, 8), nn.Tanh())]
    model = nn.Sequential(*layers).to("card")
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(16, 8, device="card")

    def step() -> None:
        optimizer.zero_grad()
        functional.mse_loss(model(x), x).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()

    return step, model


OPTIONS = {"plain": {}, "light": {"light": True}, "exact": {"exact": True}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("n_layers", [2, 12])
def test_gradwatch_reads_the_device_once_a_step(torch_card, options, n_layers):
    step, _ = trainer(n_layers, clip=0.1)
    found = []
    with nbinspect.gradwatch(**options) as watch:
        for _ in range(4):
            torch_card.counted()
            step()
            found.append(torch_card.counted().reads)
    assert found == [1] * 4
    assert watch.report.n_steps == 4
    assert len(watch.report.parameters) == 2 * n_layers


def test_histograms_are_one_more_read(torch_card):
    step, _ = trainer(6)
    found = []
    with nbinspect.gradwatch(hist=2) as watch:
        for _ in range(4):
            torch_card.counted()
            step()
            found.append(torch_card.counted().reads)
    assert found == [2, 1, 2, 1]
    assert watch.report.n_steps == 4


def test_gradwatch_measures_what_the_cpu_does(torch_card):
    def norms(device):
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        x = torch.randn(16, 8)
        model, x = model.to(device), x.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with nbinspect.gradwatch(hist=1) as watch:
            for _ in range(3):
                optimizer.zero_grad()
                functional.mse_loss(model(x), x).backward()
                optimizer.step()
        return watch.report

    far, near = norms("card"), norms("cpu")
    assert [one.name for one in far.parameters] == [one.name for one in near.parameters]
    for a, b in zip(far.steps, near.steps, strict=True):
        assert a.loss == pytest.approx(b.loss)
        assert a.figures.grad_norm == pytest.approx(b.figures.grad_norm)


def test_gradtable_reads_once(torch_card):
    step, model = trainer(5)
    step()
    torch_card.counted()
    found = nbinspect.gradtable(model)
    assert torch_card.counted().reads == 1
    assert len(found.parameters) == 10


@pytest.mark.parametrize("n_layers", [2, 12])
def test_autograd_reads_the_gradients_once_and_what_is_saved_once(torch_card, n_layers):
    step, model = trainer(n_layers)
    step()
    loss = model(torch.ones(1, 8, device="card")).sum()
    torch_card.counted()
    found = nbinspect.autograd(loss)
    assert torch_card.counted().reads == 2
    assert not [one for one in found.findings if "not reached" in str(one)]


def test_graphwatch_waits_for_nothing_and_names_the_line_of_a_cut(torch_card):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to("card")
    x = torch.ones(4, 8, device="card")
    torch_card.counted()
    with nbinspect.graphwatch() as watch:
        hidden = model[0](x).detach()
        model[1](hidden).sum().backward()
    assert torch_card.counted().reads <= 1  # the norms of the gradients that there are
    assert "`model[0](x).detach()`" in watch.report.text()


def test_headroom_tells_what_overflows_under_the_devices_own_autocast(torch_card):
    model = nn.Linear(64, 64, bias=False).to("card")
    nn.init.constant_(model.weight, 200.0)
    x = torch.full((4, 64), 30.0, device="card", requires_grad=True)
    found = nbinspect.headroom(lambda: model(x).log_softmax(-1).sum().backward())
    text = found.text()
    assert "autocast to float16 on card" in text
    assert "`aten.mm`" in text.partition("\n\n")[0]
    with torch.autocast("card", torch.float16):
        assert bool(model(x).isinf().any())


CALLS = {
    "log_softmax": lambda x: x.log_softmax(-1),
    "softmax": lambda x: x.softmax(-1),
    "mse_loss": lambda x: functional.mse_loss(x, x),
    "sum": lambda x: x.sum(),
    "exp": lambda x: x.exp(),
    "relu": lambda x: x.relu(),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_autocast_keeps_in_float32_is_known_of_a_backend_outside_of_torch(torch_card, name):
    x = torch.ones(4, 4, device="card", dtype=torch.float16)
    with torch.autocast("card", torch.float16):
        is_wide = CALLS[name](x).dtype is torch.float32
    assert is_wide is (policy(name, "card") == "float32")


def test_gradcheck_copies_to_float64_on_the_device(torch_card):
    w = torch.randn(3, 3, device="card", requires_grad=True)
    found = nbinspect.gradcheck(lambda a: (a @ a).tanh(), w)
    assert found.ok
