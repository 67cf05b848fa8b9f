"""NaN on a second device: the right operation, and no operation that waits for the device."""

from __future__ import annotations

import pytest
import torch
from healthy import HEALTHY
from judging import problems, report_of
from planted import FAULTS
from torch import nn
from torch.nn import functional

import nbinspect

# NumPy cannot write to a device, and this one has no kernel for an LSTM's cell.
HOST_ONLY = {"value_written_through_numpy", "packed_sequences"}


@pytest.fixture
def by_default(torch_card):
    """Make every tensor on the device."""
    torch.set_default_device("card")
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
@pytest.mark.filterwarnings("ignore")
def test_fault_is_named(by_default, light: bool) -> None:
    faults = [one for one in FAULTS if one.name not in HOST_ONLY]
    wrong = {fault.name: list(problems(fault, light=light)) for fault in faults}
    assert not {name: what for name, what in wrong.items() if what}


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
@pytest.mark.filterwarnings("ignore")
def test_healthy_step_is_left_alone(by_default, light: bool) -> None:
    steps = [make for make in HEALTHY if make.__name__ not in HOST_ONLY]
    reports = {make.__name__: report_of(make(), light=light) for make in steps}
    assert not {name: one.findings for name, one in reports.items() if one.findings}
    assert not {name: one.replay for name, one in reports.items() if one.replay}
    assert not {
        name: one.notes for name, one in reports.items() if "itself failed" in str(one.notes)
    }


def trainer(n_layers: int, device: str = "card"):
    torch.manual_seed(0)
    layers = [layer for _ in range(n_layers) for layer in (nn.Linear(8, 8), nn.Tanh())]
    model = nn.Sequential(*layers, nn.BatchNorm1d(8), nn.Dropout(0.2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(16, 8, device=device)

    def step() -> None:
        optimizer.zero_grad()
        functional.mse_loss(model(x), x).backward()
        optimizer.step()

    return step, model


def reads(torch_card, step, n: int, **options) -> list[int]:
    """Count the reads of each step but the first, which learns names and allocates."""
    found = []
    with nbinspect.nanwatch(**options) as watch:
        for _ in range(n):
            step()
            found.append(torch_card.counted().reads)
    assert watch.report.n_steps == n
    assert not watch.report.findings
    return found[1:]


@pytest.mark.parametrize(("light", "most"), [(False, 8), (True, 6)], ids=["exact", "light"])
def test_reads_of_a_step_do_not_grow_with_its_operations(torch_card, light, most):
    few, many = (reads(torch_card, trainer(n)[0], 4, light=light) for n in (2, 30))
    assert few == many
    assert max(few) <= most


def test_sync_waits_for_every_operation(torch_card):
    step, _ = trainer(2)
    n_ops = []
    with nbinspect.nanwatch(sync=True) as watch:
        step()
        n_ops.append(watch)
    assert torch_card.counted().reads > watch.report.n_ops / 2


def test_sync_tells_the_values_and_runs_nothing_again(torch_card):
    x = torch.tensor([4.0, 0.0], device="card", requires_grad=True)
    with nbinspect.nanwatch(sync=True, stop=False) as watch:
        (x / x).sum().backward()
    (found,) = watch.report.findings
    assert not watch.report.replay
    assert found.op == "aten.div"
    assert "0 / 0" in found.why
    assert found.where.text.strip() == "(x / x).sum().backward()"


def test_exact_mode_tells_the_values_by_running_the_step_again(torch_card):
    def step() -> None:
        torch.manual_seed(1)
        scaled = functional.dropout(x, 0.5) / y
        scaled.sum().backward()

    x = torch.ones(64, device="card", requires_grad=True)
    y = torch.zeros(64, device="card")
    with nbinspect.nanwatch(stop=False) as watch:
        step()
    (found,) = watch.report.findings
    assert "same loss" in watch.report.replay
    assert "zeros" in watch.report.text()
    assert found.where.text.strip() == "scaled = functional.dropout(x, 0.5) / y"


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
def test_a_replay_draws_the_devices_random_numbers_again(torch_card, light):
    """The generator was seeded long before the step, so its state must be put back."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)).to("card")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(bad_at: int) -> None:
        for number in range(4):
            x = torch.rand(8, 16, device="card")
            if number == bad_at:
                x = x.log() * 0 - (x - x).log()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    with pytest.raises(nbinspect.NonFiniteError), nbinspect.nanwatch(light=light) as watch:
        train(bad_at=2)
    report = watch.report
    assert report.replayed
    assert "same loss" in report.replay
    assert report.findings[0].op == "aten.log"
    assert report.findings[0].step == 2
    assert all(bool(p.isfinite().all()) for p in model.parameters())


MODES = {"exact": {}, "light": {"light": True}, "sync": {"sync": True}}


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_results_are_bit_identical(torch_card, options):
    import contextlib

    def train(watch):
        step, model = trainer(3)
        with watch:
            for _ in range(3):
                step()
        return [p.detach().cpu() for p in model.state_dict().values()], torch_card.get_rng_state()

    plain, state = train(contextlib.nullcontext())
    seen, state_seen = train(nbinspect.nanwatch(**options))
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    assert torch.equal(state, state_seen)


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_a_backward_over_two_devices_is_followed(torch_card, options):
    first = torch.ones(4, device="card:0", requires_grad=True)
    second = torch.zeros(4, device="card:1", requires_grad=True)
    with nbinspect.nanwatch(stop=False, **options) as watch:
        joined = (first * 2).to("card:1") + second.sqrt()
        joined.to("card:0").sum().backward()
    (found,) = watch.report.findings
    assert found.phase == "backward"
    assert found.node == "SqrtBackward0"
    assert found.reaches == ("grad",)
    assert "joined = " in found.where.text
