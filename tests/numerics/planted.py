"""Training steps with one fault each, and what is to be said of it.

A fault is a function that sets a step up and returns it. The line to be named ends in
``# <- here``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Step = Callable[[], object]
Make = Callable[[], Step]
NAN, INF = math.nan, math.inf


@dataclass(frozen=True)
class Fault:
    """One step and its fault.

    Attributes:
        ops: every defensible name of the operation, the best one first.
        reaches: where it is found when the step ends; "" for one that is absorbed.
        phase: see `NanFinding`.
        node: likewise.
        kind: likewise.
        why: words of the reason that is given.
        light: what light mode calls the operation, where it cannot know.
    """

    make: Make
    ops: tuple[str, ...]
    reaches: tuple[str, ...]
    phase: str
    node: str | None
    kind: str
    why: str
    light: str

    @property
    def name(self) -> str:
        return self.make.__name__


FAULTS: list[Fault] = []


def fault(
    ops: str,
    reaches: str,
    phase: str = "forward",
    *,
    node: str | None = None,
    kind: str = "born",
    why: str = "",
    light: str = "",
) -> Callable[[Make], Make]:
    """Add the decorated function to the faults."""

    def add(make: Make) -> Make:
        names = tuple(f"aten.{one}" if one != "leaf" else one for one in ops.split())
        places = tuple(reaches.split())
        FAULTS.append(Fault(make, names, places, phase, node, kind, why, light))
        return make

    return add


def here() -> str:
    """Give the type of device that the steps run on."""
    return torch.get_default_device().type


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


# Born in the forward pass.


@fault("exp", "grad", why="more than float32 can hold")
def exp_in_the_branch_not_taken() -> Step:
    slope = torch.ones(3, requires_grad=True)
    x = torch.tensor([95.0, -2.0, 0.5])

    def step() -> None:
        z = slope * x
        soft = z.exp()  # <- here
        torch.where(z > 0, z, soft).mean().backward()

    return step


@fault("_softmax masked_fill", "loss", kind="inf_to_nan", why="nothing but -Inf")
def attention_row_without_a_key() -> Step:
    torch.manual_seed(0)
    q, k = (nn.Linear(4, 4) for _ in range(2))
    x = torch.randn(2, 3, 4)
    padding = torch.tensor([[False, False, True], [True, True, True]])

    def step() -> None:
        scores = (q(x) @ k(x).mT).masked_fill(padding[:, None], -INF)
        weights = scores.softmax(dim=-1)  # <- here
        (weights @ x).square().mean().backward()

    return step


@fault("nll_loss_forward", "loss", why="label")
def no_label_left() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    optimizer = sgd(model)
    x, y = torch.randn(5, 3), torch.full((5,), -1)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y, ignore_index=-1).backward()  # <- here
        optimizer.step()

    return step


@fault("div", "loss grad", why="nothing to count")
def mean_over_an_empty_mask() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x, mask = torch.randn(4, 3), torch.zeros(4, 1)

    def step() -> None:
        errors = model(x).square()
        loss = (errors * mask).sum() / mask.sum()  # <- here
        loss.backward()

    return step


@fault("mean", "loss", why="no values")
def mean_of_a_selection_of_nothing() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x = torch.randn(4, 3)

    def step() -> None:
        errors = model(x).square()
        loss = errors[errors > 1e9].mean()  # <- here
        (loss + errors.sum()).backward()

    return step


@fault("rsqrt", "loss grad", why="float16")
def epsilon_that_float16_loses() -> Step:
    gain = torch.ones(8, dtype=torch.float16, requires_grad=True)

    def step() -> None:
        x = gain.expand(2, 8)
        x = x - x.mean(-1, keepdim=True)
        scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-9)  # <- here
        scaled.float().sum().backward()

    return step


@fault("mm bmm", "loss grad", why="65504")
def product_beyond_float16() -> Step:
    w = nn.Parameter(torch.full((64, 4), 40.0, dtype=torch.float16))
    x = torch.full((2, 64), 30.0, dtype=torch.float16)

    def step() -> None:
        h = x @ w  # <- here
        F.layer_norm(h.float(), (4,)).square().mean().backward()

    return step


@fault("addmm", "loss", why="65504")
def product_beyond_float16_in_autocast() -> Step:
    model = nn.Linear(64, 4)
    nn.init.constant_(model.weight, 40.0)
    x = torch.full((2, 64), 30.0)

    def step() -> None:
        with torch.autocast(here(), torch.float16):
            h = model(x)  # <- here
        h.float().mean().backward()

    return step


@fault("_to_copy", "loss", why="does not fit into float16")
def cast_beyond_float16() -> Step:
    w = nn.Parameter(torch.tensor([1e5, 1.0]))

    def step() -> None:
        half = (w * 2).half()  # <- here
        half.float().sum().backward()

    return step


@fault("pow", "")
def square_that_overflows_and_is_divided_by() -> Step:
    gain = torch.ones(16, dtype=torch.float16, requires_grad=True)
    x = torch.full((2, 16), 400.0, dtype=torch.float16)

    def step() -> None:
        h = x * gain
        size = h.pow(2).mean(-1, keepdim=True)
        (h * torch.rsqrt(size + 1e-5)).float().sum().backward()

    return step


@fault("std", "loss grad", why="divides by n - 1")
def deviation_of_one_sample() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    x = torch.randn(1, 3)

    def step() -> None:
        h = model(x)
        spread = h.std(0)  # <- here
        ((h - h.mean(0)) / (spread + 1e-5)).sum().backward()

    return step


@fault("acos", "loss grad", why="from -1 to 1")
def cosine_above_one() -> Step:
    scale = torch.ones(1, requires_grad=True)

    def step() -> None:
        angles = (scale * torch.tensor([0.3, 1.0000002])).acos()  # <- here
        angles.sum().backward()

    return step


@fault("mul masked_fill", "loss grad", kind="inf_to_nan", why="0 * Inf")
def entropy_of_masked_logits() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    x, banned = torch.randn(2, 3), torch.tensor([False, False, True, False])

    def step() -> None:
        logp = model(x).masked_fill(banned, -INF).log_softmax(-1)
        entropy = -(logp.exp() * logp).sum(-1)  # <- here
        entropy.mean().backward()

    return step


@fault("masked_fill", "loss", kind="literal", why="writes Inf here itself")
def fill_value_that_wins() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x, closed = torch.randn(4, 3), torch.ones(4, 1, dtype=torch.bool)

    def step() -> None:
        h = model(x).masked_fill(closed, INF)  # <- here
        h.amin().backward()

    return step


@fault("masked_fill", "loss", kind="literal", why="writes Inf here itself")
def smoothed_labels_on_masked_logits() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    x, y = torch.randn(5, 3), torch.zeros(5, dtype=torch.long)
    banned = torch.tensor([False, False, True, False])

    def step() -> None:
        logits = model(x).masked_fill(banned, -INF)  # <- here
        F.cross_entropy(logits, y, label_smoothing=0.1).backward()

    return step


@fault("mse_loss", "loss", why="grew")
def learning_rate_too_large() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = sgd(model, lr=2.0)
    x, y = 10 * torch.randn(16, 4), torch.randn(16, 1)

    def step() -> None:
        for _ in range(40):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)  # <- here
            loss.backward()
            optimizer.step()
            if not loss.isfinite():
                break

    return step


@fault("log", "loss grad", why="`log` of 0 is -Inf")
def log_of_a_probability_that_is_zero() -> Step:
    w = nn.Parameter(torch.tensor([[200.0, 0.0]]))

    def step() -> None:
        loss = -w.softmax(-1).log()[0, 1]  # <- here
        loss.backward()

    return step


@fault("div", "loss grad", why="0 / 0")
def direction_of_a_zero_vector() -> Step:
    w = nn.Parameter(torch.eye(2))
    x = torch.tensor([[1.0, 2.0], [0.0, 0.0]])

    def step() -> None:
        h = x @ w
        unit = h / h.norm(dim=1, keepdim=True)  # <- here
        unit.sum().backward()

    return step


@fault("sqrt", "loss grad", why="root of a negative number")
def variance_that_rounding_makes_negative() -> Step:
    w = nn.Parameter(torch.tensor([1e4, 1e4, 1e4 + 1e-3]))

    def step() -> None:
        spread = ((w * w).mean() - w.mean() ** 2 - 10.0).sqrt()  # <- here
        (w / spread).sum().backward()

    return step


@fault("log", "loss grad")
def gumbel_noise_without_an_epsilon() -> Step:
    logits = nn.Parameter(torch.zeros(3))
    uniform = torch.tensor([0.2, 0.0, 0.9])

    def step() -> None:
        noise = -torch.log(-torch.log(uniform * torch.exp(0 * logits)))  # <- here
        (logits + noise).sum().backward()

    return step


@fault("mul", "loss", why="overflows float32")
def product_beyond_float32() -> Step:
    w = nn.Parameter(torch.full((3,), 1e30))

    def step() -> None:
        h = w * 1e20  # <- here
        h.sum().backward()

    return step


@fault("_ctc_loss", "loss grad", why="no alignment")
def alignment_that_is_impossible() -> Step:
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(3, 1, 4))
    y, n_in, n_out = torch.tensor([[1, 2, 3, 1, 2]]), torch.tensor([3]), torch.tensor([5])

    def step() -> None:
        logp = w.log_softmax(-1)
        loss = F.ctc_loss(logp, y, n_in, n_out, reduction="sum")  # <- here
        loss.backward()

    return step


@fault("log", "loss grad")
def logarithm_of_a_complex_zero() -> Step:
    w = nn.Parameter(torch.tensor([1 + 1j, 0j]))

    def step() -> None:
        spectrum = (w * 2).log()  # <- here
        spectrum.abs().sum().backward()

    return step


class Unit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.norm(dim=-1, keepdim=True)  # <- here


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3, bias=False), Unit())

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@fault("div", "loss grad parameter", why="0 / 0")
def fault_inside_a_nested_module() -> Step:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.zeros(2, 3)

    def step() -> None:
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@fault("div", "loss grad", why="0 / 0")
def fault_in_a_checkpointed_module() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3, bias=False), Unit())
    x = torch.zeros(2, 3, requires_grad=True)

    def step() -> None:
        checkpoint(model, x, use_reentrant=False).sum().backward()

    return step


@fault("div", "loss grad", why="0 / 0")
def fault_in_a_reentrant_checkpoint() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3, bias=False), Unit())
    x = torch.zeros(2, 3, requires_grad=True)

    def step() -> None:
        checkpoint(model, x, use_reentrant=True).sum().backward()

    return step


@fault("div", "grad", "backward", node="DivBackward0", why="divided by")
def fault_in_an_early_micro_batch() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    batches = [torch.randn(4, 3) for _ in range(4)]

    def step() -> None:
        optimizer.zero_grad()
        for i, batch in enumerate(batches):
            keep = torch.full((4, 1), float(i != 1))
            loss = (model(batch) * keep).sum() / keep.sum()  # <- here
            if i == 1:
                loss = torch.where(torch.tensor(True), model(batch).sum() * 0, loss)
            loss.backward()

    return step


@fault("div", "loss grad parameter", why="0 / 0")
def fault_in_a_closure() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x, mask = torch.randn(4, 3), torch.zeros(4, 1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x).square() * mask).sum() / mask.sum()  # <- here
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


@fault("log", "loss grad parameter", why="`log` of 0 is -Inf")
def generator_that_the_critic_sees_through() -> Step:
    torch.manual_seed(0)
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    nn.init.constant_(critic.bias, -300.0)
    of_generator, of_critic = sgd(generator, 1e-3), sgd(critic, 1e-3)
    noise, real = torch.randn(4, 2), torch.randn(4, 2)

    def step() -> None:
        of_critic.zero_grad()
        fake = generator(noise)
        (F.softplus(-critic(real)) + F.softplus(critic(fake.detach()))).mean().backward()
        of_critic.step()
        of_generator.zero_grad()
        loss = -critic(fake).sigmoid().log().mean()  # <- here
        loss.backward()
        of_generator.step()

    return step


@fault("div", "loss grad", why="0 / 0")
def fault_under_a_scaler() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer, scaler = sgd(model), torch.amp.GradScaler(here())
    x, mask = torch.randn(4, 3), torch.zeros(4, 1)

    def step() -> None:
        optimizer.zero_grad()
        loss = (model(x).square() * mask).sum() / mask.sum()  # <- here
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


@fault("div_", "loss grad", why="")
def in_place_division_by_zero() -> Step:
    w = nn.Parameter(torch.ones(3))

    def step() -> None:
        h = w * 2
        h.div_(torch.tensor([1.0, 0.0, 1.0]))  # <- here
        h.sum().backward()

    return step


# Born in the backward pass.


@fault("div", "grad", "backward", node="SqrtBackward0", why="gradient of `sqrt` at 0")
def length_of_a_zero_vector() -> Step:
    w = nn.Parameter(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))

    def step() -> None:
        length = w.square().sum(1).sqrt()  # <- here
        length.mean().backward()

    return step


@fault("div log1p", "grad", "backward", node="Log1PBackward0", why="gradient of `log1p`")
def clamp_that_bfloat16_rounds_away() -> Step:
    p = nn.Parameter(torch.tensor([1.0, 0.25], dtype=torch.bfloat16))

    def step() -> None:
        miss = torch.log1p(-p.clamp(max=1 - 1e-5))  # <- here
        (1 - miss.exp()).float().sum().backward()

    return step


@fault("prod_backward", "grad", "backward", node="ProdBackward0", why="overflows float32")
def product_of_factors_far_apart() -> Step:
    w = nn.Parameter(torch.tensor([1e20, 1e-30, 1e20]))

    def step() -> None:
        w.prod().backward()  # <- here

    return step


@fault("pow", "grad", "backward", node="PowBackward0", why="infinite at 0")
def power_below_one_at_zero() -> Step:
    w = nn.Parameter(torch.tensor([0.0, 4.0]))

    def step() -> None:
        root = w.pow(0.5)  # <- here
        root.sum().backward()

    return step


class Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=1).reciprocal()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return -grad / x.square()  # <- here


@fault("div", "grad", "backward", node="InverseBackward")
def backward_of_the_users_own() -> Step:
    w = nn.Parameter(torch.tensor([0.0, 2.0]))
    return lambda: Inverse.apply(w).sum().backward()


@fault("div", "grad", "backward")
def hook_that_divides_by_zero() -> Step:
    w = nn.Parameter(torch.ones(2))

    def step() -> None:
        h = w * 3
        h.register_hook(lambda grad: grad / (grad - 1))  # <- here
        h.sum().backward()

    return step


@fault("div", "grad", "backward", node="SqrtBackward0")
def gradient_that_is_asked_for() -> Step:
    w = nn.Parameter(torch.zeros(2))

    def step() -> None:
        root = (w * w).sqrt()  # <- here
        torch.autograd.grad(root.sum(), w)

    return step


@fault("div", "grad", "backward", node="SqrtBackward0")
def penalty_on_a_gradient() -> Step:
    w = nn.Parameter(torch.zeros(3))

    def step() -> None:
        (slope,) = torch.autograd.grad((w**2).sum(), w, create_graph=True)
        penalty = slope.square().sum().sqrt()  # <- here
        penalty.backward()

    return step


@fault("div", "grad", "backward", node="SqrtBackward0")
def checkpointed_root_of_zero() -> Step:
    w = nn.Parameter(torch.zeros(2))

    def root(x: Tensor) -> Tensor:
        return x.square().sqrt()  # <- here

    return lambda: checkpoint(root, w * 1, use_reentrant=False).sum().backward()


# Born in the optimizer, or written by hand.


@fault("addcdiv_", "parameter", "optimizer", why="eps")
def adam_epsilon_in_float16() -> Step:
    torch.manual_seed(0)
    table = nn.Embedding(4, 2).half()
    optimizer = torch.optim.Adam(table.parameters(), lr=1e-3, foreach=False)
    rows = torch.tensor([0, 2])

    def step() -> None:
        optimizer.zero_grad()
        table(rows).float().square().mean().backward()
        optimizer.step()  # <- here

    return step


@fault("add_ _foreach_add_", "parameter", "optimizer", why="larger than float32 can hold")
def step_beyond_float32() -> Step:
    model = nn.Linear(2, 1)
    optimizer = sgd(model, lr=3e38)
    x = torch.full((1, 2), 1e3)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()  # <- here

    return step


@fault("sub_", "parameter", "optimizer", light="unknown")
def descent_by_hand_beyond_float32() -> Step:
    w = nn.Parameter(torch.full((2,), -3e38))

    def step() -> None:
        (w * 1e-30).sum().backward()
        with torch.no_grad():
            w.sub_(w.grad * 1e38 * 3e30)  # <- here

    return step


# In the data.


@fault("div", "loss grad parameter", "data", why="0 / 0")
def scaling_of_a_constant_row() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    x = torch.rand(4, 3)
    x[2] = 0.5

    def step() -> None:
        low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
        scaled = (x - low) / (high - low)  # <- here
        loss = model(scaled).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


# Brought in by a tensor.


@fault("leaf", "loss grad parameter", "leaf", kind="leaf", why="never initialised")
def parameter_that_was_never_written() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight[1, 1] = NAN
    optimizer = sgd(model)
    x = torch.randn(4, 3)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(x).square().mean()  # <- here
        loss.backward()
        optimizer.step()

    return step


@fault("leaf", "loss grad", "leaf", kind="leaf")
def target_that_is_missing() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x, y = torch.randn(4, 3), torch.tensor([[1.0], [NAN], [0.0], [1.0]])

    def step() -> None:
        loss = F.mse_loss(model(x), y)  # <- here
        loss.backward()

    return step


@fault("leaf", "loss grad", "leaf", kind="leaf")
def value_written_through_numpy() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)

    def step() -> None:
        x = torch.ones(2, 3)
        x.numpy()[0, 1] = NAN
        loss = model(x).sum()  # <- here
        loss.backward()

    return step


@fault("leaf", "buffer", "leaf", kind="leaf")
def batch_that_only_the_statistics_keep() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = sgd(model)
    batches = torch.randn(3, 8, 3)
    batches[1, 2, 0] = NAN

    def step() -> None:
        for batch in batches:
            output = model(batch)  # <- here
            loss = output.square().mean()
            if loss.isfinite():
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    return step
