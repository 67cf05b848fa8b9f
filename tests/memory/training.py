"""Small training steps that memory tests and their rivals run alike."""

from collections.abc import Callable

import torch
from torch import nn

Step = Callable[[], torch.Tensor]


def mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = [layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(64, 128)


def convnet() -> tuple[nn.Module, torch.Tensor]:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2, dilation=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    return net, torch.randn(4, 3, 48, 48)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.1)
    return nn.TransformerEncoder(layer, 2), torch.randn(4, 32, 64)


MODELS = {"mlp": mlp, "convnet": convnet, "transformer": transformer}


class Training:
    """A model, its optimizer and a step, made alike from one seed."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.model, self.inputs = MODELS[name]()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self) -> torch.Tensor:
        loss = self.model(self.inputs).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self) -> list[torch.Tensor]:
        """Copy parameters, gradients, buffers and the random state, to be compared bit by bit."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        return [t.detach().clone() for t in tensors + grads] + [torch.get_rng_state()]
