"""Training steps that look as if they had a fault, and have none: nothing may be said of them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from planted import INF, NAN, Make, Step, here, sgd
from torch import Tensor, nn

HEALTHY: list[Make] = []


def healthy(make: Make) -> Make:
    """Add the decorated function."""
    HEALTHY.append(make)
    return make


def trained(model: nn.Module, loss_of, n_steps: int = 2) -> Step:
    """Make the step of a model whose loss `loss_of` gives."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        for _ in range(n_steps):
            optimizer.zero_grad()
            loss_of().backward()
            optimizer.step()

    return step


@healthy
def norm_of_zero() -> Step:
    w = nn.Parameter(torch.zeros(3))
    return lambda: (
        (w.norm() + torch.linalg.vector_norm(w) + w.view(1, 3).norm(dim=1)).sum().backward()
    )


@healthy
def deviation_of_a_constant() -> Step:
    w = nn.Parameter(torch.ones(4, 2))
    return lambda: (w.std(0).sum() + w.var(0).sum()).backward()


@healthy
def angle_of_a_zero_vector() -> Step:
    x, y = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    return lambda: torch.atan2(y, x).sum().backward()


@healthy
def distance_of_equal_points() -> Step:
    w = nn.Parameter(torch.ones(3, 2))
    return lambda: (torch.cdist(w, w).sum() + F.pairwise_distance(w, w).sum()).backward()


@healthy
def powers_of_zero() -> Step:
    w = nn.Parameter(torch.zeros(3))
    return lambda: (w**2 + w**1 + w**0 + torch.pow(w, 3)).sum().backward()


@healthy
def complex_size_of_zero() -> Step:
    w = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    return lambda: (w.abs().sum() + w.angle().sum()).backward()


@healthy
def causal_mask_of_infinities() -> Step:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x = torch.randn(2, 5, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    return trained(layer, lambda: layer(x, src_mask=mask).square().mean())


@healthy
def padding_mask_of_attention() -> Step:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x = torch.randn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False, False, True, True, True]])
    return trained(layer, lambda: layer(x, src_key_padding_mask=padding).square().mean())


@healthy
def scaled_dot_products() -> Step:
    torch.manual_seed(0)
    qkv = nn.Linear(8, 24)
    x, keep = torch.randn(2, 5, 8), torch.ones(5, 5, dtype=torch.bool).tril()

    def loss() -> Tensor:
        q, k, v = qkv(x).chunk(3, -1)
        masked = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return (masked + F.scaled_dot_product_attention(q, k, v, is_causal=True)).square().mean()

    return trained(qkv, loss)


@healthy
def attention_in_blocks() -> Step:
    torch.manual_seed(0)
    q = nn.Linear(4, 4)
    x = torch.randn(3, 4)

    def loss() -> Tensor:
        top, total = torch.full((3, 1), -INF), torch.zeros(3, 1)
        out = torch.zeros(3, 4)
        for block in x.split(1):
            scores = q(x) @ block.T
            new = torch.maximum(top, scores.amax(1, keepdim=True))
            shrink, weights = (top - new).exp(), (scores - new).exp()
            total = total * shrink + weights.sum(1, keepdim=True)
            out, top = out * shrink + weights @ block, new
        return (out / total).square().mean()

    return trained(q, loss)


@healthy
def cache_that_is_filled_before_it_is_read() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)

    def loss() -> Tensor:
        cache = torch.empty(6, 2).fill_(NAN)  # as deterministic mode does
        cache[:4] = model(x)
        return cache[:4].square().mean()

    return trained(model, loss)


@healthy
def scaler_that_settles() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = sgd(model, 1e-3)
    scaler = torch.amp.GradScaler(here(), init_scale=2.0**16, backoff_factor=2.0**-6)
    x, y = torch.randn(8, 4), torch.full((8, 1), 20.0)

    def step() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast(here(), torch.float16):
                out = model(x)
            scaler.scale(F.mse_loss(out.float(), y)).backward()
            scaler.step(optimizer)
            scaler.update()

    return step


