"""Any loop: what is one step, which loss is its, and what was written."""

from __future__ import annotations

import math

import pytest
import torch
from loops import Transformer, mlp, squares, train
from torch import nn
from torch.nn.functional import softplus

import nbinspect
from nbinspect import gradwatch


def test_accumulated_gradients_are_one_step():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch() as w:
        total = 0.0
        for _ in range(4):
            loss = squares(model, torch.randn(8, 16)) / 4
            loss.backward()
            total += loss.item()
        norm = math.sqrt(sum(p.grad.double().norm().item() ** 2 for p in model.parameters()))
        optimizer.step()
    (step,) = w.report.steps
    assert step.figures.n_backward == 4
    assert step.loss == pytest.approx(total, rel=1e-6)
    assert step.grad_norm == pytest.approx(norm, rel=1e-5)
    assert step.clip_factor == 1


def test_a_dropped_backward_is_no_accumulation():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch() as w:
        for number in range(4):
            optimizer.zero_grad()
            loss = squares(model, torch.randn(8, 16))
            loss.backward()
            if number % 2:
                optimizer.step()
    assert [step.figures.n_backward for step in w.report.steps] == [1, 1]
    assert w.report.steps[1].loss == pytest.approx(loss.item())
    assert w.report.notes == ("2 backward passes were followed by no step.",)


def test_optimizers_that_share_a_backward_share_a_step():
    model = mlp()
    first = torch.optim.SGD(model[:2].parameters(), lr=0.1)
    second = torch.optim.Adam(model[2:].parameters(), lr=0.01)
    with gradwatch() as w:
        for _ in range(3):
            model.zero_grad()
            squares(model, torch.randn(8, 16)).backward()
            norm = math.sqrt(sum(p.grad.double().norm().item() ** 2 for p in model.parameters()))
            first.step()
            second.step()
    assert len(w.report.steps) == 3
    step = w.report.steps[-1]
    assert step.figures.optimizers == ("first", "second")
    assert step.learning_rates == (0.1, 0.01)
    assert step.grad_norm == pytest.approx(norm, rel=1e-5)
    assert len(step.parameters) == 6


def test_optimizers_that_take_turns_have_steps_of_their_own():
    generator, critic = mlp(), mlp(inputs=1)
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    with gradwatch() as w:
        for _ in range(3):
            of_critic.zero_grad()
            softplus(critic(generator(torch.randn(8, 16)).detach())).mean().backward()
            of_critic.step()
            of_generator.zero_grad()
            softplus(-critic(generator(torch.randn(8, 16)))).mean().backward()
            of_generator.step()
    optimizers = [step.figures.optimizers for step in w.report.steps]
    assert optimizers == [("of_critic",), ("of_generator",)] * 3
    names = {p.name.split(".")[0] for p in w.report.steps[0].parameters}
    assert names == {"critic"}
    assert w.report.findings == ()
    assert w.report.without_optimizer == ()


def test_a_closure_gives_the_gradients_where_the_step_starts():
    model = nn.Linear(16, 1)
    inputs = torch.randn(32, 16)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)

    def closure():
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss

    norms, losses = [], []
    with gradwatch() as w:
        for _ in range(3):
            start = [p.detach().clone() for p in model.parameters()]
            losses.append(optimizer.step(closure).item())
            now = [p.detach().clone() for p in model.parameters()]
            with torch.no_grad():
                for p, old in zip(model.parameters(), start, strict=True):
                    p.copy_(old)
            grads = torch.autograd.grad(
                (model(inputs) - inputs.sum(1, keepdim=True)).square().mean(), model.parameters()
            )
            norms.append(math.sqrt(sum(g.double().norm().item() ** 2 for g in grads)))
            with torch.no_grad():
                for p, new in zip(model.parameters(), now, strict=True):
                    p.copy_(new)
    report = w.report
    assert [step.loss for step in report.steps] == pytest.approx(losses)
    assert [step.grad_norm for step in report.steps] == pytest.approx(norms, rel=1e-4)
    assert report.steps[0].figures.n_evaluations > 1
    assert report.steps[0]["model.weight"].update_norm > 0


