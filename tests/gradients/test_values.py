"""Every figure, held against one that was computed directly."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from loops import MODELS, OPTIMIZERS, mlp, squares, train
from torch import nn

import nbinspect
from nbinspect import gradwatch
from nbinspect.gradients import samples

pytestmark = pytest.mark.usefixtures("either_kernels")


def directly(model, optimizer, batch, clip):
    """Take one step and work out, in float64, what the watch should have found."""
    named = dict(model.named_parameters())
    optimizer.zero_grad()
    loss = squares(model, batch)
    loss.backward()
    grads = {name: p.grad.double().clone() for name, p in named.items()}
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    written = {name: p.grad.double().clone() for name, p in named.items()}
    before = {name: p.detach().double().clone() for name, p in named.items()}
    optimizer.step()
    updates = {name: p.detach().double() - before[name] for name, p in named.items()}
    return loss.item(), grads, written, before, updates


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("model_name", MODELS)
def test_figures_are_those_computed_directly(model_name, optimizer_name):
    model, batch = MODELS[model_name]()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    with gradwatch() as w:
        told = [directly(model, optimizer, batch(), 0.05) for _ in range(3)]
    assert w.report.notes == ()
    previous = None
    for step, (loss, grads, written, weights, updates) in zip(w.report.steps, told, strict=True):
        total = math.sqrt(sum(g.norm().item() ** 2 for g in grads.values()))
        after = math.sqrt(sum(g.norm().item() ** 2 for g in written.values()))
        assert step.loss == pytest.approx(loss, rel=1e-6)
        assert step.grad_norm == pytest.approx(total, rel=1e-5)
        assert step.clip_factor == pytest.approx(after / total, rel=1e-4)
        assert step.figures.clipped == ("norm" if total > 0.05 else "")
        assert step.learning_rates == (optimizer.param_groups[0]["lr"],)
        assert [p.name for p in step.parameters] == [f"model.{name}" for name in grads]
        for name, grad in grads.items():
            one, n = step[f"model.{name}"], grad.numel()
            assert one.grad_norm == pytest.approx(grad.norm().item(), rel=1e-5)
            assert one.max_abs == pytest.approx(grad.abs().max().item(), rel=1e-6)
            assert one.mean == pytest.approx(grad.mean().item(), rel=1e-3, abs=1e-9)
            if n > 1:
                assert one.std == pytest.approx(grad.std().item(), rel=1e-3, abs=1e-9)
            assert one.zero_share == pytest.approx((grad == 0).double().mean().item(), abs=1e-3)
            assert one.written_norm == pytest.approx(written[name].norm().item(), rel=1e-5)
            assert one.weight_norm == pytest.approx(weights[name].norm().item(), rel=1e-5)
            assert one.update_norm == pytest.approx(updates[name].norm().item(), rel=1e-3)
            ratio = (
                (updates[name].norm() / weights[name].norm()).item()
                if weights[name].any()
                else None
            )
            assert one.update_ratio == (ratio if ratio is None else pytest.approx(ratio, rel=1e-3))
            assert (one.n_nan, one.n_inf, one.state) == (0, 0, "")
            if previous is None:
                assert one.cosine is None
            elif grad.norm() > 1e-6:
                old = previous[name].flatten()
                cosine = torch.cosine_similarity(grad.flatten(), old, dim=0).item()
                assert one.cosine == pytest.approx(cosine, abs=2e-3)
        previous = grads


def test_the_step_without_clipping_says_so():
    model = mlp()
    with gradwatch() as w:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    assert [step.clip_factor for step in w.report.steps] == [1.0, 1.0]


def test_clipping_by_value_is_told_from_clipping_by_norm():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch() as w:
        squares(model, torch.randn(8, 16)).backward()
        for p in model.parameters():
            p.grad.data.clamp_(-1e-3, 1e-3)  # past the version counter
        optimizer.step()
    figures = w.report.steps[0].figures
    assert figures.clipped == "value"
    assert 0 < figures.clip_factor < 1


@pytest.mark.parametrize("n_tensors", [2, 12])
def test_small_tensors_few_or_many_in_any_order_of_their_elements(n_tensors):
    tensors = [nn.Parameter(torch.randn(8, 4 + n)) for n in range(n_tensors - 1)]
    turned = nn.Parameter(torch.randn(8, 4).t())
    tensors.append(turned)
    optimizer = torch.optim.SGD(tensors, lr=0.1)
    told = []
    with gradwatch() as w:
        for _ in range(3):
            optimizer.zero_grad()
            sum(one.pow(3).sum() for one in tensors).backward()
            weights = [one.detach().clone() for one in tensors]
            grads = [one.grad.clone() for one in tensors]
            optimizer.step()
            told.append((grads, weights, [one.detach().clone() for one in tensors]))
    assert not turned.is_contiguous()
    assert w.report.notes == ()
    for step, (grads, weights, new) in zip(w.report.steps, told, strict=True):
        for one, grad, weight, after in zip(step.parameters, grads, weights, new, strict=True):
            assert one.grad_norm == pytest.approx(grad.norm().item(), rel=1e-5)
            assert one.max_abs == pytest.approx(grad.abs().max().item(), rel=1e-6)
            assert one.weight_norm == pytest.approx(weight.norm().item(), rel=1e-5)
            assert one.update_norm == pytest.approx((after - weight).norm().item(), rel=1e-3)
    for at in range(n_tensors):
        old, now = told[-2][0][at].flatten(), told[-1][0][at].flatten()
        cosine = torch.cosine_similarity(old, now, dim=0).item()
        assert w.report.steps[-1].parameters[at].cosine == pytest.approx(cosine, abs=2e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_other_dtypes(dtype):
    weight = torch.ones(8, 8, dtype=dtype, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with gradwatch() as w:
        for _ in range(2):
            optimizer.zero_grad()
            (weight * 3).abs().sum().backward()
            optimizer.step()
    last = w.report.steps[-1].parameters[0]
    assert w.report.notes == ()
    assert last.name == "weight"
    assert last.grad_norm == pytest.approx(3 * 8, rel=1e-3)
    assert last.update_norm == pytest.approx(0.3 * 8, rel=1e-1)
    assert last.cosine == pytest.approx(1, abs=1e-2)


def test_a_norm_beyond_float32_is_infinite_in_no_step():
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    with gradwatch() as w:
        (weight * 1e25).sum().backward()
        optimizer.step()
    one = w.report.steps[0].parameters[0]
    assert one.grad_norm == pytest.approx(2e25, rel=1e-5)
    assert (one.n_nan, one.n_inf) == (0, 0)


def test_a_gradient_whose_squares_vanish_is_not_zero():
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    with gradwatch() as w:
        for _ in range(4):
            optimizer.zero_grad()
            (weight * 1e-25).sum().backward()
            optimizer.step()
    assert w.report.steps[0].parameters[0].grad_norm == pytest.approx(2e-25, rel=1e-5)
    assert w.report.findings == ()


def sampled_and_exact(weight, gradients):
    """Step through given gradients of one large weight, watched both ways."""
    optimizer = torch.optim.Adam([weight], lr=1e-3)
    with gradwatch() as w, gradwatch(exact=True) as all_of_it:
        for gradient in gradients:
            optimizer.zero_grad()
            (weight * gradient).sum().backward()
            optimizer.step()
    pairs = zip(w.report.steps, all_of_it.report.steps, strict=True)
    return [(a.parameters[0], b.parameters[0]) for a, b in pairs], w.report, all_of_it.report


ROWS = torch.zeros(2000, 64)
ROWS[::7] = 1


@pytest.mark.parametrize(
    "mask", [torch.ones(300, 400), (torch.arange(512) % 3 == 0).float().expand(256, 512), ROWS]
)
def test_a_sample_tells_updates_and_cosines_of_large_parameters(mask, monkeypatch):
    monkeypatch.setattr(samples, "WHOLE", 1 << 16)
    weight = torch.randn(mask.shape, requires_grad=True)
    common = torch.randn(mask.shape)
    gradients = [(common + torch.randn(mask.shape)) * mask for _ in range(3)]
    pairs, report, exact = sampled_and_exact(weight, gradients)
    for sampled, whole in pairs:
        assert sampled.update_ratio == pytest.approx(whole.update_ratio, rel=0.05)
        assert (sampled.cosine is None) == (whole.cosine is None)
        if whole.cosine is not None:
            assert sampled.cosine == pytest.approx(whole.cosine, abs=0.03)
            assert whole.cosine == pytest.approx(0.5, abs=0.03)
        assert sampled.grad_norm == whole.grad_norm
        assert sampled.weight_norm == whole.weight_norm
    assert "come from a sample of its" in report.notes[0]
    assert exact.notes == ()


def test_large_figures_are_those_computed_directly():
    weight = torch.randn(600, 500, requires_grad=True)
    gradient = torch.randn(600, 500) * (torch.rand(600, 500) > 0.25)
    gradient[599, 499] = -9.0
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with gradwatch(exact=True) as w:
        (weight * gradient).sum().backward()
        weight.grad.data.clamp_(min=-1, max=0)  # behind the back of the version counter
        optimizer.step()
    one, wide = w.report.steps[0].parameters[0], gradient.double()
    assert one.grad_norm == pytest.approx(wide.norm().item(), rel=1e-5)
    assert one.max_abs == 9
    assert one.mean == pytest.approx(wide.mean().item(), rel=1e-3)
    assert one.zero_share == pytest.approx((gradient >= 0).float().mean().item(), abs=1e-3)
    clamped = wide.clamp(-1, 0)
    assert one.written_norm == pytest.approx(clamped.norm().item(), rel=1e-5)
    assert one.update_norm == pytest.approx(0.1 * clamped.norm().item(), rel=1e-3)


@pytest.mark.parametrize("n_threads", [1, 4])
def test_an_odd_layout_and_many_threads_give_the_same_figures(n_threads):
    torch.set_num_threads(n_threads)
    conv = nn.Conv2d(64, 130, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)
    with gradwatch() as w:
        for _ in range(2):
            conv.weight.grad = None
            conv(torch.ones(1, 64, 4, 4)).square().sum().backward()
            gradient = conv.weight.grad.double()
            optimizer.step()
    one = w.report.steps[1]["conv.weight"]
    assert one.grad_norm == pytest.approx(gradient.norm().item(), rel=1e-5)
    assert one.max_abs == pytest.approx(gradient.abs().max().item(), rel=1e-6)
    assert one.update_norm == pytest.approx(0.1 * gradient.norm().item(), rel=0.05)
    assert -1 <= one.cosine <= 1


def test_nan_and_inf_are_counted_before_clipping_spreads_them():
    a, b = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([a, b], lr=0.1)
    with gradwatch() as w:
        (a * torch.tensor([1, math.nan, math.inf, 2]) + b).sum().backward()
        nn.utils.clip_grad_norm_([a, b], 1.0)
        assert b.grad.isnan().all()
        optimizer.step()
    step = w.report.steps[0]
    assert (step["a"].n_nan, step["a"].n_inf) == (1, 1)
    assert (step["b"].n_nan, step["b"].n_inf) == (0, 0)
    assert step["b"].grad_norm == 2
    assert isinstance(step.clip_factor, nbinspect.Unavailable)


def test_exponents_are_those_of_the_values():
    weight = torch.zeros(6, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    grad = torch.tensor([0.0, 1.0, -1.5, 2.0**-20, -3.0 * 2**-20, 5.0])
    with gradwatch(hist=2) as w:
        for _ in range(3):
            optimizer.zero_grad()
            (weight * grad).sum().backward()
            optimizer.step()
    assert [bool(step.exponents) for step in w.report.packed] == [True, False, True]
    (found,) = w.report.packed[0].exponents
    counts = {found.first + at: n for at, n in enumerate(found.counts) if n}
    assert counts == {0: 2, -20: 1, -19: 1, 2: 1}
    assert found.n_tiny == 1
    text = w.report.text()
    assert "Gradients in step 2 as the optimizer got them, by power of two" in text
    assert "float16" in text
    assert "bfloat16" in text
    assert "0 % of the values that are not 0 would be 0 in float16" in " ".join(text.split())


def test_the_table_of_this_moment():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    model[1].requires_grad_(False)
    model[2].bias = model[2].bias.requires_grad_(True)
    model(torch.ones(2, 4)).sum().backward()
    model[2].bias.grad = None
    model[0].weight.grad[0, 0] = math.nan
    table = nbinspect.gradtable(model)
    row = table["model.2.weight"]
    grad = model[2].weight.grad
    assert row.grad_norm == pytest.approx(grad.norm().item())
    assert row.max_abs == pytest.approx(grad.abs().max().item())
    assert row.std == pytest.approx(grad.std().item(), rel=1e-4)
    assert (table["model.0.weight"].n_nan, table["model.0.weight"].n_inf) == (1, 0)
    assert table["model.1.weight"].why_not == "frozen"
    assert table["model.2.bias"].why_not == "no backward has reached it"
    assert [f.kind for f in table.findings] == ["NAN", "UNUSED"]
    assert "4 of" not in table.text()
    assert "3 of 6 parameters have a gradient" in table.text()
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module, not int"):
        nbinspect.gradtable(3)


def test_clipping_a_part_of_the_model_by_its_norm_is_told_as_that():
    body, head = nn.Linear(6, 5), nn.Linear(5, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
    with gradwatch() as w:
        head(body(torch.ones(4, 6))).pow(2).sum().backward()
        nn.utils.clip_grad_norm_(body.parameters(), 1e-3)
        optimizer.step()
    assert w.report.steps[0].figures.clipped == "norm"


def set_to_none(weight):
    weight.grad = None


def zero_in_place(weight):
    if weight.grad is not None:
        weight.grad.zero_()


def zero_past_the_version_counter(weight):
    if weight.grad is not None:
        weight.grad.data.zero_()


def put_fresh_zeros(weight):
    weight.grad = torch.zeros_like(weight)


FLAT = torch.zeros(24)  # as of a flat buffer, of which gradients are views


def put_the_same_room(weight):
    weight.grad = FLAT.zero_().view_as(weight)


@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e22])
@pytest.mark.parametrize(
    "let_go",
    [
        set_to_none,
        zero_in_place,
        zero_past_the_version_counter,
        put_fresh_zeros,
        put_the_same_room,
    ],
)
@pytest.mark.keeps_tensors(reason="the flat room")
def test_cosines_however_gradients_are_let_go(let_go, scale):
    weight = torch.ones(4, 6, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    gradients = [torch.randn(4, 6) for _ in range(5)]
    with gradwatch() as w:
        for gradient in gradients:
            let_go(weight)
            (weight * (gradient * scale)).sum().backward()
            optimizer.step()
    found = [step.parameters[0].cosine for step in w.report.steps]
    flat = [one.flatten().double() for one in gradients]
    right = [torch.cosine_similarity(a, b, dim=0).item() for a, b in pairwise(flat)]
    assert found[0] is None
    assert found[1:] == pytest.approx(right, abs=2e-3)


def test_a_change_in_how_gradients_are_let_go_costs_one_cosine_at_most():
    weight = torch.ones(4, 6, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    gradients = [torch.randn(4, 6) for _ in range(12)]
    with gradwatch() as w:
        for step, gradient in enumerate(gradients):
            optimizer.zero_grad(set_to_none=step % 6 < 3)
            (weight * gradient).sum().backward()
            optimizer.step()
    found = [step.parameters[0].cosine for step in w.report.steps]
    for step in range(1, 12):
        now, then = (gradients[n].flatten().double() for n in (step, step - 1))
        right = torch.cosine_similarity(now, then, dim=0).item()
        assert found[step] is None or found[step] == pytest.approx(right, abs=2e-3)
    assert found.count(None) <= 2, "the first step's, and one"


class OldStyle(torch.optim.Optimizer):
    """Decays weights by way of `.grad.data`, as optimizers did before `torch.no_grad`."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self):
        for one in self.param_groups[0]["params"]:
            one.grad.data.add_(one.data, alpha=0.5)
            one.data.add_(one.grad.data, alpha=-0.01)