@healthy
def scaler_with_clipping() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = sgd(model, 1e-3)
    scaler = torch.amp.GradScaler(here(), init_scale=2.0**16, backoff_factor=2.0**-6)
    x, y = torch.randn(8, 4), torch.full((8, 1), 20.0)

    def step() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast(here(), torch.float16):
                out = model(x)
            scaler.scale(F.mse_loss(out.float(), y)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    return step


@healthy
def closed_experts() -> Step:
    torch.manual_seed(0)
    router = nn.Linear(3, 4)
    x, worth = torch.randn(5, 3), torch.randn(4)
    closed = torch.tensor([False, True, False, False])

    def loss() -> Tensor:
        best, chosen = router(x).masked_fill(closed, -INF).topk(2)
        return (best.softmax(-1) * worth[chosen]).sum(-1).mean()

    return trained(router, loss)


@healthy
def best_so_far() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x = torch.randn(4, 3)
    best = torch.tensor(INF)
    optimizer = sgd(model)

    def step() -> None:
        nonlocal best
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            best = torch.minimum(best, loss.detach())

    return step


class Observer(nn.Module):
    """Remembers the range of what goes through, as quantisation does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor(INF))
        self.register_buffer("high", torch.tensor(-INF))
        self.register_buffer("of_last_layer", torch.full((4,), -INF))

    def forward(self, x: Tensor) -> Tensor:
        self.low = torch.minimum(self.low, x.detach().amin())
        self.high.copy_(torch.maximum(self.high, x.detach().amax()))
        return x


@healthy
def range_that_starts_at_infinity() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), Observer())
    x = torch.randn(4, 3)
    return trained(model, lambda: model(x).square().mean())


@healthy
def beam_search() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 6)
    x = torch.randn(1, 3)

    def loss() -> Tensor:
        with torch.no_grad():
            scores = torch.full((3,), -INF)
            scores[0] = 0.0
            for _ in range(3):
                every = scores[:, None] + model(x).log_softmax(-1)
                scores, _ = every.reshape(-1).topk(3)
            assert scores.isfinite().all()
        return model(x).square().mean()

    return trained(model, loss)


@healthy
def log_sum_over_masked_rows() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    x, closed = torch.randn(5, 3), torch.tensor([False, True, True, False])
    return trained(model, lambda: model(x).masked_fill(closed, -INF).logsumexp(-1).mean())


@healthy
def labels_among_masked_logits() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    x, y = torch.randn(5, 3), torch.tensor([0, 3, 0, 3, 0])
    closed = torch.tensor([False, True, True, False])
    return trained(model, lambda: F.cross_entropy(model(x).masked_fill(closed, -INF), y))


@healthy
def smoothed_labels() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    x, y = torch.randn(5, 3), torch.tensor([0, 3, -100, 3, 0])
    return trained(model, lambda: F.cross_entropy(model(x), y, label_smoothing=0.1))


@healthy
def impossible_alignment_that_is_left_out() -> Step:
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(3, 2, 4))
    y = torch.tensor([[1, 2, 3, 1, 2], [1, 2, 0, 0, 0]])
    n_in, n_out = torch.tensor([3, 3]), torch.tensor([5, 2])
    return lambda: F.ctc_loss(w.log_softmax(-1), y, n_in, n_out, zero_infinity=True).backward()


@healthy
def focal_loss() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x, y = torch.randn(5, 3), torch.ones(5, 1)

    def loss() -> Tensor:
        plain = F.binary_cross_entropy_with_logits(model(x), y, reduction="none")
        return ((1 - torch.exp(-plain)) ** 2 * plain).mean()

    return trained(model, loss)


@healthy
def crossed_entropies_of_sure_probabilities() -> Step:
    p = nn.Parameter(torch.tensor([1.0, 0.0, 0.5]))
    y = torch.tensor([1.0, 0.0, 1.0])
    return lambda: F.binary_cross_entropy(p, y).backward()


@healthy
def divergence_of_sure_targets() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    x, y = torch.randn(2, 3), torch.tensor([[1.0, 0, 0], [0, 0.5, 0.5]])
    return trained(model, lambda: F.kl_div(model(x).log_softmax(-1), y, reduction="batchmean"))


@healthy
def entropies_of_zero() -> Step:
    p = torch.tensor([0.0, 1.0])
    w = nn.Parameter(torch.ones(2))
    return lambda: (w * (torch.special.entr(p) + torch.xlogy(p, p))).sum().backward()


@healthy
def similarity_of_zero_vectors() -> Step:
    w = nn.Parameter(torch.zeros(2, 3))
    x = torch.zeros(2, 3)
    return lambda: (F.cosine_similarity(w, x).sum() + F.normalize(w, dim=1).sum()).backward()


@healthy
def gumbel_softmax() -> Step:
    torch.manual_seed(0)
    w = nn.Parameter(torch.zeros(4, 3))
    return lambda: (
        F.gumbel_softmax(w, hard=True).sum() + F.gumbel_softmax(w)[:, 0].sum()
    ).backward()


@healthy
def categories_that_are_banned() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    x, banned = torch.randn(5, 3), torch.tensor([False, True, False, False])

    def loss() -> Tensor:
        logits = model(x).masked_fill(banned, -INF)
        chosen = torch.distributions.Categorical(logits=logits)
        return -chosen.log_prob(chosen.sample()).mean()

    return trained(model, loss)


@healthy
def where_on_both_sides() -> Step:
    w = nn.Parameter(torch.tensor([0.0, 4.0]))

    def step() -> None:
        safe = torch.where(w > 0, w, 1.0)
        torch.where(w > 0, safe.sqrt(), 0.0).sum().backward()

    return step


@healthy
def missing_values_that_are_filled_in() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    data = torch.randn(4, 3)
    data[1, 1] = NAN

    def loss() -> Tensor:
        x = torch.where(data.isnan(), data.nanmean(0), data)
        return model(x).square().mean() + model(data.nan_to_num()).square().mean()

    return trained(model, loss)


@healthy
def missing_targets_that_are_left_out() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x, y = torch.randn(4, 3), torch.tensor([[1.0], [NAN], [0.0], [NAN]])

    def loss() -> Tensor:
        known = ~y.isnan()
        return F.mse_loss(model(x)[known], y[known])

    return trained(model, loss)


@healthy
def pooling_and_norms() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1),
        nn.GroupNorm(2, 4), nn.Dropout2d(0.5), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(4, 2),
    )  # fmt: skip
    x = torch.randn(4, 2, 8, 8)
    return trained(model, lambda: model(x).square().mean())


@healthy
def norms_of_a_constant_input() -> Step:
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.RMSNorm(4))
    x = torch.ones(3, 4)
    return trained(model, lambda: model(x).square().mean())


@healthy
def packed_sequences() -> Step:
    torch.manual_seed(0)
    model = nn.LSTM(3, 4, batch_first=True)
    x = torch.randn(2, 5, 3)

    def loss() -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 2]), batch_first=True)
        out, _ = nn.utils.rnn.pad_packed_sequence(model(packed)[0], padding_value=-INF)
        return out.amax(0).square().mean()

    return trained(model, loss)


@healthy
def largest_of_each_group() -> Step:
    w = nn.Parameter(torch.randn(6))
    group = torch.tensor([0, 0, 1, 1, 2, 2])

    def step() -> None:
        top = torch.full((3,), -INF).scatter_reduce(0, group, w, "amax")
        (w - top[group]).exp().sum().backward()

    return step


@healthy
def gradients_that_are_clipped() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = sgd(model)
    x = torch.zeros(2, 3)

    def step() -> None:
        optimizer.zero_grad()
        (model(x) * 0).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_norm_(model.parameters(), INF)
        optimizer.step()

    return step


@healthy
def metrics_of_an_evaluation() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x = torch.randn(4, 3)

    def loss() -> Tensor:
        with torch.inference_mode():
            empty = model(x)[:0]
            precision = torch.zeros(()) / torch.zeros(())
            assert (empty.mean() + precision).isnan()
        return model(x).square().mean()

    return trained(model, loss)


@healthy
def inverse_frequencies() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    x, y = torch.randn(4, 3), torch.tensor([0, 0, 1, 1])

    def loss() -> Tensor:
        weights = 1 / torch.bincount(y, minlength=3)
        weights[weights.isinf()] = 0.0
        return F.cross_entropy(model(x), y, weight=weights)

    return trained(model, loss)


@healthy
def running_average_in_half_precision() -> Step:
    torch.manual_seed(0)
    model = nn.Linear(4, 2).bfloat16()
    x = torch.randn(8, 4, dtype=torch.bfloat16)
    return trained(model, lambda: model(x).float().square().mean(), n_steps=3)


@healthy
def sum_beyond_float16_of_healthy_values() -> Step:
    w = nn.Parameter(torch.full((100, 20), 100.0, dtype=torch.float16))
    return lambda: (w * 2).mean().backward()


@healthy
def sum_beyond_float32_of_healthy_values() -> Step:
    w = nn.Parameter(torch.full((8,), 1e38))
    return lambda: (w * 3).amax().backward()


@healthy
def positions_that_may_attend_to_none() -> Step:
    torch.manual_seed(0)
    q = nn.Linear(4, 4)
    x, keep = torch.randn(1, 3, 4), torch.tensor([[True, False, False], [False] * 3, [True] * 3])

    def loss() -> Tensor:
        scores = (q(x) @ x.mT).masked_fill(~keep, torch.finfo(torch.float32).min)
        return (scores.softmax(-1) @ x).square().mean()

    return trained(q, loss)


@healthy
def relative_positions_by_slope() -> Step:
    torch.manual_seed(0)
    q = nn.Linear(4, 4)
    x = torch.randn(1, 3, 4)
    bias = torch.full((3, 3), -INF).triu(1) + torch.arange(3) * math.log(0.5)

    return trained(q, lambda: ((q(x) @ x.mT + bias).softmax(-1) @ x).square().mean())
