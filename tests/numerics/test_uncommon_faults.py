"""Rarer operations in one line each: what is named, why, and the line that mends it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nbinspect import NanReport, nanwatch

INF = math.inf
Formula = Callable[[Tensor], Tensor]


class Case(NamedTuple):
    start: Tensor
    formula: Formula
    op: str
    why: str
    mend: str


def at(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def root_in_place(w: Tensor) -> Tensor:
    rows = w * 1
    rows[0].sqrt_()
    return rows


FORWARD = {
    "logdet": Case(
        torch.ones(3, 3), lambda w: torch.logdet(w), "_linalg_slogdet", "determinant of 0", "torch.eye"
    ),
    "inverse": Case(
        1e-38 * torch.eye(2), lambda w: torch.linalg.inv(w * 1e-2), "linalg_inv_ex", "singular", "eye"
    ),
    "lgamma": Case(at(0, 1), lambda w: torch.lgamma(w), "lgamma", "no value at 0, -1", "w.clamp("),
    "digamma": Case(
        at(-1, 1), lambda w: torch.digamma(w * 1), "digamma", "was given -1", "(w * 1).clamp("
    ),
    "erfinv": Case(
        at(1, 0.5), lambda w: torch.erfinv(w * 1), "erfinv", "infinite at 1", "erfinv((w * 1).clamp("
    ),
    "fmod": Case(at(2, 3), lambda w: torch.fmod(w, at(0, 2)), "fmod", "remains of", "never 0"),
    "remainder": Case(at(2, 3), lambda w: w % at(0, 2), "remainder", "remains of", "never 0"),
    "logit": Case(at(100, 0), lambda w: w.sigmoid().logit(), "logit", "infinite at 1", "w.sigmoid().clamp("),
    "base": Case(at(-2, 3), lambda w: w**0.3, "pow", "A negative number (-2)", "w.clamp(min=0)"),
    "degree": Case(at(0, 2), lambda w: (w * 1).pow(-0.5), "pow", "0 to a negative power", "clamp"),
    "tiny": Case(at(-95.0), lambda w: 4 * w / w.exp(), "div", "Dividing by 5.5", "w.exp().clamp("),
    "other": Case(
        at(200.0), lambda w: (1 - w.sigmoid()).log(), "log", "`log` of 0", "logsigmoid(-x)"
    ),
    "online": Case(
        at(1, 2), lambda w: w.masked_fill(w > 0, -INF).sub(-INF).exp(), "sub", "Inf - Inf", "torch.where"
    ),
    "poisson": Case(
        at(100.0), lambda w: F.poisson_nll_loss(w, at(3.0)), "exp", "`exp` of 100", "clamp(max=88)"
    ),
    "number": Case(at(1), lambda w: w * math.nan, "mul", "A Python number", "math.isfinite"),
    "many": Case(
        torch.ones(70000), lambda w: w.half().sum(), "sum", "`sum` overflows float16", "in float32"
    ),
    "norm of 0": Case(
        torch.zeros(2, 3), lambda w: F.layer_norm(w, (3,), eps=0.0), "native_layer_norm",
        "without any spread", "eps=1e-5",
    ),
    "product": Case(at(1e30, 1e30), lambda w: w.prod(), "prod", "overflows float32", "lower"),
    "running product": Case(
        torch.full((200,), 3.0), lambda w: w.cumprod(0), "cumprod", "overflows float32", "lower"
    ),
    "in place": Case(at(1e30), lambda w: (w * 1).mul_(1e20), "mul_", "overflows float32", "lower"),
    "complex exp": Case(
        torch.tensor([200.0 + 0j]), lambda w: w.exp().abs(), "exp", "more than complex64", "x.abs()"
    ),
    "complex quotient": Case(
        torch.tensor([1.0 + 1j, 1.0]), lambda w: (w / (w - 1)).real, "div", "`w - 1` is 0", "x.abs()"
    ),
    "divisor of any sign": Case(
        at(0, -2), lambda w: w.sin() / (w * 1), "div", "`w * 1` is 0", "torch.where((w * 1) == 0, 1e-6"
    ),
    "xlogy": Case(at(0, 1), lambda w: torch.xlogy(at(2, 2), w), "xlogy", "infinite unless", "clamp"),
    "infinite factor": Case(at(1, -1), lambda w: w * INF, "mul", "Python number in this line is", "isfinite"),
    "vmap": Case(at(0, 1), torch.func.vmap(lambda a: torch.log(a)), "log", "`log` of 0", "a.clamp("),
}  # fmt: skip
BACKWARD = {
    "svd": Case(
        torch.eye(3), lambda w: torch.linalg.svd(w * 2)[0] * w.detach(), "div",
        "differences between the singular values", "svdvals",
    ),
    "eigh": Case(
        torch.eye(3), lambda w: torch.linalg.eigh(w * 1)[1][:, 0].square() * at(1, 2, 3),
        "linalg_eigh_backward", "differences between the eigenvalues", "eigvalsh",
    ),
    "cumprod": Case(
        at(1e-30, 1e20, 1e20), lambda w: w.cumprod(0), "cumprod_backward", "overflows float32", "clip"
    ),
    "acos": Case(
        torch.eye(1), lambda w: torch.acos((w * 1).sum(1)), "rsqrt", "infinite",
        "torch.acos((w * 1).sum(1).clamp(-1 + 1e-6, 1 - 1e-6))",
    ),
    "rms": Case(
        torch.zeros(1, 4), lambda w: w * torch.rsqrt(w.pow(2).mean(-1, keepdim=True) + 1e-45),
        "pow", "which next to 0 is more than float32", "+ 1e-6",
    ),
    "hypot": Case(
        torch.zeros(2), lambda w: torch.hypot(w, w), "div", "The gradient of `hypot` is a quotient",
        "inputs of `hypot`",
    ),
    "root in place": Case(
        torch.zeros(2, 2), lambda w: root_in_place(w), "div", "The gradient of this line", "x + 1e-6"
    ),
    "focal": Case(
        at(200, -1), lambda w: (1 - w.sigmoid()) ** 0.5, "pow", "infinite at 0 for p below 1", "clamp"
    ),
}  # fmt: skip


def report_of(start: Tensor, formula: Formula, *, light: bool) -> NanReport:
    w = nn.Parameter(start.clone())

    def step() -> None:
        formula(w).sum().backward()

    with nanwatch(stop=False, light=light) as watch:
        step()
    return watch.report


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
@pytest.mark.parametrize("name", [*FORWARD, *BACKWARD])
def test_is_named_and_explained(name: str, light: bool) -> None:
    case = {**FORWARD, **BACKWARD}[name]
    [found] = report_of(case.start, case.formula, light=light).findings
    assert found.op == f"aten.{case.op}"
    assert found.phase == ("forward" if name in FORWARD else "backward")
    assert case.why in found.why
    assert case.mend in found.mend


W = torch.linspace(-1, 1, 12).reshape(4, 3)
ROWS = torch.tensor([0, 0, 1, 1])
SAME = ROWS[:, None] == ROWS


def running_maximum(w: Tensor) -> Tensor:
    best, total = torch.full((3,), -INF), torch.zeros(3)
    for row in w:  # as attention in blocks does it
        new = torch.maximum(best, row)
        total = total * (best - new).exp() + (row - new).exp()
        best = new
    return best + total.log()


def paths(w: Tensor) -> Tensor:
    alpha = torch.full((3,), -INF)
    alpha[0] = 0.0
    for _ in range(4):
        alpha = torch.logsumexp(alpha[:, None] + w[:3], 0)
    return alpha


def beams(w: Tensor) -> Tensor:
    scores = torch.full((4,), -INF)
    scores[0] = 0.0
    return (w.log_softmax(-1) + scores[:, None]).view(-1).topk(2).values


def inverse_depth(w: Tensor) -> Tensor:
    depth = at(0, 1, 2)
    inverse = 1 / depth
    inverse[depth == 0] = 0
    return w * inverse


HEALTHY: dict[str, Formula] = {
    "cdist of itself": lambda w: torch.cdist(w, w),
    "cosine of 0": lambda w: F.cosine_similarity(w * 0, torch.ones(4, 3)),
    "normalize 0": lambda w: F.normalize(w * 0, dim=1),
    "distance of 0": lambda w: F.pairwise_distance(w, w),
    "own softmax in blocks": running_maximum,
    "paths of a chain": paths,
    "beam search": beams,
    "inverse of a gap": inverse_depth,
    "logaddexp of nothing": lambda w: torch.logaddexp(torch.full((3,), -INF), w),
    "nearest other": lambda w: (torch.cdist(w, w) + torch.diag(torch.full((4,), INF))).amin(1),
    "hard triplets": lambda w: (
        torch.cdist(w, w).masked_fill(~SAME, -INF).amax(1)
        - torch.cdist(w, w).masked_fill(SAME, INF).amin(1)
    ),
    "causal attention": lambda w: F.scaled_dot_product_attention(
        w[None, None], w[None, None], w[None, None], is_causal=True
    ),
    "a row without a key": lambda w: F.scaled_dot_product_attention(
        w[None], w[None], w[None], attn_mask=torch.full((4, 4), -INF).masked_fill(ROWS < 1, 0.0)
    ),
    "kl of a hard label": lambda w: F.kl_div(w.log_softmax(1), torch.eye(3)[[0, 1, 2, 0]]),
    "gumbel": lambda w: F.gumbel_softmax(w, hard=True),
    "missing labels": lambda w: torch.where(at(1, math.nan, 2).isnan(), 0.0, w - 1).square(),
    "maximum of an infinite gradient's other side": lambda w: w.max() - w.min() + w.median(),
    "product with zeros": lambda w: (w.clamp(min=0)).prod(1) + w.cumprod(0).sum(0).sum(),
    "xlogy": lambda w: torch.xlogy(w.relu(), w.relu() + 1) + torch.special.entr(w.softmax(1)),
}


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
@pytest.mark.filterwarnings("ignore")
def test_look_alikes_are_left_alone(light: bool) -> None:
    torch.manual_seed(0)
    reports = {name: report_of(W, formula, light=light) for name, formula in HEALTHY.items()}
    assert not {name: one.findings for name, one in reports.items() if one.findings}
    assert not {name for name, one in reports.items() if any(a.alarming for a in one.absorbed)}


# What belongs to several steps, or to more than one model.


@pytest.mark.parametrize("rate", [INF, math.nan], ids=str)
def test_a_learning_rate_that_is_no_number(rate: float) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.ones(2, 2)).sum().backward()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()

    with nanwatch(stop=False) as watch:
        step()
    [found] = watch.report.findings
    assert found.phase == "optimizer"
    assert "such as its learning rate" in found.why
    assert "param_groups" in found.mend


def test_what_one_optimizer_spoilt_is_not_blamed_on_the_next() -> None:
    ours, theirs = nn.Linear(2, 2), nn.Linear(2, 1)
    nn.init.constant_(theirs.bias, 200.0)
    optimizers = [torch.optim.Adam(one.parameters()) for one in (ours, theirs)]

    def step() -> None:
        for model, sign in ((theirs, 1), (ours, -1)):
            probability = theirs(ours(torch.ones(3, 2) / 10)).sigmoid()
            ((1 - probability).log() if sign > 0 else probability).mean().backward()
            optimizers[model is theirs].step()

    with nanwatch(stop=False) as watch:
        step()
    assert [one.op for one in watch.report.findings] == ["aten.log"]


average = nn.Linear(2, 1)  # has a name, and no optimizer


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
def test_parameters_that_nothing_trains(light: bool) -> None:
    nn.init.ones_(average.weight)
    model = nn.Linear(2, 1)

    def step(by: float) -> None:
        model(torch.ones(2, 2)).sum().backward()
        with torch.no_grad():
            for one, other in zip(average.parameters(), model.parameters(), strict=True):
                one.mul_(0.9).add_(other / by)

    mine = average  # a name in a running function
    for by in (1.0, 0.0):
        with nanwatch(stop=False, light=light) as watch:
            step(by)
        assert watch.report.healthy == bool(by)
    [found] = watch.report.findings
    assert found.reaches == ("parameter",)
    assert found.op == ("unknown" if light else "aten.div")
    assert mine.weight.isinf().any()


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
def test_a_parameter_that_nothing_uses_is_no_news(light: bool) -> None:
    """It was bad before, has no gradient, and so the optimizer does not write it either."""
    model, unused = nn.Linear(2, 1), nn.Linear(2, 2)
    nn.init.constant_(unused.weight, math.nan)
    optimizer = torch.optim.AdamW([*model.parameters(), *unused.parameters()])

    def step() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 2)).sum().backward()
            optimizer.step()

    with nanwatch(light=light) as watch:
        step()
    assert watch.report.healthy


def test_statistics_of_a_module_without_a_name() -> None:
    """It is known for having run."""

    def step() -> None:
        model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
        held.append(model)
        model(torch.tensor([[1.0, math.nan], [2.0, 3.0]]))

    held: list[nn.Module] = []
    with nanwatch(stop=False) as watch:
        step()
    assert [one.reaches for one in watch.report.findings] == [("buffer",)]


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
def test_what_a_function_is_told_to_overwrite_is_no_operand(light: bool) -> None:
    """Run again, it finds there what it wrote the first time."""
    weight, kept = nn.Parameter(torch.ones(2)), torch.empty(2)

    def step() -> None:
        torch.div(torch.ones(2), torch.zeros(2), out=kept)
        (weight + kept).sum().backward()

    with nanwatch(stop=False, light=light) as watch:
        step()
    assert [one.op for one in watch.report.findings] == ["aten.div"]


class OwnOptimizer(torch.optim.Optimizer):
    """Divides by the norm of the gradient."""

    def __init__(self, params) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self) -> None:
        for one in self.param_groups[0]["params"]:
            one.sub_(0.1 * (one.grad / one.grad.norm()))


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
def test_an_optimizer_of_the_users_own(light: bool) -> None:
    model = nn.Linear(2, 1)
    optimizer = OwnOptimizer(model.parameters())

    def step() -> None:
        (0 * model(torch.ones(2, 2))).sum().backward()
        optimizer.step()

    with nanwatch(stop=False, light=light) as watch:
        step()
    [found] = watch.report.findings
    assert (found.op, found.phase) == ("aten.div", "optimizer")
    assert "one.grad / one.grad.norm()" in found.where.text


# Buffers that the forward pass spoils while the loss stays finite.


class WithStatistics(nn.Module):
    """Keeps a statistic that nothing reads."""

    def __init__(self, note: Callable[[nn.Module, Tensor], None]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("statistic", torch.zeros(1))
        self.note = note

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        with torch.no_grad():
            self.note(self, out)
        return out


def averaged(module: nn.Module, out: Tensor) -> None:
    keep = (out > 1e6).float()
    module.statistic.mul_(0.9).add_((out * keep).sum() / keep.sum())  # <- here


def rebound(module: nn.Module, out: Tensor) -> None:
    module.statistic = (out - out).mean(0) / (out - out).amax(0)  # <- here


def overflowing(module: nn.Module, out: Tensor) -> None:
    module.statistic.copy_((out.abs().amax() + 1) * 1e38 * 1e5)  # <- here


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
@pytest.mark.parametrize(
    ("note", "op"), [(averaged, "div"), (rebound, "div"), (overflowing, "mul")]
)
def test_a_spoilt_buffer_is_followed_to_its_operation(note, op, light) -> None:
    """As soon as it happens: the second step of five."""
    model = WithStatistics(lambda module, out: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for i in range(5):
            if i == 1:
                model.note = note
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()

    with nanwatch(stop=False, light=light) as watch:
        train()
    [found] = watch.report.findings
    assert (found.op, found.phase, found.step) == (f"aten.{op}", "forward", 1)
    assert found.reaches == ("buffer",)
    assert "# <- here" in found.where.text
    assert not light or "same loss" in watch.report.replay


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
def test_buffers_that_are_meant_to_be_infinite(light) -> None:
    """A best value so far, set back between epochs."""
    model = WithStatistics(lambda module, out: module.statistic.copy_(out.mean()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for i in range(4):
            if i == 2:
                model.note = lambda module, out: module.statistic.fill_(-INF)
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()

    with nanwatch(light=light) as watch:
        train()
    assert watch.report.healthy


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
def test_a_gradient_that_was_bad_before(light) -> None:
    model = nn.Linear(2, 1)
    model.weight.grad = torch.full((1, 2), math.nan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step()

    with nanwatch(stop=False, light=light) as watch:
        step()
    [found] = watch.report.findings
    assert (found.op, found.phase) == ("leaf", "leaf")
    assert found.source == "model.weight.grad"
    assert "zero_grad" in found.mend


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
def test_what_spoilt_parameters_spoil_in_turn_is_no_finding_of_its_own(light) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for i in range(4):
            optimizer.zero_grad()
            out = model(torch.randn(5, 3))
            (out / (out.detach() if i != 1 else out - out)).mean().backward()
            optimizer.step()

    with nanwatch(stop=False, light=light) as watch:
        train()
    assert [one.op for one in watch.report.findings] == ["aten.div"]
