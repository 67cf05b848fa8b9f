"""Every rule has a planted case that it finds, and healthy ones that it leaves alone."""

from __future__ import annotations

import math
import re

import pytest
import torch
from loops import MODELS, OPTIMIZERS, kinds, mlp, squares, train
from torch import nn

from nbinspect import Rules, gradwatch


def watch(model, optimizer, n_steps=20, rules=None, **more):
    with gradwatch(rules=rules) as w:
        train(model, optimizer, n_steps, **more)
    return w.report


def sgd(model, lr=0.01):
    return torch.optim.SGD(model.parameters(), lr=lr)


def only(report):
    (finding,) = report.findings
    return finding


@pytest.mark.parametrize("n_steps", [1, 2, 20])
@pytest.mark.parametrize("make", [sgd, lambda m: torch.optim.Adam(m.parameters())])
def test_vanishing(make, n_steps):
    model = mlp(10, nn.Sigmoid)
    finding = only(watch(model, make(model), n_steps))
    assert (finding.kind, finding.parameter, finding.step) == ("VANISHING", "model.0.weight", 0)
    assert finding.value > 4
    assert "kaiming" in finding.mend


def normed(depth, act):
    """Put BatchNorm before each activation, as the mend says."""
    return nn.Sequential(
        *(
            part
            for layer in mlp(depth, act)
            for part in ((nn.BatchNorm1d(32), layer) if isinstance(layer, act) else (layer,))
        )
    )


@pytest.mark.parametrize("n_steps", [3, 10])
@pytest.mark.parametrize(
    ("depth", "act", "way"),
    [
        (10, nn.Sigmoid, "ReLU"),
        (10, nn.Sigmoid, "BatchNorm"),
        (30, nn.Sigmoid, "BatchNorm"),
        (30, nn.ReLU, "line"),
        (40, nn.Tanh, "line"),
        (16, nn.GELU, "line"),
    ],
)
def test_the_mend_of_vanishing_cures_it(depth, act, way, n_steps):
    model = mlp(depth, act)
    mend = only(watch(model, sgd(model), n_steps)).mend
    assert way in mend or way == "line"
    model = mlp(depth, nn.ReLU if way == "ReLU" else act)
    if way == "BatchNorm":
        model = normed(depth, act)
    else:
        exec(mend, {"torch": torch, "model": model})
    report = watch(model, sgd(model), n_steps)
    assert report.findings == ()
    norms = {one.name: one.grad_norm for one in report.steps[-1].parameters}
    assert norms["model.0.weight"] > 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_vanishing_is_told_though_the_last_layers_soon_have_nothing_left_to_learn(seed):
    torch.manual_seed(seed)
    model, inputs, targets = mlp(10, nn.Sigmoid), torch.randn(64, 16), torch.randn(64, 1)
    report = watch(
        model, sgd(model, 0.05), 10, loss=lambda m, _: (m(inputs) - targets).square().mean()
    )
    last = [one.grad_norm for one in report.steps[-1].parameters if one.name.endswith("weight")]
    assert last[-1] < 1e-5, "its gradient is small as well by then"
    finding = only(report)
    assert (finding.kind, finding.step) == ("VANISHING", 0)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(10))
        self.residual = True

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).sigmoid() + (x if self.residual else 0)
        return x


def test_vanishing_that_begins_later_is_dated():
    model = Deep()
    optimizer = sgd(model, 1e-4)
    with gradwatch() as w:
        train(model, optimizer, 7)
        model.residual = False
        train(model, optimizer, 7)
    finding = only(w.report)
    assert (finding.kind, finding.step) == ("VANISHING", 7)
    assert finding.parameter == "model.layers.0.weight"


def test_convergence_is_no_vanishing():
    model = mlp(6, nn.Tanh)
    inputs = torch.randn(64, 16)
    targets = model(inputs).detach() + 0.1
    with gradwatch() as w:
        train(
            model,
            torch.optim.Adam(model.parameters(), lr=3e-3),
            600,
            loss=lambda m, _: (m(inputs) - targets).square().mean(),
        )
    first, last = w.report.packed[0].figures.grad_norm, w.report.packed[-1].figures.grad_norm
    assert last < first / 100
    assert w.report.findings == ()


