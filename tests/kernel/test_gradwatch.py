"""`%%gradwatch` and `%gradtable` in a real kernel."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import pytest
from kerneldriver import Kernel, start_with_toys

HOOKS = """
from torch.optim import optimizer as _o
from torch.nn.modules import module as _m
def hooks():
    dicts = [*vars(_o).values(), *vars(_m).values()]
    count = sum(len(d) for d in dicts if isinstance(d, dict) and "hook" in str(type(d)).lower())
    own = [p._post_accumulate_grad_hooks for p in model.parameters()] if "model" in globals() else []
    names = [n for n in [*vars(_o), *vars(_m)] if n.startswith("_global_")]
    globals_ = [len(getattr(_o, n, None) or getattr(_m, n, None) or ()) for n in names]
    return globals_, own, torch.amp.GradScaler.step.__qualname__
"""
TRAIN = """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
losses = []
for _ in range(6):
    optimizer.zero_grad()
    loss = model(torch.randn(32, 8)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
outcome = losses, [p.sum().item() for p in model.parameters()], torch.rand(3).tolist()
"""


@pytest.fixture(scope="module")
def torch_kernel() -> Iterator[Kernel]:
    kernel = start_with_toys()
    kernel.ok("import torch\ntorch.set_num_threads(1)\n" + HOOKS)
    # torch's compiler starts a thread and wraps methods at its first use, for good.
    kernel.ok("torch.compile(torch.nn.Linear(2, 2), backend='aot_eager')(torch.ones(1, 2)).sum()")
    kernel.ok(f"%%gradwatch\n{TRAIN}")  # ipywidgets registers events at its first widget
    yield kernel
    kernel.stop()


def traces(kernel: Kernel) -> dict[str, Any]:
    found: dict[str, Any] = plain(kernel, "{**toys.traces(), 'hooks': (hooks()[0], hooks()[2])}")
    return found


@pytest.fixture
def kernel(torch_kernel: Kernel) -> Iterator[Kernel]:
    before = traces(torch_kernel)
    yield torch_kernel
    after = traces(torch_kernel)
    assert {key: (before[key], after[key]) for key in before if before[key] != after[key]} == {}
    assert set(plain(torch_kernel, "hooks()[1]")) <= {None}


def plain(kernel: Kernel, expression: str) -> Any:
    return ast.literal_eval(kernel.value(expression))


def test_a_watched_cell_is_the_same_and_its_report_is_kept(kernel: Kernel) -> None:
    kernel.ok(TRAIN)
    expected = kernel.value("outcome")
    shown = kernel.ok(f"%%gradwatch -o report\n{TRAIN}")
    assert kernel.value("outcome") == expected
    assert any("application/vnd.jupyter.widget-view+json" in data for data in shown.data)
    assert plain(kernel, "report.text()").startswith("Gradients look healthy in all 6 steps.")
    assert plain(kernel, "[s.loss for s in report.steps] == losses")
    assert plain(kernel, "report.parameters[0].name") == "model.0.weight"


def test_a_loop_in_a_function_and_one_that_fails(kernel: Kernel) -> None:
    body = TRAIN.replace("\n", "\n    ")
    failed = kernel.run(f"%%gradwatch -o report\ndef train():\n    {body}\n    1 / 0\ntrain()")
    assert failed.status == "error"
    assert "ZeroDivisionError" in failed.error
    assert plain(kernel, "report.error, report.n_steps") == ("ZeroDivisionError", 6)


def test_options(kernel: Kernel) -> None:
    kernel.ok(f"%%gradwatch --every 2 --hist 1 --range 1e-4 1e4 --model model -o r ;\n{TRAIN}")
    assert plain(kernel, "[s.index for s in r.steps]") == [0, 2, 4]
    assert plain(kernel, "r.rules.low, r.rules.high") == (1e-4, 1e4)
    assert plain(kernel, "bool(r.packed[0].exponents)") is True


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--range 2 1", "--range takes a smaller and a larger number"),
        ("--range 0 1", "--range takes numbers above 0, not 0"),
        ("--every 0", "--every takes a whole number from 1 up, not 0"),
        ("--against 3x", "--against takes the name of a variable, not 3x"),
        ("--against ran", "--against takes the name of a record of %%gradwatch, not ran"),
    ],
)
def test_a_bad_line_runs_nothing(kernel: Kernel, line: str, message: str) -> None:
    kernel.ok("ran = False")
    reply = kernel.run(f"%%gradwatch {line}\nran = True")
    assert reply.status == "error"
    assert message in reply.error
    assert plain(kernel, "ran") is False


def test_gradtable(kernel: Kernel) -> None:
    kernel.ok(TRAIN)
    shown = kernel.ok("t = %gradtable model")
    assert "4 of 4 parameters have a gradient" in shown.data[0]["text/plain"]
    norms = plain(kernel, "(t['model.2.bias'].grad_norm, model[2].bias.grad.norm().item())")
    assert norms[0] == pytest.approx(norms[1])
    assert "model.0.weight" in kernel.ok("%gradtable").data[0]["text/plain"]
    reply = kernel.run("%gradtable 3")
    assert "3 takes a torch.nn.Module, not int" in reply.error


def test_compiled_models_stay_compiled(kernel: Kernel) -> None:
    kernel.ok(TRAIN)
    kernel.ok(
        "compiled = torch.compile(model, backend='aot_eager')\n"
        "def step():\n"
        "    optimizer.zero_grad()\n"
        "    compiled(torch.ones(32, 8)).square().mean().backward()\n"
        "    optimizer.step()\n"
        "step()\n"
        "graphs = torch._dynamo.utils.counters['stats']['unique_graphs']"
    )
    kernel.ok("%%gradwatch -o report\nfor _ in range(3): step()")
    kernel.ok("step()")
    assert plain(kernel, "torch._dynamo.utils.counters['stats']['unique_graphs'] == graphs")
    assert plain(kernel, "report.parameters[0].name, report.notes") == ("model.0.weight", ())
    assert plain(kernel, "report.n_steps") == 3
