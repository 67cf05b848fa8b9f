"""Faults in cells that make their models too, as notebooks' cells do."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import nbinspect


def mlp(n_out: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, n_out))


class OldStyle(nn.Module):
    """Sets its weights through ``.data``, as older code does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 4)
        self.inner.weight.data.normal_(0, 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def detached():
    model, head = OldStyle(), nn.Linear(4, 1)
    hidden = model(torch.randn(3, 8)).detach()
    loss = head(hidden).sum()
    return loss, model, head


def through_data():
    model, head = mlp(), nn.Linear(4, 1)
    loss = head(model(torch.randn(3, 8)).data).sum()
    return loss, model, head


def indexed():
    model, words = mlp(), nn.Embedding(4, 3)
    loss = words(model(torch.randn(5, 8)).argmax(dim=-1)).sum()
    return loss, model, words


def rounded():
    model, head = mlp(), nn.Linear(4, 1)
    loss = head(model(torch.randn(5, 8)).round().long().float()).sum()
    return loss, model, head


def through_numpy():
    model, head = mlp(), nn.Linear(4, 1)
    array = model(torch.randn(3, 8)).detach().numpy()
    loss = head(torch.from_numpy(array * 2)).sum()
    return loss, model, head


def in_a_helper():
    model, head = mlp(), nn.Linear(4, 1)

    @torch.no_grad()
    def encode(x):
        return model(x)

    loss = head(encode(torch.randn(5, 8))).sum()
    return loss, model, head


def on_one_line():
    model, head = mlp(), nn.Linear(4, 1)
    with torch.no_grad(): hidden = model(torch.randn(5, 8))  # fmt: skip  # noqa: E701
    loss = head(hidden).sum()
    return loss, model, head


def reentrant():
    model, head = mlp(), nn.Linear(4, 1)
    loss = head(checkpoint(model, torch.randn(3, 8), use_reentrant=True)).sum()
    return loss, model, head


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (detached, "`model(torch.randn(3, 8)).detach()`"),
        (through_data, "`model(torch.randn(3, 8)).data`"),
        (indexed, "argmax(dim=-1)`"),
        (rounded, "round().long()`"),
        (through_numpy, "takes it to NumPy"),
        (in_a_helper, "`model(x)`"),
        (on_one_line, "runs under `torch.no_grad()`; run it outside of that"),
        (reentrant, "`use_reentrant=False` needs none"),
    ],
)
def test_the_cut_is_named_and_not_the_initialization(make, said):
    with nbinspect.graphwatch() as w:
        kept = make()
    (cut,) = [one for one in w.report.findings if one.is_fault]
    assert cut.kind == "CUT"
    assert said in cut.sentence
    assert "are switched off" not in cut.sentence
    assert len(cut.names) == (2 if make is detached else 4)
    del kept


def test_copies_are_told_together():
    with nbinspect.graphwatch() as w:
        model = mlp()
        weights = {k: v.detach().clone().requires_grad_() for k, v in model.named_parameters()}
        loss = torch.func.functional_call(model, weights, (torch.randn(3, 8),)).mean()
    (copies,) = w.report.findings
    assert copies.kind == "LEAF_IS_COPY"
    assert "4 leaves are copies of parameters, such as `weights['0.weight']`" in copies.sentence
    del loss


def test_what_an_optimizer_trains_along_and_is_not_reached():
    backbone, head = mlp(), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
    with torch.no_grad():
        features = backbone(torch.randn(3, 8))
    loss = head(features).sum()
    (found,) = nbinspect.autograd(loss).findings
    assert (found.kind, found.is_fault) == ("UNREACHED", True)
    assert "`backbone.*`" in found.sentence
    assert "also trains what is reached" in found.sentence
    del optimizer


def test_layers_in_a_plain_list_are_trained_by_nobody():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(4, 4) for _ in range(2)]
            self.out = nn.Linear(4, 1)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).relu()
            return self.out(x)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.randn(3, 4)).sum()
    (found,) = [one for one in nbinspect.autograd(loss).findings if one.is_fault]
    assert found.kind == "UNTRAINED"
    assert len(found.names) == 4
    assert "ModuleList" in found.sentence
    del optimizer


def test_a_trained_copy_and_an_untrained_original_are_worth_knowing():
    model = mlp()
    clone = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = clone(torch.randn(3, 8)).mean()
    (found,) = nbinspect.autograd(loss).findings
    assert (found.kind, found.is_fault) == ("UNTRAINED", False)
    assert "`clone.*`" in found.sentence
    del optimizer


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
def test_a_new_tensor_of_old_numbers_is_told():
    model = mlp(1)
    values = [model(torch.randn(8)) for _ in range(3)]
    loss = torch.tensor(values, requires_grad=True).mean()
    (found,) = nbinspect.autograd(loss).findings
    assert found.kind == "UNREACHED"
    assert "reaches no parameter" in found.sentence
    assert "`torch.stack`" in found.sentence