@pytest.mark.parametrize("clip", [None, 1.0])
def test_exploding_backwards_through_depth(clip):
    model = mlp(10)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(12 if p.ndim > 1 else 1)
    finding = only(watch(model, sgd(model, 1e-30), 5, clip=clip))
    assert (finding.kind, finding.step) == ("EXPLODING", 0)
    assert "clip_grad_norm_(model.parameters()" in finding.mend


def test_exploding_over_time():
    model = mlp(3)
    report = watch(model, sgd(model, 300.0), 20)
    assert kinds(report)[0] == "EXPLODING"
    assert report.findings[0].step <= 2
    assert "NAN" in kinds(report)


def test_a_sum_for_a_loss_explodes_nothing():
    model = mlp(3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    report = watch(model, optimizer, 30, loss=lambda m, x: 1e5 * squares(m, x) + 1e4 * m(x).sum())
    assert report.packed[0].figures.grad_norm > 1e3
    assert report.findings == ()


@pytest.mark.parametrize("n_steps", [3, 30])
def test_dead(n_steps):
    model = mlp(4)
    with torch.no_grad():
        model[2].bias.fill_(-100)
    finding = only(watch(model, sgd(model), n_steps))
    assert (finding.kind, finding.parameter, finding.step) == ("DEAD", "model.2.weight", 0)
    assert finding.n_steps == n_steps
    assert "model.0.weight" in finding.others
    assert "model.4.bias" not in finding.others


def test_dying_is_dated():
    model = mlp(4)
    optimizer = sgd(model)
    with gradwatch() as w:
        train(model, optimizer, 5)
        with torch.no_grad():
            model[2].bias.fill_(-100)
        train(model, optimizer, 12)
    finding = only(w.report)
    assert (finding.kind, finding.parameter, finding.step) == ("DEAD", "model.2.weight", 5)


class LoRA(nn.Module):
    """Its A has no gradient at first, since its B starts at zero."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(4, 16))
        self.b = nn.Parameter(torch.zeros(16, 4))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def zero_head():
    model = mlp(3)
    nn.init.zeros_(model[4].weight)
    return model


class Experts(nn.Module):
    """Some steps use one, some the other."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(16, 1) for _ in range(4))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.experts[self.calls % 4](x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(16, 16, 2, batch_first=True), nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.rnn(x[:, None].expand(-1, 12, -1))[0][:, -1])


HEALTHY = {
    "lora": LoRA,
    "zero head": zero_head,
    "experts": Experts,
    "recurrent": Recurrent,
    "mlp of 8": lambda: mlp(8),
    "tanh of 8": lambda: mlp(8, nn.Tanh),
    "dropout": lambda: nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.9), nn.Linear(64, 1)
    ),
    "norms": lambda: nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8), nn.LayerNorm(8)
    ),
}


@pytest.mark.parametrize("n_steps", [1, 3, 40])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models_raise_no_alarm(name, n_steps):
    model = HEALTHY[name]()
    report = watch(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        max(n_steps, 4) if name == "experts" else n_steps,
        loss=lambda m, x: (m(x) - x.sum(1, keepdim=True)).square().mean(),
    )
    assert report.findings == (), report


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_usual_training_raises_no_alarm(name, optimizer):
    model, batch = MODELS[name]()
    report = watch(model, OPTIMIZERS[optimizer](model.parameters()), 40, batch=batch)
    assert report.findings == (), report


def test_unused_needs_the_whole_run():
    model = Experts()
    report = watch(model, sgd(model), 3)
    assert kinds(report) == ["UNUSED"], "one of four experts was not called in three steps"
    assert "`model.experts.0.weight` is never reached in 3 steps." in report.text()
    assert report.findings[0].parameter == "model.experts.0.weight"


@pytest.mark.parametrize("is_reached", [True, False])
def test_a_backward_pass_at_the_end_reaches_too(is_reached):
    model = Experts()
    optimizer = sgd(model)
    with gradwatch() as w:
        train(model, optimizer, 3)
        if is_reached:
            model.experts[0](torch.ones(2, 16)).sum().backward()
    assert kinds(w.report) == ([] if is_reached else ["UNUSED"])


def test_a_loss_of_zero_is_no_death():
    model = mlp(2)
    report = watch(model, sgd(model), 12, loss=lambda m, x: (m(x) - 1e6).relu().mean())
    assert report.losses == (0.0,) * 12
    assert report.findings == ()