@pytest.mark.parametrize("size", [(4, 6), (60, 70)])
@pytest.mark.parametrize("from_step", [0, 3])
def test_cosines_where_gradients_are_edited_past_the_version_counter(size, from_step):
    weight = torch.ones(*size, requires_grad=True)
    writers = torch.optim.SGD([weight], lr=0.01), OldStyle([weight])
    gradients = [torch.randn(*size) for _ in range(8)]
    with gradwatch() as w:
        for step, gradient in enumerate(gradients):
            weight.grad = None
            (weight * gradient).sum().backward()
            writers[0].step()
            if step >= from_step:
                weight.grad.data.mul_(0.5).add_(1)
    found = [step.parameters[0].cosine for step in w.report.steps]
    flat = [one.flatten().double() for one in gradients]
    right = [torch.cosine_similarity(a, b, dim=0).item() for a, b in pairwise(flat)]
    lost = [n for n, one in enumerate(found) if one is None]
    assert lost in ([0], [0, from_step + 1]), "the first step's, and one where it begins"
    told = [(one, that) for one, that in zip(found[1:], right, strict=True) if one is not None]
    assert [one for one, _ in told] == pytest.approx([that for _, that in told], abs=2e-3)


def test_cosines_where_the_optimizer_edits_gradients_in_place():
    weight = torch.ones(60, 70, requires_grad=True)
    optimizer = OldStyle([weight])
    gradients = [torch.randn(60, 70) for _ in range(6)]
    with gradwatch() as w:
        for gradient in gradients:
            optimizer.zero_grad()
            (weight * gradient).sum().backward()
            optimizer.step()
    flat = [one.flatten().double() for one in gradients]
    right = [torch.cosine_similarity(a, b, dim=0).item() for a, b in pairwise(flat)]
    found = [step.parameters[0].cosine for step in w.report.steps]
    assert found[1:] == pytest.approx(right, abs=2e-3)


