"""Findings come in the order of their steps, and under the names of whoever holds the model."""

from __future__ import annotations

import torch
from torch import nn

import nbinspect


class Trainer:
    def __init__(self, *, lr: float) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)

    def train(self, batches) -> None:
        for x in batches:
            loss = self.model(x).square().mean()
            self.optimizer.zero_grad()
            if torch.isfinite(loss):
                loss.backward()
                self.optimizer.step()


def test_a_model_is_named_through_the_object_that_holds_it():
    batches = torch.randn(3, 8, 4)
    batches[1, 0, 0] = float("nan")
    trainer = Trainer(lr=0.01)
    for light in (False, True):
        with nbinspect.nanwatch(light=light, stop=False) as watch:
            trainer.train(batches)
        [reached] = watch.report.findings[0].reached
        assert reached.place == "buffer"
        assert reached.names == ("trainer.model.0.running_mean", "trainer.model.0.running_var")
        trainer = Trainer(lr=0.01)


def test_the_finding_of_an_earlier_step_comes_first_also_from_a_replay():
    """The error overflows at one step, the product some steps later but earlier in the step."""
    torch.manual_seed(0)
    x, layer = 10 * torch.randn(32, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    with nbinspect.nanwatch(light=True, stop=False) as watch:
        for _ in range(20):
            loss = nn.functional.mse_loss(layer(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert [one.op for one in watch.report.findings] == ["aten.mse_loss", "aten.addmm"]
    assert watch.report.step == watch.report.findings[0].step < watch.report.findings[1].step