def test_a_dead_loss_that_is_not_zero_is():
    model = mlp(2)
    report = watch(model, sgd(model), 12, loss=lambda m, x: (m(x) * 0 + 1).mean())
    assert kinds(report) == ["DEAD"]


def spiky(model, optimizer, factor, n_steps=40, at=30):
    with gradwatch() as w:
        for number in range(n_steps):
            inputs = torch.randn(64, 16)
            targets = torch.randn(64, 1) * (factor if number == at else 1)
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
    return w.report


def test_spiking():
    model = mlp(3, nn.Tanh)
    finding = only(spiky(model, torch.optim.Adam(model.parameters()), 1000))
    assert (finding.kind, finding.step, finding.n_steps) == ("SPIKING", 30, 1)
    assert finding.value > 10
    assert finding.parameter.startswith("model.")


def test_a_noisy_batch_is_no_spike():
    model = mlp(3, nn.Tanh)
    assert spiky(model, torch.optim.Adam(model.parameters()), 2).findings == ()


def test_noise_of_heavy_tails_is_no_spike():
    torch.manual_seed(3)
    model = mlp(2)
    with gradwatch() as w:
        train(
            model,
            sgd(model, 1e-5),
            200,
            loss=lambda m, x: squares(m, x) * torch.randn(()).mul(1.2).exp(),
        )
    assert w.report.findings == ()


def test_nan_names_the_parameter_that_backward_came_to_first():
    model = mlp(3)
    optimizer = sgd(model)
    with gradwatch() as w:
        for number in range(6):
            optimizer.zero_grad()
            model(torch.full((4, 16), math.nan if number == 4 else 1.0)).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    finding = w.report.findings[0]
    assert (finding.kind, finding.step) == ("NAN", 4)
    assert "%%nanwatch" in finding.mend


def test_inf_alone_is_found_where_it_is():
    a, b = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([a, b], lr=0.1)
    with gradwatch() as w:
        (a + b * math.inf).sum().backward()
        optimizer.step()
    finding = only(w.report)
    assert (finding.kind, finding.parameter, finding.others) == ("NAN", "b", ())


def test_a_scaler_that_never_stops_skipping():
    model = mlp(3)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu")
    with gradwatch() as w:
        for _ in range(12):
            optimizer.zero_grad()
            scaler.scale(squares(model, torch.full((4, 16), math.nan))).backward()
            scaler.step(optimizer)
            scaler.update()
    finding = only(w.report)
    assert (finding.kind, finding.step, finding.n_steps) == ("SKIPPING", 0, 12)


def test_thresholds_can_be_set():
    model = mlp(10, nn.Sigmoid)
    assert watch(model, sgd(model), rules=Rules(decades=12)).findings == ()
    model = mlp(10, nn.Sigmoid)
    assert watch(model, sgd(model), rules=Rules(low=1e-12)).findings == ()
    with pytest.raises(ValueError, match="must rise"):
        gradwatch(rules=Rules(low=2, high=1))


def unzeroed(model, optimizer, zero):
    """Train for some steps, setting gradients to zero in some way, or not at all."""
    for _ in range(6):
        squares(model, torch.randn(8, 16)).backward()
        optimizer.step()
        zero(model, optimizer)


def old_idiom(model, _optimizer):
    for parameter in model.parameters():
        parameter.grad.data.zero_()


def by_hand(model, _optimizer):
    for parameter in model.parameters():
        parameter.grad = None


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        (lambda *_: None, ["PILING_UP"]),
        (lambda _, optimizer: optimizer.zero_grad(), []),
        (lambda _, optimizer: optimizer.zero_grad(set_to_none=False), []),
        (lambda model, _: model.zero_grad(), []),
        (old_idiom, []),
        (by_hand, []),
    ],
)
@pytest.mark.parametrize("make", [mlp, lambda: nn.Linear(16, 1, bias=False)])
def test_gradients_that_pile_up(make, zero, expected):
    model = make()
    with gradwatch() as w:
        unzeroed(model, torch.optim.SGD(model.parameters(), lr=1e-3), zero)
    assert kinds(w.report) == expected
    if expected:
        (found,) = w.report.findings
        assert (found.step, found.n_steps) == (1, 5)
        assert found.mend.startswith("optimizer.zero_grad()")
        assert "pile up" in w.report.text()


