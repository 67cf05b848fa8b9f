"""What really overflows first when a step runs under CPU autocast to float16: the answer to find."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Context = AbstractContextManager[Any]
Step = Callable[[nn.Module, Context], None]


class FirstBad(TorchDispatchMode):
    """Names the first operation that makes an infinity out of finite values, by looking at all.

    A cast is named by the operation that the cast value goes to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.op = ""
        self.in_backward = False
        self._cast: int | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in tree_leaves((args, kwargs)) if torch.is_tensor(one)]
        was_bad = any(map(is_bad, given))  # before an operation in place writes into them
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.replace("::", ".")
        literal = any(isinstance(one, float) and math.isinf(one) for one in tree_leaves(args))
        made = [one for one in tree_leaves(result) if torch.is_tensor(one)]
        if self._cast is not None:
            storages = [one.untyped_storage()._cdata for one in given]
            if self._cast in storages and not func.is_view:
                self.op, self._cast = name, None
        elif not (self.op or literal or was_bad or "empty" in name) and any(map(is_bad, made)):
            self.in_backward = torch._C._current_autograd_node() is not None
            if name == "aten._to_copy":
                self._cast = made[0].untyped_storage()._cdata
            else:
                self.op = name
        return result


def is_bad(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and not bool(tensor.detach().isfinite().all())


@dataclass
class Case:
    """A step, and whether it is meant to overflow."""

    name: str
    overflows: bool
    make: Callable[[], nn.Module]
    step: Step
    seed: int = 0

    def model(self) -> nn.Module:
        torch.manual_seed(self.seed)
        model = self.make()
        torch.manual_seed(self.seed + 1)
        return model

    def run_plain(self) -> None:
        self.step(self.model(), nullcontext())

    def run_in_float16(self) -> FirstBad:
        model = self.model()
        with FirstBad() as found:
            self.step(model, torch.autocast("cpu", torch.float16))
        return found


CASES: list[Case] = []


@dataclass
class Model:
    """Builds a model with its parameters made larger."""

    parts: Callable[[], list[nn.Module]]
    factor: float = 1.0
    factors: dict[int, float] = field(default_factory=dict)

    def __call__(self) -> nn.Module:
        model = nn.Sequential(*self.parts())
        with torch.no_grad():
            for n, part in enumerate(model):
                for parameter in part.parameters():
                    parameter.mul_(self.factors.get(n, self.factor))
        return model


def mlp() -> list[nn.Module]:
    return [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]


def convnet() -> list[nn.Module]:
    return [
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.Flatten(),
        nn.Linear(8 * 12 * 12, 10),
    ]


def encoder() -> list[nn.Module]:
    return [nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0) for _ in range(2)]


def case(name: str, overflows: bool, make: Callable[[], nn.Module]) -> Callable[[Step], Step]:
    def add(step: Step) -> Step:
        CASES.append(Case(name, overflows, make, step))
        return step

    return add


def classify(scale: float = 1.0) -> Step:
    def step(model: nn.Module, precision: Context) -> None:
        x, y = torch.randn(32, 64) * scale, torch.randint(0, 10, (32,))
        with precision:
            loss = F.cross_entropy(model(x), y)
        loss.backward()

    return step


def classify_images(scale: float = 1.0) -> Step:
    def step(model: nn.Module, precision: Context) -> None:
        x, y = torch.randn(4, 3, 16, 16) * scale, torch.randint(0, 10, (4,))
        with precision:
            loss = F.cross_entropy(model(x), y)
        loss.backward()

    return step


CASES += [
    Case("mlp", False, Model(mlp), classify()),
    Case("mlp, weights x 30", False, Model(mlp, 30), classify()),
    Case("mlp, weights x 100", True, Model(mlp, 100), classify()),
    Case("mlp, weights x 1000", True, Model(mlp, 1000), classify()),
    Case("mlp, inputs x 1e6", True, Model(mlp), classify(1e6)),
    Case("mlp, middle layer x 2e6", True, Model(mlp, factors={2: 2e6}), classify()),
    Case("convnet", False, Model(convnet), classify_images()),
    Case("convnet, inputs x 1e4", False, Model(convnet), classify_images(1e4)),
    Case("convnet, inputs x 3e4", True, Model(convnet), classify_images(3e4)),
    Case(
        "convnet, second convolution x 1e6",
        True,
        Model(convnet, factors={3: 1e6}),
        classify_images(),
    ),
]


@case("transformer with a causal mask", False, Model(encoder))
def _(model: nn.Module, precision: Context) -> None:
    x = torch.randn(2, 16, 64)
    with precision:
        mask = nn.Transformer.generate_square_subsequent_mask(16)
        loss = model[1](model[0](x, src_mask=mask), src_mask=mask).square().mean()
    loss.backward()


@case("attention scores", True, Model(mlp, 3))
def _(model: nn.Module, precision: Context) -> None:
    x = torch.randn(2, 16, 64) * 600
    with precision:
        scores = model[0](x) @ model[2](x).transpose(-1, -2)
        loss = (scores.softmax(-1) @ x).mean()
    loss.backward()


@case("attention scores, scaled before", False, Model(mlp, 3))
def _(model: nn.Module, precision: Context) -> None:
    x = torch.randn(2, 16, 64) * 10
    with precision:
        scores = (model[0](x) / 64) @ model[2](x).transpose(-1, -2)
        loss = (scores.softmax(-1) @ x).mean()
    loss.backward()


@case("square of a float16 value", True, Model(mlp, 10))
def _(model: nn.Module, precision: Context) -> None:
    with precision:
        loss = (model(torch.randn(32, 64)) ** 2).mean()
    loss.backward()


