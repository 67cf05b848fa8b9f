"""Three training steps of usual kinds, each with a model and an optimizer of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass
class Training:
    """A model that can be trained one step at a time, always on the same batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: torch.Tensor
    targets: torch.Tensor

    def step(self) -> None:
        """Forward, zero_grad, backward and AdamW step."""
        logits = self.model(self.inputs)
        loss = functional.cross_entropy(logits.flatten(0, -2), self.targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def mlp() -> Training:
    """Three small linear layers, 64-128-128-10, and 64 inputs: hardly any work for an operation."""
    layers = (nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    return _training(nn.Sequential(*layers), torch.randn(64, 64), torch.randint(0, 10, (64,)))


def conv() -> Training:
    """Four convolutions with batch norm, on 8 pictures of 32 by 32."""
    layers: list[nn.Module] = []
    for n_in, n_out in ((3, 32), (32, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if n_in == n_out else []
    head = (nn.Flatten(), nn.Linear(64 * 8 * 8, 10))
    model = nn.Sequential(*layers, *head)
    return _training(model, torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,)))


class _Transformer(nn.Module):
    def __init__(self, words: int = 1000, width: int = 256, length: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> Any:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.layers(self.words(tokens) + self.places(places)))


def transformer() -> Training:
    """Four encoder layers of width 256 with four heads, on 2 rows of 64 tokens out of 1000."""
    tokens = torch.randint(0, 1000, (2, 64))
    return _training(_Transformer(), tokens, tokens.roll(-1, 1))


def gpt2() -> Training:
    """The same layers on 8 rows of 128 tokens, as one would train them: some 300 ms a step."""
    tokens = torch.randint(0, 1000, (8, 128))
    return _training(_Transformer(length=128), tokens, tokens.roll(-1, 1))


def _training(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> Training:
    return Training(model, torch.optim.AdamW(model.parameters()), inputs, targets)


TRAININGS: dict[str, Callable[[], Training]] = {
    "MLP": mlp,
    "conv net": conv,
    "transformer": transformer,
}


def make(name: str) -> Training:
    """Make one of `TRAININGS`, the same each time, with torch on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return TRAININGS[name]()