@pytest.mark.parametrize("make", [mlp, lambda: nn.Linear(16, 1, bias=False)])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
@pytest.mark.parametrize("set_to_none", [True, False, None])
def test_gradients_that_a_closure_sets_to_zero_or_not(make, kind, set_to_none):
    model = make()
    optimizer = kind(model.parameters(), lr=1e-4)
    inputs = torch.randn(8, 16)

    def closure():
        if set_to_none is not None:
            optimizer.zero_grad(set_to_none=set_to_none)
        loss = squares(model, inputs)
        loss.backward()
        return loss

    with gradwatch() as w:
        for _ in range(8):
            optimizer.step(closure)
    assert kinds(w.report) == (["PILING_UP"] if set_to_none is None else [])


def test_two_optimizers_that_take_turns_pile_nothing_up():
    generator, critic = mlp(inputs=4), mlp(inputs=1)
    first = torch.optim.SGD(generator.parameters(), lr=1e-3)
    second = torch.optim.SGD(critic.parameters(), lr=1e-3)
    with gradwatch() as w:
        for _ in range(6):
            made = generator(torch.randn(8, 4))
            second.zero_grad()
            squares(critic, made.detach()).backward()
            second.step()
            first.zero_grad()
            squares(critic, made).backward()
            first.step()
    assert w.report.findings == ()


def test_accumulation_over_passes_piles_nothing_up():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with gradwatch() as w:
        for step in range(16):
            squares(model, torch.randn(8, 16)).backward()
            if step % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    assert w.report.findings == ()


def test_a_layer_replaced_after_the_optimizer_was_made():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model[0] = nn.Linear(16, 32)
    with gradwatch() as w:
        train(model, optimizer, 4)
    (found,) = w.report.findings
    assert found.kind == "UNUSED"
    assert "was a layer replaced after the optimizer was made?" in found.why
    assert w.report.without_optimizer == ("model.0.weight", "model.0.bias")


def test_every_mend_is_python():
    model = mlp(depth=12, act=nn.Sigmoid)
    with gradwatch() as w:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 4)
    (found,) = w.report.findings
    assert found.mend.startswith("[torch.nn.init.kaiming_normal_(p) for p in model.parameters()")
    compile(found.mend, "mend", "exec")


def adversaries(n_steps, *, cut, set_to_none=True):
    """Train a generator against a discriminator; `cut` detaches what both losses look at."""
    generator, discriminator = nn.Linear(4, 2), nn.Linear(2, 1)
    both = [torch.optim.Adam(one.parameters(), lr=1e-3) for one in (generator, discriminator)]
    writes_generator, writes_discriminator = both
    for _ in range(n_steps):
        fake = generator(torch.randn(8, 4))
        fake = fake.detach() if cut else fake
        for seen, target, optimizer in (
            (fake.detach(), 0.0, writes_discriminator),
            (fake, 1.0, writes_generator),
        ):
            optimizer.zero_grad(set_to_none=set_to_none)
            (discriminator(seen) - target).square().mean().backward()
            optimizer.step()


@pytest.mark.parametrize("n_steps", [3, 30])
def test_all_of_one_optimizers_parameters_cut_off(n_steps):
    with gradwatch() as w:
        adversaries(n_steps, cut=True)
    finding = only(w.report)
    assert (finding.kind, finding.step) == ("UNUSED", 1)
    assert (finding.parameter, *finding.others) == ("generator.weight", "generator.bias")


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("n_steps", [1, 2])
@pytest.mark.parametrize(
    "order",
    [
        ["backward", "body", "head"],
        ["backward", "head", "body"],
        ["body", "backward", "head"],
        ["head", "backward", "body"],
        ["body", "body", "backward", "head"],
    ],
)
def test_optimizers_that_share_a_backward_in_any_order_use_all(order, n_steps, set_to_none):
    model = mlp()
    writes = {
        "body": torch.optim.SGD(model[:2].parameters(), lr=0.01),
        "head": torch.optim.SGD(model[2:].parameters(), lr=0.01),
    }
    with gradwatch() as w:
        for _ in range(n_steps):
            for turn in order:
                if turn == "backward":
                    model.zero_grad(set_to_none=set_to_none)
                    squares(model, torch.randn(8, 16)).backward()
                else:
                    writes[turn].step()
    assert w.report.findings == ()