@pytest.mark.parametrize("rows", [8, 250])
def test_figures_of_a_parameter_that_is_resized(rows):
    weight, other = (nn.Parameter(torch.randn(100, 8)) for _ in range(2))
    optimizers = [torch.optim.SGD([one], lr=0.1) for one in (other, weight)]
    with gradwatch() as w:
        for step in range(4):
            if step == 2:
                weight.data, weight.grad = torch.randn(rows, 8), None
            for one in optimizers:
                one.zero_grad()
            chosen = torch.arange(0, len(weight), 2)
            (weight[chosen].square().sum() + other.square().sum()).backward()
            for one in optimizers:
                one.step()
    names = [one.name for one in w.report.parameters]
    assert sorted(names) == ["other", "weight"]
    for report in (w.report, type(w.report).from_dict(w.report.to_dict())):
        found = report.steps[-1]["weight"]
        assert found.std == pytest.approx(weight.grad.std().item(), rel=1e-3)
        assert found.mean == pytest.approx(weight.grad.mean().item(), rel=1e-4, abs=1e-7)
        assert found.zero_share == pytest.approx(0.5, abs=1e-3)
        assert report.steps[-1]["other"].std == pytest.approx(other.grad.std().item(), rel=1e-3)


def test_a_part_of_a_model_is_named_in_the_table_as_the_notebook_does():
    model = mlp(10, nn.Sigmoid)
    squares(model, torch.randn(4, 16)).backward()
    table = nbinspect.gradtable(model[0])
    assert [one.name for one in table.parameters] == ["model.0.weight", "model.0.bias"]
    assert nbinspect.gradtable(model[:2]).parameters[0].name == "Sequential.0.weight"


def test_the_table_says_in_a_word_why_there_is_no_gradient():
    model = mlp()
    model[0].requires_grad_(False)
    text = nbinspect.gradtable(model).text()
    assert "None of 6 parameters has a gradient." in text
    assert text.count(" frozen ") == 2
    assert text.count(" no gradient ") == 4
    assert "not known" not in text
    assert nbinspect.gradtable(nn.Identity()).text().startswith("There is no module")


def test_nan_and_inf_are_of_no_power_of_two():
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    gradients = torch.tensor([[1.0, 2.0, math.inf, 0.0], [math.nan] * 4])
    with gradwatch(hist=1) as w:
        for gradient in gradients:
            optimizer.zero_grad()
            (weight * gradient).sum().backward()
            optimizer.step()
    first, second = (step.exponents[0] for step in w.report.packed)
    assert (first.first, first.counts, first.n_tiny) == (0, (1, 1), 1)
    assert (second.counts, second.n_tiny) == ((), 0)
    text = w.report.text()
    assert "Gradients in step 0 as the optimizer got them" in text
    assert "2^128" not in text