def summed(n_steps=3, *, detach=False):
    model, total = mlp(), torch.zeros(())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(n_steps):
        loss = model(torch.randn(3, 8)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = total + (loss.detach() if detach else loss)
    return total, model, optimizer


def test_losses_added_up_over_steps_are_told():
    total, model, optimizer = summed()
    found = nbinspect.autograd(total).findings
    assert found[0].kind == "JOINED"
    assert "`total` adds up 3 graphs" in found[0].sentence
    total, *_ = summed(detach=True)
    assert "JOINED" not in [one.kind for one in nbinspect.autograd(total).findings]
    del model, optimizer


def test_a_hidden_state_is_named_though_the_loss_does_not_use_it():
    rnn, head = nn.GRU(4, 8), nn.Linear(8, 1)
    hidden = torch.zeros(1, 2, 8)
    for step in range(2):
        out, hidden = rnn(torch.randn(5, 2, 4), hidden)
        loss = head(out).mean()
        if step == 0:
            loss.backward()
    found = nbinspect.autograd(loss).findings[0]
    assert found.kind == "JOINED"
    assert found.code == "hidden = hidden.detach()"


def shared_backbone():
    body, one, other = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(
        [*body.parameters(), *one.parameters(), *other.parameters()], lr=0.1
    )
    hidden = body(torch.randn(3, 4))
    return one(hidden).mean() + other(hidden).mean(), body, one, other, optimizer


def adapters():
    base = mlp().requires_grad_(False)
    a = nn.Parameter(torch.randn(8, 2))
    b = nn.Parameter(torch.zeros(2, 4))
    optimizer = torch.optim.Adam([a, b])
    x = torch.randn(3, 8)
    return (base(x) + x @ a @ b).square().mean(), base, optimizer


def distilled():
    student, teacher = mlp(), mlp()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    x = torch.randn(3, 8)
    with torch.no_grad():
        target = teacher(x)
    return functional.mse_loss(student(x), target), student, teacher, optimizer


def hard_choice():
    model, decoder = mlp(), nn.Linear(4, 1)
    return decoder(functional.gumbel_softmax(model(torch.randn(3, 8)), hard=True)).sum(), model


def adversary():
    generator, critic = mlp(8), mlp(1)
    first = torch.optim.Adam(generator.parameters())
    second = torch.optim.Adam(critic.parameters())
    return -critic(generator(torch.randn(3, 8))).mean(), generator, critic, first, second


def policy():
    actor, critic = mlp(3), mlp(1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()])
    state, reward = torch.randn(5, 8), torch.randn(5)
    choice = torch.distributions.Categorical(logits=actor(state))
    value = critic(state).squeeze(-1)
    gain = reward - value.detach()
    loss = -(choice.log_prob(choice.sample()) * gain).mean() + (value - reward).square().mean()
    return loss, actor, critic, optimizer


@pytest.mark.parametrize(
    "make", [shared_backbone, adapters, distilled, hard_choice, adversary, policy]
)
def test_what_is_meant_is_no_fault(make):
    with nbinspect.graphwatch() as w:
        kept = make()
    assert [one for one in w.report.findings if one.is_fault] == []
    assert [one for one in nbinspect.autograd(kept[0]).findings if one.is_fault] == []


@pytest.mark.parametrize("where", ["_note", "so_far", "_take"])
def test_an_error_of_ours_is_a_note(monkeypatch, where):
    from nbinspect.autograd_graph.recorder import Recorder

    monkeypatch.setattr(Recorder, where, lambda *_: 1 / 0)
    model = mlp(1)
    with nbinspect.graphwatch() as w:
        loss = model(torch.randn(3, 8)).mean()
        loss.backward()
    assert model[0].weight.grad is not None
    assert any("ZeroDivisionError" in note for note in w.report.notes)
    assert "error of nbinspect's own" in w.report.text()


def test_an_error_of_ours_does_not_hide_the_users(monkeypatch):
    from nbinspect.autograd_graph.recorder import Recorder

    def fail():
        torch.ones(3).sum()
        raise ValueError("mine")

    monkeypatch.setattr(Recorder, "_note", lambda *_: 1 / 0)
    with pytest.raises(ValueError, match="mine"), nbinspect.graphwatch():
        fail()


def test_what_a_hook_packed_is_named():
    model = mlp(1)
    loss = checkpoint(model, torch.randn(3, 8), use_reentrant=False).sum()
    (note,) = [one for one in nbinspect.autograd(loss).notes if "packed" in one]
    assert "those of AddmmBackward0 in model.0, ReluBackward0 in model.1" in note