def test_an_optimizer_that_steps_first_and_is_never_reached_is_still_told():
    used, spare = nn.Linear(4, 1), nn.Linear(4, 1)
    first, second = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (spare, used))
    with gradwatch() as w:
        for _ in range(3):
            first.step()
            second.zero_grad()
            used(torch.ones(2, 4)).sum().backward()
            second.step()
    finding = only(w.report)
    assert (finding.kind, finding.parameter, finding.step) == ("UNUSED", "spare.weight", 1)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_two_optimizers_that_both_learn(set_to_none):
    with gradwatch() as w:
        adversaries(30, cut=False, set_to_none=set_to_none)
    assert w.report.findings == ()


def test_a_loss_that_turns_nan_before_any_gradient_does_is_named_itself():
    model, x = mlp(2), torch.randn(4, 16)
    optimizer = sgd(model)
    with gradwatch() as w:
        for scale in (1.0, math.nan):
            optimizer.zero_grad()
            (squares(model, x) + scale).backward()
            optimizer.step()
    text = w.report.text()
    assert text.startswith("The loss turns NaN or infinite, first in step 1 of 2 steps.")
    told = " ".join(text.split())
    assert "infinite, step 1: the gradients of that step are still finite." in told


@pytest.mark.parametrize("depth", [7, 12])
def test_how_much_a_gradient_vanishes_can_be_read(depth):
    model = mlp(depth, nn.Sigmoid)
    why = only(watch(model, sgd(model), 3)).why
    times = r"[1-9](\u202f?0)+|10\^\d+"
    assert re.search(f"is ({times}) times smaller than those of the last layers", why)


def test_the_line_that_stops_gradients_from_piling_up_has_the_optimizers_own_name():
    model = mlp(2)
    my_own = sgd(model)
    with gradwatch() as w:
        for _ in range(4):
            squares(model, torch.randn(4, 16)).backward()
            my_own.step()
    finding = only(w.report)
    assert finding.mend == "my_own.zero_grad()  # before loss.backward()"
    assert model[0].weight.grad.any()
    exec(finding.mend, {"my_own": my_own})
    assert model[0].weight.grad is None


def test_an_optimizer_without_a_name_is_called_what_it_is():
    model = mlp(2)
    box = [[sgd(model)]]
    with gradwatch() as w:
        for _ in range(4):
            squares(model, torch.randn(4, 16)).backward()
            box[0][0].step()
    assert only(w.report).mend == "optimizer.zero_grad()  # before loss.backward()"


@pytest.mark.parametrize("is_other_zeroed", [True, False])
def test_gradients_of_one_of_two_optimizers_that_take_turns_pile_up(is_other_zeroed):
    zeroed, forgotten = mlp(), mlp()
    first, second = sgd(zeroed, 1e-3), sgd(forgotten, 1e-3)
    with gradwatch() as w:
        for _ in range(6):
            if is_other_zeroed:
                first.zero_grad()
            squares(zeroed, torch.randn(8, 16)).backward()
            first.step()
            squares(forgotten, torch.randn(8, 16)).backward()
            second.step()
    finding = only(w.report)
    assert (finding.kind, finding.step) == ("PILING_UP", 3 if is_other_zeroed else 2)
    assert finding.mend.startswith("second." if is_other_zeroed else "")


@pytest.mark.parametrize("n_steps", [3, 12])
def test_gradients_that_are_zeroed_before_the_optimizer_reads_them(n_steps):
    model = mlp()
    optimizer = sgd(model)
    with gradwatch() as w:
        for _ in range(n_steps):
            squares(model, torch.randn(8, 16)).backward()
            optimizer.zero_grad(set_to_none=False)
            optimizer.step()
    finding = only(w.report)
    assert (finding.kind, finding.parameter, finding.step) == ("DEAD", "model.0.weight", 0)
    assert len(finding.others) == 5
    assert finding.value == pytest.approx(w.report.steps[0].grad_norm)
    assert "0 by the time the optimizer reads it" in finding.why
    assert finding.mend == "optimizer.zero_grad()  # before loss.backward(), not after it"


def test_gradients_that_are_dropped_before_the_optimizer_reads_them():
    model = mlp()
    optimizer = sgd(model)
    with gradwatch() as w:
        for _ in range(3):
            squares(model, torch.randn(8, 16)).backward()
            optimizer.zero_grad()
            optimizer.step()
    text = " ".join(w.report.text().split())
    assert "no parameter that was watched had a gradient" in text
    assert "Is zero_grad() called between backward() and step()?" in text


