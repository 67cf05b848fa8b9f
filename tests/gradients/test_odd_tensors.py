"""Tensors that are not simply rows of numbers: lazy, moved, misaligned, let go, huge, complex."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from loops import kinds, mlp, squares, train
from torch import nn

from nbinspect import gradtable, gradwatch
from nbinspect.gradients import collect, near
from nbinspect.gradients.numpy_kernels import NumpyKernels, Row

pytestmark = pytest.mark.usefixtures("either_kernels")


def sgd(*parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def given(parameter, gradients, write=True):
    """Give a parameter one gradient after the other, as a hook of the user's might."""
    optimizer = sgd(parameter)
    with gradwatch() as w:
        for gradient in gradients:
            optimizer.zero_grad()
            (parameter.abs() ** 2).sum().backward()
            parameter.grad = gradient()
            if write:
                optimizer.step()
    return w.report


def test_lazy_layers_that_are_made_and_trained_in_the_cell():
    with gradwatch() as w:
        net = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(4, 5)).square().mean().backward()
            optimizer.step()
    assert w.report.notes == ()
    assert [len(step.parameters) for step in w.report.steps] == [4, 4, 4]
    assert w.report.steps[-1].grad_norm > 0


def test_lazy_layers_that_nobody_uses():
    stray, model = nn.LazyLinear(3), mlp()
    with gradwatch() as w:
        train(model, sgd(*model.parameters(), *stray.parameters()), 2)
    assert w.report.notes == ()
    assert len(w.report.steps[-1].parameters) == len(list(model.parameters()))
    squares(model, torch.randn(4, 16)).backward()
    assert len(gradtable(nn.ModuleList([model, stray])).parameters) == len(list(model.parameters()))


@pytest.mark.parametrize("size", [3, 300])
def test_storages_stay_as_they_are_and_can_be_resized(size):
    model = nn.Sequential(*(nn.Linear(size, size) for _ in range(3)))
    optimizer = sgd(*model.parameters())
    with gradwatch() as w:
        train(model, optimizer, 3, batch=lambda: torch.randn(2, size))
    gradtable(model)
    for one in model.parameters():
        for tensor in (one, one.grad):
            assert tensor.untyped_storage().resizable()
    assert w.report.notes == ()


def test_weights_whose_memory_is_let_go_between_steps():
    model = nn.Linear(100, 100)
    storage, optimizer = model.weight.untyped_storage(), sgd(*model.parameters())
    size = storage.nbytes()
    with gradwatch() as w:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 100)).square().mean().backward()
            kept, gradient = model.weight.detach().clone(), model.weight.grad
            optimizer.step()
            storage.resize_(0)
            gradient.untyped_storage().resize_(0)
            storage.resize_(size)
            model.weight.data.copy_(kept)
    assert w.report.notes == ()
    assert all(step["model.weight"].update_norm > 0 for step in w.report.steps)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_model_that_moves_to_another_dtype(set_to_none):
    model = nn.Linear(20, 30)
    optimizer = sgd(*model.parameters())
    with gradwatch() as w:
        for step in range(40):
            if step == 35:
                optimizer.zero_grad()
                model.double()
            optimizer.zero_grad(set_to_none=set_to_none)
            model(torch.randn(4, 20, dtype=model.weight.dtype)).square().mean().backward()
            optimizer.step()
    assert w.report.notes == ()
    assert len(w.report.steps) == w.report.n_steps == 40
    last = w.report.steps[-1]["model.weight"]
    assert last.grad_norm == pytest.approx(model.weight.grad.norm().item(), rel=1e-6)
    assert last.cosine is not None


def test_an_error_of_ours_loses_no_step_that_was_measured(monkeypatch):
    model, calls, before = mlp(), [0], collect.Writer.before

    def fails(self, *args, **more):
        calls[0] += 1
        if calls[0] == 6:
            raise RuntimeError("ours")
        before(self, *args, **more)

    monkeypatch.setattr(collect.Writer, "before", fails)
    with gradwatch() as w:
        train(model, sgd(*model.parameters()), 9)
    assert [step.index for step in w.report.steps] == [0, 1, 2, 3, 4]
    (note,) = w.report.notes
    assert note.startswith("Nothing was measured from step 5 on")


