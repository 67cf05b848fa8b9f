"""Faults in the backward pass and in the optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.numerics.planted import Model, Training, fault, training

Tensor = torch.Tensor


@fault("SqrtBackward0", line="length = points.square().sum(1).sqrt()")
def zero_length() -> Training:
    """The slope of sqrt at 0 is infinite, and the square before it multiplies that by 0."""

    def formula(model: Model, x: Tensor) -> Tensor:
        points = model.points * x
        length = points.square().sum(1).sqrt()
        return length.mean()

    return training(formula, torch.ones(2, 2), points=torch.tensor([[0.0, 0.0], [3.0, 4.0]]))


@fault("SqrtBackward0", line="length = points.square().sum(1).sqrt()")
def zero_length_checkpointed() -> Training:
    """The same in a block that is computed again during backward."""

    def block(points: Tensor) -> Tensor:
        length = points.square().sum(1).sqrt()
        return length.mean()

    def formula(model: Model, x: Tensor) -> Tensor:
        return checkpoint(block, model.points * x, use_reentrant=False)

    return training(formula, torch.ones(2, 2), points=torch.tensor([[0.0, 0.0], [3.0, 4.0]]))


@fault("Log1PBackward0", "aten.log1p", line="missed = torch.log1p(-p.clamp(max=1 - 1e-6))")
def rounded_clamp() -> Training:
    """1 - 1e-6 is 1 in bfloat16, so the clamp does nothing; the loss is finite all the same."""

    def formula(model: Model, x: Tensor) -> Tensor:
        p = model.p * x
        missed = torch.log1p(-p.clamp(max=1 - 1e-6))
        return (1 - missed.exp()).float().sum()

    p = torch.tensor([1.0, 0.5], dtype=torch.bfloat16)
    return training(formula, torch.ones(2, dtype=torch.bfloat16), p=p)


@fault("PowBackward0", line="return (model.gamma * x).pow(0.5).sum()")
def root_as_power() -> Training:
    """The slope of x ** 0.5 at 0."""

    def formula(model: Model, x: Tensor) -> Tensor:
        return (model.gamma * x).pow(0.5).sum()

    return training(formula, torch.tensor([0.0, 1.0]), gamma=torch.ones(2))


@fault("DivBackward0", "aten.div", line="ratio = torch.where(angle != 0, angle.sin() / angle, 1.0)")
def sinc_by_hand() -> Training:
    """`where` hides 0 / 0 in the forward pass, not in the backward one."""

    def formula(model: Model, x: Tensor) -> Tensor:
        angle = model.rate * x
        ratio = torch.where(angle != 0, angle.sin() / angle, 1.0)
        return ratio.sum()

    return training(formula, torch.tensor([0.0, 1.0]), rate=torch.ones(2))


@fault("AcosBackward0", line="return model.turn(x).acos().sum()")
def no_rotation() -> Training:
    """The slope of acos at exactly 1, where two vectors point the same way."""

    class Turn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return (self.scale * x).clamp(-1, 1)

    def formula(model: Model, x: Tensor) -> Tensor:
        return model.turn(x).acos().sum()

    return training(formula, torch.tensor([1.0, 0.3]), turn=Turn())


@fault("LinalgEighBackward0", line="torch.linalg.eigh(")
def equal_eigenvalues() -> Training:
    """The gradient of eigenvectors divides by the distance of the eigenvalues."""

    def formula(model: Model, x: Tensor) -> Tensor:
        _, vectors = torch.linalg.eigh(model.matrix * x)
        return vectors[0].sum()

    return training(formula, torch.ones(3, 3), matrix=torch.eye(3))


class _Halve(torch.autograd.Function):
    """A gradient of the user's own, which divides by what the input may be."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x / 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (x / 2) / x


@fault("_HalveBackward", "aten.div", line="return grad * (x / 2) / x")
def own_gradient() -> Training:
    """A backward of the user's own is wrong at 0."""

    def formula(model: Model, x: Tensor) -> Tensor:
        return _Halve.apply(model.scale * x).sum()

    return training(formula, torch.tensor([0.0, 1.0]), scale=torch.ones(2))


@fault("aten.addcdiv_", "aten._foreach_addcdiv_", line="self.optimizer.step()")
def adam_in_half() -> Training:
    """Adam's eps of 1e-8 is 0 in float16: rows that were not looked up become 0 / 0."""

    def formula(model: Model, x: Tensor) -> Tensor:
        return model.table(x).float().square().mean()

    torch.manual_seed(0)
    return training(
        formula,
        torch.tensor([0, 1]),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        table=nn.Embedding(4, 2).half(),
    )


@fault(
    "aten.addcdiv_", "aten._foreach_addcdiv_", "aten.div", "aten.sqrt", line="self.optimizer.step()"
)
def rmsprop_without_eps() -> Training:
    """RMSprop whose eps was set to 0, on a weight without a gradient."""

    def formula(model: Model, x: Tensor) -> Tensor:
        return model.table(x).square().mean()

    torch.manual_seed(0)
    return training(
        formula,
        torch.tensor([0, 1]),
        optimizer=lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, eps=0.0),
        table=nn.Embedding(4, 2),
    )


class _Skipping(Training):
    def run(self) -> None:
        """Leave out the update of a batch whose loss is no number."""
        for batch in self.batches:
            self.optimizer.zero_grad()
            loss = self.model(batch)
            if torch.isfinite(loss):
                loss.backward()
                self.optimizer.step()


@fault("leaf", line="return model.norm(x).square().mean()")
def skipped_too_late() -> Training:
    """The update for a NaN batch is skipped, but its NaN is in the running statistics."""

    def formula(model: Model, x: Tensor) -> Tensor:
        return model.norm(x).square().mean()

    torch.manual_seed(0)
    batches = torch.randn(3, 8, 4)
    batches[1, 0, 0] = float("nan")
    made = training(formula, *batches, norm=nn.BatchNorm1d(4))
    return _Skipping(made.model, made.optimizer, made.batches, made.prepare)
