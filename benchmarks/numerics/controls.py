"""Healthy training that makes NaN or Inf on the way, or comes near to it."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.numerics.planted import Model, Training, control, training

Tensor = torch.Tensor


@control
def norm_at_zero() -> Training:
    """norm() divides 0 by 0 in its own backward, and masks it."""
    return training(lambda model, x: (model.rest * x).norm(), torch.ones(3), rest=torch.zeros(3))


@control
def std_of_constant() -> Training:
    """So does std()."""
    return training(
        lambda model, x: (model.rest * x).std(0).sum(), torch.ones(4, 2), rest=torch.ones(4, 2)
    )


@control
def heading_at_rest() -> Training:
    """And atan2()."""
    return training(
        lambda model, x: torch.atan2(model.north * x, model.east * x).sum(),
        torch.ones(1),
        north=torch.zeros(1),
        east=torch.zeros(1),
    )


@control
def causal_mask() -> Training:
    """A float mask of -Inf, as torch itself makes it."""

    def formula(model: Model, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        return model.layer(x, src_mask=mask).square().mean()

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return training(formula, torch.randn(2, 5, 8), layer=layer)


@control
def masked_attention() -> Training:
    """Attention turns its boolean mask into -Inf; every row keeps a key."""
    mask = torch.ones(5, 5, dtype=torch.bool).tril()

    def formula(model: Model, x: Tensor) -> Tensor:
        q, k, v = model.layer(x).chunk(3, -1)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).square().mean()

    torch.manual_seed(0)
    return training(formula, torch.randn(2, 5, 8), layer=nn.Linear(8, 24))


@control
def padded_gpt2() -> Training:
    """A small GPT-2 of transformers', a batch with padding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=40, n_positions=8, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    keep = torch.ones(2, 8, dtype=torch.long)
    keep[1, 5:] = 0

    def formula(model: Model, tokens: Tensor) -> Tensor:
        labels = tokens.masked_fill(keep == 0, -100)
        return model.gpt2(input_ids=tokens, attention_mask=keep, labels=labels).loss

    return training(formula, torch.randint(1, 40, (2, 8)), gpt2=GPT2LMHeadModel(config))


@control
def closed_experts() -> Training:
    """An expert is closed with -Inf, and topk takes two others."""
    closed = torch.tensor([False, False, True, False])

    def formula(model: Model, x: Tensor) -> Tensor:
        best, _ = model.router(x).masked_fill(closed, -math.inf).topk(2)
        return best.softmax(-1).square().mean()

    torch.manual_seed(0)
    return training(formula, torch.randn(5, 3), router=nn.Linear(3, 4))


@control
def masked_maximum() -> Training:
    """Pooling over what is there: a row's padding is -Inf, and every row has something."""
    padding = torch.tensor([[False, False, True], [False, True, True]])

    def formula(model: Model, x: Tensor) -> Tensor:
        scores = model.layer(x).squeeze(-1)
        return scores.masked_fill(padding, -math.inf).amax(1).mean()

    torch.manual_seed(0)
    return training(formula, torch.randn(2, 3, 4), layer=nn.Linear(4, 1))


@control
def filled_later() -> Training:
    """Memory from torch.empty that holds NaN; only rows that were written are read."""

    def formula(model: Model, x: Tensor) -> Tensor:
        cache = torch.empty(6, 2)
        cache[4:] = math.nan  # what such memory may hold
        cache[:4] = model.layer(x)
        return cache[:4].square().mean()

    torch.manual_seed(0)
    return training(formula, torch.randn(4, 3), layer=nn.Linear(3, 2))


@control
def gaps_are_filled() -> Training:
    """Data with gaps, which are filled before anything is computed."""

    def prepare(batch: Tensor) -> Tensor:
        return torch.where(batch.isnan(), batch.nanmean(0), batch)

    def formula(model: Model, x: Tensor) -> Tensor:
        return model.layer(x).square().mean()

    torch.manual_seed(0)
    table = torch.randn(4, 3)
    table[1, 2] = math.nan
    return training(formula, table, prepare=prepare, layer=nn.Linear(3, 1))


@control
def computed_again() -> Training:
    """Gradient checkpointing around a masked softmax."""
    mask = torch.ones(4, 4, dtype=torch.bool).triu(1)

    def formula(model: Model, x: Tensor) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            return (x @ x.mT).masked_fill(mask, -math.inf).softmax(-1) @ x

        return checkpoint(attend, model.layer(x), use_reentrant=False).square().mean()

    torch.manual_seed(0)
    return training(formula, torch.randn(2, 4, 3), layer=nn.Linear(3, 3))


@control
def steep_but_finite() -> Training:
    """Logits of 1000, gradients of 1e18 and a clip: large, and nothing more."""

    def formula(model: Model, x: Tensor) -> Tensor:
        logits = 1000 * model.layer(x)
        loss = functional.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))
        return 1e15 * loss

    def clipped(parameters: list[Tensor]) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=1e-3)
        optimizer.register_step_pre_hook(
            lambda *_: nn.utils.clip_grad_norm_(parameters, 1.0) and None
        )
        return optimizer

    torch.manual_seed(0)
    return training(formula, torch.randn(4, 3), optimizer=clipped, layer=nn.Linear(3, 1))


class _Scaled(Training):
    def run(self) -> None:
        """Train with a loss scale that is found by trying."""
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, backoff_factor=2.0**-6)
        for batch in self.batches:
            self.optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = self.model(batch)
            scaler.scale(loss).backward()
            scaler.step(self.optimizer)
            scaler.update()


@control
def scale_too_large() -> Training:
    """Mixed precision: the first scaled gradient overflows, and GradScaler skips that step."""

    def formula(model: Model, x: Tensor) -> Tensor:
        return functional.mse_loss(model.layer(x).float(), torch.full((8, 1), 20.0))

    torch.manual_seed(0)
    batches = (torch.randn(8, 4),) * 3
    made = training(formula, *batches, layer=nn.Linear(4, 1))
    return _Scaled(made.model, made.optimizer, made.batches, made.prepare)
