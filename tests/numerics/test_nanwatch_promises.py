"""Whole trainings are the same under the watch, and nothing is left of it."""

from __future__ import annotations

import builtins
import gc
import importlib
import io
import random
import signal
import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from nbinspect import NonFiniteError, nanwatch
from nbinspect.numerics.undisturbed import undisturbed

NAN = float("nan")


class Run:
    """One training: its model, what it draws, and the losses it saw."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.losses: list[bytes] = []

    def note(self, loss: torch.Tensor) -> None:
        self.losses.append(loss.detach().numpy().tobytes())

    def bits(self, *modules: nn.Module) -> list[object]:
        """Give all that a training leaves behind, bit by bit."""
        kept = [*self.losses, bytes(torch.get_rng_state().numpy()), random.getstate()]
        kept.append(repr(np.random.get_state()))
        for module in modules:
            for value in (*module.parameters(), *module.buffers()):
                kept.append(value.detach().numpy().tobytes())
                kept.append(None if value.grad is None else value.grad.numpy().tobytes())
        return kept


def mlp(n_bad: int) -> list[object]:
    run = Run()
    model = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for i in range(6):
        x = torch.randn(16, 4) + random.random() + float(np.random.rand())
        loss = (model(x) / float(i != n_bad)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.note(loss)
    return run.bits(model)


def transformer(n_bad: int) -> list[object]:
    run = Run()
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    for i in range(3):
        closed = torch.zeros(2, 5, dtype=torch.bool)
        closed[1, 3:] = True
        if i == n_bad:
            closed[1] = True
        out = model(torch.randn(2, 5, 8), mask=mask, src_key_padding_mask=closed.float() * -1e38)
        loss = (out.sqrt() if i == n_bad else out).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        run.note(loss)
    return run.bits(model)


def scaled(n_bad: int) -> list[object]:
    run = Run()
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, backoff_factor=2.0**-8)
    for i in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            out = model(torch.randn(8, 4))
        loss = (out.float() - (NAN if i == n_bad else 20)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        run.note(loss)
        run.losses.append(scaler.get_scale())
    return run.bits(model)


def accumulated(n_bad: int) -> list[object]:
    run = Run()
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for i in range(3):
        optimizer.zero_grad()
        for j in range(3):
            loss = model(torch.randn(8, 4)).square().mean() / 3
            if i == n_bad and j == 1:
                loss = loss + (loss * 0).sqrt()
            loss.backward()
            run.note(loss)
        optimizer.step()
    return run.bits(model)


def checkpointed(n_bad: int) -> list[object]:
    run = Run()
    first, second = nn.Linear(4, 8), nn.Sequential(nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-2)
    for i in range(4):
        hidden = first(torch.randn(8, 4))
        out = checkpoint(second, hidden, use_reentrant=i % 2 == 0)
        loss = (out * (0.0 if i == n_bad else 1.0)).square().sum().sqrt()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.note(loss)
    return run.bits(first, second)


def closures(n_bad: int) -> list[object]:
    run = Run()
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x, y = torch.randn(16, 4), torch.randn(16, 1)
    for i in range(3):

        def closure(i: int = i) -> torch.Tensor:
            optimizer.zero_grad()
            noise = 0.01 * torch.randn(16, 1)
            loss = F.mse_loss(model(x) + noise, y) / float(i != n_bad)
            loss.backward()
            run.note(loss)
            return loss

        optimizer.step(closure)
    return run.bits(model)


def rivals(n_bad: int) -> list[object]:
    run = Run()
    generator, critic = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))
    ours = torch.optim.Adam(generator.parameters(), lr=1e-2)
    theirs = torch.optim.Adam(critic.parameters(), lr=1e-2)
    for i in range(4):
        fake = generator(torch.randn(8, 2))
        theirs.zero_grad()
        (critic(fake.detach()).mean() - critic(torch.randn(8, 2)).mean()).backward()
        theirs.step()
        ours.zero_grad()
        loss = -critic(fake).mean() / float(i != n_bad)
        loss.backward()
        ours.step()
        run.note(loss)
    return run.bits(generator, critic)


def table(n_bad: int) -> list[object]:
    run = Run()
    model = nn.EmbeddingBag(10, 4, sparse=True, mode="sum")
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-2)
    for i in range(4):
        loss = model(torch.randint(10, (3, 2))).square().mean() / float(i != n_bad)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.note(loss)
    values = [model.weight.detach().numpy().tobytes(), *run.losses]
    return [*values, bytes(torch.get_rng_state().numpy())]


TRAININGS = [mlp, transformer, scaled, accumulated, checkpointed, closures, rivals, table]


@pytest.mark.parametrize("training", TRAININGS, ids=lambda one: one.__name__)
@pytest.mark.filterwarnings("ignore")
def test_a_training_is_the_same(training: Callable[[int], list[object]]) -> None:
    for n_bad in (-1, 2):
        plain = training(n_bad)
        assert plain == training(n_bad), "differs from run to run"
        for light in (False, True):
            with nanwatch(stop=False, light=light) as watch:
                watched = training(n_bad)
            assert watched == plain, (light, n_bad)
            assert watch.report.healthy == (n_bad < 0), (light, n_bad)
            assert watch.report.error == ""
            if light and n_bad >= 0:
                assert watch.report.replayed
                assert "same loss, bit by bit" in watch.report.replay
                assert watch.report.findings[0].op != "unknown"


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
def test_generators_are_as_after_a_step_that_was_stopped(light: bool) -> None:
    """The cell ends before the write: all else is as it would be there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def until_backward(stopped: bool) -> list[bytes]:
        torch.manual_seed(1)
        model[1].reset_running_stats()
        optimizer.zero_grad()
        (model(torch.randn(4, 3)) / 0).sum().backward()
        if not stopped:
            return state()
        optimizer.step()
        raise AssertionError

    def state() -> list[bytes]:
        values = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
        kept = [one.detach().numpy().tobytes() for one in values]
        return [*kept, bytes(torch.get_rng_state().numpy())]

    plain = until_backward(stopped=False)
    with pytest.raises(NonFiniteError), nanwatch(light=light):
        until_backward(stopped=True)
    assert state() == plain