def test_a_closure_of_plain_sgd_as_keyword():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = squares(model, torch.randn(8, 16))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        return loss

    with gradwatch() as w:
        losses = [optimizer.step(closure=closure).item() for _ in range(3)]
    assert [step.loss for step in w.report.steps] == pytest.approx(losses)
    assert all(step.figures.clipped == "norm" for step in w.report.steps)
    assert [step.figures.n_evaluations for step in w.report.steps] == [1, 1, 1]


def scaled_training(scaler, optimizer, model, n_steps, *, unscale, bad=()):
    told = []
    for number in range(n_steps):
        optimizer.zero_grad()
        loss = squares(model, torch.randn(8, 16))
        scale = scaler.get_scale()
        loss = loss * math.inf if number in bad else loss
        scaler.scale(loss).backward()
        grads = [p.grad.double() / scale for p in model.parameters()]
        told.append((loss.item(), scale, math.sqrt(sum(g.norm().item() ** 2 for g in grads))))
        if unscale:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
        scaler.step(optimizer)
        scaler.update()
    return told


@pytest.mark.parametrize("unscale", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_a_scalers_gradients_are_told_unscaled(unscale, fused):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    with gradwatch() as w:
        told = scaled_training(scaler, optimizer, model, 5, unscale=unscale)
    assert w.report.notes == ()
    for step, (loss, scale, norm) in zip(w.report.steps, told, strict=True):
        assert step.scale == scale
        assert step.loss == pytest.approx(loss, rel=1e-5)
        assert step.grad_norm == pytest.approx(norm, rel=1e-4)
        assert step.clip_factor == pytest.approx(min(1, 1e-2 / norm) if unscale else 1, rel=1e-3)
    assert [step.scale for step in w.report.steps] == [1024, 1024, 2048, 2048, 4096]
    assert w.report.findings == ()


@pytest.mark.parametrize("fused", [True, False])
def test_steps_that_the_scaler_skips_are_steps(fused):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with gradwatch() as w:
        scaled_training(scaler, optimizer, model, 5, unscale=False, bad={1, 2})
    skipped = [step.skipped for step in w.report.steps]
    assert skipped == [False, True, True, False, False]
    assert [step.scale for step in w.report.steps] == [1024, 1024, 512, 256, 256]
    assert w.report.findings == (), "the scaler is there to do that"
    assert "2 steps skipped" in " ".join(w.report.text().split())


def test_a_disabled_scaler_is_none():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch() as w:
        scaled_training(
            torch.amp.GradScaler("cpu", enabled=False), optimizer, model, 2, unscale=False
        )
    assert [step.scale for step in w.report.steps] == [None, None]


def test_autocast():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch() as w:
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                squares(model, torch.randn(8, 16)).backward()
            optimizer.step()
    assert w.report.notes == ()
    assert w.report.steps[1].grad_norm > 0


def test_tied_weights_are_one_parameter_with_two_names():
    model = Transformer()
    with gradwatch() as w:
        train(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            2,
            batch=lambda: torch.randint(0, 50, (2, 5)),
        )
    first = w.report.parameters[0]
    assert (first.name, first.also) == ("model.words.weight", ("model.head.weight",))
    assert w.report.steps[0]["model.words.weight"].grad_norm > 0
    assert len(w.report.parameters) == len(list(model.parameters()))


def test_sparse_gradients():
    table = nn.Embedding(20, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    tokens = torch.tensor([1, 1, 5])
    with gradwatch() as w:
        for _ in range(2):
            optimizer.zero_grad()
            table(tokens).square().sum().backward()
            dense = table.weight.grad.to_dense().double()
            optimizer.step()
    one = w.report.steps[-1].parameters[0]
    assert w.report.notes == ()
    assert one.grad_norm == pytest.approx(dense.norm().item(), rel=1e-5)
    assert one.mean == pytest.approx(dense.mean().item(), rel=1e-3)
    assert one.zero_share == pytest.approx(0.9, abs=1e-3)
    assert one.update_ratio > 0
    assert one.cosine is None


@pytest.mark.parametrize("set_to_none", [True, False])
def test_parameters_that_backward_does_not_reach(set_to_none):
    model = nn.ModuleDict({"used": nn.Linear(4, 1), "spare": nn.Linear(4, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with gradwatch() as w:
        for _ in range(2):
            optimizer.zero_grad(set_to_none=set_to_none)
            model["used"](torch.ones(1, 4)).sum().backward()
            optimizer.step()
    state = w.report.steps[-1]["model.spare.weight"].state
    assert state == ("NONE" if set_to_none else "STALE")
    assert [f.kind for f in w.report.findings] == ["UNUSED"]
    assert w.report.findings[0].parameter == "model.spare.weight"


def test_frozen_parameters_are_listed_and_no_problem():
    model = mlp()
    model[0].requires_grad_(False)
    with gradwatch() as w:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    assert w.report.frozen == ("model.0.weight", "model.0.bias")
    assert w.report.findings == ()
    text = w.report.text()
    assert "2 parameters are frozen (their requires_grad is False)" in text
    assert "not trained: `model.0.*`." in " ".join(text.split()), "named at once, not folded away"


def test_one_frozen_by_accident_is_named_and_many_are_listed_below():
    model = mlp()
    model[2].weight.requires_grad_(False)
    with gradwatch() as w:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    assert "1 parameter is frozen" in w.report.text()
    assert "trained: `model.2.weight`." in " ".join(w.report.text().split())
    assert "All 1" not in w.report.text()
    deep = nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)), nn.Linear(16, 1))
    for layer in deep[:8]:
        layer.weight.requires_grad_(False)
    with gradwatch() as w:
        train(deep, torch.optim.SGD(deep.parameters(), lr=0.1), 2)
    text = " ".join(w.report.text().split())
    assert "`deep.3.weight` and 4 more." in text
    assert "All 8 frozen parameters" in text
    assert "deep.7.weight" in w.report.html().replace("<wbr>", "")


def test_a_head_that_no_optimizer_has_is_named():
    model = mlp()
    optimizer = torch.optim.SGD(model[:2].parameters(), lr=0.1)
    with gradwatch() as w:
        train(model, optimizer, 2)
    assert w.report.without_optimizer == (
        "model.2.weight",
        "model.2.bias",
        "model.4.weight",
        "model.4.bias",
    )
    text = " ".join(w.report.text().split())
    assert text.startswith("Gradients look healthy in both steps. 4 parameters have no optimizer.")
    assert "but no optimizer has them: `model.2.*`, `model.4.*`." in text


def test_a_loop_without_an_optimizer():
    model = mlp()
    with gradwatch() as w:
        for _ in range(3):
            model.zero_grad()
            loss = squares(model, torch.randn(8, 16))
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
    assert len(w.report.steps) == 3
    assert w.report.steps[-1].loss == pytest.approx(loss.item())
    assert w.report.notes == ("No optimizer was seen: each backward pass is taken for a step.",)


def test_a_backward_alone_with_an_optimizer_in_wait():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch() as w:
        squares(model, torch.randn(8, 16)).backward()
    assert len(w.report.steps) == 1
    assert w.report.notes == ("No optimizer stepped: these are the gradients that backward left.",)
    assert optimizer.state == {}


def test_what_is_made_in_the_cell_is_seen_before_its_first_clipping():
    with gradwatch() as w:
        model = mlp()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2, clip=1e-3)
    assert [step.figures.clipped for step in w.report.steps] == ["norm", "norm"]
    assert w.report.parameters[0].name == "model.0.weight"


def test_several_losses_and_a_vector():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch() as w:
        optimizer.zero_grad()
        one, two = squares(model, torch.randn(8, 16)), squares(model, torch.randn(8, 16))
        torch.autograd.backward([one, two])
        optimizer.step()
        model(torch.randn(8, 16)).backward(torch.ones(8, 1))
        optimizer.step()
    first, second = w.report.steps
    assert first.loss == pytest.approx(one.item() + two.item())
    assert isinstance(second.loss, nbinspect.Unavailable)


def test_checkpointed_forwards_count_as_one_backward():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch() as w:
        for _ in range(2):
            optimizer.zero_grad()
            inputs = torch.randn(8, 16, requires_grad=True)
            hidden = torch.utils.checkpoint.checkpoint(model[:2], inputs, use_reentrant=True)
            loss = model[2:](hidden).square().mean()
            loss.backward()
            optimizer.step()
    step = w.report.steps[-1]
    assert step.figures.n_backward == 1
    assert step.loss == pytest.approx(loss.item())
    assert all(p.state == "" for p in step.parameters)


def test_an_optimizer_around_another_is_one_step():
    class Around(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure=None):
            return self.inner.step(closure)

    model = mlp()
    optimizer = Around(torch.optim.SGD(model.parameters(), lr=0.1))
    with gradwatch() as w:
        train(model, optimizer, 3)
    assert len(w.report.steps) == 3
    assert w.report.steps[0].figures.optimizers == ("optimizer",)
    assert w.report.steps[0]["model.0.weight"].update_norm > 0


def test_parameter_groups_that_grow_and_thaw():
    model = mlp()
    model[4].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    extra = nn.Parameter(torch.ones(1))
    with gradwatch() as w:
        train(model, optimizer, 2)
        model[4].requires_grad_(True)
        optimizer.add_param_group({"params": [extra], "lr": 0.5})
        train(model, optimizer, 3, loss=lambda m, x: squares(m, x) + extra.square().sum())
    assert [len(step.parameters) for step in w.report.steps] == [4, 4, 7, 7, 7]
    assert w.report.steps[-1].learning_rates == (0.1, 0.5)
    assert w.report.notes == ()


def test_only_every_third_step_and_one_model():
    model, other = mlp(), mlp()
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    for wanted in (model, "model"):
        with gradwatch(every=3, model=wanted) as w:
            train(model, optimizer, 7, loss=lambda m, x: squares(m, x) + squares(other, x))
        assert [step.index for step in w.report.steps] == [0, 3, 6]
        assert w.report.n_steps == 7
        assert {p.name.split(".")[0] for p in w.report.parameters} == {"model"}


def test_light_makes_no_copies():
    model = mlp()
    with gradwatch(light=True) as w:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    one = w.report.steps[-1].parameters[0]
    assert one.update_ratio is one.cosine is None
    assert one.weight_norm > 0


@pytest.mark.parametrize("wrong", [{"every": 0}, {"hist": -1}, {"keep": 0}])
def test_numbers_out_of_range(wrong):
    with pytest.raises(ValueError, match="must be at least"):
        gradwatch(**wrong)


def test_passes_after_the_last_step_are_told():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch() as w:
        for number in range(7):
            squares(model, torch.randn(8, 16)).backward()
            if number % 4 == 3:
                optimizer.step()
    assert w.report.notes == ("3 backward passes were followed by no step.",)


def test_steps_without_any_gradient_are_not_called_healthy():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch() as w:
        for _ in range(3):
            optimizer.step()
    text = w.report.text()
    assert "The optimizer made 3 steps, and no parameter that was watched had a gradient." in text
    assert "healthy" not in text


def test_a_module_that_is_not_there_is_told():
    model = mlp()
    with gradwatch(model="nope") as w:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    assert w.report.notes == ("No module is called `nope`, so nothing was watched.",)


class Sharpness(torch.optim.Optimizer):
    """Sharpness-aware: a first gradient tells where the second is taken."""

    def __init__(self, params, base):
        super().__init__(params, {})
        self.base_optimizer = base(self.param_groups)

    @torch.no_grad()
    def climb(self):
        for p in self.param_groups[0]["params"]:
            self.state[p]["climbed"] = p.grad / p.grad.norm()
            p.add_(self.state[p]["climbed"])
        self.zero_grad()

    @torch.no_grad()
    def descend(self):
        for p in self.param_groups[0]["params"]:
            p.sub_(self.state[p]["climbed"])
        self.base_optimizer.step()

    def step(self, closure):
        self.climb()
        torch.enable_grad()(closure)()
        self.descend()


@pytest.mark.parametrize("kind", ["closure", "two halves"])
def test_an_update_is_what_the_whole_step_did_and_its_optimizer_has_a_name(kind):
    model = mlp()
    opt = Sharpness(model.parameters(), lambda groups: torch.optim.SGD(groups, lr=0.1))
    moved = []
    with gradwatch() as w:
        for _ in range(3):
            inputs = torch.randn(8, 16)
            opt.zero_grad()
            squares(model, inputs).backward()
            start = model[0].weight.detach().clone()
            if kind == "closure":
                opt.step(lambda inputs=inputs: squares(model, inputs).backward())
            else:
                opt.climb()
                squares(model, inputs).backward()
                opt.descend()
            moved.append((model[0].weight.detach() - start).norm().item())
    found = [step["model.0.weight"].update_norm for step in w.report.steps]
    assert {step.figures.optimizers for step in w.report.steps} == {
        ("opt",) if kind == "closure" else ("opt.base_optimizer",)
    }
    if kind == "closure":
        assert found == pytest.approx(moved, rel=1e-3)
    assert w.report.findings == ()


def test_an_optimizer_without_a_name_gets_none_from_torchs_own_calls():
    model = mlp()
    box = [[torch.optim.SGD(model.parameters(), lr=0.1)]]
    with gradwatch() as w:
        squares(model, torch.randn(8, 16)).backward()
        box[0][0].step()
    assert w.report.steps[0].figures.optimizers == ("SGD",)


def test_an_optimizer_inside_a_trainer_is_named_by_the_trainer():
    class Trainer:
        def __init__(self):
            self.model = mlp()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def fit(self):
            squares(self.model, torch.randn(8, 16)).backward()
            self.optimizer.step()

    trainer = Trainer()
    with gradwatch() as w:
        trainer.fit()
    assert w.report.parameters[0].name == "trainer.model.0.weight"
    assert w.report.steps[0].figures.optimizers == ("trainer.optimizer",)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_optimizers_that_step_within_backward(set_to_none):
    model = mlp()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    norms = []

    def write(p):
        norms.append(p.grad.norm().item())
        optimizers[p].step()
        optimizers[p].zero_grad(set_to_none=set_to_none)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(write)
    with gradwatch() as w:
        for _ in range(4):
            loss = squares(model, torch.randn(8, 16))
            loss.backward()
    report = w.report
    assert [len(step.parameters) for step in report.steps] == [6] * 4
    assert report.steps[-1].loss == pytest.approx(loss.item())
    total = math.sqrt(sum(norm * norm for norm in norms[-6:]))
    assert report.steps[-1].grad_norm == pytest.approx(total, rel=1e-5)
    assert {p.state for step in report.steps for p in step.parameters} == {""}
    assert (report.findings, report.notes) == ((), ())
    for p in model.parameters():
        p._post_accumulate_grad_hooks.clear()


def test_a_parameter_without_elements_is_neither_unused_nor_dead():
    model = mlp()
    empty = nn.Parameter(torch.zeros(0, 3))
    optimizer = torch.optim.SGD([*model.parameters(), empty], lr=0.1)
    with gradwatch() as w:
        train(model, optimizer, 12, loss=lambda m, x: squares(m, x) + empty.sum())
    assert (w.report.findings, w.report.notes) == ((), ())


def test_a_layer_replaced_in_the_middle_has_no_optimizer():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch() as w:
        train(model, optimizer, 2)
        model[4] = nn.Linear(32, 1)
        train(model, optimizer, 2)
    assert w.report.without_optimizer == ("model.4.weight", "model.4.bias")


def test_gradients_that_some_parameters_have_in_some_steps():
    layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.0)
    last: dict[str, torch.Tensor] = {}
    with gradwatch() as w:
        for step in range(6):
            optimizer.zero_grad()
            hidden = torch.randn(8, 4)
            for n, layer in enumerate(layers):
                hidden = layer(hidden) if (step + n) % 3 else hidden
            hidden.square().mean().backward()
            now = {
                n: p.grad.flatten().double()
                for n, p in layers.named_parameters()
                if p.grad is not None
            }
            right = {
                n: torch.cosine_similarity(g, last[n], dim=0).item()
                for n, g in now.items()
                if n in last
            }
            last = now
            optimizer.step()
            if step == 5:
                expected = right
    found = {p.name.removeprefix("layers."): p.cosine for p in w.report.steps[-1].parameters}
    assert {n: c for n, c in found.items() if c is not None} == pytest.approx(expected, abs=2e-3)
    assert 0 < len(expected) < 6


