"""A watched loop is the same loop, bit for bit, and nothing of it is kept or left behind."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest
import torch
from loops import MODELS, OPTIMIZERS, mlp, squares, train
from torch import nn

from nbinspect import gradwatch

pytestmark = pytest.mark.usefixtures("either_kernels")


def outcome(name, make, watch):
    """Train, watched or not, and give everything that could differ."""
    torch.manual_seed(7)
    model, batch = MODELS[name]()
    optimizer = make(model.parameters())
    with watch:
        losses = train(model, optimizer, 4, batch=batch, clip=0.1)
    state = [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    grads = [p.grad for p in model.parameters()]
    kept = [*model.parameters(), *model.buffers(), *grads, *state, torch.get_rng_state()]
    return losses, [t.detach().clone() for t in kept]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_results_are_the_same_bit_for_bit(name, optimizer):
    from contextlib import nullcontext

    plain = outcome(name, OPTIMIZERS[optimizer], nullcontext())
    watched = outcome(name, OPTIMIZERS[optimizer], gradwatch(hist=1))
    assert plain[0] == watched[0]
    assert all(map(torch.equal, plain[1], watched[1]))


def test_hooks_are_gone_and_leave_no_dictionary():
    model = mlp()
    mine = model[0].weight.register_post_accumulate_grad_hook(lambda _: None)
    with gradwatch():
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    hooks = [p._post_accumulate_grad_hooks for p in model.parameters()]
    assert len(hooks[0]) == 1
    assert hooks[1:] == [None] * 5
    single = nn.Linear(16, 1, bias=False)
    with gradwatch():
        train(single, torch.optim.SGD(single.parameters(), lr=0.1), 3)
    assert single.weight._backward_hooks is None
    mine.remove()


class Lost(Exception):
    pass


def fail(*_):
    raise Lost


def failing(where):
    """Train for a step, then fail somewhere."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 1)
    hidden = model(torch.randn(8, 16))
    if where == "forward":
        fail()
    if where == "backward":
        hidden.register_hook(fail)
    if where == "step":
        optimizer.register_step_post_hook(fail)
    if where == "closure":
        optimizer.step(fail)
    hidden.square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("where", ["forward", "backward", "step", "closure"])
def test_an_error_goes_through_and_leaves_nothing(where):
    watch = gradwatch()
    with pytest.raises(Lost), watch:
        failing(where)
    assert watch.report.error == "Lost"
    assert watch.report.steps[0].grad_norm > 0
    assert not any("own" in note for note in watch.report.notes)


def interrupted():
    model = mlp()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    raise KeyboardInterrupt


def test_an_interrupt_goes_through():
    watch = gradwatch()
    with pytest.raises(KeyboardInterrupt), watch:
        interrupted()
    assert len(watch.report.steps) == 2
    assert watch.report.error == "KeyboardInterrupt"


def test_the_watched_model_dies_when_the_user_lets_go():
    with gradwatch() as w:
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        train(model, optimizer, 2)
        refs = [weakref.ref(model[0]), weakref.ref(model[0].weight), weakref.ref(optimizer)]
        del model, optimizer
        gc.collect()
        assert [ref() for ref in refs] == [None] * 3
        other = mlp()
        train(other, torch.optim.Adam(other.parameters()), 2)
    assert len(w.report.steps) == 4


def test_copies_are_let_go_with_the_watch():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, 1)
    n_before = sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())
    watch = gradwatch()
    with watch:
        train(model, optimizer, 3)
    gc.collect()
    assert sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()) == n_before
    assert watch.report.steps


def test_an_error_of_ours_is_a_note(monkeypatch):
    from nbinspect.gradients import measure

    monkeypatch.setattr(measure, "nonzeros", lambda *_: 1 / 0)
    model = mlp()
    with gradwatch() as w:
        losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    assert len(losses) == 3
    assert "an error of nbinspect's own: ZeroDivisionError" in w.report.notes[0]
    assert "No backward pass" in w.report.text() or "None of" in w.report.text()


def test_an_error_in_the_rules_is_a_note(monkeypatch):
    from nbinspect.gradients.rules import Health

    monkeypatch.setattr(Health, "step", lambda *_: 1 / 0)
    model = mlp()
    with gradwatch() as w:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 40)
    assert "an error of nbinspect's own: ZeroDivisionError" in w.report.notes[0]
    assert w.report.findings == ()


@pytest.mark.parametrize(
    ("kept_in", "error", "dtype"),
    [
        (("samples", "room"), torch.OutOfMemoryError, torch.bfloat16),
        (("near", "Room"), MemoryError, torch.float32),
    ],
    ids=["of_a_device", "of_the_host"],
)
def test_where_there_is_no_room_for_copies_the_rest_goes_on(monkeypatch, kept_in, error, dtype):
    def full(*_, **__):
        raise error("no room")

    module, name = kept_in
    monkeypatch.setattr(f"nbinspect.gradients.{module}.{name}", full)
    model = nn.Sequential(nn.Linear(16, 300), nn.Linear(300, 1)).to(dtype)
    with gradwatch() as w:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer, 4, batch=lambda: torch.randn(64, 16, dtype=dtype))
    assert w.report.notes == ("From step 0 on no updates and cosines: no room for copies.",)
    assert w.report.steps[-1].grad_norm > 0
    assert w.report.steps[-1].parameters[0].update_ratio is None


def test_threads_that_train_at_once(monkeypatch):
    interval = sys.getswitchinterval()
    models = [mlp() for _ in range(4)]

    def work(model):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 10)

    sys.setswitchinterval(1e-5)  # so that they meet in each of our methods
    try:
        with gradwatch() as w:
            threads = [threading.Thread(target=work, args=(model,)) for model in models]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                assert w.report.n_steps >= 0  # a report is had at any time
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert w.report.notes == ()
    assert 10 <= w.report.n_steps <= 40  # writes of several threads may meet in one step


def test_watches_nest():
    model = mlp()
    with gradwatch() as outer, gradwatch(light=True) as inner:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    assert [s.grad_norm for s in outer.report.steps] == [s.grad_norm for s in inner.report.steps]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_watches_that_close_in_any_order_leave_no_wrapper(order):
    original, watches = torch.amp.GradScaler.step, [gradwatch() for _ in range(3)]
    for one in watches:
        one.__enter__()
    for at in order:
        watches[at].__exit__(None, None, None)
    assert torch.amp.GradScaler.step is original


def test_odd_modules_and_tensors():
    class Odd(nn.Module):
        def named_parameters(self, *args, **kwargs):
            raise RuntimeError("no list today")

        def __getattr__(self, name):
            if name == "to_local":
                raise RuntimeError("no")
            return super().__getattr__(name)

    odd = Odd()
    odd.weight = nn.Parameter(torch.ones(3))
    empty = nn.Parameter(torch.ones(0))
    meta = nn.Parameter(torch.ones(3, device="meta"))
    scalar = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([odd.weight, empty, meta, scalar], lr=0.1)
    name = "<script>alert(1)</script>"
    models = {name: mlp()}
    with gradwatch() as w:
        for _ in range(2):
            (
                odd.weight.sum() * scalar + empty.sum() + squares(models[name], torch.randn(2, 16))
            ).backward()
            meta.grad = torch.ones(3, device="meta")
            optimizer.step()
    assert w.report.notes == ()
    assert "<script>" not in w.report.html()
    assert w.report.steps[0].grad_norm > 0
