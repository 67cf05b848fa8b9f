"""Faults in the data, in the forward pass and in what a step starts from."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from benchmarks.numerics.planted import Model, Training, fault, training

Tensor = torch.Tensor


@fault("aten.exp", line="below = signal.exp() - 1")
def unused_branch() -> Training:
    """The branch that `where` drops overflows, and its backward multiplies Inf by 0."""

    def formula(model: Model, x: Tensor) -> Tensor:
        signal = model.scale * x
        below = signal.exp() - 1
        return torch.where(signal > 0, signal, below).sum()

    return training(formula, torch.tensor([100.0, -1.0]), scale=torch.ones(2))


@fault("aten._softmax", "aten.masked_fill", "aten.masked_fill_", line="model.attention(")
def padding_only() -> Training:
    """One sample of the batch is padding only: a softmax over nothing but -Inf."""
    padded = torch.tensor([[False, False, False], [True, True, True]])

    def formula(model: Model, x: Tensor) -> Tensor:
        mixed, _ = model.attention(x, x, x, key_padding_mask=padded)
        return mixed[0].square().mean()

    torch.manual_seed(0)
    attention = nn.MultiheadAttention(4, 1, batch_first=True)
    return training(formula, torch.randn(2, 3, 4), attention=attention)


@fault("aten.nll_loss_forward", line="return functional.cross_entropy(model.layer(x), labels)")
def nothing_labelled() -> Training:
    """Every label is to be ignored: a mean over nothing. The gradients stay finite."""
    labels = torch.full((4,), -100)

    def formula(model: Model, x: Tensor) -> Tensor:
        return functional.cross_entropy(model.layer(x), labels)

    torch.manual_seed(0)
    return training(formula, torch.randn(4, 3), layer=nn.Linear(3, 5))


@fault("aten.div", line="(each * keep).sum() / keep.sum()")
def empty_mask() -> Training:
    """A masked mean whose mask keeps nothing."""
    keep = torch.zeros(4)

    def formula(model: Model, x: Tensor) -> Tensor:
        each = model.layer(x).square().sum(1)
        return (each * keep).sum() / keep.sum()

    torch.manual_seed(0)
    return training(formula, torch.randn(4, 3), layer=nn.Linear(3, 5))


@fault("aten.rsqrt", line="centred * torch.rsqrt(")
def small_epsilon() -> Training:
    """A layer norm by hand: 1e-12 is 0 in float16."""

    def formula(model: Model, x: Tensor) -> Tensor:
        rows = model.gain * x
        centred = rows - rows.mean(-1, keepdim=True)
        normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-12)
        return normed.float().sum()

    ones = torch.ones(2, 8, dtype=torch.float16)
    return training(formula, ones, gain=torch.ones(8, dtype=torch.float16))


@fault("aten.mm", "aten.addmm", line="hidden = model.down(model.up(x).relu())")
def half_precision() -> Training:
    """A product overflows float16, and the layer norm after it makes NaN of the Inf."""

    def formula(model: Model, x: Tensor) -> Tensor:
        hidden = model.down(model.up(x).relu())
        return functional.layer_norm(hidden.float(), (8,)).square().mean()

    up, down = nn.Linear(8, 64, bias=False), nn.Linear(64, 8, bias=False)
    nn.init.constant_(up.weight, 1.0)
    nn.init.constant_(down.weight, 30.0)
    inputs = torch.full((2, 8), 5.0, dtype=torch.float16)
    return training(formula, inputs, up=up.half(), down=down.half())


@fault("aten.pow", line="power = rows.square().mean(-1, keepdim=True)", absorbed=True)
def silent_overflow() -> Training:
    """An RMS norm overflows float16: it outputs zeros, and nothing that remains is Inf or NaN."""

    def formula(model: Model, x: Tensor) -> Tensor:
        rows = model.gain * x
        power = rows.square().mean(-1, keepdim=True)
        return (rows * torch.rsqrt(power + 1e-6)).float().sum()

    inputs = torch.full((2, 64), 300.0, dtype=torch.float16)
    return training(formula, inputs, gain=torch.ones(64, dtype=torch.float16))


@fault("aten.std", "aten.var", line="(out - out.mean(0)) / (out.std(0) + 1e-6)")
def one_sample() -> Training:
    """The unbiased deviation of a batch of one."""

    def formula(model: Model, x: Tensor) -> Tensor:
        out = model.layer(x)
        return ((out - out.mean(0)) / (out.std(0) + 1e-6)).sum()

    torch.manual_seed(0)
    return training(formula, torch.randn(1, 3), layer=nn.Linear(3, 4))


@fault("aten.acos", line="return torch.acos(cosine).sum()")
def cosine_above_one() -> Training:
    """Rounding leaves a cosine just above 1."""

    def formula(model: Model, x: Tensor) -> Tensor:
        cosine = model.scale * x
        return torch.acos(cosine).sum()

    return training(formula, torch.tensor([1.0000001, 0.5]), scale=torch.ones(1))


@fault(
    "aten.mul", "aten.masked_fill", line=("-(log_p.exp() * log_p).sum(-1)", ".masked_fill(banned,")
)
def entropy_of_masked() -> Training:
    """0 * -Inf: the entropy of a distribution in which some answers are ruled out."""
    banned = torch.tensor([False, True, False, False])

    def formula(model: Model, x: Tensor) -> Tensor:
        log_p = model.layer(x).masked_fill(banned, -math.inf).log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        return -entropy.mean()

    torch.manual_seed(0)
    return training(formula, torch.randn(2, 3), layer=nn.Linear(3, 4))


@fault("aten.masked_fill", line="others = distance.masked_fill(same, math.inf)")
def no_negative() -> Training:
    """The Inf that stands for "not a negative" becomes the minimum, as there is no negative."""
    same = torch.ones(4, 4, dtype=torch.bool)

    def formula(model: Model, x: Tensor) -> Tensor:
        points = model.layer(x)
        distance = (points[:, None] - points[None]).abs().sum(-1)
        others = distance.masked_fill(same, math.inf)
        return (distance.amax(1) - others.amin(1)).mean()

    torch.manual_seed(0)
    return training(formula, torch.randn(4, 3), layer=nn.Linear(3, 2))


@fault("aten.masked_fill", line="logits = model.layer(x).masked_fill(banned, -math.inf)")
def smoothed_labels() -> Training:
    """Label smoothing gives a class that is masked with -Inf a share of the target."""
    banned = torch.tensor([False, False, False, True])

    def formula(model: Model, x: Tensor) -> Tensor:
        logits = model.layer(x).masked_fill(banned, -math.inf)
        return functional.cross_entropy(logits, torch.tensor([0, 1]), label_smoothing=0.1)

    torch.manual_seed(0)
    return training(formula, torch.randn(2, 3), layer=nn.Linear(3, 4))


@fault("aten.mse_loss", line="return functional.mse_loss(model.layer(x), x.sum(1, keepdim=True))")
def steps_too_large() -> Training:
    """The weights grow with every step until the squared error overflows."""

    def formula(model: Model, x: Tensor) -> Tensor:
        return functional.mse_loss(model.layer(x), x.sum(1, keepdim=True))

    torch.manual_seed(0)
    batches = (10 * torch.randn(32, 4),) * 40
    return training(
        formula, *batches, optimizer=lambda p: torch.optim.SGD(p, lr=1.0), layer=nn.Linear(4, 1)
    )


@fault("aten.log", line="return -chosen.log().mean()")
def log_of_probability() -> Training:
    """Softmax and then log: a confident network gives the right class the probability 0."""

    def formula(model: Model, x: Tensor) -> Tensor:
        chosen = (model.layer(x) * 100).softmax(-1)[:, 0]
        return -chosen.log().mean()

    torch.manual_seed(0)
    return training(formula, 10 * torch.randn(8, 3), layer=nn.Linear(3, 4))


@fault("aten.log", line="(1 - p).log()")
def saturated_sigmoid() -> Training:
    """Binary cross-entropy by hand, where sigmoid has rounded to 1."""

    def formula(model: Model, x: Tensor) -> Tensor:
        p = torch.sigmoid(model.layer(x))
        return -(1 - p).log().mean()

    layer = nn.Linear(2, 1)
    nn.init.constant_(layer.weight, 5.0)
    return training(formula, torch.tensor([[9.0, 9.0], [0.1, 0.2]]), layer=layer)


@fault("aten.exp", line="return model.layer(x).exp().sum(-1).log().mean()")
def logsumexp_by_hand() -> Training:
    """The exponential of large logits."""

    def formula(model: Model, x: Tensor) -> Tensor:
        return model.layer(x).exp().sum(-1).log().mean()

    layer = nn.Linear(2, 3)
    nn.init.constant_(layer.weight, 30.0)
    return training(formula, torch.full((2, 2), 3.0), layer=layer)


@fault("aten.div", line="return (a / a.norm(dim=-1, keepdim=True)).sum()")
def zero_vector() -> Training:
    """A vector of zeros, divided by its length: 0 / 0 behind a dead ReLU."""

    def formula(model: Model, x: Tensor) -> Tensor:
        a = model.layer(x).relu()
        return (a / a.norm(dim=-1, keepdim=True)).sum()

    layer = nn.Linear(2, 3)
    nn.init.constant_(layer.weight, -1.0)
    nn.init.zeros_(layer.bias)
    return training(formula, torch.tensor([[1.0, 2.0], [-1.0, 0.5]]), layer=layer)


@fault("aten.reciprocal", "aten.div", line="weights = 1 / torch.bincount(labels, minlength=4)")
def absent_class() -> Training:
    """Weights by inverse frequency, and one class that does not occur."""
    labels = torch.tensor([0, 1, 1, 3])

    def formula(model: Model, x: Tensor) -> Tensor:
        weights = 1 / torch.bincount(labels, minlength=4)
        return (model.layer(x).log_softmax(-1) * weights).mean()

    torch.manual_seed(0)
    return training(formula, torch.randn(4, 3), layer=nn.Linear(3, 4))


@fault("aten._ctc_loss", line="return functional.ctc_loss(")
def transcript_too_long() -> Training:
    """CTC: the transcript is longer than the recording, so no alignment exists."""

    def formula(model: Model, x: Tensor) -> Tensor:
        log_p = model.layer(x).log_softmax(-1)
        lengths = torch.tensor([3]), torch.tensor([5])
        return functional.ctc_loss(log_p, torch.ones(1, 5, dtype=torch.long), *lengths)

    torch.manual_seed(0)
    return training(formula, torch.randn(3, 1, 2), layer=nn.Linear(2, 4))


@fault("aten.log", "aten.mul", line="target * (target / guess).log()")
def divergence_of_zero() -> Training:
    """0 * log 0, which is 0 on paper and NaN in floating point."""
    target = torch.tensor([0.5, 0.5, 0.0])

    def formula(model: Model, x: Tensor) -> Tensor:
        guess = model.layer(x).softmax(-1)
        return (target * (target / guess).log()).sum()

    torch.manual_seed(0)
    return training(formula, torch.randn(2, 3), layer=nn.Linear(3, 3))


@fault("aten.div", line="return (batch - low) / (high - low)")
def constant_image() -> Training:
    """Data: the range of an image of one colour is 0."""

    def prepare(batch: Tensor) -> Tensor:
        low, high = batch.amin(1, keepdim=True), batch.amax(1, keepdim=True)
        return (batch - low) / (high - low)

    def formula(model: Model, x: Tensor) -> Tensor:
        return model.layer(x).square().mean()

    torch.manual_seed(0)
    images = torch.rand(3, 4)
    images[1] = 0.7
    return training(formula, images, prepare=prepare, layer=nn.Linear(4, 1))


@fault("aten.log", "aten.log10", line="return counts.log()")
def log_of_counts() -> Training:
    """Data: the logarithm of counts, one of which is 0."""

    def prepare(counts: Tensor) -> Tensor:
        return counts.log()

    def formula(model: Model, x: Tensor) -> Tensor:
        return model.layer(x).square().mean()

    torch.manual_seed(0)
    batches = torch.tensor([[3.0, 1.0]]), torch.tensor([[2.0, 0.0]])
    return training(formula, *batches, prepare=prepare, layer=nn.Linear(2, 1))


@fault("leaf", line="return (x * model.gain).square().mean()")
def never_initialised() -> Training:
    """A parameter that starts as NaN, as memory from torch.empty may."""

    def formula(model: Model, x: Tensor) -> Tensor:
        return (x * model.gain).square().mean()

    return training(formula, torch.ones(3, 4), gain=torch.full((4,), math.nan))


@fault("leaf", line="return functional.mse_loss(model.layer(x), wanted)")
def missing_target() -> Training:
    """A NaN among the targets, as a spreadsheet leaves it."""
    wanted = torch.tensor([[1.0], [math.nan], [2.0]])

    def formula(model: Model, x: Tensor) -> Tensor:
        return functional.mse_loss(model.layer(x), wanted)

    torch.manual_seed(0)
    return training(formula, torch.randn(3, 2), layer=nn.Linear(2, 1))