@pytest.mark.parametrize("zero", [lambda _: None, lambda model: model.zero_grad()])
def test_a_model_made_anew_after_its_optimizer_is_named(zero):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = mlp()
    with gradwatch() as w:
        train(model, optimizer, 3)
        zero(model)
    assert len(w.report.without_optimizer) == 6
    assert w.report.without_optimizer[0] == "model.0.weight"
    text = " ".join(w.report.text().split())
    assert text.startswith("The optimizer made 3 steps and had no gradient")
    assert "made anew after the optimizer?" in text
    assert "6 parameters get gradients, but no optimizer has them: `model.*`." in text


def test_a_whole_model_that_no_optimizer_has_is_named():
    encoder, decoder = nn.Linear(16, 8), nn.Linear(8, 1)
    spare = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(decoder.parameters(), lr=0.1)
    with gradwatch() as w:
        for _ in range(3):
            optimizer.zero_grad()
            decoder(encoder(torch.randn(8, 16))).square().mean().backward()
            optimizer.step()
    assert spare.weight.grad is None
    assert w.report.without_optimizer == ("encoder.weight", "encoder.bias")
    assert "no optimizer has them: `encoder.*`" in " ".join(w.report.text().split())


def test_passes_of_a_checkpoint_are_followed_by_a_step():
    model = mlp(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gradwatch() as w:
        for _ in range(4):
            optimizer.zero_grad()
            inputs = torch.randn(8, 16, requires_grad=True)
            hidden = torch.utils.checkpoint.checkpoint(model[:4], inputs, use_reentrant=True)
            model[4:](hidden).square().mean().backward()
            optimizer.step()
    assert w.report.notes == ()


def test_a_loop_that_writes_some_by_itself_and_some_by_an_optimizer():
    own, other = mlp(), mlp()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
    with gradwatch() as w:
        for _ in range(3):
            squares(own, torch.randn(8, 16)).backward()
            with torch.no_grad():
                for one in own.parameters():
                    one -= 0.01 * one.grad
                    one.grad = None
            train(other, optimizer, 1)
    assert w.report.n_steps == 6
    assert w.report.without_optimizer == ()
    (note,) = w.report.notes
    assert note.startswith("A backward pass that reaches no optimizer's parameters")


def test_a_model_that_is_none_is_refused():
    model = mlp()
    with pytest.raises(TypeError, match=r"a torch.nn.Module or a variable's name, not list"):
        gradwatch(model=[model])


def test_parameters_that_come_where_others_were():
    words = nn.Embedding(10, 8)
    with gradwatch() as w:
        for size in range(10, 90, 5):
            words.weight = nn.Parameter(torch.randn(size, 8))
            optimizer = torch.optim.SGD(words.parameters(), lr=0.01)
            for _ in range(2):
                optimizer.zero_grad()
                words(torch.arange(size)).square().mean().backward()
                optimizer.step()
    assert w.report.notes == ()
    assert w.report.n_steps == len(w.report.steps) == 32


def test_a_parameter_that_no_module_has_any_more():
    model = nn.Linear(4, 1)
    with gradwatch() as w:
        model.extra = nn.Parameter(torch.ones(4))
        extra = model.extra
        del model.extra
        (model(torch.ones(2, 4)).sum() + extra.sum()).backward()
    assert {one.name for one in w.report.parameters} == {"model.weight", "model.bias", "extra"}
    assert not any("own" in note for note in w.report.notes)


class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        raise RuntimeError("refused")


def test_a_backward_that_failed_is_no_part_of_the_next_step():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    with gradwatch() as w:
        for step in range(6):
            optimizer.zero_grad()
            hidden = model[:2](torch.randn(8, 16))
            loss = model[2:](Refusing.apply(hidden) if step % 3 == 1 else hidden).square().mean()
            try:
                loss.backward()
            except RuntimeError:
                continue
            optimizer.step()
            losses.append(loss.item())
    assert w.report.losses == pytest.approx(losses)
    assert w.report.notes == ("2 backward passes were followed by no step.",)