# Nothing is left behind. What modes, hooks and patched functions there are is compared by the
# fixture that every test has; here is what it does not know.


def places() -> list[object]:
    scaler = torch.amp.GradScaler
    return [
        torch.autograd.backward,
        torch.autograd.grad,
        vars(scaler)["scale"],
        vars(scaler)["step"],
        builtins.open,
        builtins.input,
        builtins.next,
        io.open,
    ]


class OwnError(BaseException):
    pass


def failing(error: type[BaseException], where: str) -> Callable[[], None]:
    """Give a step that is bad, and raises the second time it is there, so in the replay."""
    w = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([w], lr=0.1)
    n_calls = []

    def maybe(here: str) -> None:
        n_calls.append(here)
        if here == where and n_calls.count(here) == 2:
            raise error

    def step() -> None:
        maybe("forward")
        loss = w.sqrt().sum()
        loss.register_hook(lambda grad: maybe("backward"))
        loss.backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OwnError, SystemExit])
def test_an_error_in_a_replay_leaves_nothing_behind(error, where) -> None:
    before = places()
    step = failing(error, where)
    watch = nanwatch(light=True, stop=False)
    if issubclass(error, Exception):
        with watch:
            step()
        assert "failed there: ValueError" in watch.report.replay
        assert watch.report.findings[0].reaches
    else:
        with pytest.raises(error), watch:
            step()
        assert watch.report.error == error.__name__
    assert places() == before


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OwnError])
def test_an_error_of_the_users_leaves_nothing_behind(error, light) -> None:
    before = places()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        raise error

    def hook(_grad) -> None:
        raise error

    def in_backward() -> None:
        loss = model(torch.ones(1, 2)).sum()
        loss.register_hook(hook)
        loss.backward()

    for body in (closure, in_backward, lambda: optimizer.step(closure)):
        caught = None
        with pytest.raises(error) as info, nanwatch(light=light, stop=False) as watch:
            body()
        caught = info.value
        assert type(caught) is error
        assert watch.report.error == error.__name__
        assert watch.report.healthy
    assert places() == before
    model.zero_grad()


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("outer", [False, True])
def test_watches_within_watches(outer, inner) -> None:
    before = places()
    w = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([w], lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        w.sqrt().sum().backward()
        optimizer.step()

    with nanwatch(light=outer, stop=False) as around:
        with nanwatch(light=inner, stop=False) as within:
            step()
        assert places() != before
    assert places() == before
    for watch in (around, within):
        assert watch.report.findings[0].op == "aten.div"
        assert len(watch.report.findings) == 1

    with torch.no_grad():
        w.zero_()
    with pytest.raises(NonFiniteError), nanwatch(light=outer), nanwatch(light=inner):
        step()
    assert places() == before


def test_a_function_that_somebody_else_wraps_meanwhile_stays_wrapped() -> None:
    original = torch.autograd.backward
    try:
        with nanwatch(stop=False):
            ours = torch.autograd.backward

            def theirs(*args, **kwargs):
                return ours(*args, **kwargs)

            torch.autograd.backward = theirs
        assert torch.autograd.backward is theirs
        nn.Parameter(torch.ones(1)).sum().backward()
    finally:
        torch.autograd.backward = original


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
@pytest.mark.parametrize("stop", [False, True])
def test_keeps_nothing_alive(light, stop) -> None:
    class Model(nn.Linear):
        pass

    def run() -> list[weakref.ref]:
        model = Model(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(2, 2)
        try:
            with nanwatch(light=light, stop=stop) as watch:
                hidden = model(x)
                loss = (hidden / 0).sum()
                loss.backward()
                optimizer.step()
        except NonFiniteError as error:
            error.__traceback__ = None
        reports.append(watch.report)
        watches.append(watch)
        watched = [model, optimizer, x, hidden, loss, model.weight, model.weight.grad]
        return [weakref.ref(one) for one in watched]

    reports, watches = [], []
    run()  # torch's own caches
    gc.collect()
    gc.disable()
    try:
        refs = run()
        assert [ref for ref in refs if ref() is not None] == []
    finally:
        gc.enable()
    assert not reports[1].healthy


def test_a_watch_of_another_thread_is_its_own() -> None:
    w = nn.Parameter(torch.zeros(2))
    reports = []

    def other() -> None:
        with nanwatch(stop=False) as watch:
            (nn.Parameter(torch.ones(2)) * 2).sum().backward()
        reports.append(watch.report)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    with nanwatch(stop=False) as watch:
        w.sqrt().sum().backward()
    assert reports[0].healthy
    assert not watch.report.healthy


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Handle interrupts as Python does; a process in the background ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_while_tensors_are_looked_at() -> None:
    done = []

    def interrupted() -> None:
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
            done.append(torch.is_grad_enabled())

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == [False]
    assert torch.is_grad_enabled()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("where", ["Flow._note_forward", "Findings.bad", "Findings.note_loss"])
@pytest.mark.parametrize("light", [False, True])
def test_a_mistake_of_our_own_does_not_end_the_users_loop(monkeypatch, where, light):
    owner, name = where.split(".")
    modules = {"Flow": "flow", "Findings": "finding"}
    module = importlib.import_module(f"nbinspect.numerics.{modules[owner]}")

    def broken(*_args, **_kwargs):
        raise LookupError("a mistake of ours")

    monkeypatch.setattr(getattr(module, owner), name, broken)
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with nanwatch(light=light) as watch:
        for _ in range(3):
            optimizer.zero_grad()
            (weight * weight).sum().backward()
            optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((3,), 0.8**3))
    failed = [note for note in watch.report.notes if "a mistake of ours" in note]
    assert bool(failed) == (where != "Flow._note_forward" or not light)


def test_nodes_that_run_unwatched_are_left_as_they_were() -> None:
    """The formulas that torch takes another way through under a mode are looked at by hooks."""
    w = nn.Parameter(torch.tensor([2.0, 3.0, -0.0]))
    with nanwatch(stop=False) as watch:
        product = w.prod()
        product.backward(torch.tensor(-1.0), retain_graph=True)
        again = w.cumprod(0).sum()
        again.backward(retain_graph=True)
    seen = watch.report.n_ops
    w.grad = None
    product.backward(torch.tensor(-1.0))
    torch.testing.assert_close(w.grad, torch.tensor([0.0, 0.0, -6.0]))
    assert watch.report.n_ops == seen
