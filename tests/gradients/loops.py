"""Models and training loops that the tests of gradients share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def mlp(depth: int = 3, act: type[nn.Module] = nn.ReLU, inputs: int = 16) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(inputs, 32), act()]
    for _ in range(depth - 2):
        layers += [nn.Linear(32, 32), act()]
    return nn.Sequential(*layers, nn.Linear(32, 1))


def conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 4, 1)
    )


class Transformer(nn.Module):
    """Two layers, with the embedding tied to the output."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(tokens)))


MODELS: dict[str, Callable[[], tuple[nn.Module, Callable[[], torch.Tensor]]]] = {
    "mlp": lambda: (mlp(), lambda: torch.randn(32, 16)),
    "conv": lambda: (conv(), lambda: torch.randn(8, 1, 4, 4)),
    "transformer": lambda: (Transformer(), lambda: torch.randint(0, 50, (4, 12))),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
}


def squares(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).float().square().mean()


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    n_steps: int = 20,
    *,
    batch: Callable[[], torch.Tensor] = lambda: torch.randn(64, 16),
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor] = squares,
    clip: float | None = None,
) -> list[float]:
    losses = []
    for _ in range(n_steps):
        optimizer.zero_grad()
        value = loss(model, batch())
        value.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(value.item())
    return losses


def kinds(report) -> list[str]:
    return [finding.kind for finding in report.findings]
