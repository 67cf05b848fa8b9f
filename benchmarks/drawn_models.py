"""Three models whose autograd graphs are drawn; nothing is downloaded."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class _Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample: nn.Module | None = None
        if stride > 1 or n_in != n_out:
            conv = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(n_out))

    def forward(self, x: torch.Tensor) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """The network of He et al. (2015), for pictures of 64 by 64."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1, self.relu, self.maxpool = nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        widths = [64, 64, 128, 256, 512]
        for n, (n_in, n_out) in enumerate(itertools.pairwise(widths), start=1):
            blocks = (_Residual(n_in, n_out, 1 if n == 1 else 2), _Residual(n_out, n_out, 1))
            setattr(self, f"layer{n}", nn.Sequential(*blocks))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> Any:
        """Give ten scores per picture."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for n in range(1, 5):
            x = getattr(self, f"layer{n}")(x)
        return self.fc(self.avgpool(x).flatten(1))


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> Any:
        rows, length, width = x.shape
        parts = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(rows, length, width))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), _Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """GPT-2's stack of blocks, narrow: its graph has as many nodes at any width."""

    def __init__(self, depth: int = 12, width: int = 64, words: int = 1000) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(64, width)
        self.h = nn.ModuleList(_Block(width, 4) for _ in range(depth))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> Any:
        """Give a score for each word after each place."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


class Recurrent(nn.Module):
    """An LSTM cell that runs over 50 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(16, 32), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> Any:
        """Give one value per row, after the last step."""
        hidden = cell = x.new_zeros(x.shape[1], 32)
        for step in x:
            hidden, cell = self.cell(step, (hidden, cell))
        return self.head(hidden)


DRAWN: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "ResNet-18": (ResNet18, lambda: torch.randn(2, 3, 64, 64)),
    "GPT-2, 12 blocks": (GPT2, lambda: torch.randint(0, 1000, (2, 32))),
    "GPT-2, 24 blocks": (lambda: GPT2(24), lambda: torch.randint(0, 1000, (2, 32))),
    "LSTM, 50 steps": (Recurrent, lambda: torch.randn(50, 4, 16)),
}
