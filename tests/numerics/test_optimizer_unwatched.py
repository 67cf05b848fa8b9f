"""torch's own optimizers write without a look at each operation, and are found out all the same."""

from __future__ import annotations

import pytest
import torch

import nbinspect


def test_an_update_that_goes_wrong_is_one_finding_with_its_operation():
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.RMSprop([weight], lr=0.1, eps=0.0)
    with nbinspect.nanwatch(stop=False) as watch:
        for _ in range(3):
            loss = (weight * torch.tensor([1.0, 0.0, 2.0])).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    [found] = watch.report.findings
    assert (found.op, found.phase, found.step) == ("aten.addcdiv_", "optimizer", 0)
    assert found.where is not None
    assert found.where.text == "optimizer.step()"
    assert found.written == ("weight",)


def test_an_optimizer_that_raises_does_not_end_the_watch():
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.Adam(table.parameters())
    weight = torch.ones(2, requires_grad=True)
    with nbinspect.nanwatch(stop=False) as watch:
        table(torch.tensor([0])).sum().backward()
        with pytest.raises(RuntimeError, match="sparse"):
            optimizer.step()
        weight.sum().backward()
        weight.grad = None
        (weight - 1).log().sum().backward()
    assert watch.report.findings[0].op == "aten.log"


def test_half_precision_stays_watched():
    weight = torch.full((2,), 60000.0, dtype=torch.float16, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=30000.0)
    with nbinspect.nanwatch(stop=False) as watch:
        (-weight.float()).sum().backward()
        optimizer.step()
    assert watch.report.findings[0].op.startswith("aten.add")
