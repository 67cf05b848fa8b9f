"""The training steps on which watching for NaN is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks import models
from benchmarks.models import Training


def wide_mlp() -> Training:
    """Four linear layers of width 512 and 128 inputs: about 10 ms on one core of a server."""
    layers: list[nn.Module] = [nn.Linear(256, 512), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Linear(512, 512), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(512, 10))
    inputs, targets = torch.randn(128, 256), torch.randint(0, 10, (128,))
    return Training(model, torch.optim.AdamW(model.parameters()), inputs, targets)


class _Logits(nn.Module):
    def __init__(self, gpt2: nn.Module) -> None:
        super().__init__()
        self.gpt2 = gpt2

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.gpt2(input_ids=tokens, use_cache=False).logits


def gpt2() -> Training:
    """GPT-2 of transformers': 4 layers of width 256, on 4 rows of 128 tokens out of 5000."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=5000, n_positions=128, n_embd=256, n_layer=4, n_head=4, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    model = _Logits(GPT2LMHeadModel(config))
    tokens = torch.randint(0, 5000, (4, 128))
    return Training(model, torch.optim.AdamW(model.parameters()), tokens, tokens.roll(-1, 1))


TRAININGS: dict[str, Callable[[], Training]] = {
    "tiny MLP": models.mlp,
    "MLP": wide_mlp,
    "conv net": models.conv,
    "GPT-2": gpt2,
}


def make(name: str) -> Training:
    """Make one of `TRAININGS`, the same each time, with torch on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return TRAININGS[name]()
