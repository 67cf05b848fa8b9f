"""Training as it is done every day, watched: no fault is found where there is none."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import nbinspect

X, Y = torch.randn(16, 8), torch.randint(0, 2, (16,))


def net():
    layers = (nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
    return nn.Sequential(*layers)


def amp_accumulation_and_averages():
    model = net()
    average, optimizer = copy.deepcopy(model), torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(X), Y) / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for mean, new in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(new, 0.1)
        (model(X).argmax(1) == Y).float().mean().item()
    return nn.functional.cross_entropy(model(X), Y)


def closures():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    return optimizer.step(closure)


def adversaries():
    generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
    makes = torch.optim.Adam(generator.parameters())
    judges = torch.optim.Adam(critic.parameters())
    for _ in range(2):
        fake = generator(torch.randn(16, 4))
        judges.zero_grad()
        (critic(fake.detach()).mean() - critic(X).mean()).backward()
        judges.step()
        makes.zero_grad()
        loss = -critic(fake).mean()
        loss.backward()
        makes.step()
    return loss


def truncated_backpropagation():
    cell, head, state = nn.LSTM(4, 8), nn.Linear(8, 1), None
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
    for _ in range(3):
        out, state = cell(torch.randn(5, 2, 4), state)
        state = tuple(one.detach() for one in state)
        loss = head(out).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss


def straight_through():
    encoder, decoder = nn.Linear(8, 4), nn.Linear(4, 4)
    code = torch.randn(16, 4, requires_grad=True)
    hidden = encoder(X)
    chosen = hidden + (code - hidden).detach()
    return decoder(chosen).mean() + (hidden.detach() - code).square().mean()


def learning_to_learn():
    model = nn.Linear(8, 1)
    inner = model(X).square().mean()
    gradients = torch.autograd.grad(inner, model.parameters(), create_graph=True)
    pairs = zip(model.parameters(), gradients, strict=True)
    return nn.functional.linear(X, *(p - 0.1 * g for p, g in pairs)).mean()


def backward_twice():
    loss = nn.functional.cross_entropy(net()(X), Y)
    loss.backward(retain_graph=True)
    loss.backward()
    return loss


def another_models_weights():
    model, other = net(), net()
    other.load_state_dict(model.state_dict())
    return nn.functional.cross_entropy(other(X), Y)


@pytest.mark.parametrize(
    "train",
    [
        amp_accumulation_and_averages,
        closures,
        adversaries,
        truncated_backpropagation,
        straight_through,
        learning_to_learn,
        backward_twice,
        another_models_weights,
    ],
)
def test_no_fault_is_found(train):
    with nbinspect.graphwatch() as w:
        loss = train()
    for report in (w.report, nbinspect.autograd(loss)):
        assert [one.sentence for one in report.findings if one.is_fault] == []