@case("mse of the same, which is kept in float32", False, Model(mlp, 10))
def _(model: nn.Module, precision: Context) -> None:
    with precision:
        out = model(torch.randn(32, 64))
        loss = F.mse_loss(out, torch.zeros_like(out)) / 1e3
    loss.backward()


@case("sum in float16", True, Model(mlp, 3))
def _(model: nn.Module, precision: Context) -> None:
    with precision:
        loss = (model(torch.randn(32, 64)) * 300).abs().sum()
    (loss / 1e4).backward()


@case("l1, a function of several operations kept in float32", False, Model(mlp, 3))
def _(model: nn.Module, precision: Context) -> None:
    with precision:
        out = model(torch.randn(32, 64))
        loss = F.l1_loss(out, torch.full((32, 10), 7e4)) / 1e4
    loss.backward()


@case("gradient of a large loss", True, Model(mlp))
def _(model: nn.Module, precision: Context) -> None:
    with precision:
        out = model(torch.randn(32, 64))
        loss = F.mse_loss(out, torch.ones_like(out)) * 1e7
    loss.backward()


@case("residuals of float32 embeddings", False, lambda: nn.Sequential(nn.Embedding(10, 64), *mlp()))
def _(model: nn.Module, precision: Context) -> None:
    with precision:
        hidden = model[0](torch.arange(10)) * 1e5  # stays in float32
        loss = (hidden + model[3](model[1](torch.randn(10, 64)))).mean() / 1e6
    loss.backward()


@case(
    "large float32 residuals into a linear layer",
    True,
    lambda: nn.Sequential(nn.Embedding(10, 64), *mlp()),
)
def _(model: nn.Module, precision: Context) -> None:
    with precision:
        hidden = model[0](torch.arange(10)) * 1e5
        loss = model[1](hidden).mean()
    loss.backward()


@case("attention that torch works out step by step", False, Model(mlp, 3))
def _(model: nn.Module, precision: Context) -> None:
    x, bias = torch.randn(2, 16, 64) * 300, torch.zeros(16, 16, requires_grad=True)
    with precision:
        query, key = model[0](x), model[2](x)  # their products are far beyond float16
        out = F.scaled_dot_product_attention(query, key, key, attn_mask=bias)
        loss = out.mean()
    (loss / 1e4).backward()


@case("dropout, whose mask has the dtype of what it is for", True, Model(mlp, 10))
def _(model: nn.Module, precision: Context) -> None:
    with precision:
        loss = F.dropout(model(torch.randn(32, 64)), 0.1).pow(3).mean()
    loss.backward()


LAYERS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    F.relu,
    F.gelu,
    F.silu,
    F.softplus,
    F.dropout,
    torch.tanh,
    torch.sigmoid,
    torch.abs,
    lambda h: h * 50,
    lambda h: h + 1000,
    lambda h: h * h,
    lambda h: h.pow(3),
    lambda h: h.softmax(-1),
    lambda h: F.log_softmax(h, -1),
    lambda h: (h / 10).clamp(max=12).exp(),
    lambda h: h.cumsum(-1),
    lambda h: h.sum(-1, keepdim=True).expand_as(h),
    lambda h: h - h.mean(-1, keepdim=True),
    lambda h: F.normalize(h, dim=-1),
    lambda h: torch.cat([h, h * 3], -1)[..., :16],
    lambda h: torch.stack([h, h]).sum(0),
    lambda h: h.clone().mul_(20),
    lambda h: torch.where(h > 0, h, -h * 4),
    lambda h: F.max_pool1d(h.unsqueeze(0), 3, 1, 1)[0],
    lambda h: h[..., :2].prod(-1, keepdim=True) + h,
    lambda h: torch.einsum("bi,bj->ij", h, h),
    lambda h: h.t() @ h,
    lambda h: F.layer_norm(h, (16,)) * 30,
    lambda h: h + torch.arange(16.0) * 900,
)
LOSSES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    torch.mean,
    torch.sum,
    lambda h: F.mse_loss(h, torch.zeros(16, 16)),
    lambda h: F.l1_loss(h, torch.zeros(16, 16)),
    lambda h: F.smooth_l1_loss(h, torch.ones(16, 16)),
    lambda h: F.huber_loss(h, torch.ones(16, 16)),
    lambda h: F.cross_entropy(h, torch.zeros(16, dtype=torch.long)),
    lambda h: F.binary_cross_entropy_with_logits(h, torch.ones(16, 16)),
    lambda h: h.square().mean(),
    torch.norm,
    lambda h: h.logsumexp(-1).mean(),
)


def random_case(seed: int) -> Case:
    """Draw a network of two to six parts, with weights, inputs and a loss of any size."""
    draw = random.Random(seed)
    parts = [
        None if draw.random() < 0.45 else draw.choice(LAYERS) for _ in range(draw.randint(2, 6))
    ]
    factors = {n: 10 ** draw.uniform(-0.5, 2.2) for n in range(len(parts))}
    loss, of_input, of_loss = (
        draw.choice(LOSSES),
        10 ** draw.uniform(-1, 4),
        10 ** draw.uniform(-2, 4),
    )

    def step(model: nn.Module, precision: Context) -> None:
        hidden = (torch.randn(16, 16) * of_input).requires_grad_()
        with precision:
            for layer, part in zip(model, parts, strict=True):  # type: ignore[arg-type]
                hidden = layer(hidden) if part is None else part(hidden)
            total = loss(hidden) * of_loss
        total.backward()

    make = Model(lambda: [nn.Linear(16, 16) for _ in parts], factors=factors)
    return Case(f"seed {seed}", False, make, step, seed)
