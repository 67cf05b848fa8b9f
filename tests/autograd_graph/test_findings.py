"""What is said of graphs with a planted fault, and of the same graphs without it."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import nbinspect


class Model(nn.Module):
    """An encoder and a decoder; what is between them differs."""

    def __init__(self, between=None):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 1)
        self.between = between

    def forward(self, x):
        hidden = self.encoder(x)
        return self.decoder(self.between(hidden) if self.between else hidden)


def found(report, kind):
    return [one for one in report.findings if one.kind == kind]


def kinds(report):
    return {one.kind for one in report.findings if one.is_fault}


def no_grad_copy(h):
    with torch.no_grad():
        return h * 1


CUTS = {
    "detach": (lambda h: h.detach(), "h.detach()"),
    "data": (lambda h: h.data, "h.data"),
    "no_grad": (no_grad_copy, "torch.no_grad()"),
    "item": (lambda h: torch.ones(8, 4) * h.mean().item(), "h.mean().item()"),
    "item in a new tensor": (
        lambda h: torch.ones(8, 4) * torch.tensor([h.mean().item(), 3.5])[0],
        "h.mean().item()",
    ),
    "integers": (lambda h: h.long().float(), "h.long()"),
    "argmax": (lambda h: nn.functional.one_hot(h.argmax(1), 4).float(), "h.argmax(1)"),
    "the second output": (lambda h: h.max(1, keepdim=True)[1].expand(8, 4) * 1.0, "h.max("),
    "numpy": (lambda h: torch.from_numpy(h.detach().numpy()), "NumPy"),
}


@pytest.mark.parametrize("name", CUTS)
def test_where_a_path_is_cut(name):
    between, words = CUTS[name]
    model, x = Model(between), torch.randn(8, 4)
    with nbinspect.graphwatch() as w:
        loss = model(x).mean()
    for report in (w.report, nbinspect.autograd(loss)):
        (cut,) = found(report, "CUT")
        assert set(cut.names) == {"model.encoder.weight", "model.encoder.bias"}
        assert words in cut.sentence
        assert "test_findings.py" in cut.line.label
        assert kinds(report) == {"CUT"}


@pytest.mark.parametrize("name", ["detach", "data"])
def test_the_mend_is_the_users_line_without_the_cut(name):
    model, x = Model(), torch.randn(8, 4)
    with nbinspect.graphwatch() as w:
        hidden = model.encoder(x).detach() if name == "detach" else model.encoder(x)
        if name == "data":
            hidden = hidden.data
        loss = model.decoder(hidden).mean()
    (cut,) = found(w.report, "CUT")
    if name == "data":
        assert cut.code == f"# delete {cut.line.label}: hidden = hidden.data"
    else:
        assert ".detach()" not in cut.code.partition(" if ")[0]
        assert cut.code
    del loss


def test_a_whole_path_is_healthy():
    model, x = Model(), torch.randn(8, 4)
    with nbinspect.graphwatch() as w:
        loss = model(x).mean()
    assert kinds(w.report) == kinds(nbinspect.autograd(loss)) == set()


def test_unwatched_it_says_what_is_not_reached_and_how_to_learn_why():
    model, x = Model(lambda h: h.detach()), torch.randn(8, 4)
    (finding,) = found(nbinspect.autograd(model(x).mean()), "UNREACHED")
    assert set(finding.names) == {"model.encoder.weight", "model.encoder.bias"}
    assert finding.code == "%%graphwatch"
    assert "`model.encoder.*`" in finding.sentence


def test_a_parameter_that_no_operation_uses():
    model, x = Model(), torch.randn(8, 4)
    model.spare = nn.Parameter(torch.ones(3))
    with nbinspect.graphwatch() as w:
        loss = model(x).mean()
    (finding,) = found(w.report, "UNREACHED")
    assert finding.names == ("model.spare",)
    assert "No operation" in finding.sentence
    model.spare.requires_grad_(False)
    assert kinds(nbinspect.autograd(loss)) == set(), "frozen is no fault"


def test_another_model_in_the_same_cell_is_no_fault():
    model, other, x = Model(), Model(), torch.randn(8, 4)
    with nbinspect.graphwatch():
        loss = model(x).mean()
        more = other(x).mean()
    assert kinds(nbinspect.autograd(loss)) == kinds(nbinspect.autograd(more)) == set()


def test_a_tensor_without_a_graph():
    with torch.no_grad():
        loss = Model()(torch.randn(8, 4)).mean()
    report = nbinspect.autograd(loss)
    assert report.nodes == ()
    assert found(report, "UNREACHED")[0].code == "%%graphwatch"
    assert "has no graph" in report.text()


def changed_in_place(*, watched):
    watch = nbinspect.graphwatch()
    x = torch.randn(3, requires_grad=True)
    if watched:
        watch.__enter__()
    h = (x * 2).exp()
    y = h.sum()
    h += 1
    if watched:
        watch.__exit__(None, None, None)
    return h, y


@pytest.mark.parametrize("watched", [False, True])
def test_what_was_changed_in_place_after_it_was_saved(watched):
    h, y = changed_in_place(watched=watched)
    (finding,) = found(nbinspect.autograd(y), "MODIFIED")
    assert "`h` (3 float32)" in finding.sentence
    assert "`ExpBackward0`" in finding.sentence
    if watched:
        assert finding.line.text == "h += 1"
        assert finding.code == "h = h + 1"
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    del h


def test_in_place_before_and_beside_what_is_saved_is_healthy():
    x = torch.randn(3, requires_grad=True)
    h = (x * 2).add_(1)
    y = h.exp().sum()
    x.grad = torch.zeros(3)
    x.grad += 1
    assert kinds(nbinspect.autograd(y)) == set()
    y.backward()


def test_an_unpack_hook_never_runs():
    unpacked = []

    def unpack(t):
        unpacked.append(t)
        return t

    x = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), unpack):
        h = (x * 2).exp()
    y = h.sum()
    h += 1
    report = nbinspect.autograd(y)
    assert unpacked == []
    assert report.n_packed > 0
    assert any("hook" in note for note in report.notes)
    assert kinds(report) == set(), "not checked, so not said"


def train_step(cell, optimizer, x, hidden):
    hidden = cell(x, hidden)
    loss = hidden.mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return hidden, loss


@pytest.mark.parametrize("watched", [False, True])
def test_a_hidden_state_that_was_not_detached(watched):
    cell, x, hidden = nn.GRUCell(4, 4), torch.randn(8, 4), torch.zeros(8, 4)
    watch = nbinspect.graphwatch()
    if watched:
        watch.__enter__()
    hidden = cell(x, hidden)
    loss = hidden.mean()
    loss.backward()
    hidden = cell(x, hidden)
    loss = hidden.mean()
    if watched:
        watch.__exit__(None, None, None)
    (finding,) = found(nbinspect.autograd(loss), "JOINED")
    assert "earlier step" in finding.sentence
    assert "`hidden`" in finding.sentence
    assert finding.code == "hidden = hidden.detach()"
    if watched:
        assert finding.line.text == "hidden = cell(x, hidden)"
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_steps_joined_over_an_optimizer_step():
    layer, x = nn.Linear(4, 4), torch.randn(8, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with nbinspect.graphwatch():
        hidden = layer(x)
        hidden.mean().backward(retain_graph=True)
        optimizer.step()
        loss = layer(hidden).mean()
    (finding,) = found(nbinspect.autograd(loss), "JOINED")
    assert "`hidden`" in finding.sentence
    assert "optimizer" in finding.sentence


def test_detached_steps_unrolled_steps_and_two_losses_are_healthy():
    cell, x, hidden = nn.GRUCell(4, 4), torch.randn(8, 4), torch.zeros(8, 4)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    with nbinspect.graphwatch() as w:
        for _ in range(3):
            hidden, loss = train_step(cell, optimizer, x, hidden.detach())
        for _ in range(5):
            hidden = cell(x, hidden.detach() if _ == 0 else hidden)
        unrolled = hidden.mean()
    assert kinds(w.report) == set()
    assert kinds(nbinspect.autograd(unrolled)) == set()
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    stepped = torch.optim.SGD(critic.parameters(), lr=0.1)
    with nbinspect.graphwatch():
        fake = generator(x)
        critic(fake.detach()).mean().backward()
        stepped.step()
        verdict = critic(fake).mean()
    assert kinds(nbinspect.autograd(verdict)) == set(), "the critic has moved on, not the generator"
    del loss


def test_a_leaf_that_was_computed_under_no_grad():
    model, x = Model(), torch.randn(8, 4)
    with nbinspect.graphwatch():
        with torch.no_grad():
            hidden = model.encoder(x)
        hidden.requires_grad_()
        loss = model.decoder(hidden).mean()
    (finding,) = found(nbinspect.autograd(loss), "LEAF_MADE_WITHOUT_GRAD")
    assert finding.names == ("hidden",)
    assert finding.line.text == "hidden = model.encoder(x)"


def test_a_leaf_of_its_own_is_healthy():
    with nbinspect.graphwatch():
        with torch.no_grad():
            w = torch.randn(4, 4).mul_(2)
        w.requires_grad_()
        loss = (torch.randn(8, 4) @ w).mean()
        with torch.no_grad():
            w -= 0.1
    report = nbinspect.autograd(loss)
    assert not found(report, "LEAF_MADE_WITHOUT_GRAD")
    assert not found(report, "LEAF_IS_COPY")


@pytest.mark.parametrize("how", ["clone", "parameter", "data"])
def test_a_leaf_that_copies_a_parameter(how):
    layer, x = nn.Linear(4, 4), torch.randn(8, 4)
    with nbinspect.graphwatch():
        if how == "clone":
            w = layer.weight.detach().clone().requires_grad_()
        elif how == "parameter":
            w = nn.Parameter(layer.weight)
        else:
            w = layer.weight.data.clone().requires_grad_()
        loss = (x @ w.T).mean()
    (finding,) = found(nbinspect.autograd(loss), "LEAF_IS_COPY")
    assert finding.names == ("w", "layer.weight")
    assert "`layer.weight`" in finding.sentence


def test_parameters_used_more_than_once_are_told_and_no_fault():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
            self.head.weight = self.words.weight

        def forward(self, tokens):
            return self.head(self.words(tokens))

    tied = Tied()
    report = nbinspect.autograd(tied(torch.arange(5)).mean())
    (finding,) = found(report, "REUSED")
    assert not finding.is_fault
    assert "`tied.words.weight` (also called `tied.head.weight`)" in finding.sentence
    modules = {node.name: node.module for node in report.nodes if node.name != "AccumulateGrad"}
    assert modules["EmbeddingBackward0"] == "tied.words"
    assert modules["MmBackward0"] == "tied.head"
    once = nn.Linear(4, 4)
    assert not found(nbinspect.autograd(once(torch.randn(2, 4)).mean()), "REUSED")


def test_a_gradient_that_is_not_finite():
    w = torch.zeros(3, requires_grad=True)
    loss = w.sqrt().sum() * 0
    loss.backward()
    report = nbinspect.autograd(loss)
    (finding,) = found(report, "BAD_GRADIENT")
    assert finding.names == ("w",)
    assert [node.problem for node in report.nodes if node.leaf == "w"] == ["NaN in the gradient"]
    w.grad.fill_(1.0)
    assert not found(nbinspect.autograd(loss), "BAD_GRADIENT")


def test_a_reentrant_checkpoint_hides_its_inside_and_nothing_is_claimed():
    model, x = Model(), torch.randn(8, 4, requires_grad=True)
    with nbinspect.graphwatch() as w:
        hidden = torch.utils.checkpoint.checkpoint(model.encoder, x, use_reentrant=True)
        loss = model.decoder(hidden).mean()
    for report in (w.report, nbinspect.autograd(loss)):
        assert kinds(report) == set()
        assert any("reentrant" in note for note in report.notes)


@pytest.mark.parametrize("trained", ["both", "student", "apart"])
def test_a_model_that_is_cut_off_on_purpose_is_no_fault(trained):
    teacher, student, x = Model(), Model(), torch.randn(8, 4)
    parameters = [*student.parameters(), *(teacher.parameters() if trained == "both" else ())]
    optimizers = [torch.optim.SGD(parameters, lr=0.1)]
    if trained == "apart":
        optimizers.append(torch.optim.SGD(teacher.parameters(), lr=0.1))
    with nbinspect.graphwatch():
        with torch.no_grad():
            wanted = teacher(x)
        loss = (student(x) - wanted).square().mean()
    (cut,) = found(nbinspect.autograd(loss), "CUT")
    assert cut.is_fault == (trained == "both")
    assert ("may be meant" in cut.sentence) == (trained != "both")
    assert "torch.no_grad()" in cut.sentence
    assert len(optimizers) == 1 + (trained == "apart")


@pytest.mark.parametrize("watched", [True, False])
def test_nodes_that_a_nan_of_the_forward_went_through_are_marked(watched):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(spoil):
        hidden = model[0](torch.ones(2, 4))
        hidden = hidden * (math.nan if spoil else 1.0)
        mask = torch.tensor([[0.0, 0.0, 0.0, -math.inf]])
        return model[2](model[1](hidden)).mean() + (hidden + mask).softmax(-1).sum()

    for spoil in (True, False):
        with nbinspect.graphwatch() if watched else contextlib.nullcontext():
            loss = forward(spoil)
        report = nbinspect.autograd(loss)
        marked = {node.name: node.problem for node in report.nodes if node.problem}
        if spoil:
            assert marked["TanhBackward0"] == "NaN in what it saves (`result`)"
            assert "SoftmaxBackward0" in marked
            first = min(n.key for n in report.nodes if n.problem)
            assert report.nodes[first].module != "model.0", "before it, all is well"
        else:
            assert marked == {}
        assert not found(report, "BAD_GRADIENT")
        assert "NaN in what it saves" in report.html() or not spoil


def test_a_loss_from_before_the_optimizers_step_is_to_be_made_anew():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    old = model(torch.ones(5, 3)).sum()
    model(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    (finding,) = found(nbinspect.autograd(old), "MODIFIED")
    assert "An optimizer's step does that" in finding.sentence
    assert "Change a copy" not in finding.sentence
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        old.backward()


LEAVES = {
    "a weight": lambda model: model.encoder.weight,
    "a frozen weight": lambda model: model.encoder.bias.requires_grad_(False),
    "a buffer": lambda model: model.norm.running_mean,
    "an input": lambda model: torch.ones(2, 4, requires_grad=True),
}


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("name", LEAVES)
def test_a_leaf_was_computed_from_nothing_and_reaches_nothing(name, watched):
    with nbinspect.graphwatch() if watched else contextlib.nullcontext():
        model = Model()
        model.norm = nn.BatchNorm1d(4)
        leaf = LEAVES[name](model)
        loss = model(torch.ones(2, 4)).mean()
    report = nbinspect.autograd(leaf)
    assert kinds(report) == set()
    assert not any("does not reach" in one.sentence for one in report.findings)
    del loss


@pytest.mark.parametrize("spares", [1, 2])
def test_one_and_several_parameters_that_are_not_reached(spares):
    model = Model()
    for n in range(spares):
        setattr(model, f"spare{n}", nn.Parameter(torch.ones(3)))
    (finding,) = found(nbinspect.autograd(model(torch.ones(2, 4)).mean()), "UNREACHED")
    wanted = ("It gets no", "it was not used") if spares == 1 else ("They get no", "they were not")
    assert all(words in finding.sentence for words in wanted)


@pytest.mark.parametrize("bias", [True, False])
def test_one_and_several_parameters_that_are_cut_off_on_purpose(bias):
    teacher, student, x = nn.Linear(4, 1, bias=bias), Model(), torch.randn(8, 4)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    with nbinspect.graphwatch():
        loss = (student(x) - teacher(x).detach()).square().mean()
    (cut,) = found(nbinspect.autograd(loss), "CUT")
    assert f"trains {'them' if bias else 'it'}, so this may be meant" in cut.sentence
    del optimizer


def detached(h):
    h = h.detach()
    return h * 1


def by_data(h):
    h = h.data
    return h * 1


def by_lists(h):
    h = torch.tensor(h.tolist())
    return h * 1


def in_an_attribute(h):
    holder = nn.Module()
    holder.h = h
    holder.h = holder.h.detach()
    return holder.h


def made_a_leaf(h):
    h = h.detach().requires_grad_()
    return h * 1


@pytest.mark.parametrize("between", [detached, by_data, by_lists, in_an_attribute, made_a_leaf])
def test_a_line_that_only_cuts_is_to_be_deleted(between):
    model, x = Model(between), torch.randn(8, 4)
    with nbinspect.graphwatch() as w:
        loss = model(x).mean()
    cuts = [one for one in w.report.findings if one.is_fault]
    assert cuts
    for cut in cuts:
        assert cut.code == f"# delete {cut.line.label}: {cut.line.text}"
    del loss


def again(model, x):
    loss = model(x).mean()
    loss.backward()
    loss.backward()


def in_a_loop(model, x):
    loss = model(x).mean()
    for _ in range(3):
        loss.backward()


def a_part(model, x):
    hidden = model.encoder(x).exp()
    first, second = model.decoder(hidden).mean(), model.decoder(hidden).square().mean()
    first.backward()
    second.backward()


def after_one_that_keeps(model, x):
    loss = model(x).mean()
    loss.backward(retain_graph=True)
    loss.backward()
    model(x).mean().backward()
    loss.backward(retain_graph=True)


@pytest.mark.parametrize(
    ("step", "mend"),
    [
        (again, "loss.backward(retain_graph=True)"),
        (in_a_loop, "loss.backward(retain_graph=True)"),
        (a_part, "first.backward(retain_graph=True)"),
        (after_one_that_keeps, "loss.backward(retain_graph=True)"),
    ],
)
def test_a_second_backward_names_the_first(step, mend):
    model, x = Model(torch.tanh), torch.randn(8, 4)
    watch = nbinspect.graphwatch()
    with pytest.raises(RuntimeError, match="a second time"), watch:
        step(model, x)
    (finding,) = found(watch.report, "TWICE")
    assert finding.is_fault
    assert finding.code == mend
    first = mend.replace("retain_graph=True", "")
    assert finding.line.text == first
    assert f"`{first}` in {finding.line.label} went through this graph" in finding.sentence
    assert "Go backward once" in finding.sentence


def test_a_second_backward_whose_first_was_not_watched():
    loss = Model(torch.tanh)(torch.randn(8, 4)).mean()
    loss.backward()
    watch = nbinspect.graphwatch()
    with pytest.raises(RuntimeError, match="a second time"), watch:
        loss.backward()
    (finding,) = found(watch.report, "TWICE")
    assert finding.code == ""
    assert "A backward before `loss.backward()`" in finding.sentence


@pytest.mark.parametrize("keep", [True, False])
def test_backwards_that_raise_no_such_error_are_no_second_ones(keep):
    model, x = Model(torch.tanh), torch.randn(8, 4)
    watch = nbinspect.graphwatch()
    with contextlib.suppress(RuntimeError), watch:
        loss = model(x).mean()
        loss.backward(retain_graph=True)
        loss.backward()
        if not keep:
            raise RuntimeError("Trying to backward through the graph a second time")
    assert found(watch.report, "TWICE") == []