def test_a_weight_at_an_odd_address():
    raw = bytearray(4 * 500 + 4)
    weight = nn.Parameter(torch.frombuffer(raw, dtype=torch.float32, count=500, offset=1))
    gradient = torch.randn(500)
    report = given(weight, [gradient.clone] * 2)
    assert report.notes == ()
    found = report.steps[-1].parameters[0]
    assert found.written_norm == pytest.approx(gradient.norm().item())
    assert found.update_norm == pytest.approx(0.1 * gradient.norm().item(), rel=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch._neg_view(torch.ones(50, 50)),
        lambda: torch._efficientzerotensor((50, 50)),
        lambda: torch.complex(torch.ones(50, 50), torch.ones(50, 50)).conj().imag,
    ],
    ids=["negated", "zeros without memory", "imaginary part of a conjugate"],
)
def test_gradients_that_torch_has_not_written_out(make):
    parameter = nn.Parameter(torch.randn(50, 50))
    report = given(parameter, [make] * 2)
    assert report.notes == ()
    assert report.steps[-1].parameters[0].written_norm == pytest.approx(make().norm().item())
    parameter.grad = make()
    (row,) = gradtable(nn.ParameterList([parameter])).parameters
    assert row.mean == pytest.approx(make().mean().item())


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e37), (torch.float64, 1e60)])
def test_finite_gradients_are_not_infinite_however_large(dtype, size):
    parameter = nn.Parameter(torch.full((100, 100), 1e-3, dtype=dtype))
    gradient = torch.full((100, 100), size, dtype=dtype)
    optimizer = torch.optim.SGD([parameter], lr=1e-44)
    with gradwatch() as w:
        for _ in range(3):
            optimizer.zero_grad()
            (parameter * gradient * 1e-30).sum().backward()
            parameter.grad.mul_(1e30)
            optimizer.step()
    assert "NAN" not in kinds(w.report)
    found = w.report.steps[-1].parameters[0]
    assert math.isfinite(found.written_norm)
    (row,) = gradtable(nn.ParameterList([parameter])).parameters
    assert row.grad_norm == pytest.approx(100 * size)
    assert row.mean == pytest.approx(size)


def test_complex_numbers_have_two_parts():
    parameter = nn.Parameter(torch.randn(40, 40, dtype=torch.complex64))
    optimizer = sgd(parameter)
    with gradwatch() as w:
        optimizer.zero_grad()
        (parameter.abs() ** 2).sum().backward()
        optimizer.step()
    (row,) = gradtable(nn.ParameterList([parameter])).parameters
    parts = torch.view_as_real(parameter.grad)
    for found in (w.report.steps[0].parameters[0], row):
        assert found.zero_share == 0
        assert found.mean == pytest.approx(parts.mean().item(), rel=1e-3, abs=1e-6)
        assert found.std == pytest.approx(parts.std().item(), rel=1e-3)


def test_small_elements_that_are_set_to_zero_are_counted(either_kernels):
    if either_kernels == "NumPy":
        pytest.skip("its norms do not show what is that small")
    parameter = nn.Parameter(torch.randn(300, 300))
    gradient = torch.randn(300, 300) * 1e-7
    gradient[0] = torch.randn(300)
    optimizer = sgd(parameter)
    with gradwatch() as w:
        (parameter * gradient).sum().backward()
        parameter.grad[parameter.grad.abs() < 1e-4] = 0
        optimizer.step()
    share = (parameter.grad == 0).double().mean().item()
    assert w.report.steps[0].parameters[0].zero_share == pytest.approx(share, abs=1e-3)


def test_not_quite_all_zeros_are_not_all():
    parameter, gradient = nn.Parameter(torch.randn(300, 300)), torch.zeros(300, 300)
    gradient[7, 7] = 1
    report = given(parameter, [gradient.clone])
    assert 0.999 < report.steps[0].parameters[0].zero_share < 1


@np.errstate(all="ignore")
def test_kernels_hold_what_a_block_cannot():
    for own in (near.kernels(), NumpyKernels()):
        for size in (1e200, 1e-200):
            row = np.full(1000, size)
            expected = pytest.approx(math.sqrt(1000) * size)
            here: Row = (row.ctypes.data, 1000, True)
            room, zeros = near.Room(here), np.zeros_like(row)
            assert own.norm(here) == own.final(here)[0] == own.copy(here, room.row) == expected
            assert own.difference(here, (zeros.ctypes.data, 1000, True)) == expected
        row = np.full(5000, 1e36, np.float32)
        assert own.final((row.ctypes.data, 5000, False))[1] == pytest.approx(5e39)
