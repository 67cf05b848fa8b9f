"""Looking changes nothing: whatever is running, whoever else is at work, however large it is."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import nbinspect


class SeesOps(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class SeesFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def planted() -> Iterator[None]:
    """A sparse tensor, a graph and a model among the global names."""
    names = vars(sys.modules["__main__"])
    names["planted_model"] = torch.nn.Linear(10, 10)
    names["planted_loss"] = names["planted_model"](torch.ones(2, 10)).square().sum()
    names["planted_sparse"] = torch.eye(30).to_sparse()
    yield
    for name in ("planted_model", "planted_loss", "planted_sparse"):
        del names[name]


def held() -> dict[str, int]:
    holdings = nbinspect.gpumem().device("cpu").holdings
    return {f"{one.kind} {one.owner}": one.size_bytes for one in holdings if "planted" in one.owner}


SETTINGS: dict[str, Any] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "another default device": lambda: torch.device("meta"),
    "fake tensors": FakeTensorMode,
    "anomaly mode": lambda: torch.autograd.detect_anomaly(check_nan=False),
    "deterministic": nullcontext,
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_answer_is_the_same_under(setting: Any, planted: None) -> None:
    plainly = held()
    assert plainly["PARAMETER planted_model.weight"] == 400
    assert plainly["VARIABLE planted_sparse"] == 2 * 30 * 8 + 30 * 4
    manager: AbstractContextManager[Any]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # detect_anomaly says that it is slow
        manager = setting()
    with manager:
        assert held() == plainly


@pytest.mark.parametrize("mode", [SeesOps, SeesFunctions])
def test_modes_see_nothing_of_it(mode: Any, planted: None) -> None:
    plainly = held()
    with mode() as active:
        torch.ones(1)
        before = list(active.seen)
        assert held() == plainly
        assert active.seen == before != []


@pytest.mark.parametrize(
    "transform", [torch.func.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())]
)
def test_inside_functorch(transform: Any, planted: None) -> None:
    plainly, inside = held(), []

    def f(x: torch.Tensor) -> torch.Tensor:
        inside.append((held(), nbinspect.gpumem()))
        return x * 2

    transform(f)(torch.ones(6))
    for found, snapshot in inside:
        assert found == plainly
        assert snapshot.complete


def test_in_another_thread(planted: None) -> None:
    plainly, there = held(), []
    thread = threading.Thread(target=lambda: there.append(held()))
    thread.start()
    thread.join()
    assert there == [plainly]


def test_while_other_threads_change_everything(planted: None) -> None:
    plainly, stop = held(), threading.Event()

    def change() -> None:
        table: dict[int, Any] = {}
        rows: list[Any] = []
        number = 0
        while not stop.is_set():
            number += 1
            table[number % 500] = [torch.ones(3), {number: rows[-5:]}]
            table.pop((number * 7) % 500, None)
            rows.append(torch.ones(2))
            if len(rows) > 300:
                rows.clear()

    threads = [threading.Thread(target=change) for _ in range(2)]
    for one in threads:
        one.start()
    try:
        for _ in range(3):
            found = held()
            assert {name: found.get(name) for name in plainly} == plainly
    finally:
        stop.set()
        for one in threads:
            one.join()


def test_random_numbers_go_on_as_before(planted: None) -> None:
    states = (torch.get_rng_state(), random.getstate(), str(numpy.random.get_state()))
    nbinspect.gpumem()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), str(numpy.random.get_state())) == states[1:]


def test_it_warns_and_prints_nothing(planted: None, capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nbinspect.gpumem()
    assert capfd.readouterr() == ("", "")


def test_gradients_come_out_the_same(planted: None) -> None:
    def gradients(look: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
        )
        out = model(torch.ones(4, 8))
        if look:
            nbinspect.gpumem()
        out.sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    assert all(map(torch.equal, gradients(look=True), gradients(look=False)))


LARGE = {
    "a million containers": """
import nbinspect, torch
heap = [{n: []} for n in range(500_000)]
kept = torch.ones(10)
snapshot = nbinspect.gpumem()
assert snapshot.complete
assert [(one.kind, one.owner) for one in snapshot.devices[-1].holdings] == [("VARIABLE", "kept")]
""",
    "a graph of 100,000 nodes": """
import nbinspect, torch
x = torch.ones(2, requires_grad=True)
y = x
for _ in range(100_000):
    y = y + 1
first, second = nbinspect.gpumem(), nbinspect.gpumem()
assert not first.complete
assert first.devices[-1].holdings == second.devices[-1].holdings
assert "larger than can be walked" in str(first.devices[-1].notes)
y.sum().backward()
del y
assert nbinspect.gpumem().complete
""",
    "a wide graph of 60,000 nodes": """
import nbinspect, torch
x = torch.ones(1, requires_grad=True)
y = torch.stack([x + n for n in range(60_000)])
assert not nbinspect.gpumem().complete
del y
""",
    "a deep list": """
import nbinspect, torch
deep = torch.ones(10)
for _ in range(5_000):
    deep = [deep]
(holding,) = nbinspect.gpumem().devices[-1].holdings
assert holding.kind == "VARIABLE" and holding.owner.startswith("deep[0][0]")
assert len(holding.owner) < 500
nbinspect.gpumem().text()
""",
}


@pytest.mark.parametrize("code", LARGE.values(), ids=LARGE.keys())
def test_large_heaps_and_graphs_do_not_crash(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