def test_a_layer_whose_gradient_is_always_zeroed_is_not_the_whole_model():
    model = mlp()
    with gradwatch() as w:
        optimizer = sgd(model)
        for _ in range(4):
            optimizer.zero_grad()
            squares(model, torch.randn(8, 16)).backward()
            model[0].weight.grad.zero_()
            optimizer.step()
    assert w.report.findings == ()


def test_a_bias_that_drops_out_of_the_loss_is_not_dead():
    critic = mlp()
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
    with gradwatch() as w:
        for _ in range(12):
            optimizer.zero_grad()
            (critic(torch.randn(64, 16)).mean() - critic(torch.randn(64, 16)).mean()).backward()
            optimizer.step()
    bias = w.report.steps[-1]["critic.4.bias"]
    assert (bias.grad_norm, bias.zero_share) == (0.0, 1.0)
    assert w.report.findings == ()


@pytest.mark.parametrize(
    ("parts", "whole"), [([math.inf], math.inf), ([math.inf, -math.inf], math.nan)]
)
def test_a_loss_that_is_infinite_is_told_as_that(parts, whole):
    model = mlp(2)
    optimizer = sgd(model)
    with gradwatch() as w:
        for part in parts:
            (squares(model, torch.randn(4, 16)) + part).backward()
        optimizer.step()
    assert w.report.losses == pytest.approx([whole], nan_ok=True)
    assert kinds(w.report) == ["NAN"]


def steep(factor):
    model = mlp(10)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(factor if p.ndim > 1 else 1)
    return model


@pytest.mark.parametrize("every", [1, 3])
def test_exploding_is_seen_in_every_third_step_too(every):
    model = steep(12)
    with gradwatch(every=every) as w:
        train(model, sgd(model, 1e-30), 12)
    finding = only(w.report)
    assert (finding.kind, finding.step, finding.n_steps) == ("EXPLODING", 0, 12 // every)


def test_a_single_step_that_overwrites_all_weights_is_an_explosion():
    model = mlp()
    with gradwatch() as w:
        train(model, sgd(model, 1e-3), 5)
        train(model, sgd(model, 1e-3), 1, loss=lambda m, x: 1e9 * squares(m, x))
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        train(model, sgd(model, 1e-3), 5)
    finding = only(w.report)
    assert (finding.kind, finding.step, finding.n_steps) == ("EXPLODING", 5, 1)


@pytest.mark.parametrize(("make", "kind"), [(steep, "EXPLODING"), (mlp, "VANISHING")])
def test_a_report_that_is_read_twice_says_the_same(make, kind):
    model = make(12) if make is steep else make(10, nn.Sigmoid)
    with gradwatch() as w:
        train(model, sgd(model, 1e-30), 2)
    first, second = w.report, w.report
    assert first.findings == second.findings
    assert (only(first).kind, only(first).n_steps) == (kind, 2)


@pytest.mark.parametrize("is_zeroed", [True, False])
def test_gradients_pile_up_under_passes_for_another_optimizer(is_zeroed):
    actor, critic = mlp(inputs=4), mlp(inputs=1)
    first, second = sgd(actor, 1e-3), sgd(critic, 1e-3)
    with gradwatch() as w:
        for _ in range(6):
            acts = actor(torch.randn(8, 4))
            if is_zeroed:
                second.zero_grad()
            squares(critic, acts.detach()).backward()
            second.step()
            first.zero_grad()
            squares(critic, acts).backward()
            first.step()
    if is_zeroed:
        assert w.report.findings == ()
    else:
        assert (only(w.report).kind, only(w.report).step) == ("PILING_UP", 2)
        assert only(w.report).mend.startswith("second.zero_grad()")


@pytest.mark.parametrize("every", [1, 2])
def test_gradients_that_turn_nan_between_backward_and_the_write(every):
    model = mlp()
    optimizer = sgd(model, 0.01)
    with gradwatch(every=every) as w:
        for step in range(8):
            optimizer.zero_grad()
            squares(model, torch.randn(8, 16)).backward()
            for one in model[2].parameters():
                one.grad /= one.grad.norm() if step < 6 else 0 * one.grad.norm()
            optimizer.step()
    finding = only(w.report)
    assert (finding.kind, finding.parameter, finding.step) == ("NAN", "model.2.weight", 6)
    assert finding.others[0] == "model.2.bias"
    assert "backward left it finite" in finding.why
    compile(finding.mend, "mend", "exec")
